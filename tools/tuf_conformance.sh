#!/bin/sh
# Installs the conformance suite of The Update Framework into build/tuf-conformance: its source at one commit, a
# separate environment with pinned dependencies (tools/tuf_conformance.lock), and a substitute for the program faketime.
# Prints the folder.
#
# TUF_CONFORMANCE: another source to clone the suite from, such as a folder.
set -eu
cd -- "$(dirname -- "$0")/.."
source=${TUF_CONFORMANCE:-https://github.com/theupdateframework/tuf-conformance}
commit=eec841c186f81f2d9d8d30460c7e7deefa615f9e  # after 2.4.0: it has the tests of delegations that python-tuf fails
folder=$(pwd -P)/build/tuf-conformance

fail() { echo "tuf_conformance: $*" >&2; exit 1; }

mkdir -p build
exec 9> build/tuf-conformance.lock
flock 9
want="$commit $(cksum < tools/tuf_conformance.lock)"
if [ "$(cat "$folder/is" 2>/dev/null)" != "$want" ]; then
    rm -rf "$folder"
    mkdir -p "$folder/bin"
    if ! GIT_TERMINAL_PROMPT=0 timeout 300 git clone -q "$source" "$folder/suite" 2>"$folder/log"; then
        reason=$(sed -n '/^\(fatal\|error\): /{s///;p;q;}' "$folder/log")
        fail "$source cannot be cloned (${reason:-no answer in 300 s}); clone it elsewhere, and say TUF_CONFORMANCE=FOLDER"
    fi
    git -C "$folder/suite" checkout -q "$commit" 2>/dev/null || fail "$source has no commit $commit; clone it anew"
    .venv/bin/uv venv -q --python .venv/bin/python "$folder/env" >&2
    .venv/bin/uv pip install -q --python "$folder/env/bin/python" --require-hashes -r tools/tuf_conformance.lock >&2 ||
        fail "the suite's dependencies could not be installed"
    # The client reads its time from a variable (tests/deployment/tuf_client.py): no library to preload is needed.
    printf '%s\n' '#!/bin/sh' 'time=$1; shift; TUF_CLIENT_TIME=$time exec "$@"' > "$folder/bin/faketime"
    chmod +x "$folder/bin/faketime"
    echo "$want" > "$folder/is"
fi
echo "$folder"
