/* Quantized operators on bytes, for each backend. The including file defines VME_TARGET. */
#include "models/quantized_kernels.h"

#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define INLINE      static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define COPY_BYTES 64 /* bytes copied at a time */
#elif defined(__AVX2__)
#define COPY_BYTES 32
#else
#define COPY_BYTES 16
#endif
enum { COLUMNS = QUANTIZED_COLUMNS, QUAD = QUANTIZED_QUAD, SLIVER = COLUMNS * QUAD };
enum { QUADS_AHEAD = 16 }; /* quads whose weights are prefetched ahead */

/* ---- products */
#ifdef __AVX2__
/* Eight columns of up to 4 rows. Bytes are widened to 16 bits: sums of their products are exact, unlike those of the
 * instruction that multiplies bytes (vpmaddubsw), which saturate at 16 bits. */
INLINE void madd_block(const int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out)
{
    __m256i sum[4][2];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm256_setzero_si256();
    for (int64_t q = 0; q < quads; q++, b += SLIVER) {
        const __m256i left = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)b)),
                      right = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(b + 16)));
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad, a + r * a_row + q * QUAD, sizeof quad);
            const __m256i factor = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(_mm_cvtsi32_si128(quad)));
            sum[r][0] = _mm256_add_epi32(sum[r][0], _mm256_madd_epi16(factor, left));
            sum[r][1] = _mm256_add_epi32(sum[r][1], _mm256_madd_epi16(factor, right));
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) /* the two partial sums of a column are adjacent */
        _mm256_storeu_si256((__m256i *)(out + r * COLUMNS),
                            _mm256_permute4x64_epi64(_mm256_hadd_epi32(sum[r][0], sum[r][1]), 0xd8));
}

static void madd_tile(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out)
{
    for (int r = 0; r < rows; r += 4)
        for (int column = 0; column < COLUMNS; column += 8) {
            const uint8_t *from = a + r * a_row;
            const int8_t *weights = b + column * QUAD;
            int32_t *to = out + r * COLUMNS + column;
            switch (rows - r) {
            case 1: madd_block(1, quads, from, a_row, weights, to); break;
            case 2: madd_block(2, quads, from, a_row, weights, to); break;
            case 3: madd_block(3, quads, from, a_row, weights, to); break;
            default: madd_block(4, quads, from, a_row, weights, to); break;
            }
        }
}
#endif

#ifdef __AVX512F__
/* ---- conversion of sums to bytes */
/* Constants of the conversion from sums to bytes. */
typedef struct output_constants {
    __m512i zero, low, high, flip; /* zero as 16-bit, the others as 8-bit lanes */
} output_constants;

INLINE output_constants output_constants_of(quantized_result to)
{
    return (output_constants){_mm512_set1_epi16((int16_t)to.zero), _mm512_set1_epi8((char)to.low),
                              _mm512_set1_epi8((char)to.high), _mm512_set1_epi8((char)to.flip)};
}

/* Rounds to nearest. Values too large for 16 bits stay too large; NaN becomes the minimum. */
INLINE __m512i round_to_nearest(__m512 numbers)
{
    return _mm512_cvtps_epi32(_mm512_min_ps(_mm512_set1_ps(0x1p20f), numbers));
}

INLINE __m512i scale_and_round(__m512i sum, __m512 factor)
{
    return round_to_nearest(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
}

/* The same for a factor between -1 and 1: the product fits in 32 bits, so it needs no bound. */
INLINE __m512i scale_and_round_small(__m512i sum, __m512 factor)
{
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(sum), factor));
}

/* Converts four vectors to bytes, in the order that packing leaves: each 16 bytes hold four of each vector. */
INLINE __m512i pack_bytes(__m512i a, __m512i b, __m512i c, __m512i d, output_constants constants)
{
    const __m512i left = _mm512_adds_epi16(_mm512_packs_epi32(a, b), constants.zero),
                  right = _mm512_adds_epi16(_mm512_packs_epi32(c, d), constants.zero);
    const __m512i bytes = _mm512_packus_epi16(left, right);
    return _mm512_xor_si512(_mm512_min_epu8(_mm512_max_epu8(bytes, constants.low), constants.high), constants.flip);
}

