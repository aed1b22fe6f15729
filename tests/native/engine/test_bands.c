/* Steps done by bands of rows: random chains of windows, sums, parts and concatenations give the same bytes with and
 * without bands, by one thread and by two, on every backend, for one image and several. So does a network that is large
 * enough for bands to be chosen; each of its steps has its time. Memory that is refused and stops end it as anything
 * else.
 *
 *   test_bands [seed [rounds]]       the seed of a failure is printed
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model_arena.h"
#include "model_files.h"
#include "vme_search.h"

enum { ROUNDS = 400, NUMBERS = 1 << 21, VALUES = 14 };

static uint64_t state, seed_now;
static float in[NUMBERS], result[2][NUMBERS];

static void say_seed(void)
{
    if (seed_now != 0)
        fprintf(stderr, "test_bands: seed %llu\n", (unsigned long long)seed_now);
}

static int below(int max)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)(((state >> 29) ^ (state >> 47)) % (unsigned)max);
}

/* A node that reads `x`; its output, or MODEL_ABSENT: there is no room for its window. */
static uint32_t one_more(const uint32_t *values, int count, uint32_t x)
{
    const int64_t *of = tensors[x].shape;
    int64_t n = of[0], c = of[1], h = of[2], w = of[3];
    const int kind = below(10);
    model_node_record result_of = {0};
    int32_t *p = result_of.parameters;
    uint32_t list[6] = {x, MODEL_ABSENT, MODEL_ABSENT, MODEL_ABSENT}, inputs = 1, op;
    p[ACTIVATION] = below(3);
    memcpy(&p[LOW], (float[2]){-20, 30}, 8);
    if (kind < 6) {
        for (int d = 0; d < 2; d++) {
            p[KERNEL_H + d] = below(3) == 0 ? 1 + below(4) : kind == 5 ? 1 : 3;
            p[STRIDE_H + d] = below(4) == 0 ? 2 : 1;
            p[DILATION_H + d] = below(8) == 0 ? 2 : 1;
            int across = p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1;
            p[PAD_TOP + d] = below(across < 3 ? across : 3);
            p[PAD_BOTTOM + d] = below(across < 3 ? across : 3);
            int64_t left = of[2 + d] + p[PAD_TOP + d] + p[PAD_BOTTOM + d] - across;
            if (left < 0)
                return MODEL_ABSENT;
            *(d == 0 ? &h : &w) = left / p[STRIDE_H + d] + 1;
        }
        p[GROUPS] = 1;
    }
    if (kind < 2) {
        op = kind == 0 ? MODEL_MAX_POOL : MODEL_AVERAGE_POOL;
        p[COUNT_PADDING] = below(2);
    } else if (kind < 6) {
        op = MODEL_CONV;
        inputs = 2;
        if (kind == 2)
            p[GROUPS] = (int32_t)c;
        else
            c = 1 + below(40);
        list[1] = constant(4, c, of[1] / p[GROUPS], p[KERNEL_H], p[KERNEL_W]);
        if (below(2) == 0) {
            inputs = 3;
            list[2] = constant(1, c, 0, 0, 0);
        }
        for (int i = 0; i < count && inputs == 3; i++)
            if (tensors[values[i]].shape[1] == c && tensors[values[i]].shape[2] == h
                && tensors[values[i]].shape[3] == w) {
                inputs = 4;
                list[3] = values[i];
            }
    } else if (kind == 6) {
        op = MODEL_ADD;
        inputs = 2;
        list[1] = x;
        for (int i = 0; i < count; i++)
            if (memcmp(tensors[values[i]].shape, of, 32) == 0 && below(2) == 0)
                list[1] = values[i];
    } else if (kind == 7)
        op = MODEL_CLIP;
    else if (kind == 8) {
        op = MODEL_SLICE;
        p[CHANNEL] = below((int)c);
        c = 1 + below((int)c - p[CHANNEL]);
    } else {
        op = MODEL_CONCAT;
        inputs = 0;
        c = 0;
        for (int i = 0; i < count && inputs < 3; i++)
            if (tensors[values[i]].shape[2] == h && tensors[values[i]].shape[3] == w
                && c + tensors[values[i]].shape[1] < 80) {
                list[inputs++] = values[i];
                c += tensors[values[i]].shape[1];
            }
        if (inputs == 0)
            return MODEL_ABSENT;
    }
    if (n * c * h * w > NUMBERS / 8)
        return MODEL_ABSENT;
    list[inputs] = value(4, n, c, h, w);
    memcpy(node(op, inputs, list)->parameters, p, sizeof result_of.parameters);
    return list[inputs];
}

