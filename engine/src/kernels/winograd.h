/* Winograd's transforms of 3x3 windows, for each backend: the including file defines VME_TARGET and has the vectors of
 * vectors.h.
 *
 * A square of m x m outputs covers m + 2 pixels a side. In one dimension the pixels d are coefficients of a polynomial
 * that is evaluated at the points 0, +-a, +-b and infinity (m = 4), or 0, +-1 and infinity (m = 2), multiplied there
 * with the window's values, and transformed back; in two dimensions along rows, then along columns. a = 3/4 and b = 3/2
 * are exact and lose a fifth of the precision that the usual 1 and 2 lose. winograd.c transforms the windows. */
#include "runtime/internal.h"

#define JOIN_(a, b) a##b
#define JOIN(a, b)  JOIN_(a, b)
#define INLINE      VME_INLINE

enum { LANES = VME_VECTOR_BYTES / (int)sizeof(float) };
#define ADD_PRODUCT(sum, factor, v) f32_add_product(sum, f32_splat(factor), v)

/* Transforms m + 2 pixels d[0], d[step] ... to as many points, in place. */
INLINE void transform_in(const int m, f32_vec *d, const int step)
{
    const f32_vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step];
    if (m == 2) {
        d[0] = d2 - d0;
        d[step] = d2 + d1;
        d[2 * step] = d2 - d1;
        d[3 * step] = d3 - d1;
        return;
    }
    const float a = VME_WINOGRAD_A, b = VME_WINOGRAD_B;
    const f32_vec d4 = d[4 * step], d5 = d[5 * step];
    const f32_vec even_a = ADD_PRODUCT(d4, -b * b, d2), odd_a = f32_splat(a) * ADD_PRODUCT(d3, -b * b, d1);
    const f32_vec even_b = ADD_PRODUCT(d4, -a * a, d2), odd_b = f32_splat(b) * ADD_PRODUCT(d3, -a * a, d1);
    d[0] = ADD_PRODUCT(ADD_PRODUCT(d4, -(a * a + b * b), d2), a * a * b * b, d0);
    d[step] = even_a + odd_a;
    d[2 * step] = even_a - odd_a;
    d[3 * step] = even_b + odd_b;
    d[4 * step] = even_b - odd_b;
    d[5 * step] = ADD_PRODUCT(ADD_PRODUCT(d5, -(a * a + b * b), d3), a * a * b * b, d1);
}

/* Transforms m + 2 points p[0], p[step] ... to m outputs, in place. */
INLINE void transform_out(const int m, f32_vec *p, const int step)
{
    const f32_vec p0 = p[0], sum = p[step] + p[2 * step], difference = p[step] - p[2 * step];
    if (m == 2) {
        p[0] = p0 + sum;
        p[step] = difference + p[3 * step];
        return;
    }
    const float a = VME_WINOGRAD_A, b = VME_WINOGRAD_B;
    const f32_vec sum_b = p[3 * step] + p[4 * step], difference_b = p[3 * step] - p[4 * step], last = p[5 * step];
    p[0] = p0 + sum + sum_b;
    p[step] = ADD_PRODUCT(f32_splat(a) * difference, b, difference_b);
    p[2 * step] = ADD_PRODUCT(f32_splat(a * a) * sum, b * b, sum_b);
    p[3 * step] = ADD_PRODUCT(ADD_PRODUCT(last, a * a * a, difference), b * b * b, difference_b);
}

INLINE f32_vec load(const float *from, int64_t remaining)
{
    return remaining >= LANES ? f32_load(from) : f32_load_first(from, f32_first((int)remaining));
}

INLINE void store(float *to, f32_vec v, int64_t remaining)
{
    if (remaining >= LANES)
        f32_store(to, v);
    else
        f32_store_first(to, f32_first((int)remaining), v);
}

INLINE void pixels_to_points(const int m, const vme_winograd_square *square, const bool whole)
{
    enum { SIDE_MAX = 6 };
    const int side = m + 2;
    for (int64_t c = 0; c < square->channels; c += LANES) {
        const int64_t remaining = square->channels - c;
        f32_vec d[SIDE_MAX * SIDE_MAX];
#pragma GCC unroll 6
        for (int y = 0; y < side; y++) {
#pragma GCC unroll 6
            for (int x = 0; x < side; x++) {
                const float *from = square->image + y * square->image_row + x * square->image_pixel + c;
                d[y * side + x] =
                    whole || (y < square->rows && x < square->columns) ? load(from, remaining) : (f32_vec){0};
            }
            transform_in(m, d + y * side, 1);
        }
#pragma GCC unroll 6
        for (int x = 0; x < side; x++) {
            transform_in(m, d + x, side);
#pragma GCC unroll 6
            for (int y = 0; y < side; y++)
                store(square->points + (y * side + x) * square->point + c, d[y * side + x], remaining);
        }
    }
}

INLINE void points_to_outputs(const int m, const vme_winograd_square *square, const bool whole)
{
    enum { SIDE_MAX = 6 };
    const int side = m + 2;
    for (int64_t c = 0; c < square->channels; c += LANES) {
        const int64_t remaining = square->channels - c;
        const f32_vec bias = load(square->bias + c, remaining);
        f32_vec p[SIDE_MAX * SIDE_MAX];
#pragma GCC unroll 6
        for (int y = 0; y < side; y++) {
#pragma GCC unroll 6
            for (int x = 0; x < side; x++)
                p[y * side + x] = load(square->points + (y * side + x) * square->point + c, remaining);
            transform_out(m, p + y * side, 1);
        }
#pragma GCC unroll 4
        for (int x = 0; x < m; x++) {
            if (!whole && x >= square->columns)
                break;
            transform_out(m, p + x, side);
#pragma GCC unroll 4
            for (int y = 0; y < m; y++) {
                if (!whole && y >= square->rows)
                    break;
                f32_vec v = p[y * side + x] + bias;
                if (square->addend != NULL)
                    v = v + load(square->addend + y * square->addend_row + x * square->addend_pixel + c, remaining);
                store(square->image + y * square->image_row + x * square->image_pixel + c,
                      square->relu ? f32_without_negatives(v) : v, remaining);
            }
        }
    }
}

#define SQUARES(m) \
    static void to_points_##m(const vme_winograd_square *square) \
    { \
        if (square->rows == m + 2 && square->columns == m + 2) \
            pixels_to_points(m, square, true); \
        else \
            pixels_to_points(m, square, false); \
    } \
    static void to_outputs_##m(const vme_winograd_square *square) \
    { \
        if (square->rows == m && square->columns == m) \
            points_to_outputs(m, square, true); \
        else \
            points_to_outputs(m, square, false); \
    }
SQUARES(2)
SQUARES(4)

const vme_winograd_kernels JOIN(vme_winograd_, VME_TARGET) = {
    .of = {[VME_WINOGRAD_2] = {to_points_2, to_outputs_2}, [VME_WINOGRAD_4] = {to_points_4, to_outputs_4}},
};
