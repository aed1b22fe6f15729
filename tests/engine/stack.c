/* How much of the calling thread's stack the engine uses: at most 16 KiB below any operator, on every backend, as vme.h
 * promises to VMs whose whole stack may be 96 KiB. Runs operators of every kind on a thread whose stack is painted, and
 * looks how far down the paint is gone. Knows the public headers and the records of model files only: test_stack.py
 * links it with the library that ships. test_every_operator.py finds an operator that is missing here. */
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>

#include "check.h"
#include "engine/model_files.h"
#include "models/step.h"
#include "vme.h"
#include "vme_bits.h"
#include "vme_fft.h"
#include "vme_images.h"
#include "vme_order.h"
#include "vme_random.h"
#include "vme_tables.h"

enum { STACK = 1 << 20, ALLOWED = 16 << 10, PAINTED = 64 << 10, MEMORY = 64 << 20 };
static const uint64_t paint = 0xa5a5a5a5a5a5a5a5;

static char *stack;
static size_t deepest;
static char deepest_name[96];
static vme_context *context;
static char *memory[4]; /* of operands and outputs */

typedef struct tested_call {
    enum {
        UNARY,
        BINARY,
        WHERE,
        COPY,
        ARANGE,
        REDUCE,
        SCAN,
        MATMUL,
        RASTER,
        CONCATENATE,
        PAD,
        TILE,
        ROLL,
        GATHER,
        SCATTER,
        NONZERO,
        SORT,
        ARGSORT,
        SEARCH,
        PHILOX,
        PARTITION,
        TOP,
        FFT,
        LINEAR,
        PACK,
        UNPACK,
        SPLIT,
        RANDOM,
        COUNT,
        LINES,
        WINDOWS,
        NORMALIZE,
        SESSION,
        PLAN,
        RUN
    } kind;
    int op, axis;
    int64_t n, batch;
    vme_dtype loop;
    vme_tensor a, b, c, more, out;
    vme_buffer *buffer;
    vme_model *model, *plan;
    vme_session *session;
    vme_status status;
} tested_call;

