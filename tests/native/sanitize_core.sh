#!/bin/sh
# Builds the whole native core and the engine with a sanitizer, and runs the tests that work it hardest on it, in a copy of the checkout.
#
#   sh tests/native/sanitize_core.sh address|undefined|address,undefined [pytest's arguments]
#
# CPython itself is not instrumented: what is found is in our C files, or in memory that they share with it. The sanitizer's
# library is preloaded, as the executable does not know of it.
set -eu
cd -- "$(dirname -- "$0")/../.."
sanitizer=$1
shift
python=$PWD/.venv/bin/python
preload=$("$python" tools/native_build.py runtimes "$sanitizer" | tr '\n' ' ')
[ -n "$preload" ] || exit 1
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir "$copy/tests" "$copy/bench"
cp -r vmhost bytecode engine pyproject.toml "$copy"
cp -r bench/__init__.py bench/networks.py bench/other_models "$copy/bench"
for part in __init__.py conftest.py batches.py warm.py hosts.py guests.py networks.py onnx_runtime.py engine fuzz isolation guest vmhost pipeline faults stress test_bad_input.py; do
    [ ! -e "tests/$part" ] || cp -r "tests/$part" "$copy/tests"
done
find "$copy" -name '*.so' -delete
VMHOST_SANITIZE=$sanitizer "$python" setup.py -q build_ext --build-lib "$copy"
cd "$copy"
[ $# -gt 0 ] || set -- tests/isolation/test_memory.py tests/isolation/test_apart.py tests/test_bad_input.py tests/guest/test_waits.py \
    tests/guest/test_grants.py tests/guest/test_paths.py tests/guest/test_certificates.py tests/stress/test_cycles.py tests/vmhost/test_real_host.py tests/vmhost/test_arrays.py \
    tests/vmhost/test_array_stops.py tests/engine/test_bad_arrays.py tests/engine/test_copy.py tests/engine/test_index.py \
    tests/engine/test_fft.py tests/engine/test_interchange.py tests/engine/test_interpreters.py tests/engine/test_linalg.py tests/engine/test_matmul.py \
    tests/engine/test_random_generator.py tests/engine/test_model_operators.py tests/engine/test_models.py tests/engine/test_sessions.py \
    tests/engine/test_open_sizes.py tests/engine/test_decoder_caches.py tests/engine/test_tokenizers.py tests/vmhost/test_vm_models.py tests/pipeline/test_triggers.py tests/fuzz/test_fitting.py
# Of tests/engine those that go the most ways through C in a minute or so, and the networks that are small; every operator on random tensors is tests/native/engine/test_fuzz.c's.
# All of it: sanitize_core.sh address tests/engine (some twenty minutes).
echo "sanitizer: $sanitizer, the whole core"
# The instrumented frames are larger, so VMs need more stack than tests give them, and one test gives the least there is. One test asks which backend is
# the fastest, which is another one where kernels are instrumented. Leaks are the leak fixture's business.
ASAN_OPTIONS=detect_leaks=0:handle_segv=0:handle_abort=0:halt_on_error=1:detect_stack_use_after_return=0:allocator_may_return_null=1 \
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 \
VMHOST_FITTING_SECONDS=${VMHOST_FITTING_SECONDS:-8} LD_PRELOAD=$preload PYTHONPATH=$copy "$python" -m pytest -q -n 2 -p no:cacheprovider \
    --deselect tests/vmhost/test_arrays.py::test_the_engine_works_on_the_smallest_stack \
    --deselect tests/engine/test_sessions.py::test_the_backend_with_the_least_total_is_the_models \
    --deselect tests/engine/test_models.py::test_resnet18_agrees_with_onnx_runtime "$@"
