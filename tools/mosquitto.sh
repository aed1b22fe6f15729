#!/bin/sh
# Unpacks Debian's MQTT broker mosquitto, with which the tunnel is compared, into .python/mosquitto of the checkout.
# Prints the program's path.
set -eu
cd -- "$(dirname -- "$0")/.."
name=mosquitto
. tools/private_apt.sh

if [ ! -d "$folder" ]; then
    begin
    fetch "mosquitto could not be had" apt-get -q -y --no-install-recommends --download-only install mosquitto
    for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$work/root"; done
    finish
fi
find "$folder/root" -path "*/usr/sbin/mosquitto" -type f | head -1
