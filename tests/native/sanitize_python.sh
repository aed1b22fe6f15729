#!/bin/sh
# Runs the tests of a guest's locks, threads and waits under the thread sanitizer, with a CPython that has it too.
#
#   PYTHON_SOURCE=FOLDER sh tests/native/sanitize_python.sh [pytest's arguments]
#
# FOLDER is a source tree of CPython, of the very version that .venv runs. Without it, Debian's source package is
# tried. Needs a C compiler, make, and the C headers of libffi, OpenSSL, liblzma, SQLite and zlib.
# build/python-thread holds what is made once: that CPython, built out of its tree, and our object files.
# Only the core is built with the sanitizer; the engine and the library that VMs boot from are the checkout's own. A
# race in any process that a test starts fails the run; suppressed are CPython's own, as its source lists them and as
# suppressions.txt beside this file does.
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/../.."
here=$(pwd -P)
made=$here/build/python-thread
name=sanitize_python
fail() { echo "$name: $*" >&2; exit 1; }
say() { echo "$name: $*" >&2; }

version=$(.venv/bin/python -c 'import platform; print(platform.python_version())')
minor=${version%.*}
python=$made/installed/bin/python$minor
mkdir -p "$made"
exec 9>"$made/lock"
flock 9

# ---- the Python

source=${PYTHON_SOURCE:-}
if [ -z "$source" ] && [ ! -e "$made/ready" ]; then
    source=$here/.python/source/root
    [ -e "$source/configure" ] || sh tools/debian_packages.sh --source "$here/.python/source" "python$minor" >&2 ||
        fail "Debian's source of python$minor could not be had (see above): name a folder with CPython $version's" \
             "source, make sanitize-python PYTHON_SOURCE=FOLDER"
fi
if [ -n "$source" ]; then
    source=$(cd -- "$source" 2>/dev/null && pwd -P) || fail "there is no folder $PYTHON_SOURCE"
    found=$(sed -n 's/^#define PY_VERSION  *"\(.*\)"/\1/p' "$source/Include/patchlevel.h" 2>/dev/null) || true
    [ "$found" = "$version" ] ||
        fail "$source: expected the source of CPython $version, which .venv runs, got ${found:-none of CPython}"
fi
if [ -n "$source" ] && [ "$(cat "$made/ready" 2>/dev/null)" != "$found $source" ]; then
    say "building CPython $found with the thread sanitizer; that takes 10 minutes or so"
    rm -rf "$made/ready" "$made/python" "$made/installed" "$made/build"
    mkdir -p "$made/python"
    (
        cd "$made/python"
        # -O1: as CPython's developers test with the sanitizer; deeper frames at -O0 use up the stacks of VMs
        "$source/configure" -q OPT="-O1 -g" --prefix="$made/installed" --with-thread-sanitizer --without-ensurepip \
            --disable-test-modules
        make -s -j "$(nproc)"
        make -s install COMPILEALL_OPTS=--help >/dev/null # not compiled beforehand: only what tests import is
    ) >"$made/log" 2>&1 9>&- ||
        { tail -n 20 "$made/log" >&2; fail "CPython $found could not be built (all of its output: $made/log)"; }
    "$python" -c 'import ctypes, hashlib, lzma, sqlite3, ssl, zlib' ||
        fail "that CPython lacks modules: install the C headers that they need (on Debian libffi-dev, libssl-dev," \
             "liblzma-dev, libsqlite3-dev and zlib1g-dev) and run this again"
    cp "$source/Tools/tsan/suppressions.txt" "$made/suppressions"
    echo "$found $source" > "$made/ready"
fi

# ---- the core, built with it in a copy of the checkout

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -rp vmhost bytecode engine tests bench setup.py pyproject.toml "$copy"
mkdir -p "$copy/tools" "$made/build"
cp -p tools/native_build.py "$copy/tools"
ln -s "$made/build" "$copy/build"
rm -f "$copy"/vmhost/isolation/*.so
cd "$copy"
: > LICENSE; : > README.md
# NumPy, pytest and setuptools are those of .venv; the same minor version has the same ABI
export PYTHONPATH="$copy:$here/.venv/lib/python$minor/site-packages"
unset PYTHONDONTWRITEBYTECODE
VMHOST_SANITIZE=thread TSAN_OPTIONS=report_bugs=0 "$python" - <<BUILD
import runpy, sys
sys.path.insert(0, "tools")
import native_build
native_build.INSTALLED = {name: part for name, part in native_build.INSTALLED.items() if name.endswith("._core")}
sys.argv[1:] = ["-q", "build_ext", "--inplace"]
runpy.run_path("setup.py", run_name="__main__")
BUILD

# ---- the tests

[ $# -gt 0 ] || set -- tests/guest/test_waits.py \
    tests/isolation/test_apart.py::test_the_first_vms_of_a_process_start_side_by_side \
    tests/isolation/test_apart.py::test_the_environment_is_read_while_the_host_changes_it
echo "sanitizer: thread, CPython and the core"
cat "$made/suppressions" tests/native/suppressions.txt > suppressions
status=0
# Reports of all processes go to files, so that no test's expected exit status or output hides one.
# die_after_fork: tests fork a process that has threads (tests/warm.py).
# The core comes first, before pytest starts threads: it replaces CPython's allocator, which no lock guards (memory.c).
TSAN_OPTIONS="suppressions=$copy/suppressions log_path=$copy/report exitcode=0 die_after_fork=0 history_size=7" \
    "$python" -m pytest -q -p vmhost.isolation._core -p no:cacheprovider "$@" || status=$?
for report in "$copy"/report.*; do
    [ -e "$report" ] || continue
    cat "$report" >&2
    status=1
done
[ "$status" = 0 ] || fail "a test failed, or the sanitizer reported a race (above)"
