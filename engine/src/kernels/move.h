/* Kernels that move elements without interpreting them: strided rows and transposed blocks, for elements of 1, 2, 4, 8
 * and 16 bytes. Included once for each backend, with VME_TARGET naming it. Elements need not be aligned. */
#include <string.h>

#include "runtime/internal.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)

typedef uint8_t element1 __attribute__((may_alias));
typedef uint16_t element2 __attribute__((may_alias, aligned(1)));
typedef uint32_t element4 __attribute__((may_alias, aligned(1)));
typedef uint64_t element8 __attribute__((may_alias, aligned(1)));
typedef uint64_t element16 __attribute__((vector_size(16), may_alias, aligned(1)));

/* Copies a row with steps; steps that compilers vectorize have loops of their own. A step of two elements prefetches
 * beyond the row: callers compute on such a row before they move the next one, which usually follows it. */
enum { CHUNK = 256, PREFETCH_AHEAD = 2048 }; /* bytes */
#define STRIDED(bytes) \
    static void strided##bytes(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        if (out_step == bytes) { \
            element##bytes *restrict to = (element##bytes *)out; \
            if (in_step == 0 && n > 0) { /* n == 0: not even the first element may be read */ \
                element##bytes value = *(const element##bytes *)in; \
                for (int64_t i = 0; i < n; i++) \
                    to[i] = value; \
                return; \
            } \
            if (in_step == 2 * bytes) { \
                const element##bytes *restrict from = (const element##bytes *)in; \
                for (; n >= CHUNK / bytes; n -= CHUNK / bytes, from += 2 * CHUNK / bytes, to += CHUNK / bytes) { \
                    for (int offset = 0; offset < 2 * CHUNK; offset += 64) \
                        __builtin_prefetch((const char *)from + PREFETCH_AHEAD + offset); \
                    for (int i = 0; i < CHUNK / bytes; i++) \
                        to[i] = from[2 * i]; \
                } \
                for (int64_t i = 0; i < n; i++) \
                    to[i] = from[2 * i]; \
                return; \
            } \
            if (in_step == -bytes) { \
                const element##bytes *restrict from = (const element##bytes *)in; \
                for (int64_t i = 0; i < n; i++) \
                    to[i] = from[-i]; \
                return; \
            } \
        } \
        for (int64_t i = 0; i < n; i++) \
            *(element##bytes *)(out + i * out_step) = *(const element##bytes *)(in + i * in_step); \
    }
STRIDED(1)
STRIDED(2)
STRIDED(4)
STRIDED(8)
STRIDED(16)

/* Transposes a full square with `square_side` elements a side: out[i][j] = in[j][i]. */
#define SCALAR_SQUARE(bytes, square_side) \
    static inline void transpose_square##bytes(const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        for (int i = 0; i < square_side; i++) \
            for (int j = 0; j < square_side; j++) \
                ((element##bytes *)(out + i * out_step))[j] = ((const element##bytes *)(in + j * in_step))[i]; \
    }
SCALAR_SQUARE(1, 8)
SCALAR_SQUARE(2, 8)
SCALAR_SQUARE(16, 2)
#ifdef __AVX2__
static inline void transpose_square4(const char *in, int64_t in_step, char *out, int64_t out_step)
{
    for (int half = 0; half < 2; half++, in += 16, out += 4 * out_step) {
        __m256 a[4]; /* rows j and j + 4 */
        for (int j = 0; j < 4; j++)
            a[j] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps((const float *)(in + j * in_step))),
                                        _mm_loadu_ps((const float *)(in + (j + 4) * in_step)), 1);
        __m256 low01 = _mm256_unpacklo_ps(a[0], a[1]), high01 = _mm256_unpackhi_ps(a[0], a[1]);
        __m256 low23 = _mm256_unpacklo_ps(a[2], a[3]), high23 = _mm256_unpackhi_ps(a[2], a[3]);
        _mm256_storeu_ps((float *)out, _mm256_shuffle_ps(low01, low23, 0x44));
        _mm256_storeu_ps((float *)(out + out_step), _mm256_shuffle_ps(low01, low23, 0xee));
        _mm256_storeu_ps((float *)(out + 2 * out_step), _mm256_shuffle_ps(high01, high23, 0x44));
        _mm256_storeu_ps((float *)(out + 3 * out_step), _mm256_shuffle_ps(high01, high23, 0xee));
    }
}
static inline void transpose_square8(const char *in, int64_t in_step, char *out, int64_t out_step)
{
    for (int half = 0; half < 2; half++, in += 16, out += 2 * out_step) {
        __m256d a[2]; /* rows j and j + 2 */
        for (int j = 0; j < 2; j++)
            a[j] = _mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd((const double *)(in + j * in_step))),
                                        _mm_loadu_pd((const double *)(in + (j + 2) * in_step)), 1);
        _mm256_storeu_pd((double *)out, _mm256_unpacklo_pd(a[0], a[1]));
        _mm256_storeu_pd((double *)(out + out_step), _mm256_unpackhi_pd(a[0], a[1]));
    }
}
#else
SCALAR_SQUARE(4, 8)
SCALAR_SQUARE(8, 4)
#endif

