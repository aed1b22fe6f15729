/* Every operator looks at its context's stop flag at least once a millisecond, however large its operands are: the
 * longest time of its thread's CPU between two looks, on operands of which each takes a hundred milliseconds and more.
 *
 * run.py compiles the engine with polls.h for this, without sanitizers. The bound leaves room for a slow machine and
 * for memory that is touched for the first time. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../check.h"
#include "vme_fft.h"
#include "vme_images.h"
#include "vme_order.h"
#include "vme_random.h"
#include "vme_tables.h"
#include "vme_bits.h"

#ifdef VME_POLLS
#include "model_files.h"
#include "models/step.h"

enum { ELEMENTS = 8 << 20 };
#define BOUND_MS 25.0

static double last_ms, worst_ms;

static double now_ms(void)
{
    struct timespec now;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

void vme_polled(void)
{
    double now = now_ms();
    if (now - last_ms > worst_ms)
        worst_ms = now - last_ms;
    last_ms = now_ms();
}

static vme_context *context;
static int failures;

/* The shortest of a few tries counts: other processes disturb some. */
#define LOOK(name, call) \
    do { \
        double min_ms = 1e9; \
        for (int try = 0; try < 4 && min_ms > BOUND_MS; try++) { \
            last_ms = now_ms(); \
            worst_ms = 0; \
            CHECK((call) == VME_OK); \
            vme_polled(); \
            min_ms = worst_ms < min_ms ? worst_ms : min_ms; \
        } \
        if (min_ms > BOUND_MS) { \
            fprintf(stderr, "%s: %.1f ms without a look at the stop flag\n", name, min_ms); \
            failures++; \
        } \
    } while (0)

static vme_tensor tensor(vme_dtype dtype, char *data, const int64_t *shape, const int64_t *strides, int rank)
{
    return (vme_tensor){NULL, data, shape, strides, rank, dtype};
}

/* One operator of models on an image of one long row, as models of sounds have them: no division into rows helps there.
 * `out` of rank 4 or 2. */
static void look_at_model(const char *name, uint32_t out, const char *from, char *to)
{
    vme_model *model;
    vme_session *session = NULL;
    vme_port port_of[2];
    vme_tensor tensors_of[2];
    int64_t strides[2][VME_RANK_MAX];
    size_t bytes;
    model_file_end(0, out, false);
    CHECK(vme_model_new(context, file, file_size, &model) == VME_OK);
    for (int i = 0; i < 2; i++) {
        vme_model_port(model, i == 1, 0, &port_of[i]);
        CHECK(vme_shape_bytes(VME_FLOAT32, port_of[i].rank, port_of[i].shape, strides[i], &bytes) == VME_OK
              && bytes <= (size_t)ELEMENTS * 16);
        tensors_of[i] =
            (vme_tensor){NULL, i == 0 ? (char *)from : to, port_of[i].shape, strides[i], port_of[i].rank, VME_FLOAT32};
    }
    const vme_tensor *in = &tensors_of[0], *result = &tensors_of[1];
    char what[80];
    snprintf(what, sizeof what, "a session for %s", name);
    LOOK(what, (vme_session_free(session), vme_session_new(context, model, &session)));
    snprintf(what, sizeof what, "a model's %s", name);
    LOOK(what, vme_session_run(session, &in, &result));
    vme_session_free(session);
    vme_model_unref(model);
}

/* x is tensor 0: [1, channels, 1, pixels]. */
static uint32_t long_row(int64_t channels)
{
    model_file_begin();
    return value(4, 1, channels, 1, ELEMENTS / channels);
}

