/* Every operator on tensors of random rank, shape, strides (any sign, 0), place and dtype, on each backend: whatever it
 * answers, it touches nothing outside of them (each lies in a block of exactly its extent, which the address sanitizer
 * watches), does nothing that C leaves undefined, says a sentence when it refuses, and leaves nothing charged. So it is
 * when memory is refused at any one point of it, by the account or by libc.
 *
 *   test_fuzz [seed [rounds]]       the seed of a failure is printed
 *
 * tests/engine/test_every_operator.py finds an operator that is missing here.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "runtime/internal.h"
#include "vme_bits.h"
#include "vme_fft.h"
#include "vme_images.h"
#include "vme_order.h"
#include "vme_random.h"
#include "vme_tables.h"

enum { RANK = 8, ROUNDS = 6000 };
#ifdef __SANITIZE_ADDRESS__
enum { BLOCKS_KEPT = false };
#else
enum { BLOCKS_KEPT = true }; /* by runtime/blocks.c: then libc is asked for fewer, and can refuse fewer */
#endif

void *__real_malloc(size_t size); /* never fails here: what operators work on */
static uint64_t state;

static uint64_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 29) ^ (state >> 47);
}
static int below(int max) { return (int)(random_bits() % (unsigned)max); }
static bool one_in(int max) { return below(max) == 0; }

/* ---- tensors */
typedef struct operand {
    vme_tensor t;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
    char *block; /* NULL: another's */
} operand;

static void fill(char *data, size_t bytes, int dtype)
{
    int kind = below(4);
    for (size_t i = 0; i < bytes; i++)
        data[i] = dtype == VME_BOOL ? (char)below(2) : kind == 0 ? 0 : kind == 1 ? (char)-1 : (char)random_bits();
    if (kind != 2)
        return;
    for (size_t i = 0; i + 8 <= bytes; i += 8) /* numbers of ordinary size */
        if (dtype == VME_FLOAT64 || dtype == VME_COMPLEX128)
            memcpy(data + i, &(double){below(2000) / 7.0 - 100}, 8);
        else if (dtype == VME_FLOAT32 || dtype == VME_COMPLEX64)
            memcpy(data + i, (float[2]){(float)below(2000) / 7 - 100, (float)below(9)}, 8);
        else if (dtype == VME_INT64 || dtype == VME_UINT64)
            memcpy(data + i, &(int64_t){below(300)}, 8);
}

/* Elements do not share memory when `apart`; else strides of 0 may be among them. */
static void make(operand *m, int dtype, int rank, const int64_t *shape, bool apart)
{
    int order[RANK];
    int64_t size = vme_dtype_size((vme_dtype)dtype), step = size, low = 0, high = 0, elements = 1;
    for (int i = 0; i < rank; i++) {
        int at = below(i + 1);
        order[i] = order[at];
        order[at] = i;
        elements *= shape[i];
    }
    bool plain = one_in(3);
    for (int i = rank - 1; i >= 0; i--) {
        int axis = plain ? i : order[i];
        int64_t stride = plain ? step : step * (one_in(4) ? 1 + below(3) : 1) * (one_in(4) ? -1 : 1);
        if (!apart && one_in(8))
            stride = 0;
        m->shape[axis] = shape[axis];
        m->strides[axis] = stride;
        int64_t reach = stride * (shape[axis] - 1);
        if (elements > 0)
            *(reach < 0 ? &low : &high) += reach;
        if (stride != 0 && shape[axis] > 0)
            step = (stride < 0 ? -stride : stride) * shape[axis];
    }
    size_t bytes = elements == 0 ? 0 : (size_t)(high - low + size);
    size_t odd = one_in(8) ? 1 + (size_t)below(15) : 0; /* others' memory may lie anywhere */
    m->block = __real_malloc(bytes + odd);
    CHECK(m->block != NULL || bytes + odd == 0);
    fill(m->block + odd, bytes, dtype);
    m->t = (vme_tensor){NULL, m->block + odd - low, m->shape, m->strides, rank, dtype};
}

/* The same memory seen backwards along one dimension, so that elements overlap but do not agree. */
static void make_flipped(operand *m, const operand *of)
{
    *m = *of;
    m->block = NULL;
    m->t.shape = m->shape;
    m->t.strides = m->strides;
    int axis = m->t.rank == 0 ? -1 : below(m->t.rank);
    if (axis < 0 || vme_elements(&m->t) == 0)
        return;
    m->t.data += m->strides[axis] * (m->shape[axis] - 1);
    m->strides[axis] = -m->strides[axis];
}

static void random_shape(int *rank, int64_t *shape)
{
    if (one_in(60)) { /* large enough for pieces and threads */
        *rank = 1 + below(2);
        shape[0] = *rank == 1 ? 1 + below(150000) : 1 + below(300);
        shape[1] = 1 + below(300);
        return;
    }
    *rank = below(RANK + 1);
    for (int i = 0; i < *rank; i++)
        shape[i] = one_in(25) ? 0 : 1 + below(*rank > 5 ? 2 : *rank > 3 ? 4 : *rank > 1 ? 9 : 200);
}

