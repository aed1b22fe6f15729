/* The drivers of the elementwise operators: unary, binary and where over any views, and arange.
 *
 * Contiguous operands of one layout with the kernel's dtypes go straight to the kernel. All others are walked by a loop
 * nest. Operands for which kernels have no vector loop are staged in blocks on the stack: elements of another dtype are
 * cast, strided elements are collected, and a short row that is broadcast over rows of the output is repeated. Large
 * work is divided by vme_parallel_apart; no piece takes more than a fraction of a millisecond. */
#include "operators/nest.h"
#include "operators/raster.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include <string.h>

enum {
    INPUTS = 3,
    STAGE_BYTES = 4608, /* maximum bytes of the stage */
    BLOCK_MAX = 1024,   /* maximum elements of one operand in it */
};

/* Converts an operand from its dtype to the kernel's, or back: by one cast, or by two if float16 is computed in
 * float32. Or copies it, to collect or scatter strided elements. */
typedef struct conversion {
    vme_loop1 *first, *second; /* NULL: none */
    vme_dtype compute;         /* the dtype that the kernel reads or writes */
    bool repeats;              /* an input whose row is read again for each row of the output */
} conversion;

struct job {
    vme_nest nest; /* operand 0 is the output */
    conversion convert[1 + INPUTS];
    vme_loop1 *unary; /* one of the three kernels */
    vme_loop2 *binary;
    vme_loop3 *choose;
    bool staged, costly; /* staged: some operand goes through the stage on the stack */
    bool stride_two;     /* the kernel has a loop for inputs that all step by two elements */
    int64_t row_length;  /* length of rows that repeat within the innermost loop; 0: none */
    vme_dtype exponent;  /* a signed integer dtype: negative exponents are refused; otherwise VME_BOOL */
};

/* ---- one run of the innermost loop */

static void apply(const struct job *job, int64_t n, char *const *data, const int64_t *step)
{
    if (job->binary != NULL)
        job->binary(n, data[1], step[1], data[2], step[2], data[0], step[0]);
    else if (job->unary != NULL)
        job->unary(n, data[1], step[1], data[0], step[0]);
    else
        job->choose(n, data[1], step[1], data[2], step[2], data[3], step[3], data[0], step[0]);
}

static bool any_negative(vme_dtype dtype, int64_t n, const char *data, int64_t step)
{
    int size = vme_dtype_size(dtype);
    unsigned char signs = 0;
    for (int64_t i = 0; i < (step == 0 && n > 1 ? 1 : n); i++)
        signs |= (unsigned char)data[i * step + (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? size - 1 : 0)];
    return signs & 0x80;
}

static vme_status apply_checked(const struct job *job, int64_t n, char *const *data, const int64_t *step)
{
    if (job->exponent != VME_BOOL && any_negative(job->exponent, n, data[2], step[2]))
        return vme_fail(VME_BAD_VALUE, "Integers to negative integer powers are not allowed.");
    apply(job, n, data, step);
    return VME_OK;
}

/* Fills `to` with `count` elements of the kernel's dtype, a multiple of `row`: repetitions of the operand's row.
 * `halves`: memory for the float16 values between two casts. */
static void repeat_row(const conversion *convert, int64_t row, int64_t count, const char *from, int64_t step,
                       char *halves, char *to)
{
    int64_t size = vme_dtype_size(convert->compute), done = row * size;
    if (convert->first == NULL)
        memcpy(to, from, (size_t)done);
    else if (convert->second == NULL)
        convert->first(row, from, step, to, size);
    else {
        convert->first(row, from, step, halves, 2);
        convert->second(row, halves, 2, to, size);
    }
    for (int64_t bytes = count * size, chunk; done < bytes; done += chunk) {
        chunk = done < bytes - done ? done : bytes - done;
        memcpy(to + done, to, (size_t)chunk);
    }
}

/* Like apply_checked, with converted operands and repeated rows in blocks on the stack. `phase`: the first element's
 * index in its row. */
