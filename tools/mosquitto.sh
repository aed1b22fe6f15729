#!/bin/sh
# Unpacks Debian's MQTT broker mosquitto, which the tunnel is measured against, into .python/mosquitto of the checkout.
# Prints the program's path.
#
# Nothing of the system is touched and root is not needed: apt runs on private lists and a private cache, packages are
# unpacked with dpkg -x and never installed. They are the machine's own release's; apt checks their signatures.
set -eu
cd -- "$(dirname -- "$0")/.."
folder=$(pwd -P)/.python/mosquitto

fail() { echo "mosquitto: $*" >&2; exit 1; }

mkdir -p .python
exec 9> .python/mosquitto.lock
flock 9
if [ ! -d "$folder" ]; then
    for program in apt-get dpkg; do
        command -v "$program" >/dev/null 2>&1 || fail "no $program here: this works on Debian and its kin only"
    done
    work=$folder.partial
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
    cat > "$work/private.conf" <<CONFIGURATION
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
Debug::NoLocking "true";
Acquire::Languages "none";
Acquire::Retries "2";
CONFIGURATION
    if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/private.conf"; fi
    # shellcheck disable=SC2016
    private_apt() { APT_CONFIG="$work/private.conf" apt-get -q -y "$@"; }
    private_apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt could not read the machine's mirror"; }
    private_apt --no-install-recommends --download-only install mosquitto >>"$work/log" 2>&1 \
        || { cat "$work/log" >&2; fail "mosquitto could not be had"; }
    for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$work/root"; done
    rm -rf "$work/lists" "$work/cache"
    mv "$work" "$folder"
fi
find "$folder/root" -path "*/usr/sbin/mosquitto" -type f | head -1