/* A shape that broadcasts to `shape`. */
static void narrower(int rank, const int64_t *shape, int *own_rank, int64_t *own)
{
    int drop = rank > 0 && one_in(4) ? below(rank + 1) : 0;
    *own_rank = rank - drop;
    for (int i = 0; i < *own_rank; i++)
        own[i] = one_in(6) ? 1 : shape[i + drop];
}

static int any_dtype(void) { return below(VME_DTYPE_COUNT); }

static void make_input(operand *m, int dtype, int rank, const int64_t *shape)
{
    int own_rank;
    int64_t own[RANK];
    narrower(rank, shape, &own_rank, own);
    make(m, dtype, own_rank, own, false);
}

/* An operator's output: memory of its own, or now and then an input's. */
static void make_output(operand *m, int dtype, int rank, const int64_t *shape, const operand *input)
{
    bool fits = input != NULL && input->t.dtype == dtype && input->t.rank == rank;
    for (int i = 0; fits && i < rank; i++)
        fits = input->shape[i] == shape[i] && (input->strides[i] != 0 || shape[i] == 1);
    if (fits && one_in(2))
        make_flipped(m, input);
    else if (fits && one_in(2)) {
        *m = *input;
        m->block = NULL;
        m->t.shape = m->shape;
        m->t.strides = m->strides;
    } else
        make(m, dtype, rank, shape, true);
}

static void indices_fill(const operand *m, int64_t length)
{
    int64_t count = vme_elements(&m->t), at[VME_RANK_MAX] = {0};
    for (int64_t i = 0; i < count; i++) {
        char *element = m->t.data;
        for (int d = 0; d < m->t.rank; d++)
            element += at[d] * m->strides[d];
        int64_t value = length == 0 || one_in(400) ? below(9) - 4 + (one_in(3) ? INT64_MIN / 2 : 0)
                                                   : below((int)(2 * length)) - length;
        memcpy(element, &value, sizeof value);
        for (int d = m->t.rank - 1; d >= 0 && ++at[d] == m->shape[d]; d--)
            at[d] = 0;
    }
}

/* ---- one call of each operator */
static vme_status try_elementwise(vme_context *context, operand *m, int *used)
{
    int rank, in[3] = {any_dtype(), any_dtype(), any_dtype()}, which = below(4);
    int64_t shape[RANK];
    random_shape(&rank, shape);
    vme_dtype loop, result;
    if (which == 3)
        in[0] = VME_BOOL;
    int inputs = which == 0   ? 1
                 : which == 3 ? 3
                              : 2,
        op = below(which == 0 ? (int)VME_UNARY_COUNT : (int)VME_BINARY_COUNT);
    if (one_in(2))
        in[1] = in[0];
    vme_status status = which == 0 ? vme_unary_types((vme_unary_op)op, (vme_dtype)in[0], &loop, &result)
                        : which == 3
                            ? VME_OK
                            : vme_binary_types((vme_binary_op)op, (vme_dtype)in[0], (vme_dtype)in[1], &loop, &result);
    if (status != VME_OK)
        return status;
    if (which == 3)
        result = vme_dtype_promote((vme_dtype)in[1], (vme_dtype)in[2]);
    for (int i = 0; i < inputs; i++)
        make_input(&m[i], in[i], rank, shape);
    make_output(&m[inputs], one_in(4) ? any_dtype() : (int)result, rank, shape, &m[below(inputs)]);
    *used = inputs + 1;
    return which == 0   ? vme_unary(context, (vme_unary_op)op, loop, &m[0].t, &m[1].t)
           : which == 3 ? vme_where(context, &m[0].t, &m[1].t, &m[2].t, &m[3].t)
                        : vme_binary(context, (vme_binary_op)op, loop, &m[0].t, &m[1].t, &m[2].t);
}

static vme_status try_copy(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype();
    int64_t shape[RANK];
    random_shape(&rank, shape);
    make_input(&m[0], dtype, rank, shape);
    make_output(&m[1], one_in(2) ? any_dtype() : dtype, rank, shape, &m[0]);
    *used = 2;
    if (one_in(10) && m[1].t.rank == 1)
        return vme_arange(context, below(100) / 3.0, below(9) - 4, below(100), below(9) - 4, &m[1].t);
    return vme_copy(context, &m[0].t, &m[1].t);
}

static vme_status try_reduce(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype(), op = below(VME_REDUCE_COUNT);
    int64_t shape[RANK], kept[RANK];
    random_shape(&rank, shape);
    uint64_t axes = random_bits() & ((1u << rank) - 1);
    if ((op == VME_ARGMAX || op == VME_ARGMIN) && rank > 0)
        axes = 1u << below(rank);
    for (int i = 0; i < rank; i++)
        kept[i] = axes >> i & 1 ? 1 : shape[i];
    vme_dtype loop, result;
    vme_status status = vme_reduce_types((vme_reduce_op)op, (vme_dtype)dtype, &loop, &result);
    if (status != VME_OK)
        return status;
    make(&m[0], dtype, rank, shape, false);
    make_output(&m[1], (int)result, rank, kept, &m[0]);
    *used = 2;
    static const char initial[16];
    return vme_reduce(context, (vme_reduce_op)op, loop, &m[0].t, axes, one_in(3) ? initial : NULL, &m[1].t);
}