static vme_status apply_staged(const struct job *job, int64_t n, char *const *data, const int64_t *step, int64_t phase)
{
    _Alignas(VME_ALIGNMENT) char stage[STAGE_BYTES];
    char *block_data[1 + INPUTS], *halves = stage;
    int64_t block_step[1 + INPUTS], bytes = 0, block, used = 0;
    bool ready[1 + INPUTS] = {false}, uses_halves = false;
    for (int o = 0; o < job->nest.operands; o++) {
        const conversion *convert = &job->convert[o];
        if (convert->first != NULL || convert->repeats)
            bytes += vme_dtype_size(convert->compute);
        uses_halves = uses_halves || convert->second != NULL;
    }
    bytes += uses_halves ? 2 : 0;
    block = job->row_length == 0 ? ELEMENTWISE_BLOCK_APART : BLOCK_MAX;
    block = STAGE_BYTES / bytes < block ? STAGE_BYTES / bytes & -VME_ALIGNMENT : block;
    used = uses_halves ? 2 * block : 0;
    int64_t row_block = job->row_length == 0 ? 0 : block / job->row_length * job->row_length;
    for (int o = 0; o < job->nest.operands; o++) {
        const conversion *convert = &job->convert[o];
        block_data[o] = data[o];
        block_step[o] = step[o];
        if (convert->first == NULL && !convert->repeats)
            continue;
        int size = vme_dtype_size(convert->compute);
        block_data[o] = stage + used;
        block_step[o] = o > 0 && step[o] == 0 ? 0 : size;
        used += block * size;
        if (convert->repeats) {
            int64_t rows = (phase + n + job->row_length - 1) / job->row_length * job->row_length;
            repeat_row(convert, job->row_length, rows < row_block ? rows : row_block, data[o] - phase * step[o],
                       step[o], halves, block_data[o]);
            block_data[o] += phase * size;
            ready[o] = true;
        }
    }
    for (int64_t begin = 0, count; begin < n; begin += count) {
        count = row_block == 0 ? block : row_block - phase;
        if (count > n - begin)
            count = n - begin;
        for (int o = 1; o < job->nest.operands; o++) {
            const conversion *convert = &job->convert[o];
            if (ready[o])
                continue;
            if (convert->first == NULL) {
                block_data[o] = data[o] + begin * step[o];
                continue;
            }
            int64_t converted = step[o] == 0 ? 1 : count;
            ready[o] = step[o] == 0; /* a broadcast element is cast once in a run */
            const char *from = data[o] + begin * step[o];
            if (convert->second == NULL)
                convert->first(converted, from, step[o], block_data[o], block_step[o]);
            else {
                convert->first(converted, from, step[o], halves, 2);
                convert->second(converted, halves, 2, block_data[o], block_step[o] == 0 ? 4 : block_step[o]);
            }
        }
        const conversion *convert = &job->convert[0];
        if (convert->first == NULL)
            block_data[0] = data[0] + begin * step[0];
        vme_status status = apply_checked(job, count, block_data, block_step);
        if (status != VME_OK)
            return status;
        char *to = data[0] + begin * step[0];
        if (convert->first != NULL && convert->second == NULL)
            convert->first(count, block_data[0], block_step[0], to, step[0]);
        else if (convert->first != NULL) {
            convert->first(count, block_data[0], block_step[0], halves, 2);
            convert->second(count, halves, 2, to, step[0]);
        }
        for (int o = 1; phase > 0 && o < job->nest.operands; o++) /* only the first block starts within a row */
            if (job->convert[o].repeats)
                block_data[o] -= phase * block_step[o];
        phase = 0;
    }
    return VME_OK;
}

/* Number of elements of a long run to process first, so that most operands continue at the start of a cache line:
 * vectors that span two lines take up to twice as long from L2. Inputs count twice, because the kernel waits for their
 * lines. Results of lane-by-lane kernels do not depend on where a run begins. Those of costly kernels may, and they
 * gain little from alignment. */
static int64_t elements_to_alignment(const vme_nest *nest, char *const *data)
{
    const int64_t *step = nest->loops[0].step;
    int64_t best = 0;
    int best_score = 0;
    /* the first candidate is the current alignment, the others align one operand each */
    for (int candidate = nest->operands; candidate >= 0; candidate--) {
        int64_t first = 0;
        if (candidate < nest->operands) {
            int64_t bytes = (int64_t)(-(uintptr_t)data[candidate] % VME_ALIGNMENT);
            if (step[candidate] <= 0 || bytes % step[candidate] != 0)
                continue;
            first = bytes / step[candidate];
        }
        int score = 0;
        for (int o = 0; o < nest->operands; o++)
            if (step[o] != 0 && ((uintptr_t)data[o] + (uintptr_t)(first * step[o])) % VME_ALIGNMENT == 0)
                score += o == 0 ? 1 : 2;
        if (score > best_score) {
            best_score = score;
            best = first;
        }
    }
    return best;
}

