#!/bin/sh
# Holds the sources to the rules: ruff's for Python (pyproject.toml), clang-format's for C (.clang-format).
#
#   sh tools/lint.sh [--fix] [FILE ...]     all of the checkout's when no file is named; --fix: lays them out
set -eu
cd -- "$(dirname -- "$0")/.."
bin=$(pwd)/.venv/bin
fix=
if [ "${1:-}" = --fix ]; then fix=yes; shift; fi

# The files that are named, or all; vendored ones and other people's are left alone.
python=$(printf '%s\n' "$@" | grep '\.py$' || true)
c=$(printf '%s\n' "$@" | grep '\.[ch]$' | grep -v /vendor/ || true)
if [ $# = 0 ]; then
    python=.
    c=$(find engine vmhost tests -name '*.[ch]' ! -path '*/vendor/*')
fi

failed=
lines() { printf '%s\n' "$1" | tr '\n' '\0'; }
if [ -n "$python" ]; then
    if [ -n "$fix" ]; then
        lines "$python" | xargs -0 "$bin/ruff" check --force-exclude --quiet --fix-only
        lines "$python" | xargs -0 "$bin/ruff" format --force-exclude --quiet
    fi
    lines "$python" | xargs -0 "$bin/ruff" check --force-exclude --quiet || failed=yes
    lines "$python" | xargs -0 "$bin/ruff" format --force-exclude --quiet --check || failed=yes
fi
if [ -n "$c" ]; then
    [ -z "$fix" ] || lines "$c" | xargs -0 "$bin/clang-format" -i
    # shellcheck disable=SC2016
    lines "$c" | xargs -0 -n 40 -P 2 "$bin/clang-format" --dry-run -Werror || failed=yes
fi
[ -z "$failed" ] || { echo "lint: the files above are not as the rules want them; \`make format\` lays them out" >&2; exit 1; }
