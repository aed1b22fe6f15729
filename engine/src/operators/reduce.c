/* Reductions over any dimensions of any view.
 *
 * The dimensions form two loop nests, kept and reduced. If the input is contiguous along a reduced dimension, each
 * output folds its own run of elements (fold_tasks). If it is contiguous along a kept one, a tile of outputs is folded
 * row by row (row_tasks), and argmax and argmin transpose tiles first (arg_tasks). Long reductions are divided into
 * pieces whose accumulators are combined at the end. Pieces depend on shapes only, so results do not depend on the
 * number of threads. */
#include "operators/reduce.h"

#include <math.h>
#include <string.h>

#include "operators/nest.h"
#include "operators/raster.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

enum { IN, OUT }; /* operands of the kept nest; the reduced nest has only the first */
enum {
    TILE_BYTES = 4096,      /* bytes of a tile of accumulators, on the stack */
    STAGE_BYTES = 2048,     /* bytes of elements cast or collected before they are folded, on the stack */
    TRANSPOSE_BYTES = 4096, /* bytes of elements transposed for argmax and argmin, on the stack */
    TRANSPOSE_COLUMNS = 16, /* outputs of such a tile */
    ACCUMULATOR_MAX = sizeof(vme_arg_accumulator),
};

typedef struct reduction {
    vme_nest kept, reduced;
    const char *origin; /* in->data, where the reduced nest starts */
    vme_loop1 *cast_in; /* casts the input to the dtype that is folded; NULL: no cast */
    vme_loop1 *collect; /* collects strided elements if that pays; else NULL */
    bool any_order;     /* the result does not depend on the order in which elements are folded */
    int64_t element_bytes;
    vme_fold *fold, *combine; /* combine: folds the accumulators of pieces */
    vme_fold_rows *rows, *combine_rows;
    bool is_arg;         /* argmax, argmin */
    int deciding_value;  /* all, any: the truth value that decides the result; else -1 */
    atomic_bool decided; /* a piece of the only output has found that value */
    int64_t accumulator_bytes;
    _Alignas(16) char identity[ACCUMULATOR_MAX], start[ACCUMULATOR_MAX];
    vme_loop1 *cast_out;       /* converts the accumulator to the output's dtype, or first to the loop's */
    vme_loop1 *cast_out_again; /* in the latter case, converts the loop's dtype to the output's; else NULL */
    int64_t outputs, length;   /* elements of the kept nest, and of the reduced one */
    int64_t piece, pieces;     /* elements of a piece of the reduced nest; number of pieces */
    char *partials;            /* [pieces][outputs] accumulators; NULL: one piece, which writes to the output */
    int64_t tile, tiles;       /* row_tasks and arg_tasks: outputs of a tile, tiles of a loop */
} reduction;

static bool is_truth(vme_reduce_op op) { return op == VME_ALL || op == VME_ANY || op == VME_COUNT_NONZERO; }
static bool is_arg(vme_reduce_op op) { return op == VME_ARGMAX || op == VME_ARGMIN; }
static bool is_extreme(vme_reduce_op op)
{
    return op == VME_MAX || op == VME_MIN || op == VME_KNOWN_MAX || op == VME_KNOWN_MIN;
}
static bool is_integer(vme_dtype dtype) { return dtype <= VME_UINT64; }
static bool is_signed(vme_dtype dtype) { return dtype <= VME_INT64; }
static int64_t magnitude(int64_t a) { return a < 0 ? -a : a; }

vme_status vme_reduce_types(vme_reduce_op op, vme_dtype in, vme_dtype *loop, vme_dtype *result)
{
    *loop = *result = in;
    if (op == VME_ALL || op == VME_ANY)
        *result = VME_BOOL;
    else if (op == VME_COUNT_NONZERO || is_arg(op))
        *result = VME_INT64;
    else if ((op == VME_SUM || op == VME_PROD) && is_integer(in))
        *loop = *result = is_signed(in) ? VME_INT64 : VME_UINT64;
    return VME_OK;
}

static vme_loop1 *converter(vme_dtype from, vme_dtype to)
{
    const vme_kernels *kernels = vme_kernels_current();
    if (from == to)
        return kernels->move.strided[__builtin_ctz((unsigned)vme_dtype_size(from))];
    return kernels->elementwise.cast[from][to];
}

