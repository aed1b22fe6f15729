/* Scans: running sums, products, maxima and minima along one axis.
 *
 * Lines along the axis are independent. If memory is contiguous along the axis, a line is walked from end to end;
 * otherwise a tile of lines is processed side by side, one row at a time. An input of another dtype than the loop's is
 * first cast into the output (or into scratch memory of the loop's dtype, if the output has another one) and scanned
 * there. Sums are added in order, as in NumPy. */
#include "operators/elements.h"
#include "operators/nest.h"
#include "operators/raster.h"

#include <string.h>

/* The lines of one operand. */
typedef struct scan_side {
    char *data;              /* first element of the first line */
    int64_t step, line_step; /* bytes between the elements of a line, and between lines */
} scan_side;
/* Scans `lines` lines of `n` elements, whose first elements in `out` are already set. `in` may be `out`. */
typedef void scan_kernel(int64_t n, int64_t lines, scan_side in, scan_side out);

#define SCAN(name, type, FOLD) \
    static void name(int64_t n, int64_t lines, scan_side in, scan_side out) \
    { \
        if (lines == 1) { \
            type running = *(type *)out.data; \
            for (int64_t i = 1; i < n; i++) { \
                type value = *(type *)(in.data + i * in.step); \
                running = FOLD(running, value); \
                *(type *)(out.data + i * out.step) = running; \
            } \
            return; \
        } \
        for (int64_t i = 1; i < n; i++) \
            for (int64_t j = 0; j < lines; j++) { \
                type value = *(type *)(in.data + i * in.step + j * in.line_step); \
                char *at = out.data + i * out.step + j * out.line_step; \
                *(type *)at = FOLD(*(type *)(at - out.step), value); \
            } \
    }
#define ADD(a, b)      ((a) + (b))
#define MULTIPLY(a, b) ((a) * (b))
#define OR(a, b)       ((a) | (b))
#define AND(a, b)      ((a) & (b))
/* NaN propagates: it replaces every number */
#define LARGER(a, b)        ((b) > (a) || (b) != (b) ? ((a) != (a) ? (a) : (b)) : (a))
#define SMALLER(a, b)       ((b) < (a) || (b) != (b) ? ((a) != (a) ? (a) : (b)) : (a))
#define IS_NAN(a)           ((a).re != (a).re || (a).im != (a).im)
#define BEFORE(a, b)        ((a).re < (b).re || ((a).re == (b).re && (a).im < (b).im))
#define C64_ADD(a, b)       ((e_c64){(a).re + (b).re, (a).im + (b).im})
#define C128_ADD(a, b)      ((e_c128){(a).re + (b).re, (a).im + (b).im})
#define C64_MULTIPLY(a, b)  ((e_c64){(a).re * (b).re - (a).im * (b).im, (a).re * (b).im + (a).im * (b).re})
#define C128_MULTIPLY(a, b) ((e_c128){(a).re * (b).re - (a).im * (b).im, (a).re * (b).im + (a).im * (b).re})
#define C_LARGER(a, b)      (!IS_NAN(a) && (IS_NAN(b) || BEFORE(a, b)) ? (b) : (a))
#define C_SMALLER(a, b)     (!IS_NAN(a) && (IS_NAN(b) || BEFORE(b, a)) ? (b) : (a))