/* ---- products of quads */
#define VNNI __attribute__((target("avx512vnni,avx512bw,avx512vl,avx512dq")))

/* _mm512_dpbusd_epi32 in place: if compilers choose the registers, they copy sums between products. */
VNNI INLINE void dot(__m512i *sum, __m512i bytes, __m512i weights)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(bytes), "v"(weights));
}

/* Adds products to the sums of `rows` pixels and 16 or 32 columns. */
VNNI INLINE void dots(const int rows, const int halves, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                      __m512i sum[QUANTIZED_ROWS][2])
{
    const uint8_t *const row6 = a + 6 * a_row, *const row12 = a + 12 * a_row;
    for (int64_t q = 0; q < quads; q++, b += SLIVER) {
        const __m512i left = _mm512_loadu_si512(b),
                      right = halves == 1 ? _mm512_setzero_si512() : _mm512_loadu_si512(b + 64);
        _mm_prefetch((const char *)(b + QUADS_AHEAD * SLIVER), _MM_HINT_T0);
        if (halves == 2)
            _mm_prefetch((const char *)(b + QUADS_AHEAD * SLIVER + 64), _MM_HINT_T0);
#pragma GCC unroll 14
        for (int r = 0; r < rows; r++) {
            int32_t quad;
            memcpy(&quad,
                   (r < 6    ? a + r * a_row
                    : r < 12 ? row6 + (r - 6) * a_row
                             : row12 + (r - 12) * a_row)
                       + q * QUAD,
                   sizeof quad);
            const __m512i factor = _mm512_set1_epi32(quad);
            dot(&sum[r][0], factor, left);
            if (halves == 2)
                dot(&sum[r][1], factor, right);
        }
    }
}

VNNI INLINE void dots_block(const int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                            int32_t *out)
{
    __m512i sum[QUANTIZED_ROWS][2];
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = _mm512_setzero_si512();
    dots(rows, 2, quads, a, a_row, b, sum);
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
        _mm512_storeu_si512(out + r * COLUMNS, sum[r][0]);
        _mm512_storeu_si512(out + r * COLUMNS + 16, sum[r][1]);
    }
}

VNNI INLINE void dots_bytes_block(const int rows, const int halves, int columns, int64_t quads, const uint8_t *a,
                                  int64_t a_row, const int8_t *b, const int32_t *bias, const float *factors,
                                  quantized_result to, uint8_t *out, int64_t out_row)
{
    const __mmask32 mask = columns < COLUMNS ? ((__mmask32)1 << columns) - 1 : ~(__mmask32)0;
    const __mmask16 left = (__mmask16)mask, right = (__mmask16)(mask >> 16);
    __m512i sum[QUANTIZED_ROWS][2];
    sum[0][0] = _mm512_maskz_loadu_epi32(left, bias);
    sum[0][1] = halves == 1 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi32(right, bias + 16);
#pragma GCC unroll 14
    for (int r = 1; r < rows; r++)
        sum[r][0] = sum[0][0], sum[r][1] = sum[0][1];
    dots(rows, halves, quads, a, a_row, b, sum);
    const __m512 scale[] = {_mm512_maskz_loadu_ps(left, factors),
                            halves == 1 ? _mm512_setzero_ps() : _mm512_maskz_loadu_ps(right, factors + 16)};
    const output_constants constants = output_constants_of(to);
    if (halves == 1) { /* four rows in one vector */
        const __m512i row_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r += 4) {
            __m512i vectors[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                vectors[i] = r + i < rows ? scale_and_round_small(sum[r + i][0], scale[0]) : _mm512_setzero_si512();
            const __m512i bytes = _mm512_permutexvar_epi32(
                row_order, pack_bytes(vectors[0], vectors[1], vectors[2], vectors[3], constants));
            _mm_mask_storeu_epi8(out + r * out_row, left, _mm512_castsi512_si128(bytes));
            if (r + 1 < rows)
                _mm_mask_storeu_epi8(out + (r + 1) * out_row, left, _mm512_extracti32x4_epi32(bytes, 1));
            if (r + 2 < rows)
                _mm_mask_storeu_epi8(out + (r + 2) * out_row, left, _mm512_extracti32x4_epi32(bytes, 2));
            if (r + 3 < rows)
                _mm_mask_storeu_epi8(out + (r + 3) * out_row, left, _mm512_extracti32x4_epi32(bytes, 3));
        }
        return;
    }
    const __m512i row_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
#pragma GCC unroll 7
    for (int r = 0; r < rows; r += 2) {
        const __m512i zero = _mm512_setzero_si512();
        const __m512i bytes = _mm512_permutexvar_epi32(
            row_order,
            pack_bytes(scale_and_round_small(sum[r][0], scale[0]), scale_and_round_small(sum[r][1], scale[1]),
                       r + 1 < rows ? scale_and_round_small(sum[r + 1][0], scale[0]) : zero,
                       r + 1 < rows ? scale_and_round_small(sum[r + 1][1], scale[1]) : zero, constants));
        _mm256_mask_storeu_epi8(out + r * out_row, mask, _mm512_castsi512_si256(bytes));
        if (r + 1 < rows)
            _mm256_mask_storeu_epi8(out + (r + 1) * out_row, mask, _mm512_extracti64x4_epi64(bytes, 1));
    }
}

