#!/bin/sh
# Finds or fetches CPython's own tests for the Python of .venv; prints the folder that contains test_dict.py.
#
# Debian packages them separately (libpython3.14-testsuite); they are unpacked into .python/tests, outside the system.
# Tests of another release than the Python's are refused: they would fail for unrelated reasons.
set -eu
cd -- "$(dirname -- "$0")/.."
own=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')/test
if [ -e "$own/test_dict.py" ]; then echo "$own"; exit 0; fi
version=$(.venv/bin/python -c 'import platform; print(platform.python_version())')
minor=${version%.*}
found=.python/tests/root/usr/lib/python$minor/test
if ! [ -e "$found/test_dict.py" ]; then
    sh tools/debian_packages.sh "$PWD/.python/tests" "libpython$minor-testsuite" >&2 || {
        echo "cpython_tests: the Python of .venv ($version) has no tests in $own, and Debian's could not be had (see above)" >&2
        exit 1
    }
fi
grep -q "_$version-" .python/tests/packages || {
    echo "cpython_tests: Debian's tests are $(cat .python/tests/packages), the Python of .venv is $version: remove .python/tests," \
         "and .python/debian if that is where the Python comes from, and run this again" >&2
    exit 1
}
echo "$found"
