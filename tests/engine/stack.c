/* How much of the calling thread's stack the engine uses: at most 16 KiB below any operator, on every backend, as vme.h promises to
 * VMs whose whole stack may be 96 KiB. Runs operators of every kind on a thread whose stack is painted, and looks how far down the
 * paint is gone. Knows the public headers only: test_stack.py links it with the library that ships.
 * test_every_operator.py finds an operator that is missing here. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "vme.h"
#include "vme_bits.h"
#include "vme_fft.h"
#include "vme_order.h"
#include "vme_random.h"
#include "vme_tables.h"

enum { STACK = 1 << 20, ALLOWED = 16 << 10, PAINTED = 64 << 10, MEMORY = 64 << 20 };
static const uint64_t paint = 0xa5a5a5a5a5a5a5a5;

static char *stack;
static size_t deepest;
static char deepest_name[96];
static vme_context *context;
static char *memory[4];             /* of operands and outputs */

typedef struct call {
    enum { UNARY, BINARY, WHERE, COPY, ARANGE, REDUCE, SCAN, MATMUL, RASTER, CONCATENATE, PAD, TILE, ROLL, GATHER, SCATTER, NONZERO, SORT,
           ARGSORT, SEARCH, PHILOX, PARTITION, FFT, LINEAR, PACK, UNPACK, SPLIT, RANDOM, COUNT, LINES } kind;
    int op, axis;
    int64_t n, batch;
    vme_dtype loop;
    vme_tensor a, b, c, out;
    vme_buffer *buffer;
    vme_status status;
} call;

static void operate(call *it)
{
    const vme_tensor *pair[] = {&it->a, &it->b};
    switch (it->kind) {
    case UNARY: it->status = vme_unary(context, (vme_unary_op)it->op, it->loop, &it->a, &it->out); break;
    case BINARY: it->status = vme_binary(context, (vme_binary_op)it->op, it->loop, &it->a, &it->b, &it->out); break;
    case WHERE: it->status = vme_where(context, &it->c, &it->a, &it->b, &it->out); break;
    case COPY: it->status = vme_copy(context, &it->a, &it->out); break;
    case ARANGE: it->status = vme_arange(context, 1, 0.5, 1, 2, &it->out); break;
    case REDUCE: it->status = vme_reduce(context, (vme_reduce_op)it->op, it->loop, &it->a, UINT64_C(1) << it->axis, NULL, &it->out); break;
    case SCAN: it->status = vme_scan(context, (vme_scan_op)it->op, it->loop, &it->a, it->axis, &it->out); break;
    case MATMUL: it->status = vme_matmul(context, &it->a, &it->b, &it->out); break;
    case RASTER: {
        vme_region regions[2] = {{memory[0], 0, 0, 3, {20, 30, 40}, {1, 20, 600}, {1200, 40, 1}},
                                 {memory[0], 9, 30000, 1, {5000}, {3}, {2}}};
        it->status = vme_raster(context, 1 << it->op, 2, regions, it->buffer);
        break;
    }
    case CONCATENATE: it->status = vme_concatenate(context, 2, pair, it->axis, &it->out); break;
    case PAD: it->status = vme_pad(context, (vme_pad_mode)it->op, &it->a, (int64_t[]){3, 5}, memory[3], &it->out); break;
    case TILE: it->status = vme_tile(context, &it->a, &it->out); break;
    case ROLL: it->status = vme_roll(context, &it->a, (int64_t[]){3, -5}, &it->out); break;
    case GATHER: it->status = vme_gather(context, &it->a, it->axis, 1, (const vme_tensor *[]){&it->c}, &it->out); break;
    case SCATTER: it->status = vme_scatter(context, &it->a, it->axis, 1, (const vme_tensor *[]){&it->c}, it->op, &it->out); break;
    case NONZERO: {
        int64_t count = 60 * 70;
        const vme_tensor *places[] = {&it->b, &it->out};
        it->status = vme_nonzero(context, &it->c, &count, it->op ? places : NULL);
        break;
    }
    case SORT: it->status = vme_sort(context, &it->a, it->axis, it->op, &it->out); break;
    case ARGSORT: it->status = vme_argsort(context, &it->a, it->axis, it->op, &it->out); break;
    case SEARCH: it->status = vme_searchsorted(context, &it->a, &it->b, it->op, &it->out); break;
    case PHILOX: it->status = vme_philox(context, (uint64_t[]){1, 2}, (uint64_t[]){3, 4, 5, 6}, 7, &it->out); break;
    case PARTITION: it->status = vme_partition(context, &it->a, it->axis, 2, (int64_t[]){3, 30}, it->op, &it->out); break;
    case FFT: it->status = vme_fft(context, (vme_fft_kind)it->op, it->n, 1, &it->a, &it->out); break;
    case LINEAR: {
        int64_t failed;
        bool sides = it->op == VME_LINEAR_SOLVE, two = it->op == VME_LINEAR_SLOGDET;
        it->status = vme_linear(context, (vme_linear_op)it->op, 0, 0, it->batch, it->n, it->n, 3, (const vme_tensor *[2]){&it->a, sides ? &it->b : NULL},
                                (const vme_tensor *[3]){&it->out, two ? &it->c : NULL, NULL}, &failed);
        break;
    }
    case PACK: it->status = vme_bits_pack(context, it->op, &it->a, &it->out); break;
    case UNPACK: it->status = vme_bits_unpack(context, it->op, &it->a, &it->out); break;
    case SPLIT: it->status = vme_split(context, &it->a, &it->out, &it->c); break;
    case RANDOM: {
        vme_random_state drawn = {.key = {1, 2}};
        const vme_tensor *parameters[3] = {&it->a, &it->b, &it->c};
        it->status = vme_random(context, &drawn, (vme_random_kind)it->op, parameters, &it->out);
        break;
    }
    case COUNT: it->status = vme_count(context, &it->a, it->op ? &it->b : NULL, &it->out); break;
    case LINES: it->status = vme_interpolate(context, &it->a, &it->b, &it->b, 0, 1, &it->out); break;
    }
}

