/* Models from bytes to answers: a network of every operator, then the same file damaged at random, which is refused or
 * runs, and never touches what is not its own (the sanitizers look). Memory that is refused and stops end a run;
 * nothing stays allocated. All that with the number of images fixed, and left to the call. Of random networks no two
 * values that live at the same time share bytes of the arena. */
#include <stdlib.h>
#include <string.h>

#include "model_arena.h"
#include "model_files.h"

enum { CHANNELS = 5, SIDE = 9, MADE = 7, CLASSES = 3 };

static void build(bool open)
{
    model_file_begin();
    uint32_t x = value(4, 1, CHANNELS, SIDE, SIDE), first = value(4, 1, MADE, SIDE, SIDE),
             second = value(4, 1, MADE, SIDE, SIDE);
    uint32_t pooled = value(4, 1, MADE, SIDE, SIDE), sum = value(4, 1, MADE, SIDE, SIDE);
    uint32_t mean = value(4, 1, MADE, 1, 1), flat_mean = value(2, 1, MADE, 0, 0), y = value(2, 1, CLASSES, 0, 0);
    uint32_t w1 = constant(4, MADE, CHANNELS, 3, 3), b1 = constant(1, MADE, 0, 0, 0),
             w2 = constant(4, MADE, MADE, 1, 1);
    uint32_t w3 = constant(2, CLASSES, MADE, 0, 0);
    (void)value(2, 1, MADE * SIDE * SIDE, 0, 0); /* which no node makes or reads */
    model_node_record *rectified = node(MODEL_CONV, 3, (uint32_t[]){x, w1, b1, first});
    window(rectified, 3, 1);
    rectified->parameters[ACTIVATION] = ACTIVATION_RELU;
    window(node(MODEL_CONV, 4, (uint32_t[]){first, w2, MODEL_ABSENT, first, second}), 1, 0);
    window(node(MODEL_MAX_POOL, 1, (uint32_t[]){second, pooled}), 3, 1);
    node(MODEL_ADD, 2, (uint32_t[]){pooled, first, sum})->parameters[ACTIVATION] = ACTIVATION_RELU;
    node(MODEL_GLOBAL_AVERAGE_POOL, 1, (uint32_t[]){sum, mean});
    node(MODEL_FLATTEN, 1, (uint32_t[]){mean, flat_mean});
    node(MODEL_GEMM, 2, (uint32_t[]){flat_mean, w3, y});
    model_file_end(x, y, open);
}

/* An input of some pattern through the model, if it is small; the status. Where calls choose sizes, these are IMAGES.
 */
static vme_status run(vme_context *context, const void *bytes, float *last)
{
    enum { MAX = 1 << 16, IMAGES = 2 };
    static float in[MAX], out[MAX];
    vme_model *model, *plan = NULL;
    vme_session *session = NULL;
    vme_status status = vme_model_new(context, bytes, file_size, &model);
    if (status != VME_OK)
        return status;
    vme_tensor tensor[2];
    int64_t strides[2][VME_RANK_MAX], shape[MODEL_RANK] = {0};
    const vme_tensor *inputs = &tensor[0], *outputs = &tensor[1];
    bool small = true;
    for (int i = 0; i < MAX; i++)
        in[i] = (float)(i % 11) - 5;
    status = vme_session_new(context, model, &session);
    for (int i = 0; i < 2 && small && status == VME_OK; i++) {
        vme_port port;
        size_t size;
        if (i == 1)
            status = vme_session_plan(session, &inputs, &plan);
        if (status != VME_OK)
            break;
        vme_model_port(i == 0 ? model : plan, i == 1, 0, &port);
        for (int d = 0; d < port.rank && i == 0; d++)
            shape[d] = port.open != NULL && port.open[d] != NULL ? IMAGES : port.shape[d];
        small = vme_shape_bytes(VME_FLOAT32, port.rank, i == 0 ? shape : port.shape, strides[i], &size) == VME_OK
                && size <= sizeof in;
        tensor[i] = (vme_tensor){
            NULL, (char *)(i == 0 ? in : out), i == 0 ? shape : port.shape, strides[i], port.rank, VME_FLOAT32};
    }
    if (small && status == VME_OK) {
        status = vme_session_run(session, &inputs, &outputs);
        *last = out[0];
    }
    if (plan != NULL)
        vme_model_unref(plan);
    vme_session_free(session);
    vme_model_unref(model);
    return status;
}

static int charges, refuse_at;
static bool charge(void *owner, size_t bytes)
{
    (void)owner;
    return ++charges != refuse_at && bytes < 64u << 20;
}