/* The initial value of a reduction. */
static void write_identity(vme_reduce_op op, vme_dtype dtype, void *to)
{
    double real = 0;
    switch (op) {
    case VME_PROD: real = 1; break;
    case VME_MAX: real = -INFINITY; break;
    case VME_MIN: real = INFINITY; break;
    case VME_KNOWN_MAX:
    case VME_KNOWN_MIN: real = NAN; break;
    default: break;
    }
    double imaginary = op == VME_PROD ? 0 : real;
    bool lowest = op == VME_MAX || op == VME_KNOWN_MAX;
    bool extreme = lowest || op == VME_MIN || op == VME_KNOWN_MIN;
    int bits = 8 * vme_dtype_size(dtype);
    switch (dtype) {
    case VME_BOOL: *(bool *)to = op == VME_ALL || op == VME_MIN || op == VME_KNOWN_MIN || op == VME_PROD; break;
    case VME_FLOAT32: *(float *)to = (float)real; break;
    case VME_FLOAT64: *(double *)to = real; break;
    case VME_COMPLEX64: memcpy(to, (float[2]){(float)real, (float)imaginary}, 8); break;
    case VME_COMPLEX128: memcpy(to, (double[2]){real, imaginary}, 16); break;
    default: {
        uint64_t value = op == VME_PROD;
        if (extreme && is_signed(dtype))
            value = lowest ? (uint64_t)1 << (bits - 1) : ((uint64_t)1 << (bits - 1)) - 1;
        else if (extreme)
            value = lowest ? 0 : UINT64_MAX >> (64 - bits);
        memcpy(to, &value, (size_t)vme_dtype_size(dtype)); /* little-endian, like every supported machine */
    }
    }
}

/* Chooses kernels and dtypes. The input is folded without a cast if the result is the same, bit for bit. */
static vme_status choose_kernels(reduction *r, vme_reduce_op op, vme_dtype loop, vme_dtype in, vme_dtype out,
                                 const void *initial)
{
    const vme_reduce_kernels *kernels = &vme_kernels_current()->reduce;
    /* foreign memory may hold bools above 1, which are True too: they are compared with 0, never used as numbers */
    if (loop == VME_BOOL && (op == VME_SUM || op == VME_MAX || op == VME_KNOWN_MAX))
        op = VME_ANY;
    if (loop == VME_BOOL && (op == VME_PROD || op == VME_MIN || op == VME_KNOWN_MIN))
        op = VME_ALL;
    if (in == VME_BOOL && is_integer(loop) && op == VME_SUM)
        op = VME_COUNT_NONZERO;
    vme_dtype element = loop, accumulator;
    if (is_truth(op) || (is_integer(in) && in != VME_BOOL && is_integer(loop) && (op == VME_SUM || op == VME_PROD)))
        element = in;
    if (element == VME_FLOAT16)
        element = VME_FLOAT32;
    if (op == VME_ALL || op == VME_ANY)
        accumulator = VME_BOOL;
    else if (op == VME_COUNT_NONZERO || is_arg(op))
        accumulator = VME_INT64;
    else if ((op == VME_SUM || op == VME_PROD) && is_integer(loop))
        accumulator = is_signed(loop) ? VME_INT64 : VME_UINT64;
    else
        accumulator = element;
    vme_dtype result_dtype = is_truth(op) || is_arg(op) ? accumulator : loop;
    vme_reduce_op combine_op = op == VME_COUNT_NONZERO ? VME_SUM : op;
    vme_dtype combine_dtype = is_arg(op) ? element : accumulator;

    r->cast_in = element == in ? NULL : converter(in, element);
    /* sums of floats depend on the order, and `all` and `any` stop early */
    r->any_order = is_extreme(op) || is_arg(op) || op == VME_COUNT_NONZERO || (is_integer(in) && op == VME_SUM);
    r->collect = r->cast_in == NULL && r->any_order ? converter(in, in) : NULL;
    r->cast_out = converter(accumulator, out);
    r->cast_out_again = NULL;
    if (result_dtype != accumulator && result_dtype != out) {
        r->cast_out = converter(accumulator, result_dtype);
        r->cast_out_again = converter(result_dtype, out);
    }
    r->fold = kernels->fold[op][element];
    r->rows = kernels->rows[op][element];
    r->combine = kernels->fold[combine_op][combine_dtype];
    r->combine_rows = kernels->rows[combine_op][combine_dtype];
    r->is_arg = is_arg(op);
    r->deciding_value = op == VME_ALL ? false : op == VME_ANY ? true : -1;
    atomic_init(&r->decided, false);
    r->element_bytes = vme_dtype_size(element);
    r->accumulator_bytes = r->is_arg ? (int64_t)sizeof(vme_arg_accumulator) : vme_dtype_size(accumulator);
    vme_loop1 *convert_initial = initial == NULL ? r->cast_out : converter(loop, accumulator);
    if ((r->cast_in == NULL && element != in) || r->cast_out == NULL || r->fold == NULL || convert_initial == NULL
        || (result_dtype != accumulator && result_dtype != out && r->cast_out_again == NULL))
        return vme_fail(VME_BAD_DTYPE, "%s of %s in %s to %s is not supported", vme_reduce_name(op), vme_dtype_name(in),
                        vme_dtype_name(loop), vme_dtype_name(out));
    memset(r->identity, 0, sizeof r->identity);
    if (!r->is_arg)
        write_identity(op, accumulator, r->identity);
    memcpy(r->start, r->identity, sizeof r->start);
    if (initial != NULL && !r->is_arg)
        convert_initial(1, initial, 0, r->start, 0);
    return VME_OK;
}