static vme_status try_scan(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype(), op = below(VME_SCAN_COUNT);
    int64_t shape[RANK];
    random_shape(&rank, shape);
    vme_dtype loop, result;
    vme_status status = vme_scan_types((vme_scan_op)op, (vme_dtype)dtype, &loop, &result);
    if (status != VME_OK || rank == 0)
        return status;
    make(&m[0], dtype, rank, shape, false);
    make_output(&m[1], (int)result, rank, shape, &m[0]);
    *used = 2;
    return vme_scan(context, (vme_scan_op)op, loop, &m[0].t, below(rank), &m[1].t);
}

static vme_status try_matmul(vme_context *context, operand *m, int *used)
{
    int lead = below(3), dtype = any_dtype();
    int64_t shape[RANK], a[RANK], b[RANK], sizes[3];
    for (int i = 0; i < lead; i++)
        shape[i] = one_in(20) ? 0 : 1 + below(3);
    for (int i = 0; i < 3; i++)
        sizes[i] = one_in(20) ? 0 : 1 + below(one_in(6) ? 70 : 9);
    for (int i = 0; i < lead; i++) {
        a[i] = one_in(4) ? 1 : shape[i];
        b[i] = one_in(4) ? 1 : shape[i];
    }
    a[lead] = shape[lead] = sizes[0];
    a[lead + 1] = b[lead] = sizes[1];
    b[lead + 1] = shape[lead + 1] = sizes[2];
    make(&m[0], dtype, lead + 2, a, false);
    make(&m[1], dtype, lead + 2, b, false);
    make_output(&m[2], dtype, lead + 2, shape, &m[below(2)]);
    *used = 3;
    return vme_matmul(context, &m[0].t, &m[1].t, &m[2].t);
}

static vme_status try_transform(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype(), which = below(4);
    int64_t shape[RANK], out[RANK], numbers[RANK] = {0};
    random_shape(&rank, shape);
    if (rank == 0)
        return VME_OK;
    int axis = below(rank);
    memcpy(out, shape, sizeof out);
    make(&m[0], dtype, rank, shape, false);
    *used = 1;
    if (which == 0) {
        int64_t other[RANK];
        memcpy(other, shape, sizeof other);
        other[axis] = below(5);
        make(&m[1], dtype, rank, other, false);
        out[axis] = 2 * shape[axis] + other[axis];
        make(&m[2], dtype, rank, out, true);
        *used = 3;
        return vme_concatenate(context, 3, (const vme_tensor *const[]){&m[0].t, &m[1].t, &m[0].t}, axis, &m[2].t);
    }
    if (which == 1)
        for (int i = 0; i < rank; i++) {
            numbers[i] = rank > 5 ? below(2) : below(4);
            out[i] += numbers[i] + (rank > 5 ? 0 : below(4));
        }
    else if (which == 2)
        for (int i = 0; i < rank; i++)
            out[i] *= rank > 5 ? 1 : below(3);
    else
        for (int i = 0; i < rank; i++)
            numbers[i] = below(11) - 5;
    make(&m[1], dtype, rank, out, true);
    *used = 2;
    static const char value[16];
    return which == 1   ? vme_pad(context, (vme_pad_mode)below(VME_PAD_WRAP + 1), &m[0].t, numbers, value, &m[1].t)
           : which == 2 ? vme_tile(context, &m[0].t, &m[1].t)
                        : vme_roll(context, &m[0].t, numbers, &m[1].t);
}

static vme_status try_index(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype();
    int64_t shape[RANK], index_shape[3], out[VME_RANK_MAX];
    random_shape(&rank, shape);
    if (rank == 0)
        return VME_OK;
    int first = below(rank), count = 1 + below(rank - first < 3 ? rank - first : 3), index_rank = below(3);
    for (int i = 0; i < index_rank; i++)
        index_shape[i] = one_in(20) ? 0 : 1 + below(5);
    if (first + index_rank + rank - first - count > RANK)
        return VME_OK;
    const vme_tensor *indices[3];
    for (int i = 0; i < count; i++) {
        make_input(&m[2 + i], VME_INT64, index_rank, index_shape);
        indices_fill(&m[2 + i], shape[first + i]);
        indices[i] = &m[2 + i].t;
    }
    /* what the indices broadcast to */
    int got_rank, out_rank = 0;
    int64_t got[VME_RANK_MAX];
    vme_status status = vme_shape_broadcast(count, indices, &got_rank, got);
    CHECK(status == VME_OK);
    for (int i = 0; i < first; i++)
        out[out_rank++] = shape[i];
    for (int i = 0; i < got_rank; i++)
        out[out_rank++] = got[i];
    for (int i = first + count; i < rank; i++)
        out[out_rank++] = shape[i];
    bool gather = one_in(2);
    make(&m[0], dtype, rank, shape, !gather);
    if (gather)
        make(&m[1], dtype, out_rank, out, true);
    else
        make_input(&m[1], dtype, out_rank, out);
    *used = 2 + count;
    return gather ? vme_gather(context, &m[0].t, first, count, indices, &m[1].t)
                  : vme_scatter(context, &m[1].t, first, count, indices, one_in(2), &m[0].t);
}