/* Paints what lies below this frame, operates, and looks. */
__attribute__((noinline)) static void measure(call *it, const char *name)
{
    volatile uint64_t *top = (volatile uint64_t *)__builtin_frame_address(0), *bottom = top - PAINTED / sizeof *top;
    for (volatile uint64_t *word = bottom; word < top - 32; word++)         /* but for this frame */
        *word = paint;
    operate(it);
    if (it->status != VME_OK && it->status != VME_BAD_DTYPE) {          /* not everything has a loop for every dtype */
        fprintf(stderr, "%s: %s: %s\n", name, vme_status_name(it->status), vme_message());
        exit(1);
    }
    volatile uint64_t *word = bottom;
    while (*word == paint)
        word++;
    size_t used = (size_t)(top - word) * sizeof *word;
    if (used > deepest) {
        deepest = used;
        snprintf(deepest_name, sizeof deepest_name, "%s on %s", name, vme_backend_name(vme_backend_current()));
    }
}

/* ---- views: `layout` 0: in order; 1: the first and last dimension change places; 2: backwards, spaced out; 3: broadcast */
enum { LAYOUTS = 4 };
typedef struct view {
    int64_t shape[VME_RANK_MOST], strides[VME_RANK_MOST];
} view;
static view views[4];

static vme_tensor tensor(int number, vme_dtype dtype, int layout, int rank, const int64_t *shape)
{
    view *at = &views[number];
    int64_t step = vme_dtype_size(dtype), first = 0;
    memcpy(at->shape, shape, (size_t)rank * sizeof *shape);
    for (int i = rank - 1; i >= 0; i--) {
        int d = layout == 1 && i == 0 ? rank - 1 : layout == 1 && i == rank - 1 ? 0 : i;
        at->strides[d] = layout == 2 && shape[d] > 1 ? -2 * step : layout == 3 && d == 0 ? 0 : step;
        if (at->strides[d] < 0)
            first -= at->strides[d] * (shape[d] - 1);
        step *= shape[d] * (layout == 2 && shape[d] > 1 ? 2 : 1);
    }
    CHECK(step <= MEMORY);
    return (vme_tensor){.data = memory[number] + first, .shape = at->shape, .strides = at->strides, .rank = rank, .dtype = dtype};
}