/* Splits interleaved pixels of two to four channels into one plane for each channel, and joins planes to pixels. The
 * compiler chooses the shuffles. */
#define EACH_CHANNEL(channels, i, MOVE) \
    do { \
        MOVE(0, channels, i); \
        MOVE(1, channels, i); \
        if (channels > 2) \
            MOVE(2, channels, i); \
        if (channels > 3) \
            MOVE(3, channels, i); \
    } while (0)
#define SPLIT(number, channels, i)       plane##number[i] = pixels[(channels) * (i) + (number)]
#define JOIN_PLANES(number, channels, i) pixels[(channels) * (i) + (number)] = plane##number[i]
#define CHANNELS(bytes) \
    static inline __attribute__((always_inline)) void split_pixels##bytes(int64_t n, const int channels, \
                                                                          const char *in, char *out, int64_t plane) \
    { \
        const element##bytes *restrict pixels = (const element##bytes *)in; \
        element##bytes *restrict plane0 = (element##bytes *)out, *restrict plane1 = (element##bytes *)(out + plane), \
                                 *restrict plane2 = (element##bytes *)(out + 2 * plane), \
                                 *restrict plane3 = (element##bytes *)(out + 3 * plane); \
        for (int64_t i = 0; i < n; i++) \
            EACH_CHANNEL(channels, i, SPLIT); \
    } \
    static inline __attribute__((always_inline)) void join_planes##bytes(int64_t n, const int channels, \
                                                                         const char *in, int64_t plane, char *out) \
    { \
        const element##bytes *restrict plane0 = (const element##bytes *)in, \
                                       *restrict plane1 = (const element##bytes *)(in + plane), \
                                       *restrict plane2 = (const element##bytes *)(in + 2 * plane), \
                                       *restrict plane3 = (const element##bytes *)(in + 3 * plane); \
        element##bytes *restrict pixels = (element##bytes *)out; \
        for (int64_t i = 0; i < n; i++) \
            EACH_CHANNEL(channels, i, JOIN_PLANES); \
    } \
    /* False: neither the input nor the output are such pixels. */ \
    static inline bool move_pixels##bytes(int64_t rows, int64_t columns, const char *in, int64_t in_column, char *out, \
                                          int64_t out_row) \
    { \
        bool split = rows >= 2 && rows <= 4 && in_column == rows * bytes, \
             join = columns >= 2 && columns <= 4 && out_row == columns * bytes; \
        switch (split ? rows : join ? -columns : 0) { \
        case 2: split_pixels##bytes(columns, 2, in, out, out_row); return true; \
        case 3: split_pixels##bytes(columns, 3, in, out, out_row); return true; \
        case 4: split_pixels##bytes(columns, 4, in, out, out_row); return true; \
        case -2: join_planes##bytes(rows, 2, in, in_column, out); return true; \
        case -3: join_planes##bytes(rows, 3, in, in_column, out); return true; \
        case -4: join_planes##bytes(rows, 4, in, in_column, out); return true; \
        default: return false; \
        } \
    }
CHANNELS(1)
CHANNELS(2)
CHANNELS(4)
CHANNELS(8)
CHANNELS(16)

/* Transposes a block of one cache line each way at once, out[i][j] = in[j][i]. False: not supported, use squares. */
#define NO_BLOCK(bytes) \
    static inline bool transpose_block##bytes(const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        return (void)in, (void)in_step, (void)out, (void)out_step, false; \
    }
NO_BLOCK(1)
NO_BLOCK(2)
NO_BLOCK(16)
#ifdef __AVX512F__
/* Quarters of rows j, j + 4, j + 8 and j + 12 (8-byte elements: of rows j, j + 2, …) in the lanes of a vector. */
#define LANES_OF_ROWS(in, step) \
    _mm512_inserti32x4( \
        _mm512_inserti32x4(_mm512_inserti32x4(_mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(in))), \
                                              _mm_loadu_si128((const __m128i *)((in) + (step))), 1), \
                           _mm_loadu_si128((const __m128i *)((in) + 2 * (step))), 2), \
        _mm_loadu_si128((const __m128i *)((in) + 3 * (step))), 3)