static void look_at_models(const char *from, char *to)
{
    enum { CHANNELS = 16, WIDE = 40 };
    const int64_t pixels = ELEMENTS / CHANNELS;
    const struct {
        const char *name;
        uint32_t op, window;
    } simple[] = {
        {"largest of windows", MODEL_MAX_POOL, 3},
        {"mean of windows", MODEL_AVERAGE_POOL, 3},
        {"clipping", MODEL_CLIP, 0},
        {"shuffling", MODEL_SHUFFLE, 1},
        {"softmax of images", MODEL_SOFTMAX, 0},
        {"curve", MODEL_ACTIVATE, 0},
        {"copy", MODEL_COPY, 0},
    };
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++) {
        bool rows = simple[i].op == MODEL_SOFTMAX;
        if (rows) {
            model_file_begin();
            (void)value(4, 1, 1, ELEMENTS / 4096, 4096);
        } else
            (void)long_row(CHANNELS);
        uint32_t out = rows ? value(4, 1, 1, ELEMENTS / 4096, 4096) : value(4, 1, CHANNELS, 1, pixels);
        model_node_record *result = node(simple[i].op, 1, (uint32_t[]){0, out});
        if (simple[i].window > 0)
            window(result, (int)simple[i].window, simple[i].window == 3);
        if (simple[i].op == MODEL_SHUFFLE)
            result->parameters[GROUPS] = 4;
        if (simple[i].op == MODEL_CLIP)
            result->parameters[ACTIVATION] = ACTIVATION_RELU;
        if (rows)
            result->parameters[1] = 0x3f800000; /* 1.0: the factor */
        look_at_model(simple[i].name, out, from, to);
    }
    for (int algorithm = -1; algorithm < vme_algorithm_count(); algorithm++) {
        CHECK(vme_algorithm_force(algorithm) == VME_OK);
        (void)long_row(CHANNELS);
        uint32_t out = value(4, 1, CHANNELS, 1, pixels);
        window(node(MODEL_CONV, 2, (uint32_t[]){0, constant(4, CHANNELS, CHANNELS, 3, 3), out}), 3, 1);
        look_at_model("convolution", out, from, to);
        (void)long_row(CHANNELS);
        out = value(4, 1, WIDE, 1, pixels);
        window(node(MODEL_CONV, 2, (uint32_t[]){0, constant(4, WIDE, CHANNELS, 1, 1), out}), 1, 0);
        look_at_model("product", out, from, to);
    }
    CHECK(vme_algorithm_force(-1) == VME_OK);
    enum { DEPTH = 64, KEYS = 1 << 15 };
    for (int algorithm = ATTENTION_FUSED; algorithm < MODEL_ALGORITHMS; algorithm++)
        for (int many = 0; many < 3;
             many++) { /* rows, keys, or numbers of a result: k and v are views of the input, or constants */
            CHECK(vme_algorithm_force(algorithm) == VME_OK);
            model_file_begin();
            const int64_t rows = many == 0 ? ELEMENTS / DEPTH / 4 : 20;
            uint32_t x = many == 0   ? value(2, rows, DEPTH, 0, 0)
                         : many == 1 ? value(2, KEYS, DEPTH, 0, 0)
                                     : value(2, DEPTH, KEYS, 0, 0);
            const int64_t width = many == 2 ? KEYS : DEPTH, turned[] = {DEPTH, KEYS};
            uint32_t k = many != 1
                             ? constant(2, DEPTH, DEPTH, 0, 0)
                             : tensor_add(
                                   (model_tensor_record){
                                       .dtype = VME_FLOAT32, .kind = MODEL_VIEW, .base = x, .strides = {1, DEPTH}},
                                   2, turned);
            uint32_t v = many != 0 ? x : constant(2, DEPTH, DEPTH, 0, 0),
                     q = many != 0 ? constant(2, rows, DEPTH, 0, 0) : x, attended = value(2, rows, width, 0, 0);
            memcpy(node(MODEL_ATTENTION, 3, (uint32_t[]){q, k, v, attended})->parameters, &(float){0.125f}, 4);
            look_at_model("attention", attended, from, to);
        }
    CHECK(vme_algorithm_force(-1) == VME_OK);
    (void)long_row(CHANNELS);
    uint32_t out = value(4, 1, CHANNELS, 1, pixels);
    model_node_record *depthwise = node(MODEL_CONV, 2, (uint32_t[]){0, constant(4, CHANNELS, 1, 3, 3), out});
    window(depthwise, 3, 1);
    depthwise->parameters[GROUPS] = CHANNELS;
    look_at_model("convolution of each channel", out, from, to);
    (void)long_row(CHANNELS);
    out = value(4, 1, CHANNELS, 1, pixels);
    node(MODEL_ADD, 2, (uint32_t[]){0, 0, out});
    look_at_model("addition", out, from, to);
    (void)long_row(CHANNELS);
    uint32_t clipped = value(4, 1, CHANNELS, 1, pixels);
    node(MODEL_CLIP, 1, (uint32_t[]){0, clipped})->parameters[ACTIVATION] = ACTIVATION_RELU;
    out = value(4, 1, 2 * CHANNELS, 1, pixels);
    node(MODEL_CONCAT, 2, (uint32_t[]){0, clipped, out});
    look_at_model("concatenation", out, from, to);
    (void)long_row(CHANNELS);
    out = value(4, 1, CHANNELS, 1, 1);
    node(MODEL_GLOBAL_AVERAGE_POOL, 1, (uint32_t[]){0, out});
    look_at_model("mean of all", out, from, to);
    (void)long_row(CHANNELS);
    out = value(2, 1, ELEMENTS, 0, 0);
    node(MODEL_FLATTEN, 1, (uint32_t[]){0, out});
    look_at_model("flattening", out, from, to);
}