/* clang-format off */
#define CASE(n) case n: dots_block(n, quads, a, a_row, b, out); break;
VNNI static void dots_tile(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out)
{
    switch (rows) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
    default: dots_block(14, quads, a, a_row, b, out); break;
    }
}
#undef CASE
#define CASE(n) \
    case n: dots_bytes_block(n, 2, columns, quads, a, a_row, b, bias, factors, to, out, out_row); break; \
    case n + 16: dots_bytes_block(n, 1, columns, quads, a, a_row, b, bias, factors, to, out, out_row); break;
VNNI static void dots_tile_bytes(int rows, int columns, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                                 const int32_t *bias, const float *factors, quantized_result to, uint8_t *out,
                                 int64_t out_row)
{
    switch (rows + 16 * (columns <= 16)) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13)
        CASE(14)
    default: break;
    }
}
#undef CASE
/* clang-format on */

static void any_tile(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out)
{
    if (__builtin_cpu_supports("avx512vnni"))
        dots_tile(rows, quads, a, a_row, b, out);
    else
        madd_tile(rows, quads, a, a_row, b, out);
}
#elif defined(__AVX2__)
#define any_tile madd_tile
#else
static void any_tile(int rows, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b, int32_t *out)
{
    for (int r = 0; r < rows; r++) {
        int32_t sum[COLUMNS] = {0};
        const int8_t *weights = b;
        for (int64_t q = 0; q < quads; q++, weights += SLIVER) {
            int32_t quad[QUAD];
            for (int i = 0; i < QUAD; i++)
                quad[i] = a[r * a_row + q * QUAD + i];
            for (int c = 0; c < COLUMNS; c++)
                for (int i = 0; i < QUAD; i++)
                    sum[c] += quad[i] * weights[c * QUAD + i];
        }
        memcpy(out + r * COLUMNS, sum, sizeof sum);
    }
}
#endif

/* ---- depthwise windows */
enum { CHANNEL_BLOCK = 32 };

/* `count` channels from `c` on, at most CHANNEL_BLOCK, of one pixel. */
INLINE void window_sums(int64_t count, int64_t channels, int taps, const uint8_t *const *in, int64_t c,
                        const int8_t *weights, int32_t *out)
{
    int32_t sum[CHANNEL_BLOCK] = {0};
    for (int tap = 0; tap < taps; tap++) {
        const uint8_t *restrict from = in[tap] + c;
        const int8_t *restrict weight = weights + tap * channels + c;
        if (count == CHANNEL_BLOCK)
            for (int i = 0; i < CHANNEL_BLOCK; i++) /* a product of bytes fits in 16 bits */
                sum[i] += (int16_t)((int16_t)from[i] * (int16_t)weight[i]);
        else
            for (int64_t i = 0; i < count; i++)
                sum[i] += from[i] * weight[i];
    }
    memcpy(out + c, sum, (size_t)count * sizeof *out);
}

