/* Philox 4x64 with 10 rounds, one block in each lane, twice eight at once: 64-bit products are composed of 32-bit ones.
 */
#include <immintrin.h>

#include "runtime/internal.h"

typedef struct part {
    __m512i x0, x1, x2, x3;
} part;

/* The upper and lower 64 bits of x * (high << 32 | low). */
static inline void multiply(__m512i x, __m512i high, __m512i low, __m512i *above, __m512i *below)
{
    __m512i lower = _mm512_set1_epi64(0xffffffff), upper_x = _mm512_srli_epi64(x, 32);
    __m512i ll = _mm512_mul_epu32(x, low), lh = _mm512_mul_epu32(x, high), hl = _mm512_mul_epu32(upper_x, low);
    __m512i hh = _mm512_mul_epu32(upper_x, high);
    __m512i middle = _mm512_add_epi64(hl, _mm512_srli_epi64(ll, 32)),
            rest = _mm512_add_epi64(lh, _mm512_and_si512(middle, lower));
    *above = _mm512_add_epi64(_mm512_add_epi64(hh, _mm512_srli_epi64(middle, 32)), _mm512_srli_epi64(rest, 32));
    *below = _mm512_mask_blend_epi32(0xaaaa, ll, _mm512_slli_epi64(rest, 32));
}

static inline part philox_round(part p, uint64_t key0, uint64_t key1)
{
    enum { EXCLUSIVE_OR = 0x96 };
    __m512i high0, low0, high2, low2;
    multiply(p.x0, _mm512_set1_epi64(0xD2E7470E), _mm512_set1_epi64(0xE14C6C93), &high0, &low0);
    multiply(p.x2, _mm512_set1_epi64(0xCA5A8263), _mm512_set1_epi64(0x95121157), &high2, &low2);
    return (part){_mm512_ternarylogic_epi64(high2, p.x1, _mm512_set1_epi64((int64_t)key0), EXCLUSIVE_OR), low2,
                  _mm512_ternarylogic_epi64(high0, p.x3, _mm512_set1_epi64((int64_t)key1), EXCLUSIVE_OR), low0};
}

/* Transposes rows of words to blocks of four words. */
static inline void put(part p, uint64_t *words)
{
    __m512i a = _mm512_unpacklo_epi64(p.x0, p.x1),
            b = _mm512_unpackhi_epi64(p.x0, p.x1); /* blocks 0 2 4 6, and 1 3 5 7 */
    __m512i c = _mm512_unpacklo_epi64(p.x2, p.x3), d = _mm512_unpackhi_epi64(p.x2, p.x3);
    __m512i even = _mm512_shuffle_i64x2(a, c, 0x44),
            even_on = _mm512_shuffle_i64x2(a, c, 0xee); /* a0 a2 c0 c2, a4 a6 c4 c6 */
    __m512i odd = _mm512_shuffle_i64x2(b, d, 0x44), odd_on = _mm512_shuffle_i64x2(b, d, 0xee);
    __m512i first = _mm512_shuffle_i64x2(even, odd, 0x88),
            second = _mm512_shuffle_i64x2(even, odd, 0xdd); /* a0 c0 b1 d1, a2 c2 b3 d3 */
    __m512i third = _mm512_shuffle_i64x2(even_on, odd_on, 0x88), fourth = _mm512_shuffle_i64x2(even_on, odd_on, 0xdd);
    _mm512_storeu_si512(words, first);
    _mm512_storeu_si512(words + 8, second);
    _mm512_storeu_si512(words + 16, third);
    _mm512_storeu_si512(words + 24, fourth);
}

static void blocks(const uint64_t key[2], const uint64_t counter[4], uint64_t words[64])
{
    __m512i numbers =
        _mm512_add_epi64(_mm512_set1_epi64((int64_t)counter[0]), _mm512_setr_epi64(1, 2, 3, 4, 5, 6, 7, 8));
    part one = {numbers, _mm512_set1_epi64((int64_t)counter[1]), _mm512_set1_epi64((int64_t)counter[2]),
                _mm512_set1_epi64((int64_t)counter[3])};
    part two = one;
    uint64_t key0 = key[0], key1 = key[1];
    two.x0 = _mm512_add_epi64(numbers, _mm512_set1_epi64(8));
    for (int round = 0; round < 10; round++) {
        one = philox_round(one, key0, key1);
        two = philox_round(two, key0, key1);
        key0 += UINT64_C(0x9E3779B97F4A7C15);
        key1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    put(one, words);
    put(two, words + 32);
}

const vme_random_kernels vme_random_avx512 = {.blocks = blocks};