/* Converts `n` contiguous accumulators to elements of the output. */
static void store(const reduction *r, int64_t n, const char *accumulators, char *out, int64_t out_step)
{
    if (r->cast_out_again == NULL) {
        r->cast_out(n, accumulators, r->accumulator_bytes, out, out_step);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        _Alignas(16) char between[16];
        r->cast_out(1, accumulators + i * r->accumulator_bytes, 0, between, 0);
        r->cast_out_again(1, between, 0, out + i * out_step, 0);
    }
}

static void fill_accumulators(int64_t n, const char *accumulator, int64_t bytes, char *to)
{
    for (int64_t i = 0; i < n; i++)
        memcpy(to + i * bytes, accumulator, (size_t)bytes);
}

static void fold_run(const reduction *r, int64_t n, const char *in, int64_t step, void *accumulator)
{
    vme_loop1 *convert = r->cast_in;
    if (convert == NULL && step != r->element_bytes && step != 0 && n >= REDUCE_COLLECT_MIN)
        convert = r->collect;
    if (convert == NULL) {
        /* fold up to a cache line first: vectors that span two lines take twice as long from L2 */
        int64_t bytes = (int64_t)(-(uintptr_t)in % VME_ALIGNMENT);
        if (r->any_order && step == r->element_bytes && n >= REDUCE_ALIGNED_MIN && bytes != 0 && bytes % step == 0) {
            r->fold(bytes / step, in, step, accumulator);
            in += bytes;
            n -= bytes / step;
        }
        r->fold(n, in, step, accumulator);
        return;
    }
    _Alignas(64) char stage[STAGE_BYTES];
    int64_t staged = STAGE_BYTES / r->element_bytes;
    for (int64_t i = 0; i < n; i += staged) {
        int64_t count = min(n - i, staged);
        convert(count, in + i * step, step, stage, r->element_bytes);
        r->fold(count, stage, r->element_bytes, accumulator);
    }
}

/* Folds elements `begin` to `end` - 1 of the reduced nest, for the output whose first element is at `from`. */
static void fold_range(const reduction *r, const char *from, int64_t begin, int64_t end, void *accumulator)
{
    const vme_nest *nest = &r->reduced;
    int64_t step = nest->loops[0].step[0];
    if (nest->rank == 1) {
        fold_run(r, end - begin, from + (nest->data[0] - r->origin) + begin * step, step, accumulator);
        return;
    }
    vme_cursor at;
    int64_t n, left = end - begin;
    for (vme_nest_seek(nest, begin, &at); left > 0; left -= n, vme_nest_advance(nest, &at, n)) {
        n = vme_nest_run(nest, &at, left);
        fold_run(r, n, from + (at.data[0] - r->origin), step, accumulator);
    }
}

/* Folds outputs `begin` to `end` - 1 along one kept loop, each of one short run. Converts a whole tile of outputs at a
 * time. */