static void any_windows(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in, const int8_t *weights,
                        int32_t *out)
{
    for (int64_t pixel = 0; pixel < pixels; pixel++, in += taps, out += channels)
        for (int64_t c = 0; c < channels; c += CHANNEL_BLOCK)
            window_sums(channels - c < CHANNEL_BLOCK ? channels - c : CHANNEL_BLOCK, channels, taps, in, c, weights,
                        out);
}

#ifdef __AVX512F__
enum { CHANNELS_AT_ONCE = 64, TAP_QUADS = 3 /* quads of taps whose weights stay in registers */ };

/* Interleaves four taps of 64 channels, so that the taps of a channel are adjacent: vector v has channels 4v to 4v + 3
 * of each 16. */
VNNI INLINE void interleave_taps(const __m512i tap[4], __m512i out[4])
{
    const __m512i low01 = _mm512_unpacklo_epi8(tap[0], tap[1]), high01 = _mm512_unpackhi_epi8(tap[0], tap[1]),
                  low23 = _mm512_unpacklo_epi8(tap[2], tap[3]), high23 = _mm512_unpackhi_epi8(tap[2], tap[3]);
    out[0] = _mm512_unpacklo_epi16(low01, low23);
    out[1] = _mm512_unpackhi_epi16(low01, low23);
    out[2] = _mm512_unpacklo_epi16(high01, high23);
    out[3] = _mm512_unpackhi_epi16(high01, high23);
}

