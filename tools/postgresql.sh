#!/bin/sh
# Prints the folder of PostgreSQL's server programs (initdb, postgres): the machine's own, else Debian's, which it
# unpacks into .python/postgresql of the checkout. `--private`: always Debian's.
#
# Includes the libraries that PostgreSQL needs and the machine lacks, but not its query compiler (LLVM).
set -eu
cd -- "$(dirname -- "$0")/.."

if [ "${1:-}" != --private ]; then
    for found in $(ls -d /usr/lib/postgresql/*/bin 2>/dev/null | sort -V -r); do
        if [ -x "$found/initdb" ] && [ -x "$found/postgres" ]; then echo "$found"; exit 0; fi
    done
fi
name=postgresql
. tools/private_apt.sh
if [ ! -d "$folder" ]; then
    begin
    server=$(private apt-cache depends postgresql 2>>"$work/log" | sed -n 's/.*Depends: \(postgresql-[0-9]*\)$/\1/p' | head -1)
    [ -n "$server" ] || fail "the machine's mirror has no PostgreSQL"
    client=postgresql-client-${server#postgresql-}
    libraries=$(private apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces \
        --no-enhances "$server" "$client" 2>>"$work/log" | grep '^lib[a-z0-9.+-]*$' | grep -v '^lib\(llvm\|perl\|python\)' | sort -u)
    mkdir "$work/debs"
    cd "$work/debs"
    # shellcheck disable=SC2086  # word splitting is intended: no name has a blank
    fetch "PostgreSQL could not be had" apt-get -q download "$server" "$client" $libraries
    for deb in *.deb; do
        case $deb in libc6_* | libgcc-s1_* | libstdc++6_*) continue ;; esac  # the machine's own match its loader
        dpkg -x "$deb" "$work/root"
    done
    cd - >/dev/null
    rm -rf "$work/debs"
    finish
fi
find "$folder" -path "*/lib/postgresql/*/bin" -type d | head -1