static vme_status short_tasks(void *argument, int64_t begin, int64_t end)
{
    const reduction *r = argument;
    const vme_loop *kept = &r->kept.loops[0];
    const int64_t bytes = r->accumulator_bytes, step = r->reduced.loops[0].step[0], tile_outputs = TILE_BYTES / bytes;
    const char *in = r->kept.data[IN] + (r->reduced.data[0] - r->origin) + begin * kept->step[IN];
    for (int64_t n; begin < end; begin += n) {
        _Alignas(64) char tile[TILE_BYTES];
        n = min(end - begin, tile_outputs);
        fill_accumulators(n, r->start, bytes, tile);
        for (int64_t i = 0; i < n; i++, in += kept->step[IN])
            r->fold(r->length, in, step, tile + i * bytes);
        store(r, n, tile, r->kept.data[OUT] + begin * kept->step[OUT], kept->step[OUT]);
    }
    return VME_OK;
}

/* Task number t: piece t / outputs of output t % outputs. */
static vme_status fold_tasks(void *argument, int64_t begin, int64_t end)
{
    reduction *r = argument;
    const char *initial = r->partials == NULL ? r->start : r->identity;
    vme_cursor at;
    int64_t piece = begin / r->outputs, output = begin % r->outputs;
    vme_nest_seek(&r->kept, output, &at);
    for (int64_t task = begin; task < end; task++, vme_nest_advance(&r->kept, &at, 1)) {
        _Alignas(16) char accumulator[ACCUMULATOR_MAX];
        memcpy(accumulator, initial, sizeof accumulator);
        int64_t from = piece * r->piece;
        if (r->outputs > 1 || !atomic_load_explicit(&r->decided, memory_order_relaxed))
            fold_range(r, at.data[IN], from, min(r->length, from + r->piece), accumulator);
        if (r->outputs == 1 && r->deciding_value >= 0 && accumulator[0] == r->deciding_value)
            atomic_store_explicit(&r->decided, true, memory_order_relaxed);
        if (r->partials == NULL)
            store(r, 1, accumulator, at.data[OUT], 0);
        else
            memcpy(r->partials + task * r->accumulator_bytes, accumulator, (size_t)r->accumulator_bytes);
        if (++output == r->outputs) {
            output = 0;
            piece++;
        }
    }
    return VME_OK;
}

static void fold_rows(const reduction *r, int64_t rows, int64_t n, const char *in, int64_t row_step, int64_t step,
                      char *tile)
{
    if (r->cast_in == NULL) {
        r->rows(rows, n, in, row_step, step, tile);
        return;
    }
    _Alignas(64) char stage[STAGE_BYTES];
    for (int64_t i = 0; i < rows; i++) {
        r->cast_in(n, in + i * row_step, step, stage, r->element_bytes);
        r->rows(1, n, stage, 0, r->element_bytes, tile);
    }
}

/* Task number t: piece t / (tiles of all outputs) of a tile of outputs along the innermost kept loop. */
static vme_status row_tasks(void *argument, int64_t begin, int64_t end)
{
    const reduction *r = argument;
    const vme_nest *kept = &r->kept, *reduced = &r->reduced;
    const char *initial = r->partials == NULL ? r->start : r->identity;
    int64_t width = kept->loops[0].size, step = kept->loops[0].step[IN], row_step = reduced->loops[0].step[0];
    int64_t tiles_per_piece = r->outputs / width * r->tiles, piece = begin / tiles_per_piece,
            tile_number = begin % tiles_per_piece;
    int64_t output = tile_number / r->tiles * width + tile_number % r->tiles * r->tile;
    vme_cursor at, row;
    vme_nest_seek(kept, output, &at);
    for (int64_t task = begin; task < end; task++) {
        _Alignas(64) char tile[TILE_BYTES];
        int64_t n = vme_nest_run(kept, &at, r->tile), count;
        int64_t from = piece * r->piece, left = min(r->piece, r->length - from);
        fill_accumulators(n, initial, r->accumulator_bytes, tile);
        for (vme_nest_seek(reduced, from, &row); left > 0; left -= count, vme_nest_advance(reduced, &row, count)) {
            count = vme_nest_run(reduced, &row, left);
            fold_rows(r, count, n, at.data[IN] + (row.data[0] - r->origin), row_step, step, tile);
        }
        if (r->partials == NULL)
            store(r, n, tile, at.data[OUT], kept->loops[0].step[OUT]);
        else
            memcpy(r->partials + (piece * r->outputs + output) * r->accumulator_bytes, tile,
                   (size_t)(n * r->accumulator_bytes));
        output += n;
        vme_nest_advance(kept, &at, n);
        if (output == r->outputs) {
            output = 0;
            piece++;
        }
    }
    return VME_OK;
}