static void check(vme_context *context, bool open, int rounds)
{
    build(open);
    float answer[8] = {0}, other = 0;
    /* every backend answers alike: small whole numbers are added up, so up to the mean's division */
    for (int backend = 0; backend < vme_backend_count(); backend++)
        if (vme_backend_available(backend)) {
            CHECK(vme_backend_force(backend) == VME_OK);
            CHECK(run(context, file, &answer[backend]) == VME_OK);
            CHECK(answer[backend] > answer[0] - 0.01f && answer[backend] < answer[0] + 0.01f && answer[0] != 0);
        }
    CHECK(vme_backend_force(-1) == VME_OK);
    /* each request to the account is refused once, then each to libc */
    charges = 0;
    CHECK(run(context, file, &other) == VME_OK);
    int min = charges;
    CHECK(min >= (open ? 4 : 2)); /* the weights, the arena; the front of the file and the plan */
    for (refuse_at = 1; refuse_at <= min; refuse_at++) {
        charges = 0;
        CHECK(run(context, file, &other) == VME_NO_MEMORY);
    }
    refuse_at = 0;
    long after = 0;
    for (bool failed = true; failed; after++) {
        failing_malloc(after);
        vme_status status = run(context, file, &other);
        failed = failing_malloc(-1);
        CHECK(status == (failed ? VME_NO_MEMORY : VME_OK));
        vme_statistics left;
        vme_context_statistics(context, &left);
        CHECK(left.live_bytes == 0 && left.buffers == 0);
    }
    CHECK(after > 10);
    vme_context_stop(context, true);
    CHECK(run(context, file, &other) == VME_STOPPED);
    vme_context_stop(context, false);
    uint64_t random = 88172645463325252u;
    const size_t records = file_size - (size_t)weights_size;
    unsigned char *damaged = malloc(file_size); /* a read beyond it is seen by the address sanitizer */
    int refused = 0;
    CHECK(damaged != NULL);
    for (int round = 0; round < rounds; round++) {
        memcpy(damaged, file, file_size);
        for (int change = 0; change < 1 + round % 3; change++) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            size_t index = (random >> 16) % records;
            damaged[index] =
                random & 1 ? (unsigned char)(damaged[index] + (random >> 8 & 3) - 1) : (unsigned char)(random >> 8);
        }
        vme_status status = run(context, damaged, &other);
        CHECK(status == VME_OK || status == VME_BAD_VALUE || status == VME_NO_MEMORY
              || (open && status == VME_BAD_SHAPE));
        refused += status != VME_OK;
    }
    CHECK(refused > rounds / 20);
    free(damaged);
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.live_bytes == 0);
}

/* ---- places in the arena */
static uint64_t noise = 88172645463325252u;
static uint32_t below(uint32_t max)
{
    noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
    return (uint32_t)(noise >> 33) % max;
}

/* Sums, maxima of windows and lower bounds of each other, at random: the answer is exact, so that any overlap shows in
 * it too. */
static void check_random_network(vme_context *context)
{
    enum { VALUES = 15, WIDE = 6, PLANES = 3, COUNT = PLANES * WIDE * WIDE };
    static float of[VALUES][COUNT], result[COUNT];
    uint32_t values[VALUES];
    model_file_begin();
    for (int v = 0; v < VALUES; v++)
        values[v] = value(4, 1, PLANES, WIDE, WIDE);
    for (int i = 0; i < COUNT; i++)
        of[0][i] = (float)below(9) - 4;
    for (uint32_t v = 1; v < VALUES; v++) {
        uint32_t a = below(v), b = below(v), kind = below(3);
        if (kind == 0)
            node(MODEL_ADD, 2, (uint32_t[]){values[a], values[b], values[v]});
        else if (kind == 1)
            node(MODEL_RELU, 1, (uint32_t[]){values[a], values[v]});
        else
            window(node(MODEL_MAX_POOL, 1, (uint32_t[]){values[a], values[v]}), 3, 1);
        for (int i = 0; i < COUNT; i++) {
            int plane = i / (WIDE * WIDE), y = i / WIDE % WIDE, x = i % WIDE;
            of[v][i] = kind == 0 ? of[a][i] + of[b][i] : kind == 1 && of[a][i] < 0 ? 0 : of[a][i];
            for (int dy = kind == 2 ? -1 : 2; dy <= 1; dy++)
                for (int dx = -1; dx <= 1; dx++)
                    if (y + dy >= 0 && y + dy < WIDE && x + dx >= 0 && x + dx < WIDE) {
                        float near = of[a][(plane * WIDE + y + dy) * WIDE + x + dx];
                        of[v][i] = near > of[v][i] ? near : of[v][i];
                    }
        }
    }
    model_file_end(values[0], values[VALUES - 1], false);
    vme_model *model;
    vme_session *session;
    CHECK(vme_model_new(context, file, file_size, &model) == VME_OK);
    CHECK(arena_is_sound(model));
    CHECK(vme_session_new(context, model, &session) == VME_OK);
    const int64_t shape[4] = {1, PLANES, WIDE, WIDE}, strides[4] = {COUNT * 4, WIDE * WIDE * 4, WIDE * 4, 4};
    const vme_tensor in = {NULL, (char *)of[0], shape, strides, 4, VME_FLOAT32},
                     out = {NULL, (char *)result, shape, strides, 4, VME_FLOAT32};
    const vme_tensor *inputs = &in, *outputs = &out;
    for (int again = 0; again < 2; again++) {
        CHECK(vme_session_run(session, &inputs, &outputs) == VME_OK);
        for (int i = 0; i < COUNT; i++)
            CHECK(result[i] == of[VALUES - 1][i]);
    }
    vme_session_free(session);
    vme_model_unref(model);
}

