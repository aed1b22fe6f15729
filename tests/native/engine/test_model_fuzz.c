/* Random model files: graphs of every operator over tensors, images, views and open sizes, then the same with numbers
 * that nobody should write, records exchanged, bytes damaged and ends cut off. A file is refused with one status and a
 * sentence, or is a model, whose values have places of their own and whose runs touch nothing but what is theirs
 * (inputs and outputs are blocks of exactly their sizes, which the address sanitizer watches). Of files that are whole,
 * outputs are the same bytes when no two values share memory at all, and with and without bands of rows. Memory that is
 * refused, by the account or by libc, and stops at any time end all that, and nothing stays charged.
 *
 *   test_model_fuzz [seed [rounds]]       the seed of a failure is printed
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hostile_files.h"
#include "model_arena.h"
#include "models/outside.h"
#include "random_graphs.h"
#include "vme_search.h"

enum { ROUNDS = 4000, MEMORY = 64 << 20, SIZES = 16 /* that calls choose from */ };

void *__real_malloc(size_t size); /* never fails here: what models work on */

static void say_seed(int signal_number)
{
    char line[64];
    /* glibc's does not allocate for these NOLINTNEXTLINE(bugprone-signal-handler) */
    int length = snprintf(line, sizeof line, "test_model_fuzz: seed %llu\n", (unsigned long long)seed_now);
    if (write(2, line, (size_t)length) == length)
        _exit(128 + signal_number);
}
static void say_seed_at_exit(void)
{
    if (seed_now != 0)
        fprintf(stderr, "test_model_fuzz: seed %llu\n", (unsigned long long)seed_now);
}

/* ---- runs */
static atomic_int charges, refuse_at, stop_at; /* helpers charge, too */
static vme_context *context;

static bool charge(void *owner, size_t bytes)
{
    (void)owner;
    const int number = atomic_fetch_add(&charges, 1) + 1;
    if (number == stop_at)
        vme_context_stop(context, true);
    return number != refuse_at && bytes <= MEMORY;
}

typedef struct block {
    char *data;
    size_t bytes;
    vme_tensor tensor;
    int64_t shape[VME_RANK_MAX], strides[VME_RANK_MAX];
} block;

/* false: it is too large. */
static bool block_for(block *result, const vme_port *port, const int64_t *sizes, bool filled)
{
    for (int d = 0; d < port->rank; d++)
        result->shape[d] = port->open != NULL && port->open[d] != NULL ? sizes[below(SIZES)] : port->shape[d];
    result->tensor = (vme_tensor){NULL, NULL, result->shape, result->strides, port->rank, port->dtype};
    if (vme_shape_bytes((vme_dtype)port->dtype, port->rank, result->shape, result->strides, &result->bytes) != VME_OK
        || result->bytes > LARGEST * 16)
        return false;
    result->data = result->tensor.data = __real_malloc(result->bytes);
    CHECK(result->data != NULL || result->bytes == 0);
    if (filled)
        fill(result->data, (int64_t)result->bytes / vme_dtype_size((vme_dtype)port->dtype), port->dtype, 5);
    else
        memset(result->data, 0, result->bytes);
    return true;
}

static bool is_small(const vme_model *model)
{
    int64_t all = 0;
    for (int v = 0; v < model->values; v++) {
        int64_t count = 1;
        for (int d = 0; d < model->value[v].rank && count <= LARGEST; d++)
            if (__builtin_mul_overflow(count, model->value[v].shape[d], &count))
                return false;
        all += count;
        if (count > LARGEST || all > 16 * LARGEST || model->value[v].bytes > 1 << 20)
            return false;
    }
    for (int s = 0; s < model->steps; s++) /* windows whose numbers are nearly all margin */
        if (model->step[s].kind != STEP_TENSOR && (model->step[s].p[KERNEL_H] > 64 || model->step[s].p[KERNEL_W] > 64))
            return false;
    return model->arena_bytes <= 1 << 24;
}

/* All figures of a model, computed ones too. */
static void look_at(const vme_model *model)
{
    for (int s = 0; s < vme_model_steps(model); s++) {
        vme_step step;
        vme_model_step(model, s, &step);
        CHECK(step.name != NULL && step.kind != NULL && step.algorithm != NULL && step.rank <= MODEL_RANK);
        (void)vme_model_expected(model, s);
    }
    CHECK(arena_is_sound(model));
}

/* Every value in a place of its own. */
static void spread(vme_model *model)
{
    int64_t at = outside_table_bytes(model);
    for (int v = 0; v < model->values; v++)
        if (model->value[v].kind == MODEL_COMPUTED && model->value[v].container < 0 && model->value[v].offset >= 0
            && model->value[v].outside == 0) {
            model->value[v].offset = at;
            at += model->value[v].bytes + 64;
        }
    for (int v = 0; v < model->values; v++)
        if (model->value[v].container >= 0) {
            int64_t offset = 0;
            int field = v;
            for (; model->value[field].container >= 0; field = model->value[field].container)
                offset += model->value[field].container_offset;
            model->value[v].offset = offset + model->value[field].offset;
        }
    model->arena_bytes = (size_t)at;
}

