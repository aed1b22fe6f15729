# Sourced by scripts that unpack a Debian program of the machine's own release into the checkout. They run in the
# checkout's root and have set `name`. `folder` is then .python/NAME, locked by this script.
#
# It does not touch the system and needs no root: apt uses private lists and a private cache and checks signatures;
# packages are unpacked with dpkg -x, never installed.
# shellcheck shell=sh disable=SC2154

folder=$(pwd -P)/.python/$name
work=$folder.partial
mkdir -p .python
exec 9> ".python/$name.lock"
flock 9

fail() { echo "$name: $*" >&2; exit 1; }

# Runs an apt command on the private lists.
private() { APT_CONFIG="$work/private.conf" "$@"; }

# Like `private`, with output to a log. If it fails, shows the log and exits with MESSAGE:  fetch MESSAGE apt-get ...
fetch() {
    otherwise=$1
    shift
    private "$@" >>"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$otherwise"; }
}

# Makes an empty $work and updates the lists from the machine's mirror.
begin() {
    for program in apt-get apt-cache dpkg; do
        command -v "$program" >/dev/null 2>&1 || fail "no $program here: this works on Debian and its kin only"
    done
    rm -rf "$work"
    mkdir -p "$work/lists/partial" "$work/cache/archives/partial" "$work/root"
    cat > "$work/private.conf" <<CONFIGURATION
Dir::State::Lists "$work/lists";
Dir::Cache "$work/cache";
Debug::NoLocking "true";
Acquire::Languages "none";
Acquire::Retries "2";
CONFIGURATION
    # as root, apt would download as user _apt, who may lack access to this folder
    if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/private.conf"; fi
    fetch "apt could not read the machine's mirror" apt-get -q update
}

# Moves the unpacked files to their place, all or none.
finish() {
    rm -rf "$work/lists" "$work/cache"
    mv "$work" "$folder"
}
