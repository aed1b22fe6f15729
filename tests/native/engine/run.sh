#!/bin/sh
# Builds the engine's C files with each test_*.c beside this file, and runs them.
#
#   sh tests/native/engine/run.sh [none|address|undefined|thread] ...     (the sanitizers when nothing is named; none: as it is, with what test_polls.c measures)
set -eu
cd -- "$(dirname -- "$0")/../../.."       # relative from here on: the checkout's path may hold spaces
here=tests/native/engine
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
wraps="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup,--wrap=aligned_alloc"
[ $# -gt 0 ] || set -- address undefined thread
for sanitizer in "$@"; do
    flags="-std=c11 -D_GNU_SOURCE=1 -O1 -g -Wall -Wextra -Wshadow -Wmissing-prototypes -Werror -pthread"
    flags="$flags -ffp-contract=off -fno-math-errno -fno-trapping-math -Iengine/include -Iengine/src"
    if [ "$sanitizer" = none ]; then flags="$flags -DVME_POLLS -include $here/polls.h"; else flags="$flags -fsanitize=$sanitizer -fno-sanitize-recover=all"; fi
    mkdir "$build/$sanitizer"
    folders="engine/src/runtime engine/src/operators engine/src/models engine/src/portable"
    [ "$(uname -m)" != x86_64 ] || folders="$folders engine/src/avx2 engine/src/avx512"
    for folder in $folders; do
        case $folder in
            */avx2) more="-mavx2 -mfma -mf16c" ;;
            */avx512) more="-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx2 -mfma -mf16c" ;;
            *) more= ;;
        esac
        # shellcheck disable=SC2016,SC2086
        ls "$folder"/*.c | xargs -P "$(nproc)" -I '{}' sh -c 'source=$1; shift; folder=$1; shift
            exec "$@" -c "$source" -o "$folder/$(echo "$source" | tr / -).o"' sh '{}' "$build/$sanitizer" ${CC:-gcc} $flags $more
    done
    echo "sanitizer: $sanitizer"
    for test in "$here"/test_*.c; do
        program="$build/$sanitizer/$(basename "$test" .c)"
        # shellcheck disable=SC2086
        ${CC:-gcc} $flags "$test" tests/native/failing_malloc.c "$build/$sanitizer"/*.o -lm $wraps -o "$program"
        TSAN_OPTIONS=halt_on_error=1 "$program"
    done
done
