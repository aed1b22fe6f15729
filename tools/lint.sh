#!/bin/sh
# Checks the sources: ruff for Python and mypy for the public API's type hints (pyproject.toml), clang-format and
# clang-tidy for C (.clang-format, .clang-tidy).
#
#   sh tools/lint.sh [--fix] [FILE ...]     all files of the checkout if none is named; --fix: formats them
set -eu
cd -- "$(dirname -- "$0")/.."
bin=$(pwd)/.venv/bin
fix=
if [ "${1:-}" = --fix ]; then fix=yes; shift; fi

# The named files, or all; without vendored ones.
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
if [ "$python" = . ]; then "$bin/mypy" --no-error-summary || failed=yes; fi
if [ -n "$c" ]; then
    [ -z "$fix" ] || lines "$c" | xargs -0 "$bin/clang-format" -i
    # shellcheck disable=SC2016
    lines "$c" | xargs -0 -n 40 -P 2 "$bin/clang-format" --dry-run -Werror || failed=yes
    # clang-tidy reads only files that the build compiles, and not vmrun's, whose headers come with a device image.
    # Clang lacks GNU C's __builtin_shuffle and glibc's CMPLX, which some kernels use.
    "$bin/python" tools/native_build.py commands
    compiled=$(sed -n 's/^ *"file": "\(.*\)",*$/\1/p' build/compile_commands.json)
    sources=$(printf '%s\n' "$c" "$compiled" | sort | uniq -d \
        | grep -v -E '/(portable|avx2|avx512)/(order|complexes|images|mathematics)\.c$|^vmhost/image/native/' || true)
    # shellcheck disable=SC2016
    [ -z "$sources" ] || lines "$sources" | xargs -0 -n 10 -P 2 "$bin/clang-tidy" -p build --quiet 2>build/clang-tidy.log || failed=yes
fi
[ -z "$failed" ] || { echo "lint: the files above break the rules; \`make format\` formats them" >&2; exit 1; }