static __attribute__((noinline)) bool transpose_block4(const char *in, int64_t in_step, char *out, int64_t out_step)
{
    for (int quarter = 0; quarter < 4; quarter++, out += 4 * out_step) {
        __m512 a[4];
        for (int j = 0; j < 4; j++)
            a[j] = (__m512)LANES_OF_ROWS(in + 16 * quarter + j * in_step, 4 * in_step);
        __m512 low01 = _mm512_unpacklo_ps(a[0], a[1]), high01 = _mm512_unpackhi_ps(a[0], a[1]);
        __m512 low23 = _mm512_unpacklo_ps(a[2], a[3]), high23 = _mm512_unpackhi_ps(a[2], a[3]);
        _mm512_storeu_ps(out, _mm512_shuffle_ps(low01, low23, 0x44));
        _mm512_storeu_ps(out + out_step, _mm512_shuffle_ps(low01, low23, 0xee));
        _mm512_storeu_ps(out + 2 * out_step, _mm512_shuffle_ps(high01, high23, 0x44));
        _mm512_storeu_ps(out + 3 * out_step, _mm512_shuffle_ps(high01, high23, 0xee));
    }
    return true;
}
static __attribute__((noinline)) bool transpose_block8(const char *in, int64_t in_step, char *out, int64_t out_step)
{
    for (int quarter = 0; quarter < 4; quarter++, out += 2 * out_step) {
        __m512d a[2];
        for (int j = 0; j < 2; j++)
            a[j] = (__m512d)LANES_OF_ROWS(in + 16 * quarter + j * in_step, 2 * in_step);
        _mm512_storeu_pd(out, _mm512_unpacklo_pd(a[0], a[1]));
        _mm512_storeu_pd(out + out_step, _mm512_unpackhi_pd(a[0], a[1]));
    }
    return true;
}
#else
NO_BLOCK(4)
NO_BLOCK(8)
#endif

/* out[row][column] = in[row][column], where the input is contiguous along rows and the output along columns. Works in
 * blocks of a cache line each way (`block_side` elements), so that every line of both is touched once, and in squares
 * within them. Squares of few input lines come first, because lines at power-of-two distances share few sets of L1.
 * (Bytes, with many elements a line, are faster in the other order.) */
#define EACH(at, from, block_side, end, square_side) \
    for (int64_t at = from; at < from + block_side && at < end; at += square_side)
#define TRANSPOSE(bytes, block_side, square_side, ORDER) \
    static void transpose##bytes(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, \
                                 char *out, int64_t out_row, int64_t out_column) \
    { \
        (void)in_row, (void)out_column; /* both are `bytes` */ \
        if (move_pixels##bytes(rows, columns, in, in_column, out, out_row)) \
            return; \
        for (int64_t r = 0; r < rows; r += block_side) \
            for (int64_t c = 0; c < columns; c += block_side) { \
                if (r + block_side <= rows && c + block_side <= columns \
                    && transpose_block##bytes(in + r * bytes + c * in_column, in_column, \
                                              out + r * out_row + c * bytes, out_row)) \
                    continue; \
                ORDER(block_side, square_side) \
                { \
                    const char *from = in + i * bytes + j * in_column; \
                    char *to = out + i * out_row + j * bytes; \
                    if (i + square_side <= rows && j + square_side <= columns) { \
                        transpose_square##bytes(from, in_column, to, out_row); \
                        continue; \
                    } \
                    for (int64_t k = 0; k < square_side && i + k < rows; k++) \
                        for (int64_t l = 0; l < square_side && j + l < columns; l++) \
                            ((element##bytes *)(to + k * out_row))[l] = \
                                ((const element##bytes *)(from + l * in_column))[k]; \
                } \
            } \
    }
#define BY_INPUT(block_side, square_side) \
    EACH(j, c, block_side, columns, square_side) EACH(i, r, block_side, rows, square_side)
#define BY_OUTPUT(block_side, square_side) \
    EACH(i, r, block_side, rows, square_side) EACH(j, c, block_side, columns, square_side)
TRANSPOSE(1, 64, 8, BY_OUTPUT)
TRANSPOSE(2, 32, 8, BY_INPUT)
TRANSPOSE(4, 16, 8, BY_INPUT)
TRANSPOSE(8, 8, 4, BY_INPUT)
TRANSPOSE(16, 4, 2, BY_INPUT)

/* Writes whole cache lines by non-temporal stores, which do not read them first. */
static void stream(int64_t bytes, const char *in, char *out)
{
#ifdef __AVX2__
    int64_t i = -(intptr_t)out & 63;
    if (bytes > 256) {
        memcpy(out, in, (size_t)i);
        for (; i + 64 <= bytes; i += 64) {
            __m256i low = _mm256_loadu_si256((const __m256i *)(in + i)),
                    high = _mm256_loadu_si256((const __m256i *)(in + i + 32));
            _mm256_stream_si256((__m256i *)(out + i), low);
            _mm256_stream_si256((__m256i *)(out + i + 32), high);
        }
        _mm_sfence(); /* orders the stores before the operator's end */
        in += i;
        out += i;
        bytes -= i;
    }
#endif
    memcpy(out, in, (size_t)bytes);
}

const vme_move_kernels JOIN(vme_move_, VME_TARGET) = {
    .stream = stream,
    .transpose = {transpose1, transpose2, transpose4, transpose8, transpose16},
    .strided = {strided1, strided2, strided4, strided8, strided16},
};
