/* Every algorithm for convolutions on every backend against sums in float64: sizes that fill no tile and no square,
 * padding, several images, addends, values with wider margins than are asked for and channels of others beside theirs.
 * The same bytes on any number of threads. Where polls are counted (run.py engine none), a run is stopped at each of
 * its first looks at the flag, and at many later ones. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "models/convolution.h"
#include "models/model.h"
#include "models/tuning.h"

typedef struct shape {
    int64_t n, c, h, w, o;
    int window, stride, pad, margin;
    bool addend, relu;
} shape;
static const shape shapes[] = {
    {1, 5, 13, 17, 7, 3, 1, 1, 0, false, false},
    {1, 16, 8, 8, 32, 3, 1, 0, 0, true, true},
    {2, 33, 7, 7, 47, 3, 1, 1, 1, true, false},
    {1, 1, 1, 1, 1, 3, 1, 1, 0, false, true},
    {1, 3, 3, 3, 2, 3, 1, 0, 0, false, false},
    {3, 20, 1, 9, 40, 3, 1, 1, 2, true, true},
    {1, 400, 5, 6, 33, 3, 1, 1, 0, false, true},
    {1, 64, 30, 30, 64, 3, 1, 1, 0, true, true},
    {1, 3, 29, 31, 40, 7, 2, 3, 0, false, true},
    {2, 70, 7, 7, 70, 1, 1, 0, 0, true, true},
    {1, 17, 15, 15, 65, 5, 1, 2, 0, false, false},
    {1, 40, 14, 21, 33, 3, 2, 1, 1, true, true},
    {2, 16, 50, 61, 24, 3, 1, 1, 0, false, true},
    /* products of matrices: odd halves, several blocks of channels and of rows, an odd number of slivers, few rows */
    {1, 37, 13, 13, 97, 1, 1, 0, 0, false, true},
    {1, 1601, 1, 3, 65, 1, 1, 0, 0, true, false},
    {1, 5, 1, 1, 40, 1, 1, 0, 0, false, false},
    {1, 64, 17, 20, 130, 1, 1, 0, 0, true, true},
    {3, 770, 5, 4, 64, 1, 1, 0, 0, false, true},
    {1, 2, 1, 2, 33, 1, 1, 0, 0, true, true},
    {1, 96, 1, 31, 100, 1, 1, 0, 1, true, true},
};

static vme_context *context;
static vme_model model;
static model_value values[4];
static model_step step;
static char *arena;
static float *weights, *bias, *result, *again;

static float number(void)
{
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (float)(state >> 40) / (float)(1 << 23) - 1;
}

static int64_t lay_out(model_value *value, int64_t n, int64_t c, int64_t h, int64_t w, int64_t margin, int64_t offset)
{
    *value = (model_value){.rank = 4,
                           .n = n,
                           .c = c,
                           .h = h,
                           .w = w,
                           .top = margin,
                           .left = margin,
                           .bottom = margin,
                           .right = margin,
                           .offset = offset,
                           .container = -1};
    value->pixel_stride = c + 3 * margin;
    value->row_stride = (w + 2 * margin) * value->pixel_stride;
    value->image_stride = (h + 2 * margin) * value->row_stride;
    value->bytes = (n * value->image_stride * 4 + 63) / 64 * 64;
    return offset + value->bytes;
}

/* The pixels are numbers and the margin is 0, of a value that is read; what is written is filled with what must not
 * stay. */
static void fill(const model_value *value, bool read)
{
    float *data = (float *)(arena + value->offset);
    for (int64_t i = 0; i < value->n * value->image_stride; i++)
        data[i] = read ? 0 : NAN;
    for (int64_t n = 0; read && n < value->n; n++)
        for (int64_t y = 0; y < value->h; y++)
            for (int64_t x = 0; x < value->w; x++)
                for (int64_t i = 0; i < value->c; i++)
                    model_pixel(value, arena, n, y, x)[i] = number();
}

static void prepare(const shape *layer)
{
    int64_t h = (layer->h + 2 * layer->pad - layer->window) / layer->stride + 1,
            w = (layer->w + 2 * layer->pad - layer->window) / layer->stride + 1;
    int64_t size = lay_out(&values[0], layer->n, layer->c, layer->h, layer->w, layer->pad + layer->margin, 0);
    size = lay_out(&values[1], layer->n, layer->o, h, w, layer->margin, size);
    size = lay_out(&values[2], layer->n, layer->o, h, w, layer->margin * 2, size);
    int64_t k = layer->c * layer->window * layer->window;
    step = (model_step){
        .kind = STEP_CONV, .guard = -1, .in = 0, .out = 1, .addend = layer->addend ? 2 : -1, .scratch = 3, .k = k};
    step.bounds = (vme_bounds){layer->relu ? 0 : -INFINITY, INFINITY};
    const int32_t p[PARAMETERS_USED] = {layer->window,
                                        layer->window,
                                        layer->stride,
                                        layer->stride,
                                        layer->pad,
                                        layer->pad,
                                        layer->pad,
                                        layer->pad,
                                        1,
                                        1,
                                        1,
                                        layer->relu};
    memcpy(step.p, p, sizeof p);
    int64_t scratch = 0;
    model.fixed = true;
    CHECK(algorithm_choose(&model, &step, NULL, &scratch) == VME_OK);
    values[3] = (model_value){.offset = size, .bytes = scratch, .container = -1};
    arena = aligned_alloc(64, (size_t)(size + scratch + 63) / 64 * 64 + 64);
    weights = malloc((size_t)(layer->o * k) * 4);
    bias = malloc((size_t)layer->o * 4);
    int64_t packed = convolution_packed(model.kernels, &step, layer->o, layer->c, true);
    step.weights = aligned_alloc(64, (size_t)(packed * 4 + 63) / 64 * 64);
    result = malloc((size_t)values[1].bytes);
    again = malloc((size_t)values[1].bytes);
    CHECK(arena != NULL && weights != NULL && bias != NULL && step.weights != NULL && result != NULL && again != NULL);
    for (int64_t i = 0; i < layer->o * k; i++)
        weights[i] = number();
    for (int64_t i = 0; i < layer->o; i++)
        bias[i] = number();
    convolution_pack(model.kernels, &step, layer->o, layer->c, (const char *)weights, (const char *)bias);
    fill(&values[0], true);
    fill(&values[1], false);
    fill(&values[2], true);
    memset(arena + size, 0xff, (size_t)scratch);
}