/* Reorders vectors from the order of interleave_taps to 64 consecutive channels. */
VNNI INLINE void reorder_channels(const __m512i sum[4], __m512i out[4])
{
    const __m512i a = _mm512_shuffle_i32x4(sum[0], sum[1], 0x44), b = _mm512_shuffle_i32x4(sum[2], sum[3], 0x44),
                  c = _mm512_shuffle_i32x4(sum[0], sum[1], 0xee), d = _mm512_shuffle_i32x4(sum[2], sum[3], 0xee);
    out[0] = _mm512_shuffle_i32x4(a, b, 0x88);
    out[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
    out[2] = _mm512_shuffle_i32x4(c, d, 0x88);
    out[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

/* All pixels of the channels in `mask`, of 64 from `c` on, for `tap_quads` quads of taps from `first_tap` on. Adds to
 * the sums in `out`, unless first_tap is 0. */
VNNI INLINE void dots_windows_of(const int tap_quads, int64_t pixels, int64_t channels, int taps, int first_tap,
                                 const uint8_t *const *in, const int8_t *weights, int64_t c, __mmask64 mask,
                                 int32_t *out)
{
    __m512i tap_weights[TAP_QUADS][4];
#pragma GCC unroll 3
    for (int tap_quad = 0; tap_quad < tap_quads; tap_quad++) {
        __m512i tap[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const int tap_index = first_tap + 4 * tap_quad + i;
            tap[i] = tap_index < taps ? _mm512_maskz_loadu_epi8(mask, weights + tap_index * channels + c)
                                      : _mm512_setzero_si512();
        }
        interleave_taps(tap, tap_weights[tap_quad]);
    }
    for (int64_t pixel = 0; pixel < pixels; pixel++, in += taps, out += channels) {
        __m512i sum[4] = {_mm512_setzero_si512(), _mm512_setzero_si512(), _mm512_setzero_si512(),
                          _mm512_setzero_si512()},
                ordered[4];
#pragma GCC unroll 3
        for (int tap_quad = 0; tap_quad < tap_quads; tap_quad++) {
            __m512i tap[4], tap_bytes[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) { /* missing taps have weight 0 */
                const int tap_index = first_tap + 4 * tap_quad + i;
                tap[i] = _mm512_maskz_loadu_epi8(mask, in[tap_index < taps ? tap_index : taps - 1] + c);
            }
            interleave_taps(tap, tap_bytes);
#pragma GCC unroll 4
            for (int v = 0; v < 4; v++)
                sum[v] = _mm512_dpbusd_epi32(sum[v], tap_bytes[v], tap_weights[tap_quad][v]);
        }
        reorder_channels(sum, ordered);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __mmask16 lane_mask = (__mmask16)(mask >> (16 * v));
            int32_t *to = out + c + 16 * v;
            if (first_tap > 0)
                ordered[v] = _mm512_add_epi32(ordered[v], _mm512_maskz_loadu_epi32(lane_mask, to));
            _mm512_mask_storeu_epi32(to, lane_mask, ordered[v]);
        }
    }
}

VNNI static void dots_windows(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in,
                              const int8_t *weights, int32_t *out)
{
    for (int64_t c = 0; c < channels; c += CHANNELS_AT_ONCE) {
        const int64_t remaining = channels - c;
        const __mmask64 mask = remaining < CHANNELS_AT_ONCE ? ((__mmask64)1 << remaining) - 1 : ~(__mmask64)0;
        for (int tap = 0; tap < taps; tap += 4 * TAP_QUADS)
            switch ((taps - tap + 3) / 4) {
            case 1: dots_windows_of(1, pixels, channels, taps, tap, in, weights, c, mask, out); break;
            case 2: dots_windows_of(2, pixels, channels, taps, tap, in, weights, c, mask, out); break;
            default: dots_windows_of(3, pixels, channels, taps, tap, in, weights, c, mask, out); break;
            }
    }
}
#endif

#ifdef __AVX512F__
/* Loads the bytes of three rows in column `x`, the taps of a channel adjacent; the fourth tap is 0. */
VNNI INLINE void load_column(const quantized_row *job, int64_t x, int64_t c, __mmask64 mask, __m512i out[4])
{
    __m512i tap[4];
    if (x < 0 || x >= job->width) {
        out[0] = out[1] = out[2] = out[3] = _mm512_set1_epi8((char)job->zero);
        return;
    }
#pragma GCC unroll 3
    for (int r = 0; r < 3; r++)
        tap[r] = _mm512_maskz_loadu_epi8(mask, job->in[r] + x * job->in_step[r] + c);
    tap[3] = _mm512_setzero_si512();
    interleave_taps(tap, out);
}

VNNI INLINE void dots_row_of(const int stride, const quantized_row *job, int64_t c, uint8_t *out)
{
    const int64_t channels = job->channels, remaining = channels - c;
    const __mmask64 mask = remaining < CHANNELS_AT_ONCE ? ((__mmask64)1 << remaining) - 1 : ~(__mmask64)0;
    __m512i weights[3][4], column[3][4], bias[4], factors[4];
#pragma GCC unroll 3
    for (int w = 0; w < 3; w++) {
        __m512i tap[4];
#pragma GCC unroll 3
        for (int h = 0; h < 3; h++)
            tap[h] = _mm512_maskz_loadu_epi8(mask, job->weights + (h * 3 + w) * channels + c);
        tap[3] = _mm512_setzero_si512();
        interleave_taps(tap, weights[w]);
    }
    for (int v = 0; v < 4; v++) {
        const __mmask16 lane_mask = (__mmask16)(mask >> (16 * v));
        bias[v] = _mm512_maskz_loadu_epi32(lane_mask, job->more + c + 16 * v);
        factors[v] = _mm512_maskz_loadu_epi32(lane_mask, job->factors + c + 16 * v);
    }
    reorder_channels(bias, bias);
    reorder_channels(factors, factors);
    const output_constants constants = output_constants_of(job->to);
    int64_t x = -job->pad;
    for (int w = 0; w < 3 - stride; w++)
        load_column(job, x + w, c, mask, column[w]);
    for (int64_t pixel = 0; pixel < job->out_width; pixel++, x += stride) {
        __m512i sum[4];
#pragma GCC unroll 2
        for (int w = 3 - stride; w < 3; w++)
            load_column(job, x + w, c, mask, column[w]);
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            sum[v] = _mm512_dpbusd_epi32(bias[v], column[0][v], weights[0][v]);
            sum[v] = _mm512_dpbusd_epi32(sum[v], column[1][v], weights[1][v]);
            sum[v] = _mm512_dpbusd_epi32(sum[v], column[2][v], weights[2][v]);
            sum[v] = scale_and_round(sum[v], _mm512_castsi512_ps(factors[v]));
            for (int w = 0; w < 3 - stride; w++)
                column[w][v] = column[w + stride][v];
        }
        _mm512_mask_storeu_epi8(out + pixel * channels + c, mask,
                                pack_bytes(sum[0], sum[1], sum[2], sum[3], constants));
    }
}

VNNI static void dots_row(const quantized_row *job, uint8_t *out)
{
    for (int64_t c = 0; c < job->channels; c += CHANNELS_AT_ONCE)
        if (job->stride == 1)
            dots_row_of(1, job, c, out);
        else
            dots_row_of(2, job, c, out);
}
#endif

static bool row3(const quantized_row *job, uint8_t *out)
{
#ifdef __AVX512F__
    if (job->stride <= 2 && __builtin_cpu_supports("avx512vnni")) {
        dots_row(job, out);
        return true;
    }
#endif
    (void)job, (void)out;
    return false;
}

static void windows(int64_t pixels, int64_t channels, int taps, const uint8_t *const *in, const int8_t *weights,
                    int32_t *out)
{
#ifdef __AVX512F__
    if (__builtin_cpu_supports("avx512vnni")) {
        dots_windows(pixels, channels, taps, in, weights, out);
        return;
    }
#endif
    any_windows(pixels, channels, taps, in, weights, out);
}

/* ---- conversion to and from bytes */
/* The integer nearest to x, |x| < 2^22, is in the low bits of x + ROUNDING. NaN becomes the minimum. */
#define ROUNDING 0x1.8p23f
INLINE uint8_t byte_of(float value, quantized_result to)
{
    const float low = (float)(to.low - to.zero), high = (float)(to.high - to.zero);
    value = value > low ? value : low;
    value = value < high ? value : high;
    return (uint8_t)((uint8_t)((int32_t)((value + ROUNDING) - ROUNDING) + to.zero) ^ to.flip);
}

static void finish(int64_t n, const int32_t *restrict sums, const int32_t *restrict bias, const float *restrict factors,
                   quantized_result to, uint8_t *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = byte_of((float)(sums[i] + bias[i]) * factors[i], to);
}

/* Stores the first `columns` columns of a tile as bytes. */
static void tile_bytes(int rows, int columns, int64_t quads, const uint8_t *a, int64_t a_row, const int8_t *b,
                       const int32_t *bias, const float *factors, quantized_result to, uint8_t *out, int64_t out_row)
{
#ifdef __AVX512F__
    if (__builtin_cpu_supports("avx512vnni")) {
        dots_tile_bytes(rows, columns, quads, a, a_row, b, bias, factors, to, out, out_row);
        return;
    }
#endif
    int32_t sums[QUANTIZED_ROWS * COLUMNS];
    any_tile(rows, quads, a, a_row, b, sums);
    for (int r = 0; r < rows; r++)
        finish(columns, sums + r * COLUMNS, bias, factors, to, out + r * out_row);
}

static void copy(int64_t n, const uint8_t *in, uint8_t *out)
{
    typedef uint8_t line __attribute__((vector_size(COPY_BYTES), aligned(1), may_alias));
    for (int64_t i = 0; i < n; i += COPY_BYTES)
        *(line *)(out + i) = *(const line *)(in + i);
}

#define COPY_WINDOWS(name, vector) \
    static void name(const quantized_windows *windows, int64_t pixels, uint8_t *out, int64_t out_row) \
    { \
        const vector flip = (vector){0} + windows->flip; \
        const uint8_t *in = windows->in; \
        for (int64_t pixel = 0; pixel < pixels; pixel++, in += windows->pixel_step, out += out_row) { \
            const uint8_t *from = in; \
            uint8_t *to = out; \
            for (int64_t h = 0; h < windows->lines; h++, from += windows->line_step, to += windows->line_bytes) \
                for (int64_t i = 0; i < windows->line_bytes; i += (int64_t)sizeof(vector)) \
                    *(vector *)(to + i) = *(const vector *)(from + i) ^ flip; \
        } \
    }
typedef uint8_t short_line __attribute__((vector_size(32), aligned(1), may_alias));
typedef uint8_t long_line __attribute__((vector_size(COPY_BYTES), aligned(1), may_alias));
COPY_WINDOWS(copy_short_lines, short_line)
COPY_WINDOWS(copy_long_lines, long_line)
#undef COPY_WINDOWS

static void copy_windows(const quantized_windows *windows, int64_t pixels, uint8_t *out, int64_t out_row)
{
    if (windows->line_bytes <= (int64_t)sizeof(short_line))
        copy_short_lines(windows, pixels, out, out_row);
    else
        copy_long_lines(windows, pixels, out, out_row);
}

static void flip_all(int64_t n, const uint8_t *restrict in, uint8_t *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = in[i] ^ 0x80;
}

#ifdef __AVX512F__
/* 64 elements at a time; returns how many were processed. */
static int64_t add_vectors(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip,
                           const float *factors, quantized_result to, uint8_t *out)
{
    const __m512 factor_a = _mm512_set1_ps(factors[0]), factor_b = _mm512_set1_ps(factors[1]),
                 offset = _mm512_set1_ps(factors[2]);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m128i flip_a = _mm_set1_epi8((char)a_flip), flip_b = _mm_set1_epi8((char)b_flip);
    const output_constants constants = output_constants_of(to);
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512i vectors[4];
#pragma GCC unroll 4
        for (int v = 0; v < 4; v++) {
            const __m128i left = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(a + i + 16 * v)), flip_a),
                          right = _mm_xor_si128(_mm_loadu_si128((const __m128i *)(b + i + 16 * v)), flip_b);
            const __m512 x = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(left)),
                         y = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(right));
            vectors[v] = round_to_nearest(
                _mm512_add_ps(_mm512_add_ps(_mm512_mul_ps(x, factor_a), _mm512_mul_ps(y, factor_b)), offset));
        }
        _mm512_storeu_si512(out + i, _mm512_permutexvar_epi32(
                                         order, pack_bytes(vectors[0], vectors[1], vectors[2], vectors[3], constants)));
    }
    return i;
}
#endif

