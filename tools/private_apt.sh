# Sourced by scripts that unpack a program of Debian's into the checkout, of the machine's own release. They are in the
# checkout's root and have set `name`; `folder` is then .python/NAME, whose lock they hold.
#
# Nothing of the system is touched and root is not needed: apt runs on private lists and a private cache and checks
# signatures, packages are unpacked with dpkg -x and never installed.
# shellcheck shell=sh disable=SC2154

folder=$(pwd -P)/.python/$name
work=$folder.partial
mkdir -p .python
exec 9> ".python/$name.lock"
flock 9

fail() { echo "$name: $*" >&2; exit 1; }

# Runs an apt command on the private lists.
private() { APT_CONFIG="$work/private.conf" "$@"; }

# The same; its output goes to a log. Where it fails, the log is shown, and the script ends with MESSAGE:  fetch MESSAGE apt-get ...
fetch() {
    otherwise=$1
    shift
    private "$@" >>"$work/log" 2>&1 || { cat "$work/log" >&2; fail "$otherwise"; }
}

# An empty $work, and lists of what the machine's mirror has.
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
    # root would hand the downloads to user _apt, who may not be able to enter this folder
    if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/private.conf"; fi
    fetch "apt could not read the machine's mirror" apt-get -q update
}

# Puts what was unpacked in its place: whole, or not at all.
finish() {
    rm -rf "$work/lists" "$work/cache"
    mv "$work" "$folder"
}
