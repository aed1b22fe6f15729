/* Compiler vectors of VME_VECTOR_BYTES, for the element types of gemm.h without intrinsics: all types in the portable
 * backend, integers in every backend. */
#ifndef VME_GEMM_COMPILER_VECTORS_H
#define VME_GEMM_COMPILER_VECTORS_H

#include <stdbool.h>
#include <string.h>

#define VME_INLINE static inline __attribute__((always_inline))

/* T names the type, E is its C type. */
#define VME_COMPILER_VECTORS(T, E) \
    typedef E T##_vec __attribute__((vector_size(VME_VECTOR_BYTES))); \
    VME_INLINE T##_vec T##_load(const E *from) \
    { \
        T##_vec v; \
        memcpy(&v, from, sizeof v); \
        return v; \
    } \
    VME_INLINE void T##_store(E *to, T##_vec v) { memcpy(to, &v, sizeof v); } \
    VME_INLINE T##_vec T##_splat(E value) { return (T##_vec){0} + value; }
/* Loads and stores of the first lanes by memcpy, for backends without masked instructions. A mask is the number of
 * lanes. */
#define VME_FIRST_LANES_COPIED(T, E) \
    typedef int T##_mask; \
    VME_INLINE T##_mask T##_first(int count) { return count; } \
    VME_INLINE T##_vec T##_load_first(const E *from, T##_mask count) \
    { \
        T##_vec v = {0}; \
        if (count == sizeof v / sizeof *from) \
            return T##_load(from); \
        memcpy(&v, from, (size_t)count * sizeof *from); \
        return v; \
    } \
    VME_INLINE void T##_store_first(E *to, T##_mask count, T##_vec v) { memcpy(to, &v, (size_t)count * sizeof *to); }
#define VME_SUM_OF_PRODUCTS(T) \
    VME_INLINE T##_vec T##_add_product(T##_vec sum, T##_vec a, T##_vec b) { return sum + a * b; } \
    VME_INLINE T##_vec T##_add(T##_vec a, T##_vec b) { return a + b; }
/* bool: any non-zero byte is true */
#define VME_OR_OF_ANDS(T) \
    VME_INLINE T##_vec T##_add_product(T##_vec sum, T##_vec a, T##_vec b) \
    { \
        return sum | ((T##_vec)((a != 0) & (b != 0)) & 1); \
    } \
    VME_INLINE T##_vec T##_add(T##_vec a, T##_vec b) { return a | b; }
/* For backends without an instruction that multiplies by a factor in memory: factors are always loaded first. */
#define VME_FACTORS_IN_REGISTERS(T) \
    VME_INLINE bool T##_from_memory(int row) \
    { \
        (void)row; \
        return false; \
    } \
    VME_INLINE T##_vec T##_add_product_from(T##_vec sum, const void *factor, T##_vec b) \
    { \
        (void)factor; \
        (void)b; \
        return sum; \
    }
#endif