/* An activation makes the middle third of a concatenation: it reads and writes those channels alone. */
static void check_activation_beside_others(vme_context *context)
{
    enum { PARTS = 3, PLANES = 2, WIDE = 4, COUNT = PLANES * WIDE * WIDE };
    float given[COUNT], result[PARTS * COUNT];
    model_file_begin();
    uint32_t x = value(4, 1, PLANES, WIDE, WIDE), part[PARTS], y;
    for (int i = 0; i < PARTS; i++)
        part[i] = value(4, 1, PLANES, WIDE, WIDE);
    y = value(4, 1, PARTS * PLANES, WIDE, WIDE);
    node(MODEL_RELU, 1, (uint32_t[]){x, part[0]});
    node(MODEL_ACTIVATE, 1, (uint32_t[]){part[0], part[1]})->parameters[0] = CURVE_GELU;
    node(MODEL_ADD, 2, (uint32_t[]){x, x, part[2]});
    node(MODEL_CONCAT, PARTS, (uint32_t[]){part[0], part[1], part[2], y});
    model_file_end(x, y, false);
    vme_model *model;
    vme_session *session;
    CHECK(vme_model_new(context, file, file_size, &model) == VME_OK);
    CHECK(vme_session_new(context, model, &session) == VME_OK);
    for (int i = 0; i < COUNT; i++)
        given[i] = (float)(i % 5) * 20 - 40; /* far from 0 the curve is 0 or the number itself */
    const int64_t shape[4] = {1, PLANES, WIDE, WIDE}, more[4] = {1, PARTS * PLANES, WIDE, WIDE};
    const int64_t strides[4] = {COUNT * 4, WIDE * WIDE * 4, WIDE * 4, 4},
                  more_strides[4] = {PARTS * COUNT * 4, WIDE * WIDE * 4, WIDE * 4, 4};
    const vme_tensor in = {NULL, (char *)given, shape, strides, 4, VME_FLOAT32},
                     out = {NULL, (char *)result, more, more_strides, 4, VME_FLOAT32};
    const vme_tensor *inputs = &in, *outputs = &out;
    CHECK(vme_session_run(session, &inputs, &outputs) == VME_OK);
    for (int i = 0; i < COUNT; i++) {
        float rectified = given[i] > 0 ? given[i] : 0;
        CHECK(result[i] == rectified && result[COUNT + i] == rectified && result[2 * COUNT + i] == 2 * given[i]);
    }
    vme_session_free(session);
    vme_model_unref(model);
}

/* Views that have one element 2^40 times are a product of 2^80 numbers, which a model may have: what is told of it says
 * as many as it can. */
static void check_endless_product(vme_context *context)
{
    const int64_t many = (int64_t)1 << 40;
    model_file_begin();
    uint32_t x = value(1, 1, 0, 0, 0), y = value(1, 1, 0, 0, 0);
    const model_tensor_record of_x = {.dtype = VME_FLOAT32, .kind = MODEL_VIEW, .base = x},
                              of_y = {.dtype = VME_FLOAT32, .kind = MODEL_VIEW, .base = y};
    uint32_t a = tensor_add(of_x, 2, (const int64_t[]){1, many}), b = tensor_add(of_x, 2, (const int64_t[]){many, 1});
    node(MODEL_MATMUL, 2, (uint32_t[]){a, b, tensor_add(of_y, 3, (const int64_t[]){many, 1, 1})});
    model_file_end(x, y, false);
    vme_model *model;
    vme_step step;
    CHECK(vme_model_new(context, file, file_size, &model) == VME_OK);
    vme_model_step(model, 1, &step);
    CHECK(step.products == INT64_MAX);
    vme_model_unref(model);
}

int main(void)
{
    vme_context *context;
    vme_account account = {.charge = charge};
    CHECK(vme_context_new(&account, 0, &context) == VME_OK);
    check(context, false, 15000);
    check(context, true, 10000);
    for (int round = 0; round < 300; round++)
        check_random_network(context);
    check_activation_beside_others(context);
    check_endless_product(context);
    vme_context_unref(context);
    return 0;
}