static vme_status try_nonzero(vme_context *context, operand *m, int *used)
{
    int rank;
    int64_t shape[RANK], count;
    random_shape(&rank, shape);
    make(&m[0], VME_BOOL, rank, shape, false);
    *used = 1;
    vme_status status = vme_nonzero(context, &m[0].t, &count, NULL);
    if (status != VME_OK)
        return status;
    const vme_tensor *out[RANK];
    for (int i = 0; i < rank; i++) {
        make(&m[1 + i], VME_INT64, 1, &count, true);
        out[i] = &m[1 + i].t;
    }
    *used = 1 + rank;
    return vme_nonzero(context, &m[0].t, &count, out);
}

static vme_status try_sort(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype(), which = below(4);
    int64_t shape[RANK];
    random_shape(&rank, shape);
    if (rank == 0)
        return VME_OK;
    make(&m[0], dtype, rank, shape, false);
    *used = 1;
    if (which == 3) {
        const int axis = below(rank);
        const bool descending = one_in(2);
        shape[axis] = one_in(3) ? shape[axis] / 9 : below(2 + (int)shape[axis]);
        make(&m[1], VME_INT64, rank, shape, true);
        *used = 2;
        return vme_top(context, &m[0].t, axis, descending, &m[1].t);
    }
    if (which == 2) {
        int64_t length = below(60);
        make(&m[1], dtype, 1, &length, false);
        make(&m[2], VME_INT64, rank, shape, true);
        *used = 3;
        return vme_searchsorted(context, &m[1].t, &m[0].t, one_in(2), &m[2].t);
    }
    make_output(&m[1], which == 0 ? dtype : VME_INT64, rank, shape, &m[0]);
    *used = 2;
    return which == 0 ? vme_sort(context, &m[0].t, below(rank), one_in(2), &m[1].t)
                      : vme_argsort(context, &m[0].t, below(rank), one_in(2), &m[1].t);
}

static vme_status try_partition(vme_context *context, operand *m, int *used)
{
    int rank, dtype = any_dtype(), count = 0;
    int64_t shape[RANK], kth[4];
    random_shape(&rank, shape);
    if (rank == 0)
        return VME_OK;
    int axis = below(rank);
    bool indices = one_in(2);
    make(&m[0], dtype, rank, shape, false);
    make_output(&m[1], indices ? VME_INT64 : dtype, rank, shape, &m[0]);
    *used = 2;
    for (int64_t next = one_in(30) ? -1 : 0; count < 4 && next < shape[axis] + one_in(30); next = kth[count - 1] + 1)
        kth[count++] = next + below(1 + (int)shape[axis]) / 2;
    return vme_partition(context, &m[0].t, axis, count, kth, indices, &m[1].t);
}

/* Dense in C order, for operators that want them so. */
static void make_dense(operand *m, int dtype, int rank, const int64_t *shape)
{
    size_t bytes;
    memcpy(m->shape, shape, (size_t)rank * sizeof *shape);
    CHECK(vme_shape_bytes((vme_dtype)dtype, rank, shape, m->strides, &bytes) == VME_OK);
    m->block = __real_malloc(bytes);
    CHECK(m->block != NULL || bytes == 0);
    fill(m->block, bytes, dtype);
    m->t = (vme_tensor){NULL, m->block, m->shape, m->strides, rank, dtype};
}

static vme_status try_fft(vme_context *context, operand *m, int *used)
{
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 8, 16, 30, 49, 64, 121, 243, 256, 509, 1009, 1024, 4099};
    int rank, kind = below(VME_FFT_REAL_BACKWARD + 1);
    int64_t in[RANK], out[RANK],
        n = one_in(2) ? lengths[below((int)(sizeof lengths / sizeof *lengths))] : 1 + below(200);
    if (one_in(300))
        n = 65536 + below(9000); /* handed to another thread */
    random_shape(&rank, in);
    if (rank == 0)
        return VME_OK;
    if (rank > 2)
        rank = 2 + one_in(2);
    memcpy(out, in, sizeof out);
    in[rank - 1] = one_in(2) ? n : below(300);
    if (kind == VME_FFT_REAL_BACKWARD && one_in(2))
        in[rank - 1] = n / 2 + 1;
    out[rank - 1] = kind == VME_FFT_REAL_FORWARD ? n / 2 + 1 : n;
    if (rank > 1 && n > 300)
        in[0] = out[0] = one_in(10) ? 0 : 1 + below(4);
    bool wide = one_in(2);
    int real = wide ? VME_FLOAT64 : VME_FLOAT32, number = wide ? VME_COMPLEX128 : VME_COMPLEX64;
    make_dense(&m[0], kind == VME_FFT_REAL_FORWARD ? real : number, rank, in);
    make_dense(&m[1], one_in(40) ? any_dtype() : kind == VME_FFT_REAL_BACKWARD ? real : number, rank, out);
    *used = 2;
    if (kind <= VME_FFT_BACKWARD && in[rank - 1] == n && m[1].t.dtype == m[0].t.dtype && one_in(4))
        return vme_fft(context, (vme_fft_kind)kind, n, 0.5, &m[0].t, &m[0].t); /* in place */
    return vme_fft(context, (vme_fft_kind)kind, one_in(60) ? below(5) - 3 : n, 1.0 / (double)n, &m[0].t, &m[1].t);
}