/* Like row_tasks, for argmax and argmin: a tile of outputs is transposed, some rows at a time, and each output folds
 * its run. */
static vme_status arg_tasks(void *argument, int64_t begin, int64_t end)
{
    const reduction *r = argument;
    const vme_nest *kept = &r->kept;
    vme_move2 *transpose = vme_kernels_current()->move.transpose[__builtin_ctzll((uint64_t)r->element_bytes)];
    int64_t width = kept->loops[0].size, step = kept->loops[0].step[IN], row_step = r->reduced.loops[0].step[0];
    int64_t tiles_per_piece = r->outputs / width * r->tiles, piece = begin / tiles_per_piece,
            tile_number = begin % tiles_per_piece;
    int64_t output = tile_number / r->tiles * width + tile_number % r->tiles * r->tile;
    int64_t max_rows = TRANSPOSE_BYTES / (r->tile * r->element_bytes);
    vme_cursor at;
    vme_nest_seek(kept, output, &at);
    for (int64_t task = begin; task < end; task++) {
        _Alignas(64) char transposed[TRANSPOSE_BYTES];
        vme_arg_accumulator args[TRANSPOSE_COLUMNS];
        int64_t n = vme_nest_run(kept, &at, r->tile);
        int64_t row = piece * r->piece, row_end = min(r->length, row + r->piece);
        fill_accumulators(n, r->identity, r->accumulator_bytes, (char *)args);
        for (int64_t rows; row < row_end; row += rows) {
            rows = min(row_end - row, max_rows);
            transpose(n, rows, at.data[IN] + (r->reduced.data[0] - r->origin) + row * row_step, step, row_step,
                      transposed, rows * r->element_bytes, r->element_bytes);
            for (int64_t i = 0; i < n; i++)
                r->fold(rows, transposed + i * rows * r->element_bytes, r->element_bytes, &args[i]);
        }
        if (r->partials == NULL)
            store(r, n, (const char *)args, at.data[OUT], kept->loops[0].step[OUT]);
        else
            memcpy(r->partials + (piece * r->outputs + output) * r->accumulator_bytes, args, (size_t)n * sizeof *args);
        output += n;
        vme_nest_advance(kept, &at, n);
        if (output == r->outputs) {
            output = 0;
            piece++;
        }
    }
    return VME_OK;
}

/* Combines the pieces of argmax or argmin: chooses the piece with the best value, the first one among equals. */
static void combine_args(const reduction *r, const char *partials, int64_t step, vme_arg_accumulator *arg)
{
    r->combine(r->pieces, partials + offsetof(vme_arg_accumulator, value), step, arg);
    vme_arg_accumulator best;
    memcpy(&best, partials + arg->best * step, sizeof best);
    arg->best = arg->best * r->piece + best.best;
}

/* Computes outputs `begin` to `end` - 1 from the accumulators of their pieces. */
static vme_status combine_pieces(void *argument, int64_t begin, int64_t end)
{
    const reduction *r = argument;
    int64_t bytes = r->accumulator_bytes, step = r->outputs * bytes, n;
    vme_cursor at;
    vme_nest_seek(&r->kept, begin, &at);
    for (int64_t output = begin; output < end; output += n, vme_nest_advance(&r->kept, &at, n)) {
        _Alignas(64) char tile[TILE_BYTES];
        const char *partials = r->partials + output * bytes;
        n = r->is_arg || r->outputs < 8 ? 1 : min(vme_nest_run(&r->kept, &at, end - output), TILE_BYTES / bytes);
        fill_accumulators(n, r->start, bytes, tile);
        if (r->is_arg)
            combine_args(r, partials, step, (vme_arg_accumulator *)tile);
        else if (n == 1)
            r->combine(r->pieces, partials, step, tile);
        else
            r->combine_rows(r->pieces, n, partials, step, bytes, tile);
        store(r, n, tile, at.data[OUT], r->kept.loops[0].step[OUT]);
    }
    return VME_OK;
}