static void *stop_soon(void *argument)
{
    for (volatile int i = *(const int *)argument; i > 0; i--)
        ;
    vme_context_stop(context, true);
    return NULL;
}

/* One run, which may be stopped by another thread. */
static vme_status run_once(vme_session *session, const vme_tensor *const *inputs, const vme_tensor *const *outputs,
                           int stop_after)
{
    pthread_t stopper;
    if (stop_after >= 0)
        CHECK(pthread_create(&stopper, NULL, stop_soon, &stop_after) == 0);
    vme_status status = vme_session_run(session, inputs, outputs);
    if (stop_after >= 0) {
        pthread_join(stopper, NULL);
        vme_context_stop(context, false);
    }
    return status;
}

/* The answers of `other`, which is the same file, to the same inputs: the same bytes. */
static void compare_with(vme_model *other, unsigned flags, const vme_tensor *const *inputs,
                         const vme_tensor *const *outputs, char *const *answers, const block *result)
{
    vme_session *session;
    vme_model *plan;
    CHECK(vme_session_new(context, other, &session) == VME_OK && vme_session_options(session, 0, flags) == VME_OK);
    CHECK(vme_session_plan(session, inputs, &plan) == VME_OK);
    look_at(plan);
    CHECK(vme_session_run(session, inputs, outputs) == VME_OK);
    for (int i = 0; i < other->outputs; i++)
        CHECK(memcmp(answers[i], result[i].data, result[i].bytes) == 0);
    vme_model_unref(plan);
    vme_session_free(session);
}

/* `other`: what the outputs are compared with, or NULL; `flags` are the session's. */
static vme_status run_session(vme_session *session, const vme_model *model, const int64_t *sizes, vme_model *other,
                              unsigned flags, int stop_after)
{
    block blocks[2 * FILE_TENSORS] = {{0}};
    const vme_tensor *tensors_of[2 * FILE_TENSORS] = {NULL};
    vme_model *plan = NULL;
    vme_status status = VME_OK;
    int count = 0;
    bool small = true;
    for (int i = 0; i < model->inputs; i++, count++) {
        vme_port port;
        vme_model_port(model, false, i, &port);
        tensors_of[count] = &blocks[count].tensor;
        small = block_for(&blocks[count], &port, sizes, true) && small;
    }
    status = vme_session_plan(session, tensors_of, &plan);
    if (status == VME_OK) {
        look_at(plan);
        small = small && is_small(plan);
        for (int i = 0; i < model->outputs && small; i++, count++) {
            vme_port port;
            vme_model_port(plan, true, i, &port);
            tensors_of[count] = &blocks[count].tensor;
            small = block_for(&blocks[count], &port, sizes, false);
        }
    }
    if (status == VME_OK && small) {
        const vme_tensor *const *outputs = tensors_of + model->inputs;
        status = run_once(session, tensors_of, outputs, stop_after);
        if (status == VME_OK && other != NULL) {
            char *answers[FILE_TENSORS];
            for (int i = 0; i < model->outputs; i++) {
                answers[i] = __real_malloc(blocks[model->inputs + i].bytes);
                memcpy(answers[i], blocks[model->inputs + i].data, blocks[model->inputs + i].bytes);
            }
            compare_with(other, flags, tensors_of, outputs, answers, &blocks[model->inputs]);
            spread(plan);
            CHECK(vme_session_run(session, tensors_of, outputs) == VME_OK);
            for (int i = 0; i < model->outputs; i++) {
                CHECK(memcmp(answers[i], blocks[model->inputs + i].data, blocks[model->inputs + i].bytes) == 0);
                free(answers[i]);
            }
        }
    }
    if (plan != NULL)
        vme_model_unref(plan);
    for (int i = 0; i < count; i++)
        free(blocks[i].data);
    return status;
}

enum { WHOLE, HURT, DAMAGED, KINDS };
static int ran[KINDS], refused[KINDS];