#define EXTREMES(name, type) SCAN(max_##name, type, LARGER) SCAN(min_##name, type, SMALLER)
#define MODULAR(name, type)  SCAN(sum_##name, type, ADD) SCAN(prod_##name, type, MULTIPLY)
MODULAR(8, e_u8)
MODULAR(16, e_u16)
MODULAR(32, e_u32)
MODULAR(64, e_u64)
SCAN(or_8, e_u8, OR)
SCAN(and_8, e_u8, AND)
EXTREMES(i8, e_i8)
EXTREMES(i16, e_i16)
EXTREMES(i32, e_i32)
EXTREMES(i64, e_i64)
EXTREMES(u8, e_u8)
EXTREMES(u16, e_u16)
EXTREMES(u32, e_u32)
EXTREMES(u64, e_u64)
MODULAR(f32, e_f32)
MODULAR(f64, e_f64)
EXTREMES(f32, e_f32)
EXTREMES(f64, e_f64)
SCAN(sum_c64, e_c64, C64_ADD)
SCAN(sum_c128, e_c128, C128_ADD)
SCAN(prod_c64, e_c64, C64_MULTIPLY)
SCAN(prod_c128, e_c128, C128_MULTIPLY)
SCAN(max_c64, e_c64, C_LARGER)
SCAN(max_c128, e_c128, C_LARGER)
SCAN(min_c64, e_c64, C_SMALLER)
SCAN(min_c128, e_c128, C_SMALLER)

/* Tables of kernels; float16 has none, because it is scanned as float32. */
#define SIGNED_INTEGERS(op, integer) \
    [VME_INT8] = op##_##integer##8, [VME_INT16] = op##_##integer##16, [VME_INT32] = op##_##integer##32, \
    [VME_INT64] = op##_##integer##64
#define FLOATS(op) \
    [VME_FLOAT32] = op##_f32, [VME_FLOAT64] = op##_f64, [VME_COMPLEX64] = op##_c64, [VME_COMPLEX128] = op##_c128
#define WRAPPING(op) \
    [VME_INT8] = op##_8, [VME_INT16] = op##_16, [VME_INT32] = op##_32, [VME_INT64] = op##_64, [VME_UINT8] = op##_8, \
    [VME_UINT16] = op##_16, [VME_UINT32] = op##_32, [VME_UINT64] = op##_64, FLOATS(op)
#define ORDERED(op) \
    SIGNED_INTEGERS(op, i), [VME_UINT8] = op##_u8, [VME_UINT16] = op##_u16, [VME_UINT32] = op##_u32, \
                            [VME_UINT64] = op##_u64, FLOATS(op)
static scan_kernel *const kernels[VME_SCAN_COUNT][VME_DTYPE_COUNT] = {
    [VME_CUMSUM] = {[VME_BOOL] = or_8, WRAPPING(sum)},
    [VME_CUMPROD] = {[VME_BOOL] = and_8, WRAPPING(prod)},
    [VME_CUMMAX] = {[VME_BOOL] = or_8, ORDERED(max)},
    [VME_CUMMIN] = {[VME_BOOL] = and_8, ORDERED(min)},
};

vme_status vme_scan_types(vme_scan_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result)
{
    bool widens = op == VME_CUMSUM || op == VME_CUMPROD;
    *loop = in;
    if (widens && in <= VME_UINT64)
        *loop = in <= VME_INT64 ? VME_INT64 : VME_UINT64;
    *result = *loop;
    return VME_OK;
}

enum { PIECE = 32768, TILE = 256 };

typedef struct scan {
    vme_context *context;
    vme_nest lines; /* over the first elements of lines, of the output (or temporary) and of the input */
    scan_kernel *kernel;
    int64_t length, step, in_step; /* of a line */
    bool side_by_side;
} scan;

static vme_status scan_lines(void *argument, int64_t begin, int64_t end)
{
    const scan *s = argument;
    const int64_t *line_step = s->lines.loops[0].step;
    int64_t n;
    vme_cursor at;
    vme_nest_seek(&s->lines, begin, &at);
    for (int64_t line = begin; line < end; line += n, vme_nest_advance(&s->lines, &at, n)) {
        n = s->side_by_side ? vme_nest_run(&s->lines, &at, end - line < TILE ? end - line : TILE) : 1;
        /* a piece begins with the last element of the previous one */
        int64_t piece = PIECE / n + 1;
        for (int64_t i = 0; i + 1 < s->length; i += piece - 1) {
            int64_t count = s->length - i < piece ? s->length - i : piece;
            s->kernel(count, n, (scan_side){at.data[1] + i * s->in_step, s->in_step, line_step[1]},
                      (scan_side){at.data[0] + i * s->step, s->step, line_step[0]});
            if (vme_stopping(s->context))
                return vme_stopped_here(s->context);
        }
    }
    return VME_OK;
}