/* Runs the kernel on whole rows of the innermost loop, up to the end of the loop around it, without moving the cursor
 * for each row: that would take longer than a row of a few vectors. The cursor is at the start of a row, and `limit` is
 * at least a row. Returns the number of elements processed. */
static int64_t apply_rows(const struct job *job, vme_cursor *at, int64_t limit)
{
    const vme_nest *nest = &job->nest;
    const vme_loop *inner = &nest->loops[0], *outer = &nest->loops[1];
    const int64_t n = inner->size, full_rows = limit / n, rows_left = outer->size - at->index[1];
    const int64_t rows = full_rows < rows_left ? full_rows : rows_left;
    const int operands = nest->operands;
    if (job->binary != NULL) { /* the most frequent case: its state stays in local variables across the calls */
        vme_loop2 *kernel = job->binary;
        const int64_t a_step = inner->step[1], b_step = inner->step[2], out_step = inner->step[0];
        const int64_t a_row = outer->step[1], b_row = outer->step[2], out_row = outer->step[0];
        const char *a = at->data[1], *b = at->data[2];
        char *out = at->data[0];
        for (int64_t row = 0; row < rows; row++, a += a_row, b += b_row, out += out_row)
            kernel(n, a, a_step, b, b_step, out, out_step);
        for (int o = 0; o < operands; o++)
            at->data[o] += (rows - 1) * outer->step[o];
    } else {
        for (int64_t row = 1; row < rows; row++) {
            apply(job, n, at->data, inner->step);
            for (int o = 0; o < operands; o++)
                at->data[o] += outer->step[o];
        }
        apply(job, n, at->data, inner->step);
    }
    at->index[1] += rows - 1;
    vme_nest_advance(nest, at, n);
    return rows * n;
}

static vme_status walk(void *argument, int64_t begin, int64_t end)
{
    const struct job *job = argument;
    const vme_nest *nest = &job->nest;
    const int64_t *step = nest->loops[0].step;
    const bool by_rows =
        !job->staged && job->exponent == VME_BOOL && nest->rank > 1 && nest->loops[0].size < ELEMENTWISE_ALIGNED_MIN;
    vme_cursor at;
    int64_t left = end - begin, n;
    for (vme_nest_seek(nest, begin, &at); left > 0; left -= n, vme_nest_advance(nest, &at, n)) {
        while (by_rows && at.index[0] == 0 && left >= nest->loops[0].size)
            left -= apply_rows(job, &at, left);
        if (left == 0)
            break;
        n = vme_nest_run(nest, &at, left);
        vme_status status;
        if (!job->staged) {
            int64_t first = n < ELEMENTWISE_ALIGNED_MIN || job->costly ? 0 : elements_to_alignment(nest, at.data);
            if (first > 0)
                n = first;
            status = apply_checked(job, n, at.data, step);
        } else if (job->row_length == 0)
            status = apply_staged(job, n, at.data, step, 0);
        else {
            int64_t rows = at.index[0] / job->row_length * job->row_length;
            char *data[VME_NEST_OPERANDS];
            /* the cursor has advanced repeated operands too: move them back to their row */
            for (int o = 0; o < nest->operands; o++)
                data[o] = at.data[o] - (job->convert[o].repeats ? rows * step[o] : 0);
            status = apply_staged(job, n, data, step, at.index[0] - rows);
        }
        if (status != VME_OK)
            return status;
    }
    return VME_OK;
}

/* ---- setup of a job */

