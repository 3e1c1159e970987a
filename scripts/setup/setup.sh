#!/bin/sh
# Set the project up, or see in a moment that it is: `setup.sh` checks a stamp first, `setup.sh --full` doesn't.
#
# The stamp is a copy of everything that set-up depends on, so the check is one `cmp`: no hash, no Python code.
set -eu
cd "$(dirname "$0")/../.."

python=
for name in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$name" >/dev/null 2>&1 && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
    then
        python=$name
        break
    fi
done
if [ -z "$python" ]; then
    echo "tidemark needs Python 3.11 or later as python3: install one and run this again" >&2
    exit 1
fi

inputs() {
    # An environment belongs to one folder and one Python; which Java there is decides whether one is fetched.
    pwd
    "$python" -VV
    echo "java: ${JAVA_HOME:-} $(command -v java || true) home: ${TIDEMARK_HOME:-}"
    cat requirements.lock pyproject.toml include/tidemark/runtime/jars.lock scripts/setup/*
}

if [ "${1:-}" != --full ] && [ -x .venv/bin/tidemark ] && inputs | cmp -s - .tidemark/setup.stamp; then
    exit 0
fi
inputs | "$python" scripts/setup/setup.py install "$@"