static void release(void) { free(arena), free(weights), free(bias), free(step.weights), free(result), free(again); }

/* max|a - b| / max|b| of the result, b in float64 */
static double error_of(const shape *layer)
{
    double worst = 0, largest = 0;
    const model_value *in = &values[0], *out = &values[1];
    for (int64_t n = 0; n < out->n; n++)
        for (int64_t y = 0; y < out->h; y++)
            for (int64_t x = 0; x < out->w; x++)
                for (int64_t o = 0; o < layer->o; o++) {
                    double sum = bias[o];
                    for (int64_t i = 0; i < layer->window; i++)
                        for (int64_t j = 0; j < layer->window; j++) {
                            const float *from = model_pixel(in, arena, n, y * layer->stride - layer->pad + i,
                                                            x * layer->stride - layer->pad + j);
                            for (int64_t c = 0; c < layer->c; c++)
                                sum += (double)from[c]
                                       * weights[((o * layer->c + c) * layer->window + i) * layer->window + j];
                        }
                    if (layer->addend)
                        sum += model_pixel(&values[2], arena, n, y, x)[o];
                    if (layer->relu && sum < 0)
                        sum = 0;
                    double difference = fabs(sum - model_pixel(out, arena, n, y, x)[o]);
                    worst = difference > worst || difference != difference ? difference : worst;
                    largest = fabs(sum) > largest ? fabs(sum) : largest;
                }
    return largest > 0 ? worst / largest : worst;
}

#ifdef VME_POLLS
static long polls, stop_at;
void vme_polled(void)
{
    if (++polls == stop_at)
        vme_context_stop(context, true);
}
#endif

static void one(const shape *layer, int backend, int algorithm)
{
    prepare(layer);
    CHECK(convolution_run(context, &model, &step, arena) == VME_OK);
    double error = error_of(layer), max = step.algorithm == CONVOLUTION_DIRECT ? 2e-6 : 1e-5;
    if (!(error <= max)) {
        fprintf(stderr, "%s, %s: %lldx%lldx%lldx%lld, %lld outputs: wrong by %g\n", vme_backend_name(backend),
                vme_algorithm_name(algorithm), (long long)layer->n, (long long)layer->c, (long long)layer->h,
                (long long)layer->w, (long long)layer->o, error);
        exit(1);
    }
    memcpy(result, arena + values[1].offset, (size_t)values[1].bytes);
    if (vme_threads_set(2) == VME_OK) {
        int slots = step.slots;
        for (step.slots = 1; step.slots <= slots; step.slots++) { /* blocks each by one thread, or all by all */
            CHECK(convolution_run(context, &model, &step, arena) == VME_OK);
            CHECK(memcmp(result, arena + values[1].offset, (size_t)values[1].bytes) == 0);
        }
        step.slots = slots;
    }
#ifdef VME_POLLS
    CHECK(vme_threads_set(1) == VME_OK);
    polls = 0;
    CHECK(convolution_run(context, &model, &step, arena) == VME_OK);
    long all = polls;
    CHECK(all > 2);
    for (stop_at = 1; stop_at <= all; stop_at += stop_at < 20 ? 1 : all / 20 + 1) {
        polls = 0;
        vme_status status = convolution_run(context, &model, &step, arena);
        CHECK(status == VME_STOPPED || status == VME_OK); /* it was the last look, or session.c sees to it */
        CHECK(polls <= stop_at + 8);
        vme_context_stop(context, false);
    }
    stop_at = 0;
#endif
    release();
}

int main(void)
{
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    int threads = vme_threads();
    for (int backend = 0; backend < vme_backend_count(); backend++) {
        if (!vme_backend_available(backend))
            continue;
        CHECK(vme_backend_force(backend) == VME_OK);
        model = (vme_model){.kernels = vme_kernels_current(), .context = context, .values = 4, .value = values};
        for (int algorithm = -1; algorithm < vme_algorithm_count(); algorithm++) {
            CHECK(vme_algorithm_force(algorithm) == VME_OK);
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                CHECK(vme_threads_set(threads) == VME_OK);
                one(&shapes[i], backend, algorithm);
            }
        }
    }
    CHECK(vme_algorithm_force(vme_algorithm_count()) == VME_BAD_VALUE);
    CHECK(vme_algorithm_force(-1) == VME_OK);
    CHECK(vme_backend_force(-1) == VME_OK);
    vme_context_unref(context);
    puts("convolution: ok");
    return 0;
}
