#!/bin/sh
# Installs the benchmark peers of training (tools/training_peers.lock: torch, 5 GB with its dependencies) into
# .python/training-peers of the checkout, outside .venv, where only `vmhost bench training` looks.
set -eu
cd -- "$(dirname -- "$0")/.."
folder=.python/training-peers
wanted=$(sha256sum < tools/training_peers.lock)
if [ "$(cat "$folder.stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
free=$(df -Pk .python | awk 'NR == 2 { print int($4 / 1024 / 1024) }')
if [ "$free" -lt 16 ]; then
    echo "training-peers: torch takes 6 GB and as much while it is installed; $free GB are free" >&2
    exit 1
fi
rm -rf "$folder" "$folder.stamp"
.venv/bin/uv pip install -q --no-deps --require-hashes --python .venv/bin/python --target "$folder" -r tools/training_peers.lock
printf '%s' "$wanted" > "$folder.stamp"
