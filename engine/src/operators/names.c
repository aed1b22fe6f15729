/* Operator names, as in NumPy, and the implementation kind of each operator in the headers
 * (tests/engine/test_inventory.py checks it against the sources). */
#include "runtime/internal.h"

#define NAME(OPERATOR, TEXT, ...) [VME_##OPERATOR] = TEXT,
static const char *const unary_names[] = {VME_UNARY_OPERATORS(NAME)};
static const char *const binary_names[] = {VME_BINARY_OPERATORS(NAME)};
static const char *const reduce_names[] = {VME_REDUCE_OPERATORS(NAME)};
static const char *const scan_names[] = {VME_SCAN_OPERATORS(NAME)};
#undef NAME

static const struct {
    const char *name; /* without "vme_" */
    vme_making making;
} operators[] = {
    {"raster", VME_BY_KERNELS},
    {"copy", VME_BY_KERNELS},
    {"unary", VME_BY_KERNELS},
    {"binary", VME_BY_KERNELS},
    {"where", VME_BY_KERNELS},
    {"reduce", VME_BY_KERNELS},
    {"matmul", VME_BY_KERNELS},
    {"sort", VME_BY_KERNELS},
    {"argsort", VME_BY_KERNELS},
    {"top", VME_BY_KERNELS},
    {"partition", VME_BY_KERNELS},
    {"philox", VME_BY_KERNELS},
    {"bits_pack", VME_BY_KERNELS},
    {"bits_unpack", VME_BY_KERNELS},
    {"split", VME_BY_KERNELS},
    {"searchsorted", VME_BY_KERNELS},
    {"interpolate", VME_BY_KERNELS},
    {"scan", VME_BY_LOOPS},
    {"gather", VME_BY_LOOPS},
    {"scatter", VME_BY_LOOPS},
    {"nonzero", VME_BY_LOOPS},
    {"arange", VME_BY_LOOPS},
    {"count", VME_BY_LOOPS},
    {"random", VME_BY_LOOPS},
    {"fft", VME_BY_LOOPS},
    {"linear", VME_BY_LOOPS},
    {"concatenate", VME_LOWERED},
    {"pad", VME_LOWERED},
    {"tile", VME_LOWERED},
    {"roll", VME_LOWERED},
    {"patches", VME_BY_KERNELS},
    {"patches_sum", VME_BY_KERNELS},
    {"max_pool", VME_BY_KERNELS},
    {"max_pool_gradient", VME_BY_KERNELS},
    {"depthwise_forward", VME_BY_KERNELS},
    {"depthwise_images", VME_BY_KERNELS},
    {"depthwise_weights", VME_BY_KERNELS},
    {"normalize", VME_BY_KERNELS},
    {"normalize_gradient", VME_BY_KERNELS},
};

const char *vme_unary_name(vme_unary_op op) { return unary_names[op]; }
const char *vme_binary_name(vme_binary_op op) { return binary_names[op]; }
const char *vme_reduce_name(vme_reduce_op op) { return reduce_names[op]; }
const char *vme_scan_name(vme_scan_op op) { return scan_names[op]; }
int vme_operator_count(void) { return (int)(sizeof operators / sizeof *operators); }
const char *vme_operator_name(int number) { return operators[number].name; }
vme_making vme_operator_making(int number) { return operators[number].making; }