static vme_status try_linear(vme_context *context, operand *m, int *used)
{
    int op = below(VME_LINEAR_CHOLESKY + 1), dtype = one_in(30)  ? any_dtype()
                                                     : one_in(2) ? VME_FLOAT64
                                                                 : VME_COMPLEX128;
    int64_t n = one_in(20)   ? 0
                : one_in(10) ? 1 + below(90)
                             : 1 + below(9),
            batch = one_in(20) ? 0 : 1 + below(n > 20 ? 2 : 12);
    int64_t columns = one_in(20) ? 0 : 1 + below(7), failed = 0;
    const int64_t matrices[] = {batch, n, n}, sides[] = {batch, n, columns}, numbers[] = {batch};
    make_dense(&m[0], dtype, 3, matrices);
    if (op == VME_LINEAR_SOLVE) {
        make_dense(&m[1], dtype, 3, sides);
        make_dense(&m[2], dtype, 3, sides);
    } else if (op == VME_LINEAR_SLOGDET) {
        make_dense(&m[1], dtype, 1, numbers);
        make_dense(&m[2], VME_FLOAT64, 1, numbers);
    } else {
        make_dense(&m[1], dtype, one_in(40) ? 2 : 3, matrices); /* now and then too few elements */
        make_dense(&m[2], dtype, 1, numbers);
    }
    *used = 3;
    bool solves = op == VME_LINEAR_SOLVE, two = op == VME_LINEAR_SLOGDET;
    return vme_linear(context, (vme_linear_op)op, one_in(2) ? VME_LINEAR_UPPER : 0, 0, batch, n, n, columns,
                      (const vme_tensor *const[2]){&m[0].t, solves ? &m[1].t : NULL},
                      (const vme_tensor *const[3]){solves ? &m[2].t : &m[1].t, two ? &m[2].t : NULL, NULL}, &failed);
}

static vme_status try_bits(vme_context *context, operand *m, int *used)
{
    int rank, which = below(3), dtype = any_dtype();
    int64_t shape[RANK], other[RANK];
    random_shape(&rank, shape);
    *used = 2;
    if (which == 0) {
        int floats = one_in(40) ? dtype : one_in(2) ? VME_FLOAT32 : VME_FLOAT64;
        make_dense(&m[0], floats, rank, shape);
        make_dense(&m[1], one_in(40) ? any_dtype() : floats, rank, shape);
        make_dense(&m[2], one_in(40) ? any_dtype() : one_in(2) ? floats : VME_INT32, rank, shape);
        *used = 3;
        return vme_split(context, &m[0].t, &m[1].t, &m[2].t);
    }
    memcpy(other, shape, sizeof other);
    if (rank > 0)
        other[rank - 1] = which == 1 ? (shape[rank - 1] + 7) / 8 + one_in(40) : below(10 * (int)shape[rank - 1] + 20);
    make_dense(&m[0], which == 1 ? VME_BOOL : VME_UINT8, rank, shape);
    make_dense(&m[1], VME_UINT8, rank, other);
    return (which == 1 ? vme_bits_pack : vme_bits_unpack)(context, one_in(2), &m[0].t, &m[1].t);
}

static vme_status try_tables(vme_context *context, operand *m, int *used)
{
    int rank;
    int64_t shape[RANK], size = below(40), n = one_in(60) ? below(150000) : below(200);
    if (one_in(2)) {
        bool weighted = one_in(2);
        make_dense(&m[0], one_in(40) ? any_dtype() : VME_INT64, 1, &n);
        make_dense(&m[1], one_in(40) ? any_dtype() : VME_FLOAT64, 1, one_in(40) ? &size : &n);
        make_dense(&m[2], one_in(40) ? any_dtype() : weighted ? VME_FLOAT64 : VME_INT64, 1, &size);
        *used = 3;
        for (int64_t i = 0; i < n && m[0].t.dtype == VME_INT64; i++) {
            int64_t index = size == 0 || one_in(4000) ? below(90) - 20 : below((int)size);
            memcpy(m[0].t.data + 8 * i, &index, sizeof index);
        }
        return vme_count(context, &m[0].t, weighted ? &m[1].t : NULL, &m[2].t);
    }
    random_shape(&rank, shape);
    size += one_in(20) ? 70000 : 0;
    make_dense(&m[0], one_in(40) ? any_dtype() : VME_FLOAT64, rank, shape);
    make_dense(&m[1], one_in(40) ? any_dtype() : VME_FLOAT64, 1, &size);
    make_dense(&m[2], VME_FLOAT64, 1, one_in(40) ? &n : &size);
    make_dense(&m[3], VME_FLOAT64, rank, shape);
    *used = 4;
    double point = -100; /* rising, or whatever came */
    for (int64_t i = 0; i < size && m[1].t.dtype == VME_FLOAT64 && n % 4 > 0; i++, point += below(90) / 9.0)
        memcpy(m[1].t.data + 8 * i, &point, sizeof point);
    return vme_interpolate(context, &m[0].t, &m[1].t, &m[2].t, -1, 1, &m[3].t);
}