static vme_status set_conversion(const vme_kernels *kernels, struct job *job, int operand, vme_dtype tensor_dtype,
                                 vme_dtype loop, vme_dtype compute)
{
    conversion *convert = &job->convert[operand];
    *convert = (conversion){.compute = compute};
    vme_dtype from = operand == 0 ? compute : tensor_dtype, to = operand == 0 ? tensor_dtype : compute;
    if (from == to && loop == compute)
        return VME_OK;
    /* convert through the loop's dtype if the kernel computes in another one */
    vme_dtype intermediate = loop == compute || loop == tensor_dtype ? to : loop;
    convert->first = kernels->elementwise.cast[from][intermediate];
    convert->second = intermediate == to ? NULL : kernels->elementwise.cast[intermediate][to];
    if (convert->first == NULL || (intermediate != to && convert->second == NULL))
        return vme_fail(VME_BAD_DTYPE, "no cast from %s to %s in this engine", vme_dtype_name(from),
                        vme_dtype_name(to));
    job->staged = true;
    return VME_OK;
}

/* A copy of an input that overlaps the output: one block with the view, its strides and the elements. */
typedef struct contiguous_copy {
    vme_tensor view;
    int64_t strides[VME_RANK_MAX];
    size_t bytes;
    char elements[] __attribute__((aligned(VME_ALIGNMENT)));
} contiguous_copy;

static vme_status copy_contiguous(vme_context *context, const vme_tensor *in, contiguous_copy **result)
{
    size_t bytes;
    vme_status status = vme_shape_bytes((vme_dtype)in->dtype, in->rank, in->shape, NULL, &bytes);
    if (status != VME_OK)
        return status;
    contiguous_copy *copy = vme_scratch_new(context, bytes + sizeof *copy);
    if (copy == NULL)
        return VME_NO_MEMORY;
    copy->bytes = bytes + sizeof *copy;
    vme_shape_bytes((vme_dtype)in->dtype, in->rank, in->shape, copy->strides, &bytes);
    copy->view = *in;
    copy->view.buffer = NULL;
    copy->view.data = copy->elements;
    copy->view.strides = copy->strides;
    int element = vme_dtype_size((vme_dtype)in->dtype);
    status = vme_move(context, in->rank, in->shape, (vme_side){in->data, in->strides, element},
                      (vme_side){copy->elements, copy->strides, element}, NULL);
    if (status != VME_OK) {
        vme_scratch_free(context, copy, copy->bytes);
        return status;
    }
    *result = copy;
    return VME_OK;
}

/* Makes strided operands go through the stage, because kernels have vector loops for contiguous elements only. */
static void collect(struct job *job)
{
    const vme_nest *nest = &job->nest;
    bool stride_two = job->stride_two;
    for (int o = 0; o < nest->operands; o++)
        stride_two = stride_two && job->convert[o].first == NULL
                     && nest->loops[0].step[o] == (o == 0 ? 1 : 2) * vme_dtype_size(job->convert[o].compute);
    for (int o = 0; o < nest->operands && nest->loops[0].size >= ELEMENTWISE_COLLECT_MIN; o++) {
        conversion *convert = &job->convert[o];
        int size = vme_dtype_size(convert->compute);
        int64_t step = nest->loops[0].step[o];
        if (convert->first != NULL || step == 0 || step == size || (o > 0 && stride_two))
            continue;
        convert->first = vme_kernels_current()->move.strided[__builtin_ctz((unsigned)size)];
        job->staged = true;
    }
}

/* Merges a loop over short rows with the loop around it if some inputs are broadcast along the latter: the merged loop
 * repeats the rows of these inputs. */
static void repeat(struct job *job, const int *sizes)
{
    vme_nest *nest = &job->nest;
    const vme_loop *inner = &nest->loops[0], *outer = &nest->loops[1];
    bool any_repeats = false;
    int64_t bytes = 2; /* of the stage, for one element of each operand: a row must fit */
    for (int o = 0; o < nest->operands; o++)
        bytes += vme_dtype_size(job->convert[o].compute);
    if (nest->rank < 2 || inner->size < 2 || inner->size > ELEMENTWISE_REPEAT_MAX
        || inner->size > (STAGE_BYTES / bytes & -VME_ALIGNMENT))
        return;
    for (int o = 0; o < nest->operands; o++) {
        bool repeats = o > 0 && outer->step[o] == 0 && inner->step[o] != 0;
        if (!repeats && outer->step[o] != inner->step[o] * inner->size)
            return;
        if (repeats
            && (inner->step[o] != sizes[o]
                || inner->size * vme_dtype_size(job->convert[o].compute) > ELEMENTWISE_REPEAT_BYTES_MAX))
            return;
        any_repeats = any_repeats || repeats;
    }
    if (!any_repeats)
        return;
    for (int o = 1; o < nest->operands; o++)
        job->convert[o].repeats = outer->step[o] == 0 && inner->step[o] != 0;
    job->row_length = inner->size;
    job->staged = true;
    nest->loops[0].size *= outer->size;
    nest->rank--;
    for (int i = 1; i < nest->rank; i++)
        nest->loops[i] = nest->loops[i + 1];
}

