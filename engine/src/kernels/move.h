/* Kernels that move elements without looking at them: strided rows and transposed blocks, for elements of 1, 2, 4, 8 and 16
 * bytes. Included once a backend, with VME_TARGET naming it. Elements need not be aligned. */
#include "../internal.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

typedef uint8_t element1 __attribute__((may_alias));
typedef uint16_t element2 __attribute__((may_alias, aligned(1)));
typedef uint32_t element4 __attribute__((may_alias, aligned(1)));
typedef uint64_t element8 __attribute__((may_alias, aligned(1)));
typedef struct { uint64_t low, high; } __attribute__((may_alias, packed)) element16;

/* A row: the steps that compilers vectorize have loops of their own. */
#define STRIDED(bytes) \
    static void strided##bytes(int64_t n, const char *in, int64_t in_step, char *out, int64_t out_step) \
    { \
        if (out_step == bytes) { \
            element##bytes *restrict to = (element##bytes *)out; \
            if (in_step == 0) { \
                element##bytes value = *(const element##bytes *)in; \
                for (int64_t i = 0; i < n; i++) \
                    to[i] = value; \
                return; \
            } \
            if (in_step == 2 * bytes) { \
                const element##bytes *restrict from = (const element##bytes *)in; \
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

/* out[row][column] = in[row][column] where the input runs along rows and the output along columns: squares of a cache line each
 * way, so that every line of both sides is touched once. */
#define TRANSPOSE(bytes, side) \
    static void transpose##bytes(int64_t rows, int64_t columns, const char *in, int64_t in_row, int64_t in_column, char *out, \
                                 int64_t out_row, int64_t out_column) \
    { \
        (void)in_row, (void)out_column;             /* both are `bytes` */ \
        for (int64_t r = 0; r < rows; r += side) { \
            int64_t height = rows - r < side ? rows - r : side; \
            for (int64_t c = 0; c < columns; c += side) { \
                int64_t width = columns - c < side ? columns - c : side; \
                const char *from = in + r * bytes + c * in_column; \
                char *to = out + r * out_row + c * bytes; \
                for (int64_t i = 0; i < height; i++) \
                    for (int64_t j = 0; j < width; j++) \
                        ((element##bytes *)(to + i * out_row))[j] = ((const element##bytes *)(from + j * in_column))[i]; \
            } \
        } \
    }
TRANSPOSE(1, 32)
TRANSPOSE(2, 32)
TRANSPOSE(4, 16)
TRANSPOSE(8, 8)
TRANSPOSE(16, 4)

const vme_move_kernels JOIN(vme_move_, VME_TARGET) = {
    .transpose = {transpose1, transpose2, transpose4, transpose8, transpose16},
    .strided = {strided1, strided2, strided4, strided8, strided16},
};