static vme_status try_images(vme_context *context, operand *m, int *used)
{
    const int which = below(7), dtype = one_in(40) ? any_dtype() : one_in(2) ? VME_FLOAT32 : VME_FLOAT64;
    const bool pools = which == 2 || which == 3;
    vme_windows w;
    int64_t images[4] = {below(3), 1 + below(3), 1 + below(20), 1 + below(20)}, count[2];
    for (int i = 0; i < 2; i++) {
        w.kernel[i] = pools ? 1 + below(3) : below(4);
        w.stride[i] = one_in(60) ? 0 : pools && one_in(2) ? w.kernel[i] : which > 3 && one_in(2) ? 1 : 1 + below(3);
        w.dilation[i] = pools ? 1 : 1 + below(2);
        w.padding[i] = pools ? 0 : below(3);
        const int64_t covered = images[2 + i] + 2 * w.padding[i] - w.dilation[i] * (w.kernel[i] - 1) - 1;
        count[i] = covered < 0 || w.stride[i] == 0 ? 1 : covered / w.stride[i] + 1 + one_in(60);
    }
    const int64_t patches[3] = {images[0], images[1] * w.kernel[0] * w.kernel[1], count[0] * count[1]},
                  pooled[4] = {images[0], images[1], count[0], count[1]},
                  weights[4] = {images[1] + one_in(60), 1, w.kernel[0], w.kernel[1]};
    make_dense(&m[0], dtype, 4, images);
    make_dense(&m[1], dtype, which < 2 ? 3 : 4, which < 2 ? patches : pooled);
    make_dense(&m[2], dtype, 4, which > 3 ? weights : one_in(60) ? pooled : images);
    *used = 3;
    switch (which) {
    case 0: return vme_patches(context, &w, &m[0].t, &m[1].t);
    case 1: return vme_patches_sum(context, &w, &m[1].t, &m[0].t);
    case 2: return vme_max_pool(context, &w, &m[0].t, &m[1].t);
    case 3: return vme_max_pool_gradient(context, &w, &m[0].t, &m[1].t, &m[1].t, &m[2].t);
    case 4: return vme_depthwise_forward(context, &w, &m[0].t, &m[2].t, &m[1].t);
    case 5: return vme_depthwise_images(context, &w, &m[1].t, &m[2].t, &m[0].t);
    default: return vme_depthwise_weights(context, &w, &m[0].t, &m[1].t, &m[2].t);
    }
}

static vme_status try_normalization(vme_context *context, operand *m, int *used)
{
    const int dtype = one_in(40) ? any_dtype() : one_in(2) ? VME_FLOAT32 : VME_FLOAT64, back = one_in(2);
    const int64_t channels = 1 + below(5), other = channels + one_in(80);
    const int rank = 2 + below(3);
    const int64_t shape[4] = {below(4), channels, 1 + below(40), 1 + below(9)};
    for (int i = 0; i < 3; i++)
        make_dense(&m[i], i == 2 && one_in(60) ? any_dtype() : dtype, rank, shape);
    for (int i = 3; i < 8; i++)
        make_dense(&m[i], dtype, 1, i == 5 ? &other : &channels);
    *used = 8;
    return back ? vme_normalize_gradient(context, &m[0].t, &m[1].t, &m[3].t, &m[4].t, &m[5].t, 1e-5, &m[2].t, &m[6].t,
                                         &m[7].t)
                : vme_normalize(context, &m[0].t, &m[3].t, &m[5].t, 1e-5, &m[2].t, &m[6].t, &m[7].t);
}

/* Parameters that a distribution allows, its bounds among them: the arrays refuse others. */
static double parameter_of(int kind, int which, double before)
{
    double part = one_in(12) ? 0 : one_in(12) ? 1 : (1 + below(999)) / 1000.0;
    double size = one_in(6) ? 1e-3 * part : one_in(6) ? 1e5 * part : 20 * part;
    switch (kind) {
    case VME_RANDOM_TRIANGULAR:
        return which == 0 ? size - 10 : which == 1 ? before + (one_in(3) ? 0 : part) : before + part + 0.001;
    case VME_RANDOM_VONMISES: return which == 0 ? size - 10 : size;
    case VME_RANDOM_GAMMA:
    case VME_RANDOM_POISSON: return size;
    case VME_RANDOM_NONCENTRAL_CHISQUARE: return which == 0 ? size + 0.01 : size;
    case VME_RANDOM_BINOMIAL: return which == 0 ? (double)(int64_t)size : part;
    case VME_RANDOM_GEOMETRIC: return part + (part == 0 ? 0.001 : 0);
    case VME_RANDOM_NEGATIVE_BINOMIAL: return which == 0 ? size + 0.01 : part + (part == 0 ? 0.001 : 0);
    case VME_RANDOM_LOGSERIES: return part == 1 ? 0.999 : part;
    case VME_RANDOM_ZIPF: return 1.001 + size;
    default: return size + 0.01;
    }
}