int main(void)
{
    CHECK(vme_threads_set(1) == VME_OK);
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    char *memory[3];
    for (int i = 0; i < 3; i++) {
        memory[i] = malloc((size_t)ELEMENTS * 16);
        CHECK(memory[i] != NULL);
        memset(memory[i], 1, (size_t)ELEMENTS * 16);
    }
    const int64_t line[] = {ELEMENTS}, steps[] = {8}, wide[] = {16}, side = 2048, square[] = {side, ELEMENTS / side},
                  rows[] = {square[1] * 8, 8}, columns[] = {8, side * 8}, turned[] = {square[1], side}, nothing[] = {0},
                  one[] = {1};
    vme_tensor x = tensor(VME_FLOAT64, memory[0], line, steps, 1), y = tensor(VME_FLOAT64, memory[1], line, steps, 1);
    vme_tensor whole = tensor(VME_INT64, memory[1], line, steps, 1),
               words = tensor(VME_UINT64, memory[0], line, steps, 1);
    vme_tensor numbers = tensor(VME_COMPLEX128, memory[0], line, wide, 1),
               others = tensor(VME_COMPLEX128, memory[1], line, wide, 1);
    vme_tensor matrix = tensor(VME_FLOAT64, memory[0], square, rows, 2),
               other = tensor(VME_FLOAT64, memory[1], square, rows, 2);
    vme_tensor sum = tensor(VME_FLOAT64, memory[1], one, steps, 1),
               mask = tensor(VME_BOOL, memory[0], line, (int64_t[]){1}, 1);
    vme_random_state state = {.key = {1, 2}};

    LOOK("random", vme_random(context, &state, VME_RANDOM_NORMAL, (const vme_tensor *[3]){NULL, NULL, NULL}, &x));
    LOOK("philox", vme_philox(context, state.key, state.counter, 0, &words));
    LOOK("uniform", vme_random(context, &state, VME_RANDOM_UNIFORM, (const vme_tensor *[3]){NULL, NULL, NULL}, &x));
    uint64_t population = 2 * ELEMENTS;
    const vme_tensor below = tensor(VME_UINT64, (char *)&population, nothing, nothing, 0);
    LOOK("distinct numbers",
         vme_random(context, &state, VME_RANDOM_SAMPLE, (const vme_tensor *[3]){&below, NULL, NULL}, &whole));
    LOOK("unary", vme_unary(context, VME_TAN, VME_FLOAT64, &x, &y));
    LOOK("binary", vme_binary(context, VME_POWER, VME_FLOAT64, &x, &x, &y));
    LOOK("cast", vme_copy(context, &x, &whole));
    vme_tensor flipped = tensor(VME_FLOAT64, memory[1], square, columns, 2);
    LOOK("transpose", vme_copy(context, &matrix, &flipped));
    LOOK("reduce", vme_reduce(context, VME_SUM, VME_FLOAT64, &x, 1, NULL, &sum));
    vme_tensor repeated = tensor(VME_FLOAT64, memory[0], (int64_t[]){ELEMENTS * 16}, nothing, 1);
    LOOK("reduce one", vme_reduce(context, VME_ARGMAX, VME_FLOAT64, &repeated, 1, NULL,
                                  &(vme_tensor){NULL, memory[1], one, steps, 1, VME_INT64}));
    LOOK("scan", vme_scan(context, VME_CUMSUM, VME_FLOAT64, &x, 0, &y));
    LOOK("scan of columns", vme_scan(context, VME_CUMMAX, VME_FLOAT64, &matrix, 0, &other));
    LOOK("sort", vme_sort(context, &x, 0, false, &y));
    LOOK("sort of what is sorted", vme_sort(context, &y, 0, false, &y));
    LOOK("argsort", vme_argsort(context, &x, 0, false, &whole));
    vme_tensor first = tensor(VME_INT64, memory[1], (int64_t[]){ELEMENTS / 50}, steps, 1);
    LOOK("top", vme_top(context, &x, 0, false, &first));
    CHECK(vme_arange(context, 0, 0, ELEMENTS - 1, -1, &whole) == VME_OK);
    LOOK("gather", vme_gather(context, &x, 0, 1, (const vme_tensor *[]){&whole},
                              &(vme_tensor){NULL, memory[2], line, steps, 1, VME_FLOAT64}));
    LOOK("scatter", vme_scatter(context, &x, 0, 1, (const vme_tensor *[]){&whole}, false,
                                &(vme_tensor){NULL, memory[2], line, steps, 1, VME_FLOAT64}));
    LOOK("partition", vme_partition(context, &x, 0, 1, (int64_t[]){ELEMENTS / 3}, false, &y));
    vme_tensor bytes = tensor(VME_INT8, memory[0], (int64_t[]){(int64_t)ELEMENTS * 4}, one, 1);
    LOOK("sort of bytes",
         vme_sort(context, &bytes, 0, false, &(vme_tensor){NULL, memory[1], bytes.shape, one, 1, VME_INT8}));
    vme_tensor fewer = tensor(VME_COMPLEX128, memory[0], (int64_t[]){ELEMENTS / 4}, wide, 1);
    LOOK("sort of complex numbers",
         vme_sort(context, &fewer, 0, false, &(vme_tensor){NULL, memory[1], fewer.shape, wide, 1, VME_COMPLEX128}));
    LOOK("searchsorted", vme_searchsorted(context, &(vme_tensor){NULL, memory[1], line, steps, 1, VME_FLOAT64}, &x,
                                          false, &(vme_tensor){NULL, memory[2], line, steps, 1, VME_INT64}));
    int64_t found;
    LOOK("nonzero", vme_nonzero(context, &mask, &found, NULL));
    LOOK("concatenate",
         vme_concatenate(context, 2, (const vme_tensor *[]){&x, &x}, 0,
                         &(vme_tensor){NULL, memory[1], (int64_t[]){2 * ELEMENTS}, steps, 1, VME_FLOAT64}));
    LOOK("roll", vme_roll(context, &matrix, (int64_t[]){5, 7}, &other));
    vme_tensor slim = tensor(VME_FLOAT64, memory[1], (int64_t[]){side, side}, (int64_t[]){side * 8, 8}, 2);
    vme_tensor back = tensor(VME_FLOAT64, memory[0], turned, (int64_t[]){side * 8, 8}, 2);
    LOOK("matmul", vme_matmul(context, &matrix, &back, &slim));
    LOOK("where", vme_where(context, &mask, &x, &y, &(vme_tensor){NULL, memory[2], line, steps, 1, VME_FLOAT64}));
    LOOK("arange", vme_arange(context, 0, 0, 0, 1, &whole));
    const int64_t grown[] = {square[0] + 9, square[1] + 9}, twice[] = {2 * square[0], square[1]};
    vme_tensor padded = tensor(VME_FLOAT64, memory[1], grown, (int64_t[]){grown[1] * 8, 8}, 2);
    for (int mode = VME_PAD_CONSTANT; mode <= (int)VME_PAD_WRAP; mode++)
        LOOK("pad", vme_pad(context, (vme_pad_mode)mode, &matrix, (int64_t[]){5, 5}, memory[2], &padded));
    LOOK("tile", vme_tile(context, &matrix, &(vme_tensor){NULL, memory[1], twice, rows, 2, VME_FLOAT64}));
    vme_buffer *buffer;
    CHECK(vme_buffer_new(context, (size_t)ELEMENTS * 8, false, &buffer) == VME_OK);
    const vme_region region = {memory[0], 0, 0, 2, {square[0], square[1]}, {1, square[0]}, {square[1], 1}};
    LOOK("raster", vme_raster(context, 8, 1, &region, buffer));
    vme_buffer_unref(buffer);
    vme_tensor small = tensor(VME_UINT8, memory[1], line, one, 1),
               packed = tensor(VME_UINT8, memory[2], (int64_t[]){ELEMENTS / 8}, one, 1);
    LOOK("bit count", vme_unary(context, VME_BITWISE_COUNT, VME_UINT64, &words, &small));
    LOOK("divisors", vme_binary(context, VME_LCM, VME_UINT64, &words, &words,
                                &(vme_tensor){NULL, memory[2], line, steps, 1, VME_UINT64}));
    LOOK("packing", vme_bits_pack(context, true, &mask, &packed));
    LOOK("unpacking", vme_bits_unpack(context, true, &packed, &small));
    vme_tensor halves = tensor(VME_INT32, memory[2], line, (int64_t[]){4}, 1);
    LOOK("taking floats apart", vme_split(context, &x, &y, &halves));
    LOOK("whole and fractional parts",
         vme_split(context, &x, &y, &(vme_tensor){NULL, memory[2], line, steps, 1, VME_FLOAT64}));
    for (int64_t i = 0; i < ELEMENTS; i++) {
        ((int64_t *)(void *)memory[0])[i] = i * 7919 % ELEMENTS;
        ((double *)(void *)memory[2])[i] = (double)i;
    }
    vme_tensor indices = tensor(VME_INT64, memory[0], line, steps, 1),
               points = tensor(VME_FLOAT64, memory[2], line, steps, 1);
    LOOK("counting", vme_count(context, &indices, &points, &y));
    LOOK("interpolating", vme_interpolate(context, &x, &points, &points, 0, 1, &y));
    const int64_t many = ELEMENTS / 9 / 1024, item = sizeof(double); /* planes of 32 x 32, windows of 3 x 3 and 2 x 2 */
    const vme_windows three = {{3, 3}, {1, 1}, {1, 1}, {1, 1}}, two = {{2, 2}, {2, 2}, {1, 1}, {0, 0}};
    vme_tensor images = tensor(VME_FLOAT64, memory[0], (int64_t[]){many, 1, 32, 32},
                               (int64_t[]){1024 * item, 1024 * item, 32 * item, item}, 4),
               patches = tensor(VME_FLOAT64, memory[1], (int64_t[]){many, 9, 1024},
                                (int64_t[]){9 * 1024 * item, 1024 * item, item}, 3),
               pooled = tensor(VME_FLOAT64, memory[1], (int64_t[]){many, 1, 16, 16},
                               (int64_t[]){256 * item, 256 * item, 16 * item, item}, 4),
               sums = images;
    sums.data = memory[2];
    LOOK("patches", vme_patches(context, &three, &images, &patches));
    LOOK("sums of patches", vme_patches_sum(context, &three, &patches, &sums));
    LOOK("maxima of windows", vme_max_pool(context, &two, &images, &pooled));
    LOOK("their gradient", vme_max_pool_gradient(context, &two, &images, &pooled, &pooled, &sums));
    double taps[9] = {1};
    const vme_tensor weights =
        tensor(VME_FLOAT64, (char *)taps, (int64_t[]){1, 1, 3, 3}, (int64_t[]){9 * item, 9 * item, 3 * item, item}, 4);
    LOOK("depthwise convolutions", vme_depthwise_forward(context, &three, &images, &weights, &sums));
    LOOK("their images", vme_depthwise_images(context, &three, &images, &weights, &sums));
    LOOK("their weights", vme_depthwise_weights(context, &three, &images, &sums, &weights));
    /* one large plane: a stop does not wait for its end */
    enum { SIDE = 256, KERNEL = 96, WINDOWS = SIDE - KERNEL + 1 };
    const vme_windows large = {{KERNEL, KERNEL}, {1, 1}, {1, 1}, {0, 0}};
    const int64_t plane = SIDE * SIDE * item, row = SIDE * item, out_row = WINDOWS * item,
                  out_plane = WINDOWS * out_row;
    vme_tensor one_image = tensor(VME_FLOAT64, memory[0], (int64_t[]){1, 1, SIDE, SIDE},
                                  (int64_t[]){plane, plane, row, item}, 4),
               one_result = tensor(VME_FLOAT64, memory[1], (int64_t[]){1, 1, WINDOWS, WINDOWS},
                                   (int64_t[]){out_plane, out_plane, out_row, item}, 4),
               one_sum = one_image,
               large_weights =
                   tensor(VME_FLOAT64, memory[2] + plane, (int64_t[]){1, 1, KERNEL, KERNEL},
                          (int64_t[]){KERNEL * KERNEL * item, KERNEL * KERNEL * item, KERNEL * item, item}, 4);
    one_sum.data = memory[2];
    LOOK("large maxima", vme_max_pool(context, &large, &one_image, &one_result));
    LOOK("their gradient", vme_max_pool_gradient(context, &large, &one_image, &one_result, &one_result, &one_sum));
    LOOK("large depthwise convolutions",
         vme_depthwise_forward(context, &large, &one_image, &large_weights, &one_result));
    LOOK("their images", vme_depthwise_images(context, &large, &one_result, &large_weights, &one_sum));
    LOOK("their weights", vme_depthwise_weights(context, &large, &one_image, &one_result, &large_weights));
    double vectors[4][256] = {{0}};
    const int64_t in_channels[3] = {many / 256, 256, 1024}, channel[1] = {256};
    vme_tensor v[4],
        normal = tensor(VME_FLOAT64, memory[0], in_channels, (int64_t[]){256 * 1024 * item, 1024 * item, item}, 3),
        normalized = normal;
    normalized.data = memory[2];
    for (int i = 0; i < 4; i++)
        v[i] = tensor(VME_FLOAT64, (char *)vectors[i], channel, steps, 1);
    LOOK("normalizing", vme_normalize(context, &normal, &v[0], &v[0], 1e-5, &normalized, &v[1], &v[2]));
    LOOK("its gradient",
         vme_normalize_gradient(context, &normal, &normal, &v[0], &v[0], &v[0], 1e-5, &normalized, &v[1], &v[2]));
    look_at_models(memory[0], memory[1]);
    const int64_t quarter[] = {ELEMENTS / 4}; /* giving much memory back takes long, too */
    numbers.shape = others.shape = quarter;
    LOOK("transform", vme_fft(context, VME_FFT_FORWARD, ELEMENTS / 4, 1, &numbers, &others));
    vme_tensor prime = tensor(VME_COMPLEX128, memory[1], (int64_t[]){1000003}, wide, 1);
    LOOK("transform of a prime length", vme_fft(context, VME_FFT_BACKWARD, 1000003, 1, &numbers, &prime));
    x.shape = quarter;
    LOOK("transform of real numbers",
         vme_fft(context, VME_FFT_REAL_FORWARD, ELEMENTS / 4, 1, &x,
                 &(vme_tensor){NULL, memory[1], (int64_t[]){ELEMENTS / 8 + 1}, wide, 1, VME_COMPLEX128}));
    const int64_t n = 1200;
    for (int64_t i = 0; i < n * n; i++)
        ((double *)(void *)memory[0])[i] = (double)(i * 7919 % 10007) + (i % (n + 1) == 0 ? 1e6 : 0);
    vme_tensor a = tensor(VME_FLOAT64, memory[0], (int64_t[]){n, n}, (int64_t[]){n * 8, 8}, 2), inverse = a;
    inverse.data = memory[1];
    int64_t failed;
    LOOK("inverse", vme_linear(context, VME_LINEAR_INVERSE, 0, 0, 1, n, n, 0, (const vme_tensor *[2]){&a, NULL},
                               (const vme_tensor *[3]){&inverse, NULL, NULL}, &failed));
    CHECK(failed == 0);
    for (int i = 0; i < 3; i++)
        free(memory[i]);
    vme_context_unref(context);
    if (failures == 0)
        puts("polls: ok");
    return failures != 0;
}
#else
int main(void)
{
    puts("polls: with run.py engine none");
    return 0;
}
#endif