/* The seed's file, prepared and run: always the same. */
static vme_status try_one(int *kind, int stop_after)
{
    state = seed_now;
    random_bits();
    const int backend = below(vme_backend_count());
    CHECK(vme_backend_force(vme_backend_available(backend) ? backend : -1) == VME_OK);
    CHECK(vme_algorithm_force(below(vme_algorithm_count() + 1) - 1) == VME_OK);
    build();
    *kind = one_in(3) ? WHOLE : one_in(3) ? DAMAGED : HURT;
    for (int i = *kind == HURT ? 1 + below(3) : 0; i > 0; i--)
        hurt();
    model_file_write();
    const size_t odd = one_in(4) ? (size_t)below(8) : 0,
                 size = *kind == DAMAGED && one_in(4) ? (size_t)below((int)file_size) : file_size;
    unsigned char *copy = __real_malloc(size + odd), *bytes = copy + odd;
    memcpy(bytes, file, size);
    const size_t records = size < file_size - (size_t)weights_size ? size : file_size - (size_t)weights_size;
    for (int i = *kind == DAMAGED && records > 0 ? 1 + below(4) : 0; i > 0; i--)
        if (one_in(3) && records > 8)
            memcpy(bytes + (size_t)below((int)records / 4) * 4, &(uint32_t){(uint32_t)hostile()}, 4);
        else
            bytes[below((int)records)] = (unsigned char)below(256);
    charges = 0;
    vme_model *model, *other = NULL;
    vme_session *session = NULL;
    vme_model_options options = {.fixed = !one_in(16), .bands = (vme_bands)(seed_now % 3)};
    vme_status status = vme_model_prepare(context, bytes, size, &options, &model);
    const int charged = charges;
    options.bands = options.bands == VME_BANDS_NEVER ? VME_BANDS_ALWAYS : VME_BANDS_NEVER;
    if (status == VME_OK && *kind == WHOLE && stop_after < 0 && refuse_at == 0 && stop_at == 0)
        CHECK(vme_model_prepare(context, bytes, size, &options, &other) == VME_OK);
    charges = charged;
    free(copy);
    if (status == VME_OK) {
        look_at(model);
        int64_t sizes[SIZES];
        const int64_t many = one_in(12) ? (int64_t)hostile() : below(5);
        for (int i = 0; i < SIZES; i++)
            sizes[i] = one_in(30) ? (int64_t)hostile() : one_in(10) ? below(5) : many;
        status = vme_session_new(context, model, &session);
        int threads = one_in(3) ? 1 + below(2) : 0;
#ifdef __SANITIZE_THREAD__
        if (*kind != WHOLE) /* a view can have one element in many places: its writers race, and harm nobody else */
            threads = 1;
#endif
        const unsigned flags = status == VME_OK && one_in(6) ? VME_FLUSH_SUBNORMALS : 0;
        if (status == VME_OK)
            CHECK(vme_session_options(session, threads, flags) == VME_OK);
        if (status == VME_OK)
            status = run_session(session, model, sizes, other, flags, stop_after);
        vme_session_free(session);
        if (other != NULL)
            vme_model_unref(other);
        vme_model_unref(model);
    }
    vme_context_stop(context, false);
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.live_bytes == 0 && statistics.buffers == 0);
    if (status != VME_OK)
        CHECK(strlen(vme_message()) > 0);
    return status;
}

/* Seeds that once failed: an activation wrote into channels beside its own. */
static const uint64_t kept[] = {1003729};
enum { KEPT = sizeof kept / sizeof *kept };

int main(int count, char **arguments)
{
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 0) : 20261122;
    int rounds = count > 2 ? atoi(arguments[2]) : ROUNDS, without = 0, stopped = 0;
    atexit(say_seed_at_exit);
    for (int i = 0; i < 4; i++)
        if (getenv("FUZZ_SIGNALS") != NULL)
            signal((int[]){SIGSEGV, SIGABRT, SIGFPE, SIGBUS}[i], say_seed);
    CHECK(vme_context_new(&(vme_account){.charge = charge}, 0, &context) == VME_OK);
    for (int round = -KEPT; round < rounds; round++) {
        int kind;
        seed_now = round < 0 ? kept[-1 - round] : first + (uint64_t)round;
        refuse_at = stop_at = 0;
        vme_status status = try_one(&kind, -1);
        CHECK(status != VME_STOPPED && status != VME_READ_ONLY && status != VME_BAD_AXIS);
        (status == VME_OK ? ran : refused)[kind]++;
        const int min = charges;
        if (seed_now % 4 == 0)
            for (int at = 1; at <= min; at++) {
                refuse_at = at;
                vme_status answer = try_one(&kind, -1);
                CHECK(answer == VME_NO_MEMORY || answer == status);
                without += answer == VME_NO_MEMORY;
                refuse_at = 0;
                stop_at = at;
                answer = try_one(&kind, -1);
                CHECK(answer == VME_STOPPED || answer == status);
                stopped += answer == VME_STOPPED;
                stop_at = 0;
            }
        if (seed_now % 8 == 1)
            for (long after = 0, failed = 1; failed; after++) {
                failing_malloc(after);
                refuse_at = -1;
                vme_status answer = try_one(&kind, -1);
                refuse_at = 0;
                failed = failing_malloc(-1);
                CHECK(answer == status || (failed && answer == VME_NO_MEMORY));
                without += answer == VME_NO_MEMORY;
            }
        if (seed_now % 8 == 2) {
            vme_status answer = try_one(&kind, below(20000));
            CHECK(answer == VME_STOPPED || answer == status);
            stopped += answer == VME_STOPPED;
        }
    }
    seed_now = 0;
    CHECK(vme_algorithm_force(-1) == VME_OK);
    vme_context_unref(context);
    printf("model fuzz: %d, %d, %d whole, hurt and damaged files ran, %d, %d, %d did not; %d times without memory, %d "
           "stopped\n",
           ran[WHOLE], ran[HURT], ran[DAMAGED], refused[WHOLE], refused[HURT], refused[DAMAGED], without, stopped);
    CHECK(rounds < 1000
          || (ran[WHOLE] > 4 * refused[WHOLE] && ran[HURT] > rounds / 50 && refused[HURT] > rounds / 10 && without > 0
              && stopped > 0));
    return 0;
}
