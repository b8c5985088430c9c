#!/usr/bin/env bash
# Sets up .venv if it is not there or out of date, then runs ruff, pyright and pytest.
#
#   bash scripts/test.sh                  with the first Python of 3.11 to 3.13 found
#   bash scripts/test.sh --python 3.13    with that one, in .venv-3.13
#   bash scripts/test.sh -- -k order      arguments after -- go to pytest
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "$@"

"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
"$venv/bin/basedpyright" --pythonpath "$venv/bin/python"
# Most of the time goes to processes that start: several tests at once.
exec "$venv/bin/python" -m pytest -n auto --maxprocesses 4 --dist worksteal "${rest[@]}"
