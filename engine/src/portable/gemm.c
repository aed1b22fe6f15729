/* Matrix products in the compiler's own vectors of 16 bytes: SSE2 on x86-64, NEON on ARM. */
#define VME_TARGET portable
#define VME_VECTOR_BYTES 16
#define VME_GEMM_ROWS 6
#define VME_GEMM_WORK (1 << 20)

#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define FLOATING(T, E) \
    typedef E T##_vec __attribute__((vector_size(VME_VECTOR_BYTES))); \
    typedef int T##_mask; \
    INLINE T##_vec T##_load(const E *from) { T##_vec v; memcpy(&v, from, sizeof v); return v; } \
    INLINE void T##_store(E *to, T##_vec v) { memcpy(to, &v, sizeof v); } \
    INLINE T##_mask T##_first(int count) { return count; } \
    INLINE T##_vec T##_load_first(const E *from, T##_mask count) \
    { \
        T##_vec v = {0}; \
        memcpy(&v, from, (size_t)count * sizeof *from); \
        return v; \
    } \
    INLINE void T##_store_first(E *to, T##_mask count, T##_vec v) { memcpy(to, &v, (size_t)count * sizeof *to); } \
    INLINE T##_vec T##_all(E value) { return (T##_vec){0} + value; } \
    INLINE T##_vec T##_add_product(T##_vec sum, T##_vec a, T##_vec b) { return sum + a * b; } \
    INLINE T##_vec T##_add(T##_vec a, T##_vec b) { return a + b; } \
    INLINE E T##_total(T##_vec v) \
    { \
        E total = v[0]; \
        for (unsigned i = 1; i < sizeof v / sizeof v[0]; i++) \
            total += v[i]; \
        return total; \
    }
FLOATING(f32, float)
FLOATING(f64, double)
#undef INLINE

#include "../kernels/gemm.h"
