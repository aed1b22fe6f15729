#!/bin/sh
# Prints the folder of PostgreSQL's server programs (initdb, postgres): the machine's own, else Debian's, which it
# unpacks into .python/postgresql of the checkout. `--private`: Debian's, also where the machine has its own.
#
# Nothing of the system is touched and root is not needed: apt runs on private lists and a private cache, packages are
# unpacked with dpkg -x and never installed. They are the machine's own release's; apt checks their signatures. What
# PostgreSQL needs of libraries that the machine lacks comes along; its compiler of queries (LLVM) does not.
set -eu
cd -- "$(dirname -- "$0")/.."
folder=$(pwd -P)/.python/postgresql

fail() { echo "postgresql: $*" >&2; exit 1; }

if [ "${1:-}" != --private ]; then
    for found in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V -r); do
        if [ -x "$found/initdb" ] && [ -x "$found/postgres" ]; then echo "$found"; exit 0; fi
    done
fi
mkdir -p .python
exec 9> .python/postgresql.lock
flock 9
if [ ! -d "$folder" ]; then
    for program in apt-get apt-cache dpkg; do
        command -v "$program" >/dev/null 2>&1 || fail "no $program here: this works on Debian and its kin only"
    done
    work=$folder.partial
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/debs" "$work/root"
    cat > "$work/private.conf" <<CONFIGURATION
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
Debug::NoLocking "true";
Acquire::Languages "none";
Acquire::Retries "2";
CONFIGURATION
    if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/private.conf"; fi
    private() { APT_CONFIG="$work/private.conf" "$@"; }
    private apt-get -q update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt could not read the machine's mirror"; }
    server=$(private apt-cache depends postgresql 2>>"$work/log" | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -1)
    [ -n "$server" ] || fail "the machine's mirror has no PostgreSQL"
    client=postgresql-client-${server#postgresql-}
    libraries=$(private apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$server" "$client" 2>>"$work/log" | grep '^lib[a-z0-9.+-]*$' | grep -v '^lib\(llvm\|perl\|python\)' | sort -u)
    # word splitting is meant: no name has a blank
    (cd "$work/debs" && private apt-get -q download "$server" "$client" $libraries >>"$work/log" 2>&1) ||
        { cat "$work/log" >&2; fail "PostgreSQL could not be had"; }
    for deb in "$work"/debs/*.deb; do
        case $deb in */libc6_* | */libgcc-s1_* | */libstdc++6_*) continue ;; esac  # the machine's own fit its loader
        dpkg -x "$deb" "$work/root"
    done
    rm -rf "$work/lists" "$work/cache" "$work/debs"
    mv "$work" "$folder"
fi
ls -d "$folder"/root/usr/lib/postgresql/*/bin