static int64_t many_dimensions[VME_RANK_MOST];      /* 64, of 1, 2 and 3 */
static const struct { int rank; int64_t shape[3]; } shapes[] = {{1, {3000}}, {2, {60, 70}}, {3, {20, 30, 5}}, {1, {8}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void dimensions(int number, int *rank, const int64_t **shape)
{
    *rank = number == SHAPES ? VME_RANK_MOST : shapes[number].rank;
    *shape = number == SHAPES ? many_dimensions : shapes[number].shape;
}

static void elementwise(void)
{
    call it = {0};
    int rank;
    const int64_t *shape;
    vme_dtype result;
    for (int s = 0; s <= SHAPES; s++) {
        dimensions(s, &rank, &shape);
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                it.a = tensor(0, dtype, layout, rank, shape);
                it.b = tensor(1, dtype, (layout + 1) % LAYOUTS, rank, shape);
                for (it.kind = UNARY, it.op = 0; it.op < VME_UNARY_COUNT; it.op++)
                    if (vme_unary_types(it.op, dtype, &it.loop, &result) == VME_OK) {
                        it.out = tensor(2, result, layout % 3, rank, shape);
                        measure(&it, vme_unary_name(it.op));
                    }
                for (it.kind = BINARY, it.op = 0; it.op < VME_BINARY_COUNT; it.op++)
                    if (vme_binary_types(it.op, dtype, dtype, &it.loop, &result) == VME_OK) {
                        it.out = tensor(2, result, layout % 3, rank, shape);
                        measure(&it, vme_binary_name(it.op));
                        it.b = tensor(1, (dtype + 1) % VME_DTYPE_COUNT, layout, rank, shape);   /* cast on the way in */
                        measure(&it, vme_binary_name(it.op));
                        it.out = it.a;                                                          /* in place, and overlapping */
                        if (layout != 3)
                            measure(&it, vme_binary_name(it.op));
                    }
                it.kind = WHERE;
                it.b = tensor(1, dtype, 3, rank, shape);
                it.c = tensor(3, VME_BOOL, layout, rank, shape);
                it.out = tensor(2, dtype, 0, rank, shape);
                measure(&it, "where");
                it.kind = COPY;
                for (int target = 0; target < VME_DTYPE_COUNT; target++) {
                    it.out = tensor(2, target, 2 - layout % 3, rank, shape);
                    measure(&it, "copy");
                }
            }
    }
    it.kind = ARANGE;
    for (int dtype = VME_INT8; dtype < VME_DTYPE_COUNT; dtype++) {
        it.out = tensor(2, dtype, 0, 1, (int64_t[]){100});
        measure(&it, "arange");
    }
}

static void reductions(void)
{
    call it = {0};
    int rank;
    const int64_t *shape;
    vme_dtype result;
    for (int s = 0; s <= SHAPES; s++) {
        dimensions(s, &rank, &shape);
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (it.axis = 0; it.axis < rank; it.axis += rank > 3 ? 31 : 1) {
                    int64_t left[VME_RANK_MOST];
                    memcpy(left, shape, (size_t)rank * sizeof *shape);
                    left[it.axis] = 1;
                    it.a = tensor(0, dtype, layout, rank, shape);
                    for (it.kind = REDUCE, it.op = 0; it.op < VME_REDUCE_COUNT; it.op++)
                        if (vme_reduce_types(it.op, dtype, &it.loop, &result) == VME_OK) {
                            it.out = tensor(2, result, 0, rank, left);
                            measure(&it, vme_reduce_name(it.op));
                        }
                    for (it.kind = SCAN, it.op = 0; it.op < VME_SCAN_COUNT; it.op++)
                        if (vme_scan_types(it.op, dtype, &it.loop, &result) == VME_OK) {
                            it.out = tensor(2, result, layout % 3, rank, shape);
                            measure(&it, vme_scan_name(it.op));
                        }
                    it.out = tensor(2, dtype, layout % 3, rank, shape);
                    for (it.op = 0; it.op < 2; it.op++) {
                        it.kind = SORT;
                        measure(&it, "sort");
                        it.kind = ARGSORT;
                        it.out = tensor(2, VME_INT64, layout % 3, rank, shape);
                        measure(&it, "argsort");
                        it.out = tensor(2, dtype, 0, rank, shape);
                    }
                }
    }
    it.kind = SEARCH;
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (it.op = 0; it.op < 2; it.op++) {
            it.a = tensor(0, dtype, 0, 1, (int64_t[]){500});
            it.b = tensor(1, dtype, 2, 2, (int64_t[]){30, 20});
            it.out = tensor(2, VME_INT64, 1, 2, (int64_t[]){30, 20});
            measure(&it, "searchsorted");
        }
}

static void products(void)
{
    static const int64_t sizes[][4] = {     /* matrices, rows, columns, k: every way of matmul.c */
        {1, 3, 4, 5}, {5, 7, 9, 8}, {1, 100, 1, 300}, {1, 1, 100, 300}, {1, 200, 6, 90}, {1, 6, 200, 90}, {1, 300, 400, 4},
        {1, 90, 100, 110}, {3, 70, 100, 400}, {1, 5, 3, 70000}, {1, 150, 2100, 10},
    };
    call it = {.kind = MATMUL};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < 3 * 3 * 3; layout++) {
                int64_t l = sizes[i][0], m = sizes[i][1], n = sizes[i][2], k = sizes[i][3];
                it.a = tensor(0, dtype, layout % 3, 3, (int64_t[]){l, m, k});
                it.b = tensor(1, dtype, layout / 3 % 3, 3, (int64_t[]){l, k, n});
                it.out = tensor(2, dtype, layout / 9, 3, (int64_t[]){l, m, n});
                if (l * m * n * k < 1 << 18 || layout % 4 == 0)         /* the large ones take long */
                    measure(&it, "matmul");
            }
}

