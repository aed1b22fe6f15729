#!/bin/sh
# Unpacks packages of Debian's suite forky into a separate folder.
#
#   sh tools/debian_packages.sh FOLDER PACKAGE...       (FOLDER: an absolute path)
#   sh tools/debian_packages.sh --source FOLDER PACKAGE     its upstream source, without Debian's changes
#
# FOLDER/root gets their files, all or none, FOLDER/packages their names and versions. It does not touch the system and
# needs no root: apt uses private lists and a private cache, and packages are unpacked with dpkg -x, never installed.
# The mirror's address comes from the machine's apt configuration; signatures are checked with the machine's keyring.
set -eu
kind=deb
if [ "$1" = --source ]; then kind=deb-src; shift; fi
folder=$1
shift
suite=forky

fail() { echo "debian_packages: $*" >&2; exit 1; }

for program in apt-get dpkg dpkg-deb; do
    command -v "$program" >/dev/null 2>&1 || fail "no $program here: this way works on Debian and its kin only"
done
# the machine's own mirror: the first main archive of Debian that apt knows, except security and updates
mirror=$(apt-get indextargets --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 2>/dev/null |
    awk '$2 == "main" && $1 !~ /security|updates|backports/ && $3 ~ /debian/ && $3 !~ /security/ { print $3; exit }')
[ -n "$mirror" ] || fail "apt's configuration names no mirror of Debian's main archive"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
[ -r "$keyring" ] || fail "$keyring is missing: install debian-archive-keyring"

work=$folder.partial
rm -rf "$work"
mkdir -p "$work/apt/lists/partial" "$work/apt/cache/archives/partial" "$work/apt/etc/sources.list.d" "$work/root" "$work/debs"
: > "$work/apt/status"
printf '%s [signed-by=%s] %s %s main\n' "$kind" "$keyring" "$mirror" "$suite" > "$work/apt/etc/sources.list"
# paths in a configuration file: on the command line apt splits them at spaces
cat > "$work/apt/etc/private.conf" <<CONFIGURATION
Dir::State "$work/apt";
Dir::State::Lists "$work/apt/lists";
Dir::State::status "$work/apt/status";
Dir::Cache "$work/apt/cache";
Dir::Etc::SourceList "$work/apt/etc/sources.list";
Dir::Etc::SourceParts "$work/apt/etc/sources.list.d";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
CONFIGURATION
# as root, apt would download as user _apt, who may lack access to this folder
if [ "$(id -u)" = 0 ]; then echo 'APT::Sandbox::User "root";' >> "$work/apt/etc/private.conf"; fi
private_apt() { apt-get -q -c "$work/apt/etc/private.conf" "$@"; }
private_apt update >"$work/log" 2>&1 || { cat "$work/log" >&2; fail "apt could not read suite $suite of the machine's mirror"; }
if [ "$kind" = deb ]; then
    (cd "$work/debs" && private_apt download "$@" >>"$work/log" 2>&1) || { cat "$work/log" >&2; fail "a package could not be had"; }
    for deb in "$work"/debs/*.deb; do dpkg -x "$deb" "$work/root"; done
else
    (cd "$work/debs" && private_apt --download-only source "$@" >>"$work/log" 2>&1) || { cat "$work/log" >&2; fail "the source of $* could not be had"; }
    tar -xf "$work"/debs/*.orig.tar.* -C "$work/root" --strip-components=1
fi
ls "$work/debs" > "$work/packages"
rm -rf "$work/debs" "$work/apt" "$folder"
mv "$work" "$folder"
