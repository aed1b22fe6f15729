#!/bin/sh
# Installs a CPython 3.14 into a separate folder: packages of Debian's suite forky, unpacked (debian_packages.sh).
#
#   sh tools/python_from_debian.sh PREFIX PATCHELF
#
# Prints the path of the interpreter, which PATCHELF links to the private libc. A complete PREFIX that was moved is only
# relinked, which needs no network.
set -eu
prefix=$1
patchelf=$2
packages="python3.14-minimal python3.14 python3.14-dev python3.14-venv libpython3.14-minimal libpython3.14-stdlib
 libpython3.14 libpython3.14-dev libc6 libexpat1 libexpat1-dev zlib1g zlib1g-dev libssl3t64 libffi8
 libsqlite3-0 libsqlite3-dev libbz2-1.0 liblzma5 libzstd1 libuuid1 libreadline8t64 libncursesw6 libtinfo6 libgcc-s1 libstdc++6 libcrypt1"

fail() { echo "python_from_debian: $*" >&2; exit 1; }

root=$prefix/root
# shellcheck disable=SC2086
[ -x "$root/usr/bin/python3.14" ] || sh "$(dirname -- "$0")/debian_packages.sh" "$prefix" $packages
# Debian's pyconfig.h refers to the multiarch folder under /usr/include; here there is one architecture
cmp -s "$root/usr/include/"*-linux-gnu/python3.14/pyconfig.h "$root/usr/include/python3.14/pyconfig.h" ||
    cp "$root/usr/include/"*-linux-gnu/python3.14/pyconfig.h "$root/usr/include/python3.14/pyconfig.h"
# The interpreter has its loader's absolute path, so it is relinked for the folder's current path: in a copy, because it
# may be running.
loader=$(ls "$root"/usr/lib64/ld-linux-x86-64.so.2 "$root"/usr/lib/ld-linux-aarch64.so.1 2>/dev/null | head -n 1)
libraries=$(dirname "$root"/usr/lib/*-linux-gnu/libc.so.6)
[ -n "$loader" ] && [ -d "$libraries" ] || fail "the libc package holds no loader for this architecture"
interpreter=$root/usr/bin/python3.14
if [ "$("$patchelf" --print-interpreter "$interpreter")" != "$loader" ]; then
    cp -p "$interpreter" "$interpreter.new"
    "$patchelf" --set-interpreter "$loader" --force-rpath --set-rpath "$libraries" "$interpreter.new"
    mv -f "$interpreter.new" "$interpreter"
fi
"$interpreter" -I -c 'import ssl, sqlite3, ctypes, zlib, venv' || fail "the unpacked Python does not run"
echo "$interpreter"
