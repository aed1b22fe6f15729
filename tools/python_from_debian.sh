#!/bin/sh
# Brings a CPython 3.14 into a folder of its own: packages of Debian's suite forky, unpacked with dpkg -x.
#
#   sh tools/python_from_debian.sh PREFIX PATCHELF
#
# Prints the path of the interpreter. Nothing of the system is touched and root is not needed: apt runs on private lists and
# a private cache, packages are unpacked and never installed, and the interpreter is pointed at the private libc with
# PATCHELF. The mirror's address is read from the machine's own apt configuration; signatures are checked with the keyring
# that the machine has. A PREFIX that is complete but was moved is only pointed anew, which needs no network.
set -eu
prefix=$1
patchelf=$2
suite=forky
packages="python3.14-minimal python3.14 python3.14-dev python3.14-venv libpython3.14-minimal libpython3.14-stdlib
 libpython3.14 libpython3.14-dev libc6 libexpat1 libexpat1-dev zlib1g zlib1g-dev libssl3t64 libffi8 libsqlite3-0
 libbz2-1.0 liblzma5 libzstd1 libuuid1 libreadline8t64 libncursesw6 libtinfo6 libgcc-s1 libstdc++6 libcrypt1"

fail() { echo "python_from_debian: $*" >&2; exit 1; }

unpack() {          # makes $prefix/root, whole or not at all
    for program in apt-get dpkg dpkg-deb; do
        command -v "$program" >/dev/null 2>&1 || fail "no $program here: this way works on Debian and its kin only"
    done
    # the machine's own mirror: the first main archive of a Debian that apt knows, security and updates aside
    mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
        awk '$2 == "main" && $1 !~ /security|updates|backports/ && $3 ~ /debian/ && $3 !~ /security/ { print $3; exit }')
    [ -n "$mirror" ] || fail "apt's configuration names no mirror of Debian's main archive"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"

    work=$prefix.partial
    rm -rf "$work"
    mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/etc/sources.list.d" "$work/root" "$work/debs"
    : > "$work/apt/status"
    printf 'deb [signed-by=%s] %s %s main\n' "$keyring" "$mirror" "$suite" > "$work/apt/etc/sources.list"
    # paths by way of a configuration file: apt splits those of the command line at spaces
    cat > "$work/apt/etc/private.conf" <<CONFIGURATION
Dir::State "$work/apt";
Dir::State::Lists "$work/apt/lists";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Dir::Etc::SourceList "$work/apt/etc/sources.list";
Dir::Etc::SourceParts "$work/apt/etc/sources.list.d";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
CONFIGURATION
    # root would hand the downloads to user _apt, who may not be able to enter this folder
    if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/apt/etc/private.conf"; fi
    private_apt() { apt-get -q -c "$work/apt/etc/private.conf" "$@"; }
    private_apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt could not read suite $suite of the machine's mirror"; }
    # shellcheck disable=SC2086
    (cd "$work/debs" && private_apt download $packages >>"$work/log" 2>&1) || { cat "$work/log" >&2; fail "a package could not be had"; }
    for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done

    # Debian's pyconfig.h sends the reader to the multiarch folder under /usr/include; here there is one architecture
    cp "$work/root/usr/include/"*-linux-gnu/python3.14/pyconfig.h "$work/root/usr/include/python3.14/pyconfig.h"
    rm -rf "$work/debs" "$work/apt" "$prefix"
    mv "$work" "$prefix"
}

root=$prefix/root
[ -x "$root/usr/bin/python3.14" ] || unpack
# The interpreter's loader is an absolute path, so the folder is pointed at itself wherever it lies now: a copy of it, as it may be running.
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