static void random_network(void)
{
    uint32_t values[VALUES];
    int count = 1;
    model_file_begin();
    values[0] = value(4, 1 + below(4) / 3, 1 + below(20), 5 + below(40), 3 + below(30));
    for (int tries = 0; count < VALUES && tries < 40; tries++) {
        uint32_t next = one_more(values, count, values[below(3) == 0 ? below(count) : count - 1]);
        if (next != MODEL_ABSENT)
            values[count++] = next;
    }
    model_file_end(values[0], values[count - 1], false);
}

/* Wide values between narrow ones, as networks have them: with bands where they pay. */
static void large_network(void)
{
    model_file_begin();
    uint32_t x = value(4, 1, 3, 113, 113), stem = value(4, 1, 64, 111, 111), pooled = value(4, 1, 64, 55, 55),
             wide = value(4, 1, 96, 55, 55);
    uint32_t each = value(4, 1, 96, 55, 55), narrow = value(4, 1, 16, 55, 55), left = value(4, 1, 64, 55, 55),
             right = value(4, 1, 64, 55, 55);
    uint32_t both = value(4, 1, 128, 55, 55), y = value(4, 1, 8, 55, 55);
    uint32_t w = constant(4, 64, 3, 3, 3), expand = constant(4, 96, 64, 1, 1), depthwise = constant(4, 96, 1, 3, 3),
             project = constant(4, 16, 96, 1, 1);
    uint32_t one = constant(4, 64, 16, 1, 1), three = constant(4, 64, 16, 3, 3), last = constant(4, 8, 128, 1, 1);
    window(node(MODEL_CONV, 2, (uint32_t[]){x, w, stem}), 3, 0);
    model_node_record *pool = node(MODEL_MAX_POOL, 1, (uint32_t[]){stem, pooled});
    window(pool, 3, 0);
    pool->parameters[STRIDE_H] = pool->parameters[STRIDE_W] = 2;
    window(node(MODEL_CONV, 2, (uint32_t[]){pooled, expand, wide}), 1, 0);
    model_node_record *apart = node(MODEL_CONV, 2, (uint32_t[]){wide, depthwise, each});
    window(apart, 3, 1);
    apart->parameters[GROUPS] = 96;
    window(node(MODEL_CONV, 2, (uint32_t[]){each, project, narrow}), 1, 0);
    window(node(MODEL_CONV, 2, (uint32_t[]){narrow, one, left}), 1, 0);
    window(node(MODEL_CONV, 2, (uint32_t[]){narrow, three, right}), 3, 1);
    node(MODEL_CONCAT, 2, (uint32_t[]){left, right, both});
    window(node(MODEL_CONV, 2, (uint32_t[]){both, last, y}), 1, 0);
    model_file_end(x, y, false);
}

/* A wide value of 28 rows, then 14 rows of output: too few to divide among threads. */
static void low_network(int images)
{
    model_file_begin();
    const uint32_t x = value(4, images, 64, 28, 28), wide = value(4, images, 384, 28, 28),
                   y = value(4, images, 384, 13, 13), expand = constant(4, 384, 64, 1, 1),
                   depthwise = constant(4, 384, 1, 3, 3);
    window(node(MODEL_CONV, 2, (uint32_t[]){x, expand, wide}), 1, 0);
    model_node_record *apart = node(MODEL_CONV, 2, (uint32_t[]){wide, depthwise, y});
    window(apart, 3, 0);
    apart->parameters[GROUPS] = 384;
    apart->parameters[STRIDE_H] = apart->parameters[STRIDE_W] = 2;
    model_file_end(x, y, false);
}

static vme_context *context;
static int charges, refuse_at;
static bool charge(void *owner, size_t bytes)
{
    (void)owner;
    return ++charges != refuse_at && bytes < 256u << 20;
}

static int chains_of(const vme_model *model)
{
    int chains = 0;
    for (int s = 0; s < model->steps; s++)
        chains += model->step[s].chain.steps > 0;
    return chains;
}

/* Runs the file; chains, which may be none, are counted. `ns` of the steps, or NULL. */
static vme_status run(vme_bands bands, int threads, float *to, int *chains, uint64_t *ns)
{
    vme_model *model;
    vme_session *session = NULL;
    vme_port ports_of[2];
    int64_t strides[2][VME_RANK_MAX];
    size_t bytes;
    vme_status status =
        vme_model_prepare(context, file, file_size, &(vme_model_options){.fixed = true, .bands = bands}, &model);
    if (status != VME_OK)
        return status;
    CHECK(arena_is_sound(model));
    *chains = chains_of(model);
    vme_tensor tensor[2];
    const vme_tensor *inputs = &tensor[0], *outputs = &tensor[1];
    for (int i = 0; i < 2; i++) {
        vme_model_port(model, i == 1, 0, &ports_of[i]);
        CHECK(vme_shape_bytes(VME_FLOAT32, 4, ports_of[i].shape, strides[i], &bytes) == VME_OK && bytes <= sizeof in);
        tensor[i] = (vme_tensor){NULL, (char *)(i == 0 ? in : to), ports_of[i].shape, strides[i], 4, VME_FLOAT32};
    }
    memset(to, 0x7f, bytes);
    status = vme_session_new(context, model, &session);
    if (status == VME_OK)
        status = vme_session_options(session, threads, 0);
    for (int again = 0; status == VME_OK && again < 2; again++) /* what a run leaves is no matter for the next one */
        status = ns == NULL ? vme_session_run(session, &inputs, &outputs)
                            : vme_session_profile(session, &inputs, &outputs, ns);
    vme_session_free(session);
    vme_model_unref(model);
    return status;
}