static void add(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip, const float *factors,
                quantized_result to, uint8_t *out)
{
    const float factor_a = factors[0], factor_b = factors[1], offset = factors[2];
#ifdef __AVX512F__
    const int64_t done = add_vectors(n, a, a_flip, b, b_flip, factors, to, out);
    n -= done, a += done, b += done, out += done;
#endif
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = byte_of((float)(a[i] ^ a_flip) * factor_a + (float)(b[i] ^ b_flip) * factor_b + offset, to);
}

static void multiply(int64_t n, const uint8_t *a, uint8_t a_flip, const uint8_t *b, uint8_t b_flip,
                     const int32_t *zeros, float factor, quantized_result to, uint8_t *out)
{
    const int32_t zero_a = zeros[0], zero_b = zeros[1];
#pragma GCC ivdep
    for (int64_t i = 0; i < n; i++)
        out[i] = byte_of((float)(((a[i] ^ a_flip) - zero_a) * ((b[i] ^ b_flip) - zero_b)) * factor, to);
}

static void quantize(int64_t n, const float *restrict in, float scale, quantized_result to, uint8_t *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = byte_of(in[i] / scale, to);
}

static void dequantize(int64_t n, const uint8_t *restrict in, uint8_t flip, int32_t zero, float scale,
                       float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)((in[i] ^ flip) - zero) * scale;
}