static void operate(tested_call *call)
{
    const vme_tensor *pair[] = {&call->a, &call->b};
    switch (call->kind) {
    case UNARY: call->status = vme_unary(context, (vme_unary_op)call->op, call->loop, &call->a, &call->out); break;
    case BINARY:
        call->status = vme_binary(context, (vme_binary_op)call->op, call->loop, &call->a, &call->b, &call->out);
        break;
    case WHERE: call->status = vme_where(context, &call->c, &call->a, &call->b, &call->out); break;
    case COPY: call->status = vme_copy(context, &call->a, &call->out); break;
    case ARANGE: call->status = vme_arange(context, 1, 0.5, 1, 2, &call->out); break;
    case REDUCE:
        call->status = vme_reduce(context, (vme_reduce_op)call->op, call->loop, &call->a, UINT64_C(1) << call->axis,
                                  NULL, &call->out);
        break;
    case SCAN:
        call->status = vme_scan(context, (vme_scan_op)call->op, call->loop, &call->a, call->axis, &call->out);
        break;
    case MATMUL: call->status = vme_matmul(context, &call->a, &call->b, &call->out); break;
    case RASTER: {
        vme_region regions[2] = {{memory[0], 0, 0, 3, {20, 30, 40}, {1, 20, 600}, {1200, 40, 1}},
                                 {memory[0], 9, 30000, 1, {5000}, {3}, {2}}};
        call->status = vme_raster(context, 1 << call->op, 2, regions, call->buffer);
        break;
    }
    case CONCATENATE: call->status = vme_concatenate(context, 2, pair, call->axis, &call->out); break;
    case PAD:
        call->status = vme_pad(context, (vme_pad_mode)call->op, &call->a, (int64_t[]){3, 5}, memory[3], &call->out);
        break;
    case TILE: call->status = vme_tile(context, &call->a, &call->out); break;
    case ROLL: call->status = vme_roll(context, &call->a, (int64_t[]){3, -5}, &call->out); break;
    case GATHER:
        call->status = vme_gather(context, &call->a, call->axis, 1, (const vme_tensor *[]){&call->c}, &call->out);
        break;
    case SCATTER:
        call->status =
            vme_scatter(context, &call->a, call->axis, 1, (const vme_tensor *[]){&call->c}, call->op, &call->out);
        break;
    case NONZERO: {
        int64_t count = 60 * 70;
        const vme_tensor *places[] = {&call->b, &call->out};
        call->status = vme_nonzero(context, &call->c, &count, call->op ? places : NULL);
        break;
    }
    case SORT: call->status = vme_sort(context, &call->a, call->axis, call->op, &call->out); break;
    case ARGSORT: call->status = vme_argsort(context, &call->a, call->axis, call->op, &call->out); break;
    case SEARCH: call->status = vme_searchsorted(context, &call->a, &call->b, call->op, &call->out); break;
    case PHILOX: call->status = vme_philox(context, (uint64_t[]){1, 2}, (uint64_t[]){3, 4, 5, 6}, 7, &call->out); break;
    case PARTITION:
        call->status = vme_partition(context, &call->a, call->axis, 2, (int64_t[]){3, 30}, call->op, &call->out);
        break;
    case TOP: call->status = vme_top(context, &call->a, call->axis, call->op, &call->out); break;
    case FFT: call->status = vme_fft(context, (vme_fft_kind)call->op, call->n, 1, &call->a, &call->out); break;
    case LINEAR: {
        int64_t failed;
        bool sides = call->op == VME_LINEAR_SOLVE, two = call->op == VME_LINEAR_SLOGDET;
        call->status = vme_linear(context, (vme_linear_op)call->op, 0, 0, call->batch, call->n, call->n, 3,
                                  (const vme_tensor *[2]){&call->a, sides ? &call->b : NULL},
                                  (const vme_tensor *[3]){&call->out, two ? &call->c : NULL, NULL}, &failed);
        break;
    }
    case PACK: call->status = vme_bits_pack(context, call->op, &call->a, &call->out); break;
    case UNPACK: call->status = vme_bits_unpack(context, call->op, &call->a, &call->out); break;
    case SPLIT: call->status = vme_split(context, &call->a, &call->out, &call->c); break;
    case RANDOM: {
        vme_random_state drawn = {.key = {1, 2}};
        const vme_tensor *parameters[3] = {&call->a, &call->b, &call->c};
        call->status = vme_random(context, &drawn, (vme_random_kind)call->op, parameters, &call->out);
        break;
    }
    case COUNT: call->status = vme_count(context, &call->a, call->op ? &call->b : NULL, &call->out); break;
    case LINES: call->status = vme_interpolate(context, &call->a, &call->b, &call->b, 0, 1, &call->out); break;
    case WINDOWS: {
        const int step = call->op < 4 ? 2 : 1, around = call->op < 2 || call->op > 3;
        const vme_windows w = {{3, 3}, {step, step}, {1, 1}, {around, around}};
        call->status = call->op == 0   ? vme_patches(context, &w, &call->a, &call->b)
                       : call->op == 1 ? vme_patches_sum(context, &w, &call->b, &call->a)
                       : call->op == 2 ? vme_max_pool(context, &w, &call->a, &call->b)
                       : call->op == 3 ? vme_max_pool_gradient(context, &w, &call->a, &call->b, &call->b, &call->out)
                       : call->op == 4 ? vme_depthwise_forward(context, &w, &call->a, &call->b, &call->out)
                       : call->op == 5 ? vme_depthwise_images(context, &w, &call->a, &call->b, &call->out)
                                       : vme_depthwise_weights(context, &w, &call->a, &call->out, &call->b);
        break;
    }
    case NORMALIZE:
        call->status = call->op == 0 ? vme_normalize(context, &call->a, &call->c, &call->c, 1e-5, &call->out, &call->b,
                                                     &call->more)
                                     : vme_normalize_gradient(context, &call->a, &call->a, &call->c, &call->c, &call->c,
                                                              1e-5, &call->out, &call->b, &call->more);
        break;
    case SESSION: call->status = vme_session_new(context, call->model, &call->session); break;
    case PLAN: call->status = vme_session_plan(call->session, pair, &call->plan); break;
    case RUN: call->status = vme_session_run(call->session, pair, (const vme_tensor *[]){&call->out}); break;
    }
}

