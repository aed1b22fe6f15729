/* Matrix products with AVX-512: tiles of 14 x 32 float32, 14 x 16 float64. */
#define VME_TARGET    avx512
#define VME_REGISTERS 32
#define VME_GEMM_WORK (1 << 22)

#include "vectors.h"

#define INLINE VME_INLINE
/* Six of 14 rows read their factor from memory: then 14 + 6 factors are loaded in the 14 cycles of a step, beside b and
 * prefetches. More measured slower. */
INLINE bool f32_from_memory(int row) { return row * 6 / 14 != (row + 1) * 6 / 14; }
INLINE bool f64_from_memory(int row) { return f32_from_memory(row); }
INLINE f32_vec f32_add_product_from(f32_vec sum, const void *factor, f32_vec b)
{
    __asm__("vfmadd231ps %1%{1to16%}, %2, %0" : "+v"(sum) : "m"(*(const float (*)[1])factor), "v"(b));
    return sum;
}
INLINE f64_vec f64_add_product_from(f64_vec sum, const void *factor, f64_vec b)
{
    __asm__("vfmadd231pd %1%{1to8%}, %2, %0" : "+v"(sum) : "m"(*(const double (*)[1])factor), "v"(b));
    return sum;
}

/* Packs rows with contiguous columns into columns with contiguous rows, 16 x 16 at a time. Groups of 4 lanes are
 * combined as they are loaded, then transposed. */
static void f32_pack_a(int64_t k, const char *a, int64_t a_row, char *out)
{
    int64_t p = 0;
    for (; p + 16 <= k; p += 16, out += 16 * 64)
        for (int quarter = 0; quarter < 4; quarter++) {
            __m512 row[4]; /* rows i, i + 4, i + 8 and i + 12 */
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                const char *from = a + i * a_row + (p + 4 * quarter) * 4;
                row[i] = _mm512_castps128_ps512(_mm_loadu_ps((const float *)from));
                row[i] = _mm512_insertf32x4(row[i], _mm_loadu_ps((const float *)(from + 4 * a_row)), 1);
                row[i] = _mm512_insertf32x4(row[i], _mm_loadu_ps((const float *)(from + 8 * a_row)), 2);
                row[i] = _mm512_insertf32x4(row[i], _mm_loadu_ps((const float *)(from + 12 * a_row)), 3);
            }
            __m512 low01 = _mm512_unpacklo_ps(row[0], row[1]), high01 = _mm512_unpackhi_ps(row[0], row[1]);
            __m512 low23 = _mm512_unpacklo_ps(row[2], row[3]), high23 = _mm512_unpackhi_ps(row[2], row[3]);
            float *to = (float *)(out + quarter * 4 * 64);
            _mm512_storeu_ps(to, _mm512_shuffle_ps(low01, low23, 0x44));
            _mm512_storeu_ps(to + 16, _mm512_shuffle_ps(low01, low23, 0xee));
            _mm512_storeu_ps(to + 32, _mm512_shuffle_ps(high01, high23, 0x44));
            _mm512_storeu_ps(to + 48, _mm512_shuffle_ps(high01, high23, 0xee));
        }
    for (; p < k; p++, out += 64)
        for (int i = 0; i < 16; i++)
            memcpy(out + i * 4, a + i * a_row + p * 4, 4);
}

/* The same for float64, 16 x 2 at a time, in groups of 2 lanes. */
static void f64_pack_a(int64_t k, const char *a, int64_t a_row, char *out)
{
    int64_t p = 0;
    for (; p + 2 <= k; p += 2, out += 2 * 128)
        for (int half = 0; half < 2; half++) {
            __m512d row[2];
#pragma GCC unroll 2
            for (int i = 0; i < 2; i++) {
                const char *from = a + (8 * half + i) * a_row + p * 8;
                row[i] = _mm512_castpd128_pd512(_mm_loadu_pd((const double *)from));
                row[i] = _mm512_insertf64x2(row[i], _mm_loadu_pd((const double *)(from + 2 * a_row)), 1);
                row[i] = _mm512_insertf64x2(row[i], _mm_loadu_pd((const double *)(from + 4 * a_row)), 2);
                row[i] = _mm512_insertf64x2(row[i], _mm_loadu_pd((const double *)(from + 6 * a_row)), 3);
            }
            double *to = (double *)(out + half * 64);
            _mm512_storeu_pd(to, _mm512_unpacklo_pd(row[0], row[1]));
            _mm512_storeu_pd(to + 16, _mm512_unpackhi_pd(row[0], row[1]));
        }
    for (; p < k; p++, out += 128)
        for (int i = 0; i < 16; i++)
            memcpy(out + i * 8, a + i * a_row + p * 8, 8);
}

#undef INLINE

#define f32_PACK_A f32_pack_a
#define f64_PACK_A f64_pack_a
#include "../kernels/gemm.h"
