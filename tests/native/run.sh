#!/bin/sh
# Builds the core's plain C parts with the tests beside this file, and runs them.
#
#   sh tests/native/run.sh [none|address|undefined|thread] ...     (all four when none is named)
set -eu
cd -- "$(dirname -- "$0")/../.."       # relative from here on: the checkout's path may hold spaces
here=tests/native
core=vmhost/isolation
build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
sources="$core/lanes/*.c $here/fake_vm.c"
wraps="-Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=strdup,--wrap=strndup,--wrap=aligned_alloc"
[ $# -gt 0 ] || set -- none address undefined thread
for sanitizer in "$@"; do
    flags="-std=c11 -D_GNU_SOURCE=1 -O1 -g -Wall -Wextra -Wshadow -Wmissing-prototypes -Werror -pthread -I$core -I$here"
    [ "$sanitizer" = none ] || flags="$flags -fsanitize=$sanitizer -fno-sanitize-recover=all"
    # shellcheck disable=SC2086
    {
        ${CC:-gcc} $flags $sources "$here/test_lane.c" -o "$build/test_lane"
        ${CC:-gcc} $flags -fPIC -shared -Wl,-z,relro,-z,now "$here/greedy_library.c" -o "$build/libgreedy.so"
        ${CC:-gcc} $flags $wraps "$core/memory/library_memory.c" "$core/lanes/meter.c" "$core/lanes/critical.c" "$here/test_library_memory.c" \
            "$here/failing_malloc.c" -L"$build" -lgreedy "-Wl,-rpath,$build" -o "$build/test_library_memory"
        ${CC:-gcc} $flags $wraps $sources "$here/test_faults.c" "$here/failing_malloc.c" -o "$build/test_faults"
    }
    echo "sanitizer: $sanitizer"
    TSAN_OPTIONS=halt_on_error=1 "$build/test_lane"
    "$build/test_faults"
    ASAN_OPTIONS=allocator_may_return_null=1 TSAN_OPTIONS=halt_on_error=1:allocator_may_return_null=1 "$build/test_library_memory"
done
