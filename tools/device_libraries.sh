#!/bin/sh
# Unpacks the static libraries for device images into .python/device of the checkout: LibSodium and LibTomCrypt, and
# OpenSSL and zstd for images with these options.
#
#   sh tools/device_libraries.sh           fetches Debian's; they must match tools/device.lock
#   sh tools/device_libraries.sh --lock    fetches Debian's newest and writes the lock
#
# SQLite's comes with the Python (python_from_debian.sh), as it must match its `_sqlite3`; a private Python that was
# unpacked before images supported sqlite3 gets it here.
set -eu
cd -- "$(dirname -- "$0")/.."
folder=$(pwd -P)/.python/device
lock=tools/device.lock

# One run at a time: another would find the folder half made.
mkdir -p .python
exec 9> .python/device.lock
flock 9

archives="libcrypto.a libsodium.a libssl.a libtomcrypt.a libzstd.a"
packages="libsodium-dev libssl-dev libtomcrypt-dev libzstd-dev"

digests() { (cd "$folder/root/usr/lib/"*-linux-gnu && sha256sum $archives); }

# A folder from an older checkout may lack some.
complete() { for name in $archives; do ls "$folder/root/usr/lib/"*-linux-gnu/"$name" >/dev/null 2>&1 || return 1; done; }

if [ "${1:-}" = --lock ] || ! complete; then
    # shellcheck disable=SC2086  # word splitting is intended: no name has a blank
    sh tools/debian_packages.sh "$folder" $packages
fi
python=$(pwd -P)/.python/debian
if [ -f "$python/packages" ] && [ -z "$(find "$python" -name libsqlite3.a)" ]; then
    version=$(sed -n 's/^libsqlite3-0_\(.*\)_[a-z0-9]*\.deb$/\1/p' "$python/packages" | sed 's/%3a/:/')
    sh tools/debian_packages.sh "$folder.sqlite" "libsqlite3-dev=$version"
    mv "$(find "$folder.sqlite" -name libsqlite3.a)" "$(dirname "$(find "$python" -name libsqlite3.so.0)")"
    rm -rf "$folder.sqlite"
fi
if [ "${1:-}" = --lock ]; then
    { echo "# Written by tools/device_libraries.sh --lock from: $(tr '\n' ' ' < "$folder/packages")"; digests; } > "$lock.new"
    mv "$lock.new" "$lock"
elif [ "$(digests)" != "$(grep -v '^#' "$lock")" ]; then
    echo "device_libraries: Debian's libraries are no longer those of $lock; look at what is new, then run sh tools/device_libraries.sh --lock" >&2
    exit 1
fi
