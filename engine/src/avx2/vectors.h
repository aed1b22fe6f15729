/* AVX2 vectors of float32 and float64, for gemm.c and winograd.c. */
#ifndef VME_AVX2_VECTORS_H
#define VME_AVX2_VECTORS_H

#define VME_VECTOR_BYTES 32

#include <immintrin.h>
#include <stdint.h>

#include "../kernels/gemm_compiler_vectors.h"

#define INLINE VME_INLINE
typedef __m256 f32_vec;
typedef __m256d f64_vec;
typedef __m256i f32_mask, f64_mask;

/* The 8 entries from 8 - count on are the mask of the first `count` lanes. */
static const int32_t ones_then_zeros[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

INLINE f32_vec f32_load(const float *from) { return _mm256_loadu_ps(from); }
INLINE void f32_store(float *to, f32_vec v) { _mm256_storeu_ps(to, v); }
INLINE f32_mask f32_first(int count) { return _mm256_loadu_si256((const __m256i *)(ones_then_zeros + 8 - count)); }
INLINE f32_vec f32_load_first(const float *from, f32_mask mask) { return _mm256_maskload_ps(from, mask); }
INLINE void f32_store_first(float *to, f32_mask mask, f32_vec v) { _mm256_maskstore_ps(to, mask, v); }
INLINE f32_vec f32_splat(float value) { return _mm256_set1_ps(value); }
INLINE f32_vec f32_add_product(f32_vec sum, f32_vec a, f32_vec b) { return _mm256_fmadd_ps(a, b, sum); }
INLINE f32_vec f32_add(f32_vec a, f32_vec b) { return _mm256_add_ps(a, b); }
/* NaN and -0 stay */
INLINE f32_vec f32_without_negatives(f32_vec v) { return _mm256_max_ps(_mm256_setzero_ps(), v); }
/* NaN stays */
INLINE f32_vec f32_max(f32_vec v, f32_vec low) { return _mm256_max_ps(low, v); }
INLINE f32_vec f32_min(f32_vec v, f32_vec high) { return _mm256_min_ps(high, v); }
INLINE float f32_total(f32_vec v)
{
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_movehdup_ps(half)));
}

INLINE f64_vec f64_load(const double *from) { return _mm256_loadu_pd(from); }
INLINE void f64_store(double *to, f64_vec v) { _mm256_storeu_pd(to, v); }
INLINE f64_mask f64_first(int count) { return _mm256_loadu_si256((const __m256i *)(ones_then_zeros + 8 - 2 * count)); }
INLINE f64_vec f64_load_first(const double *from, f64_mask mask) { return _mm256_maskload_pd(from, mask); }
INLINE void f64_store_first(double *to, f64_mask mask, f64_vec v) { _mm256_maskstore_pd(to, mask, v); }
INLINE f64_vec f64_splat(double value) { return _mm256_set1_pd(value); }
INLINE f64_vec f64_add_product(f64_vec sum, f64_vec a, f64_vec b) { return _mm256_fmadd_pd(a, b, sum); }
INLINE f64_vec f64_add(f64_vec a, f64_vec b) { return _mm256_add_pd(a, b); }
INLINE double f64_total(f64_vec v)
{
    __m128d half = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(half, _mm_unpackhi_pd(half, half)));
}

/* Integers. Only 32- and 64-bit ones have masked loads. */
#define FIRST_LANES(T, E, BITS, POINTEE) \
    typedef __m256i T##_mask; \
    VME_INLINE T##_mask T##_first(int count) { return f##BITS##_first(count); } \
    VME_INLINE T##_vec T##_load_first(const E *from, T##_mask mask) \
    { \
        return (T##_vec)_mm256_maskload_epi##BITS((const POINTEE *)from, mask); \
    } \
    VME_INLINE void T##_store_first(E *to, T##_mask mask, T##_vec v) \
    { \
        _mm256_maskstore_epi##BITS((POINTEE *)to, mask, (__m256i)v); \
    }
#define VME_FIRST_LANES_8        VME_FIRST_LANES_COPIED
#define VME_FIRST_LANES_16       VME_FIRST_LANES_COPIED
#define VME_FIRST_LANES_32(T, E) FIRST_LANES(T, E, 32, int)
#define VME_FIRST_LANES_64(T, E) FIRST_LANES(T, E, 64, long long)
#undef INLINE
#endif