/* Paints the stack below this frame, runs the operator, and looks. */
__attribute__((noinline)) static void measure(tested_call *call, const char *name)
{
    volatile uint64_t *top = (volatile uint64_t *)__builtin_frame_address(0), *bottom = top - PAINTED / sizeof *top;
    for (volatile uint64_t *word = bottom; word < top - 32; word++) /* but for this frame */
        *word = paint;
    operate(call);
    if (call->status != VME_OK && call->status != VME_BAD_DTYPE) { /* not every operator has a loop for every dtype */
        fprintf(stderr, "%s: %s: %s\n", name, vme_status_name(call->status), vme_message());
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

/* ---- views: `layout` 0: in order; 1: the first and last dimension change places; 2: backwards, spaced out; 3:
 * broadcast */
enum { LAYOUTS = 4 };
typedef struct view {
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
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
    return (vme_tensor){
        .data = memory[number] + first, .shape = at->shape, .strides = at->strides, .rank = rank, .dtype = dtype};
}

static int64_t many_dimensions[VME_RANK_MAX]; /* 64, of 1, 2 and 3 */
static const struct {
    int rank;
    int64_t shape[3];
} shapes[] = {{1, {3000}}, {2, {60, 70}}, {3, {20, 30, 5}}, {1, {8}}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void dimensions(int number, int *rank, const int64_t **shape)
{
    *rank = number == SHAPES ? VME_RANK_MAX : shapes[number].rank;
    *shape = number == SHAPES ? many_dimensions : shapes[number].shape;
}

static void elementwise(void)
{
    tested_call call = {0};
    int rank;
    const int64_t *shape;
    vme_dtype result;
    for (int s = 0; s <= SHAPES; s++) {
        dimensions(s, &rank, &shape);
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < LAYOUTS; layout++) {
                call.a = tensor(0, dtype, layout, rank, shape);
                call.b = tensor(1, dtype, (layout + 1) % LAYOUTS, rank, shape);
                for (call.kind = UNARY, call.op = 0; call.op < VME_UNARY_COUNT; call.op++)
                    if (vme_unary_types(call.op, dtype, &call.loop, &result) == VME_OK) {
                        call.out = tensor(2, result, layout % 3, rank, shape);
                        measure(&call, vme_unary_name(call.op));
                    }
                for (call.kind = BINARY, call.op = 0; call.op < VME_BINARY_COUNT; call.op++)
                    if (vme_binary_types(call.op, dtype, dtype, &call.loop, &result) == VME_OK) {
                        call.out = tensor(2, result, layout % 3, rank, shape);
                        measure(&call, vme_binary_name(call.op));
                        call.b = tensor(1, (dtype + 1) % VME_DTYPE_COUNT, layout, rank, shape); /* cast on the way in */
                        measure(&call, vme_binary_name(call.op));
                        call.out = call.a; /* in place, and overlapping */
                        if (layout != 3)
                            measure(&call, vme_binary_name(call.op));
                    }
                call.kind = WHERE;
                call.b = tensor(1, dtype, 3, rank, shape);
                call.c = tensor(3, VME_BOOL, layout, rank, shape);
                call.out = tensor(2, dtype, 0, rank, shape);
                measure(&call, "where");
                call.kind = COPY;
                for (int target = 0; target < VME_DTYPE_COUNT; target++) {
                    call.out = tensor(2, target, 2 - layout % 3, rank, shape);
                    measure(&call, "copy");
                }
            }
    }
    call.kind = ARANGE;
    for (int dtype = VME_INT8; dtype < VME_DTYPE_COUNT; dtype++) {
        call.out = tensor(2, dtype, 0, 1, (int64_t[]){100});
        measure(&call, "arange");
    }
}

static void reductions(void)
{
    tested_call call = {0};
    int rank;
    const int64_t *shape;
    vme_dtype result;
    for (int s = 0; s <= SHAPES; s++) {
        dimensions(s, &rank, &shape);
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < LAYOUTS; layout++)
                for (call.axis = 0; call.axis < rank; call.axis += rank > 3 ? 31 : 1) {
                    int64_t left[VME_RANK_MAX];
                    memcpy(left, shape, (size_t)rank * sizeof *shape);
                    left[call.axis] = 1;
                    call.a = tensor(0, dtype, layout, rank, shape);
                    for (call.kind = REDUCE, call.op = 0; call.op < VME_REDUCE_COUNT; call.op++)
                        if (vme_reduce_types(call.op, dtype, &call.loop, &result) == VME_OK) {
                            call.out = tensor(2, result, 0, rank, left);
                            measure(&call, vme_reduce_name(call.op));
                        }
                    for (call.kind = SCAN, call.op = 0; call.op < VME_SCAN_COUNT; call.op++)
                        if (vme_scan_types(call.op, dtype, &call.loop, &result) == VME_OK) {
                            call.out = tensor(2, result, layout % 3, rank, shape);
                            measure(&call, vme_scan_name(call.op));
                        }
                    call.out = tensor(2, dtype, layout % 3, rank, shape);
                    for (call.op = 0; call.op < 2; call.op++) {
                        call.kind = SORT;
                        measure(&call, "sort");
                        call.kind = ARGSORT;
                        call.out = tensor(2, VME_INT64, layout % 3, rank, shape);
                        measure(&call, "argsort");
                        call.out = tensor(2, dtype, 0, rank, shape);
                    }
                }
    }
    call.kind = SEARCH;
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (call.op = 0; call.op < 2; call.op++) {
            call.a = tensor(0, dtype, 0, 1, (int64_t[]){500});
            call.b = tensor(1, dtype, 2, 2, (int64_t[]){30, 20});
            call.out = tensor(2, VME_INT64, 1, 2, (int64_t[]){30, 20});
            measure(&call, "searchsorted");
        }
}

static void products(void)
{
    static const int64_t sizes[][4] = {
        /* matrices, rows, columns, k: every path of matmul.c */
        {1, 3, 4, 5},     {5, 7, 9, 8},      {1, 100, 1, 300},  {1, 1, 100, 300}, {1, 200, 6, 90},    {1, 6, 200, 90},
        {1, 300, 400, 4}, {1, 90, 100, 110}, {3, 70, 100, 400}, {1, 5, 3, 70000}, {1, 150, 2100, 10},
    };
    tested_call call = {.kind = MATMUL};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
            for (int layout = 0; layout < 3 * 3 * 3; layout++) {
                int64_t l = sizes[i][0], m = sizes[i][1], n = sizes[i][2], k = sizes[i][3];
                call.a = tensor(0, dtype, layout % 3, 3, (int64_t[]){l, m, k});
                call.b = tensor(1, dtype, layout / 3 % 3, 3, (int64_t[]){l, k, n});
                call.out = tensor(2, dtype, layout / 9, 3, (int64_t[]){l, m, n});
                if (l * m * n * k < 1 << 18 || layout % 4 == 0) /* the large ones take long */
                    measure(&call, "matmul");
            }
}

static void movement(void)
{
    tested_call call = {.kind = RASTER};
    CHECK(vme_buffer_new(context, MEMORY, true, &call.buffer) == VME_OK);
    for (call.op = 0; call.op <= 4; call.op++)
        measure(&call, "raster");
    vme_buffer_unref(call.buffer);
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < 3; layout++) {
            for (call.kind = CONCATENATE, call.axis = 0; call.axis < 2; call.axis++) {
                call.a = tensor(0, dtype, layout, 2, (int64_t[]){60, 70});
                call.b = tensor(1, dtype, 2 - layout, 2, (int64_t[]){60, 70});
                call.out = tensor(2, dtype, 0, 2, call.axis ? (int64_t[]){60, 140} : (int64_t[]){120, 70});
                measure(&call, "concatenate");
            }
            call.kind = PAD;
            call.out = tensor(2, dtype, layout, 2, (int64_t[]){70, 80});
            for (call.op = VME_PAD_CONSTANT; call.op <= (int)VME_PAD_WRAP; call.op++)
                measure(&call, "pad");
            call.kind = TILE;
            call.out = tensor(2, dtype, layout, 2, (int64_t[]){180, 140});
            measure(&call, "tile");
            call.kind = ROLL;
            call.out = tensor(2, dtype, layout, 2, (int64_t[]){60, 70});
            measure(&call, "roll");
            for (call.axis = 0; call.axis < 2; call.axis++) {
                call.a = tensor(0, dtype, layout, 2, (int64_t[]){60, 70});
                call.c = tensor(3, VME_INT64, 0, 1, (int64_t[]){50});
                call.out = tensor(2, dtype, 0, 2, call.axis ? (int64_t[]){60, 50} : (int64_t[]){50, 70});
                call.kind = GATHER;
                measure(&call, "gather");
                vme_tensor swapped = call.a;
                call.a = call.out;
                call.out = swapped;
                call.kind = SCATTER;
                for (call.op = 0; call.op < 2; call.op++)
                    measure(&call, "scatter");
            }
        }
    call.kind = NONZERO;
    call.c = tensor(3, VME_BOOL, 0, 2, (int64_t[]){60, 70});
    call.b = tensor(1, VME_INT64, 0, 1, (int64_t[]){60 * 70});
    call.out = tensor(2, VME_INT64, 0, 1, (int64_t[]){60 * 70});
    memset(memory[3], 1, 60 * 70);
    for (call.op = 0; call.op < 2; call.op++)
        measure(&call, "nonzero");
    memset(memory[3], 0, 60 * 70);
    call.kind = PHILOX;
    call.out = tensor(2, VME_UINT64, 0, 2, (int64_t[]){60, 70});
    measure(&call, "philox");
}