/* Signed bytes are compared as unsigned ones, with the sign bit flipped. */
#ifdef __AVX512F__
typedef __m512i wide_bytes;
enum { WIDE_BYTES = 64 };
INLINE wide_bytes bytes_load(const uint8_t *from) { return _mm512_loadu_si512(from); }
INLINE void bytes_store(uint8_t *to, wide_bytes a) { _mm512_storeu_si512(to, a); }
INLINE wide_bytes bytes_all(uint8_t a) { return _mm512_set1_epi8((char)a); }
INLINE wide_bytes bytes_flip(wide_bytes a, wide_bytes flip) { return _mm512_xor_si512(a, flip); }
INLINE wide_bytes bytes_max(wide_bytes a, wide_bytes b) { return _mm512_max_epu8(a, b); }
#elif defined(__AVX2__)
typedef __m256i wide_bytes;
enum { WIDE_BYTES = 32 };
INLINE wide_bytes bytes_load(const uint8_t *from) { return _mm256_loadu_si256((const __m256i *)from); }
INLINE void bytes_store(uint8_t *to, wide_bytes a) { _mm256_storeu_si256((__m256i *)to, a); }
INLINE wide_bytes bytes_all(uint8_t a) { return _mm256_set1_epi8((char)a); }
INLINE wide_bytes bytes_flip(wide_bytes a, wide_bytes flip) { return _mm256_xor_si256(a, flip); }
INLINE wide_bytes bytes_max(wide_bytes a, wide_bytes b) { return _mm256_max_epu8(a, b); }
#else
typedef uint8_t wide_bytes;
enum { WIDE_BYTES = 1 };
INLINE wide_bytes bytes_load(const uint8_t *from) { return *from; }
INLINE void bytes_store(uint8_t *to, wide_bytes a) { *to = a; }
INLINE wide_bytes bytes_all(uint8_t a) { return a; }
INLINE wide_bytes bytes_flip(wide_bytes a, wide_bytes flip) { return a ^ flip; }
INLINE wide_bytes bytes_max(wide_bytes a, wide_bytes b) { return a > b ? a : b; }
#endif

