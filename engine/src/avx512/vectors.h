/* AVX-512 vectors of float32 and float64, for gemm.c and winograd.c. */
#ifndef VME_AVX512_VECTORS_H
#define VME_AVX512_VECTORS_H

#define VME_VECTOR_BYTES 64

#include <immintrin.h>

#include "../kernels/gemm_compiler_vectors.h"

#define INLINE VME_INLINE
typedef __m512 f32_vec;
typedef __m512d f64_vec;
typedef __mmask16 f32_mask;
typedef __mmask8 f64_mask;

INLINE f32_vec f32_load(const float *from) { return _mm512_loadu_ps(from); }
INLINE void f32_store(float *to, f32_vec v) { _mm512_storeu_ps(to, v); }
INLINE f32_mask f32_first(int count) { return (f32_mask)((1u << count) - 1); }
INLINE f32_vec f32_load_first(const float *from, f32_mask mask) { return _mm512_maskz_loadu_ps(mask, from); }
INLINE void f32_store_first(float *to, f32_mask mask, f32_vec v) { _mm512_mask_storeu_ps(to, mask, v); }
INLINE f32_vec f32_splat(float value) { return _mm512_set1_ps(value); }
INLINE f32_vec f32_add_product(f32_vec sum, f32_vec a, f32_vec b) { return _mm512_fmadd_ps(a, b, sum); }
INLINE f32_vec f32_add(f32_vec a, f32_vec b) { return _mm512_add_ps(a, b); }
/* NaN and -0 stay */
INLINE f32_vec f32_without_negatives(f32_vec v) { return _mm512_max_ps(_mm512_setzero_ps(), v); }
/* NaN stays */
INLINE f32_vec f32_max(f32_vec v, f32_vec low) { return _mm512_max_ps(low, v); }
INLINE f32_vec f32_min(f32_vec v, f32_vec high) { return _mm512_min_ps(high, v); }
INLINE float f32_total(f32_vec v) { return _mm512_reduce_add_ps(v); }

INLINE f64_vec f64_load(const double *from) { return _mm512_loadu_pd(from); }
INLINE void f64_store(double *to, f64_vec v) { _mm512_storeu_pd(to, v); }
INLINE f64_mask f64_first(int count) { return (f64_mask)((1u << count) - 1); }
INLINE f64_vec f64_load_first(const double *from, f64_mask mask) { return _mm512_maskz_loadu_pd(mask, from); }
INLINE void f64_store_first(double *to, f64_mask mask, f64_vec v) { _mm512_mask_storeu_pd(to, mask, v); }
INLINE f64_vec f64_splat(double value) { return _mm512_set1_pd(value); }
INLINE f64_vec f64_add_product(f64_vec sum, f64_vec a, f64_vec b) { return _mm512_fmadd_pd(a, b, sum); }
INLINE f64_vec f64_add(f64_vec a, f64_vec b) { return _mm512_add_pd(a, b); }
INLINE double f64_total(f64_vec v) { return _mm512_reduce_add_pd(v); }

/* Integers: `count` is at least 1 and at most the number of lanes. */
#define FIRST_LANES(T, E, BITS, MASK) \
    typedef MASK T##_mask; \
    VME_INLINE T##_mask T##_first(int count) \
    { \
        return (T##_mask)((T##_mask) ~(T##_mask)0 >> (8 * sizeof(T##_mask) - (size_t)count)); \
    } \
    VME_INLINE T##_vec T##_load_first(const E *from, T##_mask mask) \
    { \
        return (T##_vec)_mm512_maskz_loadu_epi##BITS(mask, from); \
    } \
    VME_INLINE void T##_store_first(E *to, T##_mask mask, T##_vec v) \
    { \
        _mm512_mask_storeu_epi##BITS(to, mask, (__m512i)v); \
    }
#define VME_FIRST_LANES_8(T, E)  FIRST_LANES(T, E, 8, __mmask64)
#define VME_FIRST_LANES_16(T, E) FIRST_LANES(T, E, 16, __mmask32)
#define VME_FIRST_LANES_32(T, E) FIRST_LANES(T, E, 32, __mmask16)
#define VME_FIRST_LANES_64(T, E) FIRST_LANES(T, E, 64, __mmask8)
#undef INLINE
#endif
