# To be sourced: makes a virtual environment with the project in it, or finds it made.
# Takes `--python VERSION` and `-- REST`; sets $venv (its folder) and $rest (what is left over).

wanted="" rest=()
while [ $# -gt 0 ]; do
    case "$1" in
        --python) wanted="${2:?--python needs a version such as 3.13}"; shift 2 ;;
        --) shift; rest=("$@"); break ;;
        *) rest+=("$1"); shift ;;
    esac
done

find_python() {
    local version candidate
    for version in ${wanted:-3.11 3.12 3.13}; do
        # By name, then where pyenv keeps those that it does not put on the path.
        for candidate in "python$version" python3 \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/"$version"*/bin/python; do
            if "$candidate" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
                >/dev/null 2>&1; then
                echo "$candidate"
                return
            fi
        done
    done
    echo "no Python ${wanted:-3.11, 3.12 or 3.13} found: install one, or name one with --python" >&2
    return 1
}

venv=".venv${wanted:+-$wanted}"
stamp=$(cksum pyproject.toml)
if [ "$(cat "$venv/.stamp" 2>/dev/null)" != "$stamp" ]; then
    python=$(find_python)
    echo "setting up $venv with $("$python" --version)"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --editable '.[test]'
    echo "$stamp" >"$venv/.stamp"
fi
