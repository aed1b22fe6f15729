#!/bin/sh
# Unpacks Debian's headless Chromium, and the packages that it needs and the machine lacks, into .python/chromium of the
# checkout. Prints the program's path.
set -eu
cd -- "$(dirname -- "$0")/.."
name=chromium
. tools/private_apt.sh

if [ ! -d "$folder" ]; then
    begin
    fetch "Chromium could not be had" \
        apt-get -q -y --no-install-recommends --download-only install chromium-headless-shell
    for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$work/root"; done
    finish
fi
find "$folder/root" -name chromium-headless-shell -type f -perm -u+x | head -1