static vme_status run(vme_context *context, reduction *r)
{
    if (r->deciding_value >= 0 && r->outputs == 1 && r->length > REDUCE_FIRST) {
        _Alignas(16) char accumulator[ACCUMULATOR_MAX];
        memcpy(accumulator, r->start, sizeof accumulator);
        fold_range(r, r->kept.data[IN], 0, REDUCE_FIRST, accumulator);
        if (accumulator[0] == r->deciding_value) {
            store(r, 1, accumulator, r->kept.data[OUT], 0);
            return VME_OK;
        }
    }
    int64_t column = magnitude(r->kept.loops[0].step[IN]), width = r->kept.loops[0].size;
    bool by_rows = column < magnitude(r->reduced.loops[0].step[0]) && width * r->element_bytes >= 32 && width >= 4;
    vme_body *tasks = fold_tasks;
    if (by_rows && r->is_arg)
        by_rows = r->cast_in == NULL && column == r->element_bytes && r->kept.loops[0].step[IN] > 0;
    int64_t task; /* elements of a task */
    int64_t count;
    if (by_rows) {
        tasks = r->is_arg ? arg_tasks : row_tasks;
        r->tile = r->is_arg ? TRANSPOSE_COLUMNS : TILE_BYTES / r->accumulator_bytes;
        if (r->cast_in != NULL)
            r->tile = min(r->tile, STAGE_BYTES / r->element_bytes);
        r->tile = min(r->tile, width);
        r->tiles = ceil_div(width, r->tile);
        r->piece = REDUCE_ROW_PIECE / r->tile;
        count = r->outputs / width * r->tiles;
        task = r->tile * min(r->length, r->piece);
    } else {
        r->piece = REDUCE_PIECE;
        count = r->outputs;
        task = min(r->length, REDUCE_PIECE);
        if (r->length > 0 && r->length < REDUCE_COLLECT_MIN && count > 1 && r->kept.rank == 1 && r->reduced.rank == 1
            && r->cast_in == NULL && !r->is_arg)
            tasks = short_tasks;
    }
    r->pieces = ceil_div(r->length, r->piece);
    count *= r->pieces;
    r->partials = NULL;
    size_t bytes = 0;
    if (r->pieces > 1) {
        bytes = (size_t)(r->pieces * r->outputs * r->accumulator_bytes);
        r->partials = vme_scratch_new(context, bytes);
        if (r->partials == NULL)
            return VME_NO_MEMORY;
    }
    /* the bytes between elements are loaded too, by cache lines */
    int64_t bytes_apart = magnitude((by_rows ? r->kept : r->reduced).loops[0].step[IN]);
    bytes_apart = bytes_apart > r->element_bytes ? min(bytes_apart, 64) : r->element_bytes;
    int64_t bytes_touched = r->outputs * (r->length * bytes_apart + (by_rows ? 0 : REDUCE_OUTPUT_BYTES));
    vme_status status =
        vme_stopping(context) ? vme_stopped_here(context)
        : bytes_touched < REDUCE_PARALLEL_MIN
            ? tasks(r, 0, count)
            : vme_parallel_apart(context, count, task < REDUCE_PIECE ? REDUCE_PIECE / task : 1, tasks, r);
    if (status == VME_OK && r->partials != NULL)
        status = vme_parallel_apart(context, r->outputs, r->pieces < REDUCE_PIECE ? REDUCE_PIECE / r->pieces : 1,
                                    combine_pieces, r);
    vme_scratch_free(context, r->partials, bytes);
    return status;
}

/* Moves loops of step 0 outwards, so that the innermost loop is over different elements. */
static void move_repeats_outside(vme_nest *nest)
{
    for (int i = 0, last = nest->rank; i < last;) {
        vme_loop loop = nest->loops[i];
        if (loop.step[0] != 0) {
            i++;
            continue;
        }
        memmove(nest->loops + i, nest->loops + i + 1, (size_t)(nest->rank - 1 - i) * sizeof loop);
        nest->loops[nest->rank - 1] = loop;
        last--;
    }
}

/* Makes one nest of the reduced dimensions and one of the kept ones. `out_strides`: those of the output, which has size
 * 1 in reduced dimensions. Never inlined, so that its arrays do not occupy the stack while the reduction runs. */