static vme_status try_distribution(vme_context *context, operand *m, int *used)
{
    int rank, kind = below(VME_RANDOM_KINDS);
    bool words = kind >= VME_RANDOM_INTEGERS;
    int64_t shape[RANK];
    random_shape(&rank, shape);
    int dtype = kind == VME_RANDOM_INTEGERS             ? below(VME_UINT64 + 1)
                : kind >= VME_RANDOM_POISSON            ? VME_INT64
                : kind <= VME_RANDOM_GAMMA && one_in(2) ? VME_FLOAT32
                                                        : VME_FLOAT64;
    make_dense(&m[0], one_in(40) ? any_dtype() : dtype, rank, shape);
    int64_t count = vme_elements(&m[0].t);
    bool each = one_in(2) && kind < VME_RANDOM_SHUFFLE;
    for (int i = 0; i < 3; i++) {
        make_dense(&m[1 + i], words ? VME_UINT64 : VME_FLOAT64, each ? rank : 0, shape);
        for (int64_t j = 0; j < (each ? count : 1); j++) {
            double before = 0;
            if (i > 0)
                memcpy(&before, m[i].t.data + 8 * j, 8);
            double number = parameter_of(kind, i, before);
            uint64_t word =
                kind == VME_RANDOM_SAMPLE ? (uint64_t)count + random_bits() % 100 : random_bits() >> below(64);
            if (kind == VME_RANDOM_INTEGERS && i == 1) /* no more numbers than the dtype has */
                word = m[0].t.dtype == VME_BOOL    ? word % 2
                       : m[0].t.dtype < VME_UINT64 ? word >> (64 - 8 * vme_dtype_size((vme_dtype)m[0].t.dtype))
                                                   : word;
            memcpy(m[1 + i].t.data + 8 * j, words ? (void *)&word : (void *)&number, 8);
        }
    }
    *used = 4;
    vme_random_state drawn = {
        .key = {random_bits(), 3}, .counter = {random_bits(), (uint64_t)-1, 1, 0}, .buffer_pos = random_bits() % 6};
    vme_status status = vme_random(context, &drawn, (vme_random_kind)kind,
                                   (const vme_tensor *const[3]){&m[1].t, &m[2].t, &m[3].t}, &m[0].t);
    CHECK(status != VME_OK || drawn.buffer_pos <= 4);
    return status;
}

static vme_status try_random(vme_context *context, operand *m, int *used)
{
    int rank;
    int64_t shape[RANK];
    random_shape(&rank, shape);
    make(&m[0], VME_UINT64, rank, shape, true);
    *used = 1;
    return vme_philox(context, (uint64_t[2]){random_bits(), 1}, (uint64_t[4]){random_bits(), (uint64_t)-1, 2, 3},
                      random_bits(), &m[0].t);
}

/* Regions that stay inside two buffers, or that do not: then nothing is written. */
static vme_status try_raster(vme_context *context, operand *m, int *used)
{
    int size = 1 << below(5), rank = 1 + below(VME_REGION_RANK);
    vme_region region = {.rank = rank};
    int64_t bounds[2][2] = {{0, 0}, {0, 0}}, elements = 1;
    bool wild = one_in(4);
    for (int i = 0; i < rank; i++) {
        region.size[i] = one_in(20) ? 0 : 1 + below(4);
        elements *= region.size[i];
        for (int side = 0; side < 2; side++) {
            int64_t stride = below(9) - 4, reach = stride * (region.size[i] - 1);
            (side == 0 ? region.source_strides : region.destination_strides)[i] = stride;
            bounds[side][reach > 0] += region.size[i] == 0 ? 0 : reach;
        }
    }
    region.source_offset = -bounds[0][0];
    region.destination_offset = -bounds[1][0] + (wild ? below(7) - 3 + (one_in(5) ? INT64_MAX / 2 : 0) : 0);
    m[0].block = __real_malloc((size_t)(bounds[0][1] - bounds[0][0] + 1) * (size_t)size);
    fill(m[0].block, (size_t)(bounds[0][1] - bounds[0][0] + 1) * (size_t)size, VME_BOOL);
    *used = 1;
    region.source = m[0].block;
    vme_buffer *destination;
    vme_status status =
        vme_buffer_new(context, (size_t)(bounds[1][1] - bounds[1][0] + 1) * (size_t)size, true, &destination);
    if (status == VME_OK) {
        status = vme_raster(context, size, 1, &region, destination);
        CHECK(status == VME_OK || wild || status == VME_NO_MEMORY);
        vme_buffer_unref(destination);
    }
    return status;
}