static void transforms_and_solutions(void)
{
    static const int64_t lengths[] = {8, 30, 509, 1024};
    tested_call call = {.kind = FFT};
    for (int wide = 0; wide < 2; wide++)
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
            for (call.op = VME_FFT_FORWARD, call.n = lengths[i]; call.op <= (int)VME_FFT_REAL_BACKWARD; call.op++) {
                vme_dtype real = wide ? VME_FLOAT64 : VME_FLOAT32, number = wide ? VME_COMPLEX128 : VME_COMPLEX64;
                call.a = tensor(0, call.op == VME_FFT_REAL_FORWARD ? real : number, 0, 2, (int64_t[]){3, call.n});
                call.out = tensor(2, call.op == VME_FFT_REAL_BACKWARD ? real : number, 0, 2,
                                  (int64_t[]){3, call.op == VME_FFT_REAL_FORWARD ? call.n / 2 + 1 : call.n});
                measure(&call, "fft");
            }
    call.kind = LINEAR;
    for (int numbers = 0; numbers < 2; numbers++)
        for (call.n = 1; call.n < 200; call.n = call.n * 3 + 1)
            for (call.op = VME_LINEAR_SOLVE, call.batch = call.n < 50 ? 4 : 1; call.op <= (int)VME_LINEAR_CHOLESKY;
                 call.op++) {
                vme_dtype dtype = numbers ? VME_COMPLEX128 : VME_FLOAT64;
                const int64_t matrix[] = {call.batch, call.n, call.n}, sides[] = {call.batch, call.n, 3};
                call.a = tensor(0, dtype, 0, 3, matrix);
                call.b = tensor(1, dtype, 0, 3, sides);
                call.c = tensor(3, VME_FLOAT64, 0, 1, matrix);
                call.out = call.op == VME_LINEAR_SLOGDET
                               ? tensor(2, dtype, 0, 1, matrix)
                               : tensor(2, dtype, 0, 3, call.op == VME_LINEAR_SOLVE ? sides : matrix);
                measure(&call, "linear");
            }
}