/* Walks `inputs` tensors and the output with the job's kernel. */
static vme_status run(vme_context *context, struct job *job, int inputs, const vme_tensor *const *in,
                      const vme_tensor *out)
{
    int64_t strides[INPUTS][VME_RANK_MAX];
    const int64_t *operand_strides[1 + INPUTS] = {out->strides};
    char *data[1 + INPUTS] = {out->data};
    contiguous_copy *copies[INPUTS] = {NULL};
    vme_status status = VME_OK;
    for (int i = 0; i < inputs; i++) {
        const vme_tensor *tensor = in[i];
        status = vme_broadcast_strides(tensor, out, strides[i]);
        if (status != VME_OK)
            goto done;
        if (vme_overlap(tensor, out) && !vme_same_view(tensor, out)) {
            status = copy_contiguous(context, tensor, &copies[i]);
            if (status != VME_OK)
                goto done;
            tensor = &copies[i]->view;
            vme_broadcast_strides(tensor, out, strides[i]);
        }
        operand_strides[1 + i] = strides[i];
        data[1 + i] = tensor->data;
    }
    vme_nest_make(&job->nest, VME_NEST_ANY, out->rank, out->shape, 1 + inputs, operand_strides, data);
    int64_t elements = job->nest.elements, piece = ELEMENTWISE_PIECE, element_bytes = 0;
    int sizes[1 + INPUTS];
    for (int o = 0; o <= inputs; o++) {
        int64_t step = job->nest.loops[0].step[o];
        sizes[o] = vme_dtype_size((vme_dtype)(o == 0 ? out : in[o - 1])->dtype);
        if (step != 0 && step != sizes[o])
            piece = ELEMENTWISE_PIECE_STEPPING;
        step = step < 0 ? -step : step;
        element_bytes +=
            step > VME_ALIGNMENT ? VME_ALIGNMENT : step; /* the bytes in between are loaded too, by cache lines */
    }
    job->row_length = 0;
    repeat(job, sizes);
    collect(job);
    if (job->costly)
        piece = ELEMENTWISE_PIECE_COSTLY;
    if (elements * element_bytes >= ELEMENTWISE_PARALLEL_MIN)
        piece = min(piece, ceil_div(elements, ELEMENTWISE_PIECES_MIN));
    if (elements * element_bytes >= ELEMENTWISE_PARALLEL_MIN
        || (job->costly && elements >= 8 * ELEMENTWISE_PIECE_COSTLY)) {
        status = vme_parallel_apart(context, elements, piece, walk, job);
        goto done;
    }
    for (int64_t begin = 0; status == VME_OK && begin < elements; begin += piece)
        status = vme_stopping(context) ? vme_stopped_here(context)
                                       : walk(job, begin, begin + piece < elements ? begin + piece : elements);
done:
    for (int i = 0; i < inputs; i++)
        if (copies[i] != NULL)
            vme_scratch_free(context, copies[i], copies[i]->bytes);
    return status;
}

/* ---- fast path: contiguous operands of one shape, or of one element */

/* The number of elements if `tensor` is contiguous, otherwise -1. */
static inline int64_t contiguous_elements(const vme_tensor *tensor, int size)
{
    int64_t count = 1;
    for (int i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != size * count)
            return -1;
        count *= tensor->shape[i];
    }
    return count;
}