static void movement(void)
{
    call it = {.kind = RASTER};
    CHECK(vme_buffer_new(context, MEMORY, true, &it.buffer) == VME_OK);
    for (it.op = 0; it.op <= 4; it.op++)
        measure(&it, "raster");
    vme_buffer_unref(it.buffer);
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < 3; layout++) {
            for (it.kind = CONCATENATE, it.axis = 0; it.axis < 2; it.axis++) {
                it.a = tensor(0, dtype, layout, 2, (int64_t[]){60, 70});
                it.b = tensor(1, dtype, 2 - layout, 2, (int64_t[]){60, 70});
                it.out = tensor(2, dtype, 0, 2, it.axis ? (int64_t[]){60, 140} : (int64_t[]){120, 70});
                measure(&it, "concatenate");
            }
            it.kind = PAD;
            it.out = tensor(2, dtype, layout, 2, (int64_t[]){70, 80});
            for (it.op = VME_PAD_CONSTANT; it.op <= (int)VME_PAD_WRAP; it.op++)
                measure(&it, "pad");
            it.kind = TILE;
            it.out = tensor(2, dtype, layout, 2, (int64_t[]){180, 140});
            measure(&it, "tile");
            it.kind = ROLL;
            it.out = tensor(2, dtype, layout, 2, (int64_t[]){60, 70});
            measure(&it, "roll");
            for (it.axis = 0; it.axis < 2; it.axis++) {
                it.a = tensor(0, dtype, layout, 2, (int64_t[]){60, 70});
                it.c = tensor(3, VME_INT64, 0, 1, (int64_t[]){50});
                it.out = tensor(2, dtype, 0, 2, it.axis ? (int64_t[]){60, 50} : (int64_t[]){50, 70});
                it.kind = GATHER;
                measure(&it, "gather");
                vme_tensor swapped = it.a;
                it.a = it.out;
                it.out = swapped;
                it.kind = SCATTER;
                for (it.op = 0; it.op < 2; it.op++)
                    measure(&it, "scatter");
            }
        }
    it.kind = NONZERO;
    it.c = tensor(3, VME_BOOL, 0, 2, (int64_t[]){60, 70});
    it.b = tensor(1, VME_INT64, 0, 1, (int64_t[]){60 * 70});
    it.out = tensor(2, VME_INT64, 0, 1, (int64_t[]){60 * 70});
    memset(memory[3], 1, 60 * 70);
    for (it.op = 0; it.op < 2; it.op++)
        measure(&it, "nonzero");
    memset(memory[3], 0, 60 * 70);
    it.kind = PHILOX;
    it.out = tensor(2, VME_UINT64, 0, 2, (int64_t[]){60, 70});
    measure(&it, "philox");
}

