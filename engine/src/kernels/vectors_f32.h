/* This backend's vector of float32, `vec`, with LANES elements, and its operations. Multiply-add is fused if the CPU
 * has the instruction. */
#ifndef VME_VECTORS_F32_H
#define VME_VECTORS_F32_H

#include "runtime/internal.h"
#include "gemm_compiler_vectors.h" /* VME_INLINE */

#ifdef __AVX2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define VEC_BYTES 64
#elif defined(__AVX2__)
#define VEC_BYTES 32
#else
#define VEC_BYTES 16
#endif

typedef float vec __attribute__((vector_size(VEC_BYTES)));
typedef float vec_unaligned __attribute__((vector_size(VEC_BYTES), aligned(4), may_alias));
enum { LANES = VEC_BYTES / 4 };

VME_INLINE vec load(const float *from) { return *(const vec_unaligned *)from; }
VME_INLINE void store(float *to, vec v) { *(vec_unaligned *)to = v; }
/* The first `count` elements, at least 1 and fewer than LANES, followed by zeros. */
VME_INLINE vec load_partial(const float *from, int64_t count)
{
#if defined(__AVX512F__)
    return _mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), from);
#elif defined(__AVX2__)
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane));
#else
    vec v = {0};
    for (int i = 0; i < LANES; i++)
        v[i] = i < count ? from[i] : 0;
    return v;
#endif
}
VME_INLINE void store_partial(float *to, vec v, int64_t count)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(to, (__mmask16)((1u << count) - 1), v);
#elif defined(__AVX2__)
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    _mm256_maskstore_ps(to, _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane), v);
#else
    for (int i = 0; i < LANES; i++)
        if (i < count)
            to[i] = v[i];
#endif
}
VME_INLINE vec splat(float value) { return value - (vec){0}; }
VME_INLINE vec add_product(vec sum, vec a, vec b)
{
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, sum);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, sum);
#else
    return sum + a * b;
#endif
}
VME_INLINE vec clamp(vec v, vec low, vec high) /* NaN stays */
{
#if defined(__AVX512F__)
    return _mm512_min_ps(high, _mm512_max_ps(low, v));
#elif defined(__AVX2__)
    return _mm256_min_ps(high, _mm256_max_ps(low, v));
#else
    for (int i = 0; i < LANES; i++) {
        float value = v[i] < low[i] ? low[i] : v[i];
        v[i] = value > high[i] ? high[i] : value;
    }
    return v;
#endif
}
VME_INLINE vec maximum(vec a, vec b)
{
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    for (int i = 0; i < LANES; i++)
        a[i] = a[i] > b[i] ? a[i] : b[i];
    return a;
#endif
}

#endif