__attribute__((noinline)) static void make_nests(reduction *r, const vme_tensor *in, uint64_t axes, char *out,
                                                 const int64_t *out_strides)
{
    int64_t shape[2][VME_RANK_MAX], in_strides[2][VME_RANK_MAX], kept_strides[VME_RANK_MAX];
    int rank[2] = {0, 0};
    for (int i = 0; i < in->rank; i++) {
        int reduced = (int)(axes >> i & 1), at = rank[reduced]++;
        shape[reduced][at] = in->shape[i];
        in_strides[reduced][at] = in->strides[i];
        if (reduced == 0)
            kept_strides[at] = out_strides[i];
    }
    vme_nest_make(&r->kept, VME_NEST_ANY, rank[0], shape[0], 2, (const int64_t *const[]){in_strides[0], kept_strides},
                  (char *const[]){in->data, out});
    vme_nest_make(&r->reduced, r->is_arg ? VME_NEST_ORDERED : VME_NEST_ANY, rank[1], shape[1], 1,
                  (const int64_t *const[]){in_strides[1]}, (char *const[]){in->data});
    if (!r->is_arg)
        move_repeats_outside(&r->reduced);
    r->origin = in->data;
    r->outputs = r->kept.elements;
    r->length = r->reduced.elements;
}

static vme_status check(vme_reduce_op op, const vme_tensor *in, uint64_t axes, const void *initial,
                        const vme_tensor *out)
{
    int64_t length = 1;
    bool fits = out->rank == in->rank;
    for (int i = 0; i < in->rank && fits; i++) {
        bool reduced = axes >> i & 1;
        fits = out->shape[i] == (reduced ? 1 : in->shape[i]);
        if (reduced)
            length *= in->shape[i];
    }
    if (!fits)
        return vme_fail(VME_BAD_SHAPE,
                        "output of a %s over axes %#llx: expected the input's shape with 1 in their place",
                        vme_reduce_name(op), (unsigned long long)axes);
    if (in->rank < 64 && axes >> in->rank != 0)
        return vme_fail(VME_BAD_AXIS, "axes %#llx are out of bounds for array of dimension %d",
                        (unsigned long long)axes, in->rank);
    if (is_arg(op) && __builtin_popcountll(axes) > 1)
        return vme_fail(VME_BAD_AXIS, "%s takes one axis, got %d", vme_reduce_name(op), __builtin_popcountll(axes));
    if (is_arg(op) && length == 0)
        return vme_fail(VME_BAD_VALUE, "attempt to get %s of an empty sequence", vme_reduce_name(op));
    if (is_extreme(op) && length == 0 && initial == NULL)
        return vme_fail(VME_BAD_VALUE, "zero-size array to reduction operation %s which has no identity",
                        op == VME_MAX   ? "maximum"
                        : op == VME_MIN ? "minimum"
                                        : vme_reduce_name(op));
    return vme_check_output(out);
}

/* The reduction, for operands that do not overlap. */
static vme_status reduce(vme_context *context, vme_reduce_op op, vme_dtype loop, const vme_tensor *in, uint64_t axes,
                         const void *initial, const vme_tensor *out)
{
    reduction r;
    r.is_arg = is_arg(op);
    make_nests(&r, in, axes, out->data, out->strides);
    if (r.outputs == 0)
        return VME_OK;
    vme_status status = choose_kernels(&r, op, loop, (vme_dtype)in->dtype, (vme_dtype)out->dtype, initial);
    if (status != VME_OK)
        return status;
    if (r.length == 0) {
        vme_cursor at;
        vme_nest_seek(&r.kept, 0, &at);
        for (int64_t i = 0; i < r.outputs; i++, vme_nest_advance(&r.kept, &at, 1)) {
            if ((i & 4095) == 0 && vme_stopping(context))
                return vme_stopped_here(context);
            store(&r, 1, r.start, at.data[OUT], 0);
        }
        return VME_OK;
    }
    return run(context, &r);
}

vme_status vme_reduce(vme_context *context, vme_reduce_op op, vme_dtype loop, const vme_tensor *in, uint64_t axes,
                      const void *initial, const vme_tensor *out)
{
    VME_FLUSHING(context);
    vme_status status = check(op, in, axes, initial, out);
    if (status != VME_OK)
        return status;
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    if (vme_overlap(in, out)) { /* outputs are written while inputs are still read: into other memory first */
        int64_t strides[VME_RANK_MAX];
        vme_tensor temporary;
        status = vme_temporary_new(context, out, strides, &temporary);
        if (status != VME_OK)
            return status;
        status = reduce(context, op, loop, in, axes, initial, &temporary);
        if (status == VME_OK)
            status = vme_copy(context, &temporary, out);
        vme_buffer_unref(temporary.buffer);
        return status;
    }
    return reduce(context, op, loop, in, axes, initial, out);
}
