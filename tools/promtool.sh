#!/bin/sh
# Unpacks promtool of Debian's prometheus into .python/promtool of the checkout. Prints the program's path.
set -eu
cd -- "$(dirname -- "$0")/.."
name=promtool
. tools/private_apt.sh

if [ ! -d "$folder" ]; then
    begin
    fetch "promtool could not be had" apt-get -q -y --no-install-recommends --download-only install prometheus
    for deb in "$work"/cache/archives/*.deb; do
        case $deb in */prometheus_*) dpkg -x "$deb" "$work/root";; esac
    done
    finish
fi
find "$folder/root" -name promtool -type f -perm -u+x | head -1