/* Scans `in` into `out`, whose first element of each line is already set. */
static vme_status scan_into(vme_context *context, scan_kernel *kernel, const vme_tensor *in, int axis,
                            const vme_tensor *out)
{
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX], in_strides[VME_RANK_MAX];
    int rank = 0;
    for (int d = 0; d < out->rank; d++)
        if (d != axis) {
            shape[rank] = out->shape[d];
            in_strides[rank] = in->strides[d];
            strides[rank++] = out->strides[d];
        }
    scan s = {.context = context,
              .kernel = kernel,
              .length = out->shape[axis],
              .step = out->strides[axis],
              .in_step = in->strides[axis]};
    vme_nest_make(&s.lines, VME_NEST_ANY, rank, shape, 2, (const int64_t *const[]){strides, in_strides},
                  (char *const[]){out->data, in->data});
    if (s.lines.elements == 0 || s.length == 0)
        return VME_OK;
    int64_t step = s.step < 0 ? -s.step : s.step;
    s.side_by_side = s.lines.loops[0].size >= 4 && s.lines.loops[0].step[0] < step;
    int64_t grain = PIECE / s.length + 1;
    if (s.side_by_side && grain < TILE)
        grain = TILE;
    return vme_parallel(context, s.lines.elements, grain, scan_lines, &s);
}

/* Scans into an output of the loop's dtype. Copies the first elements of lines; or the whole input, which is then
 * scanned in place, if it has another dtype or overlaps the output. */
static vme_status scan_tensor(vme_context *context, scan_kernel *kernel, const vme_tensor *in, int axis,
                              const vme_tensor *out)
{
    bool disjoint = in->dtype == out->dtype && !vme_overlap(in, out) && out->shape[axis] > 0;
    int64_t shape[VME_RANK_MAX];
    vme_tensor source = *in, target = *out;
    if (disjoint) {
        memcpy(shape, out->shape, (size_t)out->rank * sizeof *shape);
        shape[axis] = 1;
        source.shape = target.shape = shape;
    }
    vme_status status = vme_copy(context, &source, &target);
    return status == VME_OK ? scan_into(context, kernel, disjoint ? in : out, axis, out) : status;
}

vme_status vme_scan(vme_context *context, vme_scan_op op, vme_dtype loop, const vme_tensor *in, int axis,
                    const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (axis < 0 || axis >= in->rank)
        return vme_fail(VME_BAD_AXIS, "axis %d is out of bounds for array of dimension %d", axis, in->rank);
    bool fits = in->rank == out->rank;
    for (int d = 0; fits && d < in->rank; d++)
        fits = in->shape[d] == out->shape[d];
    if (!fits)
        return vme_fail(VME_BAD_SHAPE, "the output of %s has another shape than its input", vme_scan_name(op));
    vme_dtype computed = loop == VME_FLOAT16 ? VME_FLOAT32 : loop;
    scan_kernel *kernel = kernels[op][computed];
    if (computed == (vme_dtype)out->dtype)
        return scan_tensor(context, kernel, in, axis, out);
    /* float16 is rounded when it is copied back, not at every step: closer to the true sums than NumPy */
    int64_t strides[VME_RANK_MAX];
    vme_tensor like = *in, temporary;
    like.dtype = computed;
    status = vme_temporary_new(context, &like, strides, &temporary);
    if (status != VME_OK)
        return status;
    status = vme_copy(context, in, &temporary);
    if (status == VME_OK)
        status = scan_into(context, kernel, &temporary, axis, &temporary);
    if (status == VME_OK)
        status = vme_copy(context, &temporary, out);
    vme_buffer_unref(temporary.buffer);
    return status;
}
