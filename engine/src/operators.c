/* The operators' names, as NumPy calls them, and the lists that say what is primitive and what is lowered. */
#include "internal.h"

static const char *const unary_names[VME_UNARY_COUNT] = {
    "negative", "positive", "absolute", "sign", "invert", "logical_not", "square", "sqrt", "cbrt", "reciprocal",
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "arcsin", "arccos", "arctan",
    "sinh", "cosh", "tanh", "arcsinh", "arccosh", "arctanh", "erf", "floor", "ceil", "trunc", "rint",
    "isnan", "isinf", "isfinite", "signbit", "real", "imag", "conjugate",
};
static const char *const binary_names[VME_BINARY_COUNT] = {
    "add", "subtract", "multiply", "divide", "floor_divide", "remainder", "fmod", "power",
    "maximum", "minimum", "fmax", "fmin", "arctan2", "hypot", "copysign", "nextafter", "logaddexp",
    "bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift",
    "equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or", "logical_xor",
};
static const char *const reduce_names[VME_REDUCE_COUNT] = {
    "sum", "prod", "max", "min", "all", "any", "argmax", "argmin", "count_nonzero", "fmax", "fmin",
};
static const char *const scan_names[VME_SCAN_COUNT] = {"cumsum", "cumprod", "cummax", "cummin"};
static const char *const primitives[] = {
    "raster", "unary", "binary", "reduce", "scan", "matmul", "gather", "scatter", "sort", "random",
};
static const char *const lowered[] = {"concatenate", "pad", "tile", "roll"};

const char *vme_unary_name(vme_unary_op op) { return unary_names[op]; }
const char *vme_binary_name(vme_binary_op op) { return binary_names[op]; }
const char *vme_reduce_name(vme_reduce_op op) { return reduce_names[op]; }
const char *vme_scan_name(vme_scan_op op) { return scan_names[op]; }
int vme_primitive_count(void) { return (int)(sizeof primitives / sizeof *primitives); }
const char *vme_primitive_name(int primitive) { return primitives[primitive]; }
int vme_lowered_count(void) { return (int)(sizeof lowered / sizeof *lowered); }
const char *vme_lowered_name(int operator_number) { return lowered[operator_number]; }