/* Views from outside: any numbers. Accepted ones are read completely. */
static vme_status try_check(vme_context *context, operand *m, int *used)
{
    size_t bytes = (size_t)below(300);
    vme_buffer *buffer;
    char *block = __real_malloc(bytes);
    vme_status status = vme_buffer_wrap(context, block, bytes, true, block, free, &buffer);
    if (status != VME_OK) {
        free(block);
        return status;
    }
    fill(block, bytes, VME_BOOL);
    int rank = below(4);
    static const int64_t odd[] = {INT64_MAX, INT64_MIN, INT64_MIN / 2, (int64_t)1 << 62, -1, (int64_t)1 << 32};
    for (int i = 0; i < rank; i++) {
        m[0].shape[i] = one_in(10) ? odd[below(6)] : below(6);
        m[0].strides[i] = one_in(10) ? odd[below(6)] : 4 * (below(9) - 4);
    }
    m[0].t = (vme_tensor){buffer, block + below(320) - 10, m[0].shape, m[0].strides, rank, VME_UINT8};
    m[0].block = NULL;
    size_t needed;
    status = vme_shape_bytes(VME_UINT8, rank, m[0].shape, NULL, &needed);
    if (status == VME_OK)
        status = vme_tensor_check(&m[0].t);
    bool small = true; /* make() multiplies sizes of tensors without elements, too */
    for (int i = 0; i < rank; i++)
        small = small && m[0].shape[i] < 1 << 20;
    if (status == VME_OK && needed < 1 << 20 && small) {
        *used = 2;
        make(&m[1], VME_UINT8, rank, m[0].shape, true);
        status = vme_copy(context, &m[0].t, &m[1].t);
        CHECK(status == VME_OK || status == VME_NO_MEMORY);
    }
    vme_buffer_unref(buffer);
    return status;
}

/* ---- an account that refuses one request */
static atomic_int requests, refuse_at;
static bool charge(void *owner, size_t bytes)
{
    (void)owner;
    (void)bytes;
    return atomic_fetch_add(&requests, 1) + 1 != refuse_at;
}

/* The operator that the seed chooses, once; -1 when its backend is not for this machine. */
static int try_one(vme_context *context, uint64_t seed)
{
    static vme_status (*const tries[])(vme_context *, operand *, int *) = {
        try_elementwise,  try_elementwise, try_elementwise, try_copy,          try_reduce, try_scan,
        try_matmul,       try_transform,   try_index,       try_nonzero,       try_sort,   try_random,
        try_raster,       try_check,       try_partition,   try_fft,           try_linear, try_bits,
        try_distribution, try_tables,      try_images,      try_normalization,
    };
    static operand m[2 + RANK];
    state = seed;
    random_bits();
    int backend = below(vme_backend_count()), used = 0, which = below((int)(sizeof tries / sizeof *tries));
    if (vme_backend_force(backend) != VME_OK)
        return -1;
    requests = 0;
    vme_status status = tries[which](context, m, &used);
    for (int i = 0; i < used; i++)
        free(m[i].block);
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    if (statistics.live_bytes != 0 || statistics.buffers != 0) {
        fprintf(stderr, "%s: seed %llu, operator %d: %lld bytes left\n", __FILE__, (unsigned long long)seed, which,
                (long long)statistics.live_bytes);
        exit(1);
    }
    if (status != VME_OK)
        CHECK(status < VME_STOPPED && strlen(vme_message()) > 0);
    return (int)status;
}

/* Seeds that once failed: a plan inside a plan was lost. */
static const uint64_t kept[] = {700002705};
enum { KEPT = sizeof kept / sizeof *kept };

int main(int count, char **arguments)
{
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 0) : 20261121;
    int rounds = count > 2 ? atoi(arguments[2]) : ROUNDS, bad = 0, ok = 0, refused = 0;
    vme_context *context;
    CHECK(vme_context_new(&(vme_account){.charge = charge}, 0, &context) == VME_OK);
    for (int round = -KEPT; round < rounds; round++) {
        uint64_t seed = round < 0 ? kept[-1 - round] : first + (uint64_t)round;
        if (getenv("FUZZ_ROUND") != NULL)
            fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
        refuse_at = 0;
        int status = try_one(context, seed);
        if (status == -1)
            continue;
        *(status == VME_OK ? &ok : &bad) += 1;
        /* the account refuses each request once, then libc: the usual answer needs that memory */
        int min = requests;
        for (int which = 1; which <= min; which++) {
            refuse_at = which;
            int answer = try_one(context, seed);
            CHECK(answer == VME_NO_MEMORY || answer == status);
            refused += answer == VME_NO_MEMORY;
        }
        refuse_at = 0;
        for (long after = 0, failed = 1; failed; after++) {
            failing_malloc(after);
            int answer = try_one(context, seed);
            failed = failing_malloc(-1);
            CHECK(answer == status || (failed && answer == VME_NO_MEMORY));
            refused += answer == VME_NO_MEMORY;
        }
    }
    vme_context_unref(context);
    printf("fuzz: %d done, %d refused, %d times without memory\n", ok, bad, refused);
    CHECK(rounds < 1000 || (ok > rounds / 3 && bad > 0 && refused > rounds / (BLOCKS_KEPT ? 5 : 3)));
    return 0;
}