static int alike(vme_bands bands, int threads)
{
    int chains, none;
    CHECK(run(VME_BANDS_NEVER, threads, result[0], &none, NULL) == VME_OK && none == 0);
    CHECK(run(bands, threads, result[1], &chains, NULL) == VME_OK);
    /* the same bytes NOLINTNEXTLINE(bugprone-suspicious-memory-comparison) */
    CHECK(memcmp(result[0], result[1], sizeof result[0]) == 0);
    return chains;
}

/* A chain must not cost more threads than it saves memory traffic. */
static void few_rows(void)
{
    const int threads = vme_threads();
    for (int images = 1; images <= 2; images++)
        for (int used = 1; used <= 2 && used <= threads; used++) {
            CHECK(vme_threads_set(used) == VME_OK);
            low_network(images);
            CHECK((alike(VME_BANDS_WHERE_THEY_PAY, used) > 0) == (images % used == 0));
        }
    CHECK(vme_threads_set(threads) == VME_OK);
}

static void *stop_soon(void *argument)
{
    for (volatile int i = *(const int *)argument; i > 0; i--)
        ;
    vme_context_stop(context, true);
    return NULL;
}

int main(int count, char **arguments)
{
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 0) : 20261122;
    int rounds = count > 2 ? atoi(arguments[2]) : ROUNDS, chains = 0;
    atexit(say_seed);
    CHECK(vme_context_new(&(vme_account){.charge = charge}, 0, &context) == VME_OK);
    for (int i = 0; i < NUMBERS; i++)
        in[i] = (float)(i * 37 % 101) / 50 - 1;
    for (int round = 0; round < rounds; round++) {
        state = seed_now = first + (uint64_t)round;
        const int backend = below(vme_backend_count());
        CHECK(vme_backend_force(vme_backend_available(backend) ? backend : -1) == VME_OK);
        CHECK(vme_algorithm_force(below(vme_algorithm_count() + 1) - 1) == VME_OK);
        random_network();
        chains += alike(VME_BANDS_ALWAYS, 1 + below(2));
    }
    seed_now = 0;
    CHECK(rounds < ROUNDS || chains > rounds / 2);
    CHECK(vme_backend_force(-1) == VME_OK && vme_algorithm_force(-1) == VME_OK);
    large_network();
    for (int threads = 1; threads <= 2; threads++)
        CHECK(alike(VME_BANDS_WHERE_THEY_PAY, threads) > 0 && alike(VME_BANDS_ALWAYS, threads) > 0);
    uint64_t ns[FILE_NODES] = {0};
    CHECK(run(VME_BANDS_WHERE_THEY_PAY, 2, result[1], &chains, ns) == VME_OK);
    for (int s = 0; s < 11; s++)
        CHECK((s == 8) == (ns[s] < 100)); /* the concatenation takes no time */
    few_rows();
    large_network();
    charges = 0;
    CHECK(run(VME_BANDS_WHERE_THEY_PAY, 1, result[1], &chains, NULL) == VME_OK);
    const int min = charges;
    for (refuse_at = 1; refuse_at <= min; refuse_at++) {
        charges = 0;
        CHECK(run(VME_BANDS_WHERE_THEY_PAY, 1, result[1], &chains, NULL) == VME_NO_MEMORY);
    }
    refuse_at = 0;
    long after = 0;
    for (bool failed = true; failed; after++) {
        failing_malloc(after);
        vme_status status = run(VME_BANDS_WHERE_THEY_PAY, 1, result[1], &chains, NULL);
        failed = failing_malloc(-1);
        CHECK(status == (failed ? VME_NO_MEMORY : VME_OK));
    }
    CHECK(min >= 2 && after > 5);
    int stopped = 0;
    for (int wait = 1000; wait < 4000000; wait = wait * 3 / 2) {
        pthread_t stopper;
        CHECK(pthread_create(&stopper, NULL, stop_soon, &wait) == 0);
        vme_status status = run(VME_BANDS_WHERE_THEY_PAY, 2, result[1], &chains, NULL);
        pthread_join(stopper, NULL);
        vme_context_stop(context, false);
        CHECK(status == VME_OK || status == VME_STOPPED);
        stopped += status == VME_STOPPED;
    }
    CHECK(stopped > 0);
    vme_context_unref(context);
    return 0;
}