static void bits_draws_and_tables(void)
{
    const int64_t rows[] = {60, 72}, bytes[] = {60, 9}, line[] = {5000};
    tested_call call = {.kind = PARTITION};
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (int layout = 0; layout < LAYOUTS; layout++) {
            call.a = tensor(0, dtype, layout, 2, rows);
            for (call.kind = PARTITION, call.axis = 0; call.axis < 2; call.axis++)
                for (call.op = 0; call.op < 2; call.op++) {
                    call.out = tensor(2, call.op ? VME_INT64 : (vme_dtype)dtype, layout % 3, 2, rows);
                    measure(&call, "partition");
                }
            for (call.kind = TOP, call.axis = 0; call.axis < 2; call.axis++)
                for (call.op = 0; call.op < 2; call.op++) {
                    call.out = tensor(2, VME_INT64, layout % 3, 2,
                                      call.axis ? (int64_t[]){rows[0], 7} : (int64_t[]){7, rows[1]});
                    measure(&call, "top");
                }
        }
    const int64_t images[] = {2, 3, 9, 9}, patches[] = {2, 27, 25}, pooled[] = {2, 3, 4, 4}, weights[] = {3, 1, 3, 3};
    for (int wide = 0; wide < 2; wide++)
        for (call.kind = WINDOWS, call.op = 0; call.op < 7; call.op++) {
            const vme_dtype of = wide ? VME_FLOAT64 : VME_FLOAT32;
            call.a = tensor(0, of, 0, 4, images);
            call.b = call.op < 2 ? tensor(1, of, 0, 3, patches) : tensor(1, of, 0, 4, call.op < 4 ? pooled : weights);
            call.out = tensor(2, of, 0, 4, images);
            measure(&call, "windows over images");
        }
    const int64_t channels[] = {3};
    for (call.kind = NORMALIZE, call.op = 0; call.op < 2; call.op++) {
        call.a = tensor(0, VME_FLOAT32, 0, 4, images);
        call.b = tensor(1, VME_FLOAT32, 0, 1, channels);
        call.more = tensor(1, VME_FLOAT32, 0, 1, channels);
        call.more.data += 64;
        call.c = tensor(2, VME_FLOAT32, 0, 1, channels);
        call.out = tensor(3, VME_FLOAT32, 0, 4, images);
        measure(&call, "batch normalization");
    }
    for (call.op = 0; call.op < 2; call.op++) {
        call.a = tensor(0, VME_BOOL, 0, 2, rows);
        call.out = tensor(2, VME_UINT8, 0, 2, bytes);
        call.kind = PACK;
        measure(&call, "packing");
        call.a = tensor(0, VME_UINT8, 0, 2, bytes);
        call.out = tensor(2, VME_UINT8, 0, 2, rows);
        call.kind = UNPACK;
        measure(&call, "unpacking");
        call.a = tensor(0, VME_INT64, 0, 1, line);
        call.b = tensor(1, VME_FLOAT64, 0, 1, line);
        call.out = tensor(2, call.op ? VME_FLOAT64 : VME_INT64, 0, 1, line);
        call.kind = COUNT;
        measure(&call, "counting");
        call.a = tensor(0, VME_FLOAT64, 0, 1, line);
        call.out = tensor(2, VME_FLOAT64, 0, 1, line);
        call.kind = LINES;
        measure(&call, "interpolating");
        call.a = tensor(0, call.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        call.out = tensor(2, call.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        call.kind = SPLIT;
        call.c = tensor(3, VME_INT32, 0, 1, line);
        measure(&call, "taking floats apart");
        call.c = tensor(3, call.op ? VME_FLOAT64 : VME_FLOAT32, 0, 1, line);
        measure(&call, "whole and fractional parts");
    }
    static double ones[3] = {0.25, 0.5, 0.75}; /* parameters that every distribution allows */
    static uint64_t words[3] = {0, 100, 100};
    for (call.kind = RANDOM, call.op = 0; call.op < (int)VME_RANDOM_KINDS; call.op++) {
        bool whole = call.op >= (int)VME_RANDOM_INTEGERS;
        call.out = tensor(2, call.op >= (int)VME_RANDOM_POISSON ? VME_INT64 : VME_FLOAT64, 0, 1, line);
        vme_tensor *parameters[] = {&call.a, &call.b, &call.c};
        for (int i = 0; i < 3; i++)
            *parameters[i] = (vme_tensor){.data = whole ? (char *)&words[i] : (char *)&ones[i],
                                          .dtype = whole ? VME_UINT64 : VME_FLOAT64};
        ones[0] = call.op == VME_RANDOM_ZIPF                                                  ? 1.5
                  : call.op == VME_RANDOM_BINOMIAL || call.op == VME_RANDOM_NEGATIVE_BINOMIAL ? 7
                                                                                              : 0.25;
        words[0] = call.op == VME_RANDOM_SAMPLE ? 9000 : 0;
        measure(&call, "random");
    }
}

/* ---- models: what a VM does with one, on each kind of step. With `open` the call chooses the number of images, so
 * that a plan is made. */
enum { CHANNELS = 16, WIDE = 40, SIDE = 12, LINE = 60 };

static void measure_model(const char *name, uint32_t output, bool open)
{
    tested_call call = {.kind = SESSION};
    vme_port port;
    int64_t shape[MODEL_RANK];
    model_file_end(0, output, open);
    if (vme_model_new(context, file, file_size, &call.model) != VME_OK) {
        fprintf(stderr, "a model of %s: %s\n", name, vme_message());
        exit(1);
    }
    measure(&call, name);
    vme_model_port(call.model, false, 0, &port);
    memcpy(shape, port.shape, sizeof shape);
    shape[0] = open ? 3 : shape[0];
    call.a = tensor(0, port.dtype, 0, port.rank, shape);
    call.kind = PLAN;
    measure(&call, name);
    vme_model_port(call.plan, true, 0, &port);
    call.out = tensor(2, port.dtype, 0, port.rank, port.shape);
    call.kind = RUN;
    measure(&call, name);
    vme_model_unref(call.plan);
    vme_session_free(call.session);
    vme_model_unref(call.model);
}

static uint32_t image(int64_t channels) { return value(4, 1, channels, SIDE, SIDE); }

/* A node on tensor 0, an image, and the operands `more`; its result has that number of channels. */
static model_node_record *image_node(uint32_t op, int64_t channels, int more, uint32_t *output)
{
    *output = image(channels);
    return node(op, 1 + (uint32_t)more, more ? (uint32_t[]){0, 0, *output} : (uint32_t[]){0, *output});
}

static void begin_images(void)
{
    model_file_begin();
    (void)image(CHANNELS);
}

static void models_of_images(bool open)
{
    static const struct {
        const char *name;
        uint32_t op;
        int window, groups, more;
        int64_t channels;
    } simple[] = {
        {"largest of windows", MODEL_MAX_POOL, 3, 1, 0, CHANNELS},
        {"mean of windows", MODEL_AVERAGE_POOL, 3, 1, 0, CHANNELS},
        {"clipping", MODEL_CLIP, 1, 1, 0, CHANNELS},
        {"adding", MODEL_ADD, 1, 1, 1, CHANNELS},
        {"concatenation", MODEL_CONCAT, 1, 1, 1, 2 * CHANNELS},
        {"a slice", MODEL_SLICE, 1, 1, 0, CHANNELS / 2},
        {"shuffling", MODEL_SHUFFLE, 1, 4, 0, CHANNELS},
        {"shuffling halves", MODEL_SHUFFLE, 1, 2, 1, 2 * CHANNELS},
    };
    uint32_t output;
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        begin_images();
        model_node_record *made = image_node(simple[i].op, simple[i].channels, simple[i].more, &output);
        window(made, simple[i].window, simple[i].window / 2);
        made->parameters[GROUPS] = simple[i].groups;
        made->parameters[ACTIVATION] = ACTIVATION_RELU;
        measure_model(simple[i].name, output, open);
    }
    for (int algorithm = 0; algorithm < vme_algorithm_count(); algorithm++)
        for (int groups = 1; groups <= CHANNELS; groups *= 4)
            for (int added = 0; added < 2; added++) {
                CHECK(vme_algorithm_force(algorithm) == VME_OK);
                begin_images();
                uint32_t weighed = constant(4, CHANNELS, CHANNELS / groups, 3, 3);
                output = image(CHANNELS);
                model_node_record *made =
                    node(MODEL_CONV, 4, (uint32_t[]){0, weighed, MODEL_ABSENT, added ? 0 : MODEL_ABSENT, output});
                window(made, 3, 1);
                made->parameters[GROUPS] = groups;
                measure_model(vme_algorithm_name(algorithm), output, open);
                if (groups > 1)
                    continue;
                begin_images(); /* single pixels, more outputs than a tile is wide */
                weighed = constant(4, WIDE, CHANNELS, 1, 1);
                output = image(WIDE);
                window(node(MODEL_CONV, 2, (uint32_t[]){0, weighed, output}), 1, 0);
                measure_model(vme_algorithm_name(algorithm), output, open);
            }
    CHECK(vme_algorithm_force(-1) == VME_OK);
    begin_images();
    uint32_t mean = value(4, 1, CHANNELS, 1, 1), flat = value(2, 1, CHANNELS, 0, 0),
             weighed = constant(2, 10, CHANNELS, 0, 0);
    output = value(2, 1, 10, 0, 0);
    node(MODEL_GLOBAL_AVERAGE_POOL, 1, (uint32_t[]){0, mean});
    node(MODEL_FLATTEN, 1, (uint32_t[]){mean, flat});
    node(MODEL_GEMM, 2, (uint32_t[]){flat, weighed, output});
    measure_model("a layer", output, open);
    begin_images();
    output = value(2, 1, CHANNELS * SIDE * SIDE, 0, 0);
    node(MODEL_FLATTEN, 1, (uint32_t[]){0, output});
    measure_model("flattening", output, open);
    for (int curve = 0; curve < CURVES; curve++) /* of an image with channels last, and of a plain one */
        for (int plain = 0; plain < 2; plain++) {
            begin_images();
            uint32_t clipped = image(CHANNELS);
            output = image(CHANNELS);
            node(MODEL_RELU, 1, (uint32_t[]){0, clipped});
            node(MODEL_ACTIVATE, 1, (uint32_t[]){plain ? 0 : clipped, output})->parameters[0] = curve;
            measure_model("a curve", output, open);
        }
}

/* A node on tensor 0, a matrix of that dtype, or on its transpose, a view, for every operand. */
static void measure_tensors(const char *name, uint32_t op, const int32_t *parameters, int count, int dtype,
                            int transposed, int result, int64_t rows, int64_t columns)
{
    model_file_begin();
    uint32_t of = tensor_add((model_tensor_record){.dtype = (uint32_t)dtype}, 2, (const int64_t[]){LINE, LINE});
    if (transposed)
        of = tensor_add((model_tensor_record){.dtype = (uint32_t)dtype, .kind = MODEL_VIEW, .strides = {1, LINE}}, 2,
                        (const int64_t[]){LINE, LINE});
    uint32_t output = tensor_add((model_tensor_record){.dtype = (uint32_t)result}, 2, (const int64_t[]){rows, columns});
    model_node_record *made =
        node(op, (uint32_t)count, count == 1 ? (uint32_t[]){of, output} : (uint32_t[]){of, of, output});
    memcpy(made->parameters, parameters, 3 * sizeof *parameters);
    measure_model(name, output, false);
}

static void models_of_tensors(void)
{
    vme_dtype loop, result;
    int32_t p[3];
    for (int dtype = 0; dtype < VME_DTYPE_COUNT; dtype++)
        for (int way = 0; way < 2; way++) {
            for (p[0] = 0; p[0] < VME_UNARY_COUNT; p[0]++)
                if (vme_unary_types((vme_unary_op)p[0], (vme_dtype)dtype, &loop, &result) == VME_OK) {
                    p[1] = (int32_t)loop;
                    measure_tensors(vme_unary_name((vme_unary_op)p[0]), MODEL_UNARY, p, 1, dtype, way, (int)result,
                                    LINE, LINE);
                }
            for (p[0] = 0; p[0] < VME_BINARY_COUNT; p[0]++)
                if (vme_binary_types((vme_binary_op)p[0], (vme_dtype)dtype, (vme_dtype)dtype, &loop, &result)
                    == VME_OK) {
                    p[1] = (int32_t)loop;
                    measure_tensors(vme_binary_name((vme_binary_op)p[0]), MODEL_BINARY, p, 2, dtype, way, (int)result,
                                    LINE, LINE);
                }
            for (p[0] = 0; p[0] < VME_REDUCE_COUNT; p[0]++)
                if (vme_reduce_types((vme_reduce_op)p[0], (vme_dtype)dtype, &loop, &result) == VME_OK) {
                    p[1] = (int32_t)loop;
                    p[2] = 1;
                    measure_tensors(vme_reduce_name((vme_reduce_op)p[0]), MODEL_REDUCE, p, 1, dtype, way, (int)result,
                                    1, LINE);
                    p[2] = 2;
                    measure_tensors(vme_reduce_name((vme_reduce_op)p[0]), MODEL_REDUCE, p, 1, dtype, way, (int)result,
                                    LINE, 1);
                }
            for (p[0] = 0; p[0] < VME_SCAN_COUNT; p[0]++)
                if (vme_scan_types((vme_scan_op)p[0], (vme_dtype)dtype, &loop, &result) == VME_OK) {
                    p[1] = (int32_t)loop;
                    p[2] = way;
                    measure_tensors(vme_scan_name((vme_scan_op)p[0]), MODEL_SCAN, p, 1, dtype, way, (int)result, LINE,
                                    LINE);
                }
            for (p[0] = 0, p[1] = way; p[0] < 2; p[0]++)
                measure_tensors("argsort", MODEL_ARGSORT, p, 1, dtype, way, VME_INT64, LINE, LINE);
            measure_tensors("matmul", MODEL_MATMUL, (const int32_t[3]){0}, 2, dtype, way, dtype, LINE, LINE);
            for (int target = 0; target < VME_DTYPE_COUNT; target++)
                measure_tensors("copy", MODEL_COPY, (const int32_t[3]){0}, 1, dtype, way, target, LINE, LINE);
            /* rows by number, and back to their places; and a choice of both */
            model_file_begin();
            const uint32_t of = tensor_add((model_tensor_record){.dtype = (uint32_t)dtype}, 2,
                                           (const int64_t[]){LINE, LINE}),
                           numbers = constant(1, LINE, 0, 0, 0);
            const uint32_t places = tensor_add((model_tensor_record){.dtype = VME_INT64}, 1, (const int64_t[]){LINE});
            const uint32_t mask = tensor_add((model_tensor_record){.dtype = VME_BOOL}, 1, (const int64_t[]){LINE});
            uint32_t made[3];
            for (int i = 0; i < 3; i++)
                made[i] = tensor_add((model_tensor_record){.dtype = (uint32_t)dtype}, 2, (const int64_t[]){LINE, LINE});
            node(MODEL_COPY, 1, (uint32_t[]){numbers, places});
            node(MODEL_COPY, 1, (uint32_t[]){numbers, mask});
            node(MODEL_GATHER, 2, (uint32_t[]){of, places, made[0]})->parameters[0] = way;
            model_node_record *back = node(MODEL_SCATTER, 3, (uint32_t[]){of, made[0], places, made[1]});
            back->parameters[0] = way;
            back->parameters[1] = -1;
            node(MODEL_WHERE, 3, (uint32_t[]){mask, made[0], made[1], made[2]});
            measure_model("places", made[2], false);
        }
    for (int way = 0; way < 2; way++) {
        const int32_t one = 0x3f800000; /* 1.0 */
        measure_tensors("softmax", MODEL_SOFTMAX, (const int32_t[]){way, one, 0}, 1 + way, VME_FLOAT32, 0, VME_FLOAT32,
                        LINE, LINE);
        for (int few = 0; few < 2; few++) {
            CHECK(vme_algorithm_force(way ? ATTENTION_APART : ATTENTION_FUSED) == VME_OK);
            model_file_begin();
            uint32_t keys = value(2, LINE, LINE, 0, 0), asked = few ? constant(2, 4, LINE, 0, 0) : keys,
                     attended = value(2, few ? 4 : LINE, LINE, 0, 0);
            node(MODEL_ATTENTION, 4, (uint32_t[]){asked, keys, keys, constant(1, LINE, 0, 0, 0), attended})
                ->parameters[0] = one;
            measure_model("attention", attended, false);
            CHECK(vme_algorithm_force(-1) == VME_OK);
        }
        model_file_begin();
        uint32_t of = value(2, LINE, LINE, 0, 0), scale = constant(1, LINE, 0, 0, 0),
                 output = value(2, LINE, LINE, 0, 0);
        node(MODEL_NORMALIZE, 2 + (uint32_t)way,
             way ? (uint32_t[]){of, scale, scale, output} : (uint32_t[]){of, scale, output})
            ->parameters[0] = one;
        measure_model("normalizing", output, false);
        for (int curve = 0; curve < CURVES; curve++)
            measure_tensors("a curve", MODEL_ACTIVATE, (const int32_t[]){curve, 0, 0}, 1, VME_FLOAT32, way, VME_FLOAT32,
                            LINE, LINE);
    }
}

static void models(void)
{
    models_of_images(false);
    models_of_images(true);
    models_of_tensors();
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
    memset(memory[0], 0, 1 << 20); /* the scattered values are not valid rows of a table */
    for (int backend = 0; backend < vme_backend_count(); backend++)
        if (vme_backend_available(backend)) {
            CHECK(vme_backend_force(backend) == VME_OK);
            bits_draws_and_tables();
            transforms_and_solutions();
            models();
        }
    if (vme_threads_set(2) == VME_OK) { /* once more with helpers to call, where there are cores for them */
        products();
        models_of_images(false);
    }
    return NULL;
}

int main(void)
{
    for (int i = 0; i < 4; i++) {
        memory[i] = calloc(1, MEMORY);
        CHECK(memory[i] != NULL);
    }
    for (int i = 0; i < VME_RANK_MAX; i++)
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
