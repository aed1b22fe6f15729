#!/bin/sh
# Unpacks into .python/environments what `make environments` starts hosts in: servers and event loops from PyPI
# (tools/environments.lock, in packages/), and Debian's memory allocators (root/). Prints the folder.
set -eu
cd -- "$(dirname -- "$0")/.."
name=environments
. tools/private_apt.sh

wanted=$(sha256sum < tools/environments.lock)
if [ "$(cat "$folder/stamp" 2>/dev/null)" != "$wanted" ]; then
    rm -rf "$folder"
    begin
    # the names differ between Debian's releases
    for allocator in libjemalloc2 "libtcmalloc-minimal4 libtcmalloc-minimal4t64" "libmimalloc2.0 libmimalloc3"; do
        for package in $allocator; do
            private apt-cache show "$package" >/dev/null 2>&1 || continue
            fetch "$package could not be had" apt-get -q -y --no-install-recommends --download-only install "$package"
            break
        done
    done
    for deb in "$work"/cache/archives/*.deb; do dpkg -x "$deb" "$work/root"; done
    .venv/bin/uv pip install -q --no-deps --require-hashes --python .venv/bin/python --target "$work/packages" \
        -r tools/environments.lock || fail "the packages of tools/environments.lock could not be had"
    printf '%s' "$wanted" > "$work/stamp"
    finish
fi
echo "$folder"
