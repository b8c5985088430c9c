#!/usr/bin/env bash
# Sets up .venv if it is not there or out of date, then shows what the loader does, in about a minute:
# trains on eight devices, is killed, resumes on four with another batch size, and proves it.
#
#   bash scripts/demo.sh
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh "$@"

exec "$venv/bin/python" scripts/demo.py "${rest[@]}"