static inline bool same_shape(const vme_tensor *a, const vme_tensor *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

/* Whether the two ranges of bytes do not overlap. */
static inline bool disjoint(const char *in, int64_t in_bytes, const char *out, int64_t out_bytes)
{
    return in + in_bytes <= out || out + out_bytes <= in;
}

/* The step of `in` along a contiguous output of `elements` elements: its element size, or 0 if its rank is 0. -1: the
 * fast path does not apply. */
static inline int64_t flat_step(const vme_tensor *in, const vme_tensor *out, int64_t elements, int size, int out_size)
{
    if (in->rank == 0)
        return disjoint(in->data, size, out->data, elements * out_size) ? 0 : -1;
    if (!same_shape(in, out) || contiguous_elements(in, size) < 0)
        return -1;
    bool same = in->data == out->data && size == out_size;
    return same || disjoint(in->data, elements * size, out->data, elements * out_size) ? size : -1;
}

/* Counts may be lost if two threads share a context: a statistic is not worth a locked instruction per operator. */
static inline void count_operator(vme_context *context)
{
    long long begun = atomic_load_explicit(&context->operators, memory_order_relaxed);
    atomic_store_explicit(&context->operators, begun + 1, memory_order_relaxed);
}

/* The values of vme_operators.h's last column. COSTLY: elements are slow enough that fewer are computed between two
 * checks of the stop flag, and that few are worth dividing among threads. */
enum cost { CHEAP, COSTLY, COSTLY_IF_COMPLEX };
#define COST(OPERATOR, NAME, LOOPS, RESULT, COST) [VME_##OPERATOR] = COST,
static const unsigned char unary_cost[] = {VME_UNARY_OPERATORS(COST)};
static const unsigned char binary_cost[] = {VME_BINARY_OPERATORS(COST)};
#undef COST

static bool is_costly(enum cost cost, vme_dtype loop)
{
    return cost == COSTLY || (cost == COSTLY_IF_COMPLEX && loop >= VME_COMPLEX64);
}

static vme_status no_kernel(const char *name, vme_dtype loop)
{
    return vme_fail(VME_BAD_DTYPE, "%s has no loop for %s", name, vme_dtype_name(loop));
}

vme_status vme_unary(vme_context *context, vme_unary_op op, vme_dtype loop, const vme_tensor *in, const vme_tensor *out)
{
    VME_FLUSHING(context);
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    const vme_kernels *kernels = vme_kernels_current();
    vme_dtype compute = loop, result = vme_unary_result(op, loop);
    vme_loop1 *kernel = kernels->elementwise.unary[op][loop];
    bool costly = is_costly(unary_cost[op], loop);
    count_operator(context);
    if (kernel != NULL && in->dtype == (int)loop && out->dtype == (int)result) {
        int size = vme_dtype_size(loop), out_size = vme_dtype_size(result);
        int64_t elements = contiguous_elements(out, out_size);
        if (elements >= 0 && elements <= (costly ? ELEMENTWISE_PIECE_COSTLY : ELEMENTWISE_PIECE)) {
            int64_t step = flat_step(in, out, elements, size, out_size);
            if (step >= 0) {
                kernel(elements, in->data, step, out->data, out_size);
                return VME_OK;
            }
        }
    }
    if (kernel == NULL && loop == VME_FLOAT16) {
        compute = VME_FLOAT32;
        kernel = kernels->elementwise.unary[op][compute];
    }
    if (kernel == NULL)
        return no_kernel(vme_unary_name(op), loop);
    struct job job;
    job.unary = kernel;
    job.binary = NULL;
    job.staged = false;
    job.costly = costly;
    job.stride_two = op == VME_SQRT && loop <= VME_FLOAT64;
    job.exponent = VME_BOOL;
    if ((status = set_conversion(kernels, &job, 0, (vme_dtype)out->dtype, result, vme_unary_result(op, compute)))
            != VME_OK
        || (status = set_conversion(kernels, &job, 1, (vme_dtype)in->dtype, loop, compute)) != VME_OK)
        return status;
    return run(context, &job, 1, &in, out);
}

/* The comparison that gives the same result for swapped operands. */
static vme_binary_op swapped_comparison(vme_binary_op op)
{
    switch (op) {
    case VME_LESS: return VME_GREATER;
    case VME_LESS_EQUAL: return VME_GREATER_EQUAL;
    case VME_GREATER: return VME_LESS;
    case VME_GREATER_EQUAL: return VME_LESS_EQUAL;
    default: return op;
    }
}

static bool is_signed(int dtype) { return dtype >= VME_INT8 && dtype <= VME_INT64; }

vme_status vme_binary(vme_context *context, vme_binary_op op, vme_dtype loop, const vme_tensor *a, const vme_tensor *b,
                      const vme_tensor *out)
{
    VME_FLUSHING(context);
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    const vme_kernels *kernels = vme_kernels_current();
    vme_loop2 *kernel = kernels->elementwise.binary[op][loop];
    vme_dtype result = vme_binary_result(op, loop), compute[2] = {loop, loop};
    bool costly = is_costly(binary_cost[op], loop);
    vme_dtype exponent = op == VME_POWER && is_signed((int)loop) ? loop : VME_BOOL;
    count_operator(context);
    if (kernel != NULL && a->dtype == (int)loop && b->dtype == (int)loop && out->dtype == (int)result
        && exponent == VME_BOOL) {
        int size = vme_dtype_size(loop), out_size = vme_dtype_size(result);
        int64_t elements = contiguous_elements(out, out_size);
        if (elements >= 0 && elements <= (costly ? ELEMENTWISE_PIECE_COSTLY : ELEMENTWISE_PIECE)) {
            int64_t a_step = flat_step(a, out, elements, size, out_size),
                    b_step = flat_step(b, out, elements, size, out_size);
            if (a_step >= 0 && b_step >= 0) {
                kernel(elements, a->data, a_step, b->data, b_step, out->data, out_size);
                return VME_OK;
            }
        }
    }
    vme_dtype result_computed = result;
    if (loop == VME_UINT64 && op >= VME_EQUAL && op <= VME_GREATER_EQUAL
        && is_signed(a->dtype) != is_signed(b->dtype)) {
        if (is_signed(b->dtype)) {
            const vme_tensor *other = a;
            a = b;
            b = other;
            op = swapped_comparison(op);
        }
        compute[0] = VME_INT64;
        kernel = kernels->elementwise.compare_mixed[op - VME_EQUAL];
    } else if (kernel == NULL && loop == VME_FLOAT16) {
        compute[0] = compute[1] = VME_FLOAT32;
        kernel = kernels->elementwise.binary[op][VME_FLOAT32];
        result_computed = vme_binary_result(op, VME_FLOAT32);
    }
    if (kernel == NULL)
        return no_kernel(vme_binary_name(op), loop);
    struct job job;
    job.unary = NULL;
    job.binary = kernel;
    job.staged = false;
    job.costly = costly;
    job.stride_two = op == VME_DIVIDE && loop <= VME_FLOAT64;
    job.exponent = exponent;
    vme_dtype loop_dtypes[2] = {loop == VME_FLOAT16 ? loop : compute[0], loop == VME_FLOAT16 ? loop : compute[1]};
    if ((status = set_conversion(kernels, &job, 0, (vme_dtype)out->dtype, result, result_computed)) != VME_OK
        || (status = set_conversion(kernels, &job, 1, (vme_dtype)a->dtype, loop_dtypes[0], compute[0])) != VME_OK
        || (status = set_conversion(kernels, &job, 2, (vme_dtype)b->dtype, loop_dtypes[1], compute[1])) != VME_OK)
        return status;
    return run(context, &job, 2, (const vme_tensor *const[]){a, b}, out);
}

vme_status vme_where(vme_context *context, const vme_tensor *condition, const vme_tensor *a, const vme_tensor *b,
                     const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (condition->dtype != VME_BOOL)
        return vme_fail(VME_BAD_DTYPE, "where: expected a condition of dtype bool, got %s",
                        vme_dtype_name((vme_dtype)condition->dtype));
    const vme_kernels *kernels = vme_kernels_current();
    vme_dtype dtype = (vme_dtype)out->dtype;
    count_operator(context);
    struct job job;
    job.unary = NULL;
    job.binary = NULL;
    job.choose = kernels->elementwise.choose[__builtin_ctz((unsigned)vme_dtype_size(dtype))];
    job.staged = false;
    job.costly = job.stride_two = false;
    job.exponent = VME_BOOL;
    if ((status = set_conversion(kernels, &job, 0, dtype, dtype, dtype)) != VME_OK
        || (status = set_conversion(kernels, &job, 1, VME_BOOL, VME_BOOL, VME_BOOL)) != VME_OK
        || (status = set_conversion(kernels, &job, 2, (vme_dtype)a->dtype, dtype, dtype)) != VME_OK
        || (status = set_conversion(kernels, &job, 3, (vme_dtype)b->dtype, dtype, dtype)) != VME_OK)
        return status;
    return run(context, &job, 3, (const vme_tensor *const[]){condition, a, b}, out);
}

/* ---- arange: NumPy derives the step from the first two elements, in the dtype of the result */

struct series {
    double start, step;
    int64_t int_start, int_step, out_step;
    char *out;
    float half_start, half_delta; /* float16: its first two elements, rounded to float16 */
    vme_loop1 *cast;              /* to float16 from float32, and to the narrow integers from int64; NULL: none */
    vme_dtype dtype;
};

static vme_status fill_series(void *argument, int64_t begin, int64_t end)
{
    const struct series *series = argument;
    double second = series->start + series->step;
    if (series->dtype == VME_INT64 && series->out_step == sizeof(int64_t)) {
        uint64_t *to = (uint64_t *)series->out, step = (uint64_t)series->int_step;
        uint64_t value = (uint64_t)series->int_start + (uint64_t)begin * step;
        int64_t i = begin;
        for (; i + 4 <= end; i += 4, value += 4 * step) { /* four independent sums at a time */
            to[i] = value;
            to[i + 1] = value + step;
            to[i + 2] = value + 2 * step;
            to[i + 3] = value + 3 * step;
        }
        for (; i < end; i++, value += step)
            to[i] = value;
        return VME_OK;
    }
    for (int64_t i = begin; i < end; i++) {
        char *to = series->out + i * series->out_step;
        switch (series->dtype) {
        case VME_FLOAT32:
        case VME_FLOAT16:
        case VME_COMPLEX64: {
            float first = (float)series->start, delta = (float)second - first;
            if (series->dtype == VME_FLOAT16) {
                float value = series->half_start + (float)i * series->half_delta;
                series->cast(1, (const char *)&value, 0, to, 0);
                break;
            }
            float value = first + (float)i * delta;
            memcpy(to, &value, sizeof value);
            if (series->dtype == VME_COMPLEX64)
                memset(to + sizeof value, 0, sizeof value);
            break;
        }
        case VME_FLOAT64:
        case VME_COMPLEX128: {
            double value = series->start + (double)i * (second - series->start);
            memcpy(to, &value, sizeof value);
            if (series->dtype == VME_COMPLEX128)
                memset(to + sizeof value, 0, sizeof value);
            break;
        }
        default: {
            uint64_t value = (uint64_t)series->int_start + (uint64_t)i * (uint64_t)series->int_step;
            if (series->cast != NULL)
                series->cast(1, (const char *)&value, 0, to, 0);
            else
                memcpy(to, &value, sizeof value);
        }
        }
    }
    return VME_OK;
}

vme_status vme_arange(vme_context *context, double start, double step, int64_t int_start, int64_t int_step,
                      const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (out->rank != 1)
        return vme_fail(VME_BAD_SHAPE, "arange: expected an output of rank 1, got %d", out->rank);
    vme_dtype dtype = (vme_dtype)out->dtype;
    count_operator(context);
    const vme_kernels *kernels = vme_kernels_current();
    struct series series = {.start = start,
                            .step = step,
                            .int_start = int_start,
                            .int_step = int_step,
                            .out_step = out->strides[0],
                            .out = out->data,
                            .dtype = dtype};
    if (dtype == VME_FLOAT16) {
        double ends[2] = {start, start + step};
        uint16_t halves[2];
        float values[2];
        kernels->elementwise.cast[VME_FLOAT64][VME_FLOAT16](2, (const char *)ends, sizeof *ends, (char *)halves,
                                                            sizeof *halves);
        kernels->elementwise.cast[VME_FLOAT16][VME_FLOAT32](2, (const char *)halves, sizeof *halves, (char *)values,
                                                            sizeof *values);
        series.half_start = values[0];
        series.half_delta = values[1] - values[0];
        series.cast = kernels->elementwise.cast[VME_FLOAT32][VME_FLOAT16];
    } else if (dtype < VME_FLOAT16 && vme_dtype_size(dtype) < 8)
        series.cast = kernels->elementwise.cast[VME_INT64][dtype];
    return vme_parallel(context, out->shape[0], ELEMENTWISE_PIECE_STEPPING, fill_series, &series);
}
