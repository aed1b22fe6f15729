/* Operators that are not written yet: weak, so that the file that brings one replaces it. This file goes with the last. */
#include "internal.h"

#define MISSING(signature, name) \
    __attribute__((weak)) vme_status signature { return vme_fail(VME_UNSUPPORTED, name " is not in this engine yet"); }
#pragma GCC diagnostic ignored "-Wunused-parameter"
MISSING(vme_unary_types(vme_unary_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result), "unary")
MISSING(vme_binary_types(vme_binary_op op, vme_dtype a, vme_dtype b, vme_dtype *loop, vme_dtype *result), "binary")
MISSING(vme_unary(vme_context *c, vme_unary_op op, vme_dtype loop, const vme_tensor *in, const vme_tensor *out), "unary")
MISSING(vme_binary(vme_context *c, vme_binary_op op, vme_dtype loop, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out), "binary")
MISSING(vme_where(vme_context *c, const vme_tensor *condition, const vme_tensor *a, const vme_tensor *b, const vme_tensor *out), "where")
MISSING(vme_arange(vme_context *c, double start, double step, int64_t int_start, int64_t int_step, const vme_tensor *out), "arange")
#define NONE __attribute__((weak)) const
NONE vme_elementwise_kernels vme_elementwise_portable, vme_elementwise_avx2, vme_elementwise_avx512;
NONE vme_gemm_kernels vme_gemm_portable, vme_gemm_avx2, vme_gemm_avx512;