static void largest(int64_t begin, int64_t end, int count, const uint8_t *const *in, uint8_t flip, uint8_t *out)
{
    const wide_bytes flips = bytes_all(flip);
    int64_t i = begin;
    for (; i + WIDE_BYTES <= end; i += WIDE_BYTES) {
        wide_bytes maximum = bytes_flip(bytes_load(in[0] + i), flips);
        for (int tap = 1; tap < count; tap++)
            maximum = bytes_max(maximum, bytes_flip(bytes_load(in[tap] + i), flips));
        bytes_store(out + i, bytes_flip(maximum, flips));
    }
    for (; i < end; i++) {
        uint8_t maximum = in[0][i] ^ flip;
        for (int tap = 1; tap < count; tap++)
            maximum = (in[tap][i] ^ flip) > maximum ? in[tap][i] ^ flip : maximum;
        out[i] = maximum ^ flip;
    }
}

#ifdef __AVX512F__
/* Looks up the lower seven bits in both halves of the table; the highest bit selects one. */
__attribute__((target("avx512vbmi"))) static void look_up_permuted(int64_t n, const uint8_t *in, const uint8_t *table,
                                                                   uint8_t *out)
{
    const __m512i quarter[4] = {_mm512_loadu_si512(table), _mm512_loadu_si512(table + 64),
                                _mm512_loadu_si512(table + 128), _mm512_loadu_si512(table + 192)};
    for (int64_t i = 0; i < n; i += 64) {
        const __mmask64 mask = n - i < 64 ? ((__mmask64)1 << (n - i)) - 1 : ~(__mmask64)0;
        const __m512i index = _mm512_maskz_loadu_epi8(mask, in + i);
        const __m512i low = _mm512_permutex2var_epi8(quarter[0], index, quarter[1]),
                      high = _mm512_permutex2var_epi8(quarter[2], index, quarter[3]);
        _mm512_mask_storeu_epi8(out + i, mask, _mm512_mask_blend_epi8(_mm512_movepi8_mask(index), low, high));
    }
}
#endif

static void look_up(int64_t n, const uint8_t *in, const uint8_t *table, uint8_t *out)
{
#ifdef __AVX512F__
    if (__builtin_cpu_supports("avx512vbmi")) {
        look_up_permuted(n, in, table, out);
        return;
    }
#endif
    for (int64_t i = 0; i < n; i++)
        out[i] = table[in[i]];
}

const model_quantized_kernels JOIN(model_quantized_, VME_TARGET) = {
    .tile = any_tile,
    .tile_bytes = tile_bytes,
    .windows = windows,
    .row3 = row3,
    .finish = finish,
    .copy = copy,
    .flip = flip_all,
    .copy_windows = copy_windows,
    .add = add,
    .multiply = multiply,
    .quantize = quantize,
    .dequantize = dequantize,
    .largest = largest,
    .look_up = look_up,
};