static void transforms_and_solutions(void)
{
    static const int64_t lengths[] = {8, 30, 509, 1024};
    call it = {.kind = FFT};
    for (int wide = 0; wide < 2; wide++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (it.op = VME_FFT_FORWARD, it.n = lengths[i]; it.op <= (int)VME_FFT_REAL_BACKWARD; it.op++) {
                vme_dtype real = wide ? VME_FLOAT64 : VME_FLOAT32, number = wide ? VME_COMPLEX128 : VME_COMPLEX64;
                it.a = tensor(0, it.op == VME_FFT_REAL_FORWARD ? real : number, 0, 2, (int64_t[]){3, it.n});
                it.out = tensor(2, it.op == VME_FFT_REAL_BACKWARD ? real : number, 0, 2, (int64_t[]){3, it.op == VME_FFT_REAL_FORWARD ? it.n / 2 + 1 : it.n});
                measure(&it, "fft");
            }
    it.kind = LINEAR;
    for (int numbers = 0; numbers < 2; numbers++)
        for (it.n = 1; it.n < 200; it.n = it.n * 3 + 1)
            for (it.op = VME_LINEAR_SOLVE, it.batch = it.n < 50 ? 4 : 1; it.op <= (int)VME_LINEAR_CHOLESKY; it.op++) {
                vme_dtype dtype = numbers ? VME_COMPLEX128 : VME_FLOAT64;
                const int64_t matrix[] = {it.batch, it.n, it.n}, sides[] = {it.batch, it.n, 3};
                it.a = tensor(0, dtype, 0, 3, matrix);
                it.b = tensor(1, dtype, 0, 3, sides);
                it.c = tensor(3, VME_FLOAT64, 0, 1, matrix);
                it.out = it.op == VME_LINEAR_SLOGDET ? tensor(2, dtype, 0, 1, matrix) : tensor(2, dtype, 0, 3, it.op == VME_LINEAR_SOLVE ? sides : matrix);
                measure(&it, "linear");
            }
}

static void bits_draws_and_tables(void)
{
    const int64_t rows[] = {60, 72}, bytes[] = {60, 9}, line[] = {5000};
    call it = {.kind = PARTITION};
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            it.a = tensor(0, dtype, layout, 2, rows);
            for (it.kind = PARTITION, it.axis = 0; it.axis < 2; it.axis++)
                for (it.op = 0; it.op < 2; it.op++) {
                    it.out = tensor(2, it.op ? VME_INT64 : (vme_dtype)dtype, layout % 3, 2, rows);
                    measure(&it, "partition");
                }
        }
    for (it.op = 0; it.op < 2; it.op++) {
        it.a = tensor(0, VME_BOOL, 0, 2, rows);
        it.out = tensor(2, VME_UINT8, 0, 2, bytes);
        it.kind = PACK;
        measure(&it, "packing");
        it.a = tensor(0, VME_UINT8, 0, 2, bytes);
        it.out = tensor(2, VME_UINT8, 0, 2, rows);
        it.kind = UNPACK;
        measure(&it, "unpacking");
        it.a = tensor(0, VME_INT64, 0, 1, line);
        it.b = tensor(1, VME_FLOAT64, 0, 1, line);
        it.out = tensor(2, it.op ? VME_FLOAT64 : VME_INT64, 0, 1, line);
        it.kind = COUNT;
        measure(&it, "counting");
        it.a = tensor(0, VME_FLOAT64, 0, 1, line);
        it.out = tensor(2, VME_FLOAT64, 0, 1, line);
        it.kind = LINES;
        measure(&it, "interpolating");
        it.a = tensor(0, it.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        it.out = tensor(2, it.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        it.kind = SPLIT;
        it.c = tensor(3, VME_INT32, 0, 1, line);
        measure(&it, "taking floats apart");
        it.c = tensor(3, it.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        measure(&it, "whole and fractional parts");
    }
    static double ones[3] = {0.25, 0.5, 0.75};          /* that every distribution allows */
    static uint64_t words[3] = {0, 100, 100};
    for (it.kind = RANDOM, it.op = 0; it.op < (int)VME_RANDOM_KINDS; it.op++) {
        bool whole = it.op >= (int)VME_RANDOM_INTEGERS;
        it.out = tensor(2, it.op >= (int)VME_RANDOM_POISSON ? VME_INT64 : VME_FLOAT64, 0, 1, line);
        vme_tensor *parameters[] = {&it.a, &it.b, &it.c};
        for (int i = 0; i < 3; i++)
            *parameters[i] = (vme_tensor){.data = whole ? (char *)&words[i] : (char *)&ones[i], .dtype = whole ? VME_UINT64 : VME_FLOAT64};
        ones[0] = it.op == VME_RANDOM_ZIPF ? 1.5 : it.op == VME_RANDOM_BINOMIAL || it.op == VME_RANDOM_NEGATIVE_BINOMIAL ? 7 : 0.25;
        words[0] = it.op == VME_RANDOM_SAMPLE ? 9000 : 0;
        measure(&it, "random");
    }
}

static void *everything(void *unused)
{
    (void)unused;
    /* no warming up: finding a function of another library at its first call takes stack too */
    CHECK(vme_threads_set(1) == VME_OK);
    for (int backend = 0; backend < vme_backend_count(); backend++)
        if (vme_backend_available(backend)) {
            CHECK(vme_backend_force(backend) == VME_OK);
            elementwise();
            reductions();
            products();
            movement();
        }
    memset(memory[0], 0, 1 << 20);              /* what was scattered there is no place in a table */
    for (int backend = 0; backend < vme_backend_count(); backend++)
        if (vme_backend_available(backend)) {
            CHECK(vme_backend_force(backend) == VME_OK);
            bits_draws_and_tables();
            transforms_and_solutions();
        }
    if (vme_threads_set(2) == VME_OK)           /* once more with helpers to call, where there are cores for them */
        products();
    return NULL;
}

int main(void)
{
    for (int i = 0; i < 4; i++) {
        memory[i] = calloc(1, MEMORY);
        CHECK(memory[i] != NULL);
    }
    for (int i = 0; i < VME_RANK_MOST; i++)
        many_dimensions[i] = i % 16 == 3 ? 2 : i % 16 == 9 ? 3 : 1;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    pthread_attr_t attributes;
    pthread_t thread;
    CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstack(&attributes, stack, STACK) == 0);
    CHECK(pthread_create(&thread, &attributes, everything, NULL) == 0 && pthread_join(thread, NULL) == 0);
    pthread_attr_destroy(&attributes);
    vme_context_unref(context);
    for (int i = 0; i < 4; i++)
        free(memory[i]);
    printf("stack: at most %zu bytes: %s\n", deepest, deepest_name);
    CHECK(deepest <= ALLOWED);
    puts("stack: ok");
    return 0;
}
