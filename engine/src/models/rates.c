/* Estimates the cost of a step as Q / P + S. Q is the work, counted; P the rates, built in or measured once by running
 * small convolutions of zeros; S the cost of starting a step. Q counts products of full tiles (a partial tile costs at
 * least as much as one of RATES_ROWS_MIN rows, and each tile RATES_TILE_ROWS rows more), Winograd points and other
 * sums, and bytes of weights and of copies. Weights are prefetched during products (vme_gemm_layer), so the longer of
 * these two counts.
 *
 * All costs are those of one core: dividing work among threads does not change which algorithm is best. */
#include "models/rates.h"
#include "models/attention.h"
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rows.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS_MAX = 9, ROUNDS_MIN = 2 }; /* timed runs of each trial */
static const double RATE_RATIO_MAX = 16; /* limit of the ratio between measured and built-in rates */
static const double ROUNDS_NS = 1.5e6;   /* time for the rounds of one algorithm */

static const vme_gemm_kernel *kernel_of(const vme_kernels *kernels) { return &kernels->gemm.of[VME_FLOAT32]; }

/* ---- Q and its cost */
double rates_tile_rows(const vme_gemm_kernel *kernel, int64_t rows)
{
    const int64_t tiles = ceil_div(rows, kernel->rows), tile_rows = ceil_div(rows, tiles);
    return (double)(tiles * ((tile_rows < RATES_ROWS_MIN ? RATES_ROWS_MIN : tile_rows) + RATES_TILE_ROWS))
           * kernel->rows / (kernel->rows + RATES_TILE_ROWS);
}

double rates_cost(const rates_work *work, const double rates[VME_RATES])
{
    const double products = work->of[VME_RATE_PRODUCTS] / rates[VME_RATE_PRODUCTS],
                 weights = work->of[VME_RATE_WEIGHTS] / rates[VME_RATE_WEIGHTS];
    double ns = RATES_START_NS + (products > weights ? products : weights);
    for (int i = 0; i < VME_RATES; i++)
        ns += i == VME_RATE_PRODUCTS || i == VME_RATE_WEIGHTS ? 0 : work->of[i] / rates[i];
    return ns;
}

/* ---- trials */
/* CPU time of this thread, so that other load on the machine does not count. */
static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static void *zeroed_scratch(vme_context *context, size_t bytes)
{
    void *memory = vme_scratch_new(context, bytes);
    if (memory != NULL)
        memset(memory, 0, bytes);
    return memory;
}

void trial_end(algorithm_trial *trial)
{
    if (trial->arena != NULL)
        vme_scratch_free(trial->model.context, trial->arena, trial->arena_bytes);
    if (trial->weights != NULL)
        vme_scratch_free(trial->model.context, trial->weights, trial->weights_bytes);
}

static int64_t aligned(int64_t bytes) { return (bytes + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT; }

/* Places the value at this offset of the trial's arena, with its own layout, even if another value contains it. Returns
 * its end. */
static int64_t place_value(model_value *value, int64_t offset, bool is_image)
{
    value->kind = MODEL_COMPUTED;
    value->container = -1;
    value->outside = 0;
    value->offset = offset;
    if (is_image)
        return offset + aligned(value->n * value->image_stride * (int64_t)sizeof(float));
    int64_t size = sizeof(float);
    for (int d = 0; d < value->rank; d++) {
        const int64_t span = (value->shape[d] - 1) * value->strides[d];
        size += span < 0 ? -span : span;
        value->offset -= span < 0 ? span : 0;
    }
    return offset + aligned(size);
}

size_t trial_lay_out(algorithm_trial *trial, vme_context *context, const vme_kernels *kernels,
                     const model_value *values, const model_step *step, model_algorithm algorithm)
{
    *trial = (algorithm_trial){.model = {.context = context, .kernels = kernels, .value = trial->value}, .step = *step};
    int *used[TRIAL_VALUES] = {&trial->step.in, &trial->step.addend, &trial->step.out};
    const bool convolution = step->kind == STEP_CONV;
    int64_t offset = 0;
    for (int i = 0; i < TRIAL_OPERANDS; i++)
        used[3 + i] = &trial->step.operand[i];
    for (int i = 0; i < (convolution ? 3 : TRIAL_VALUES - 1); i++)
        if (*used[i] >= 0) {
            trial->value[i] = values[*used[i]];
            offset = place_value(&trial->value[i], offset, convolution);
            *used[i] = i;
        }
    trial->step.scratch = TRIAL_VALUES - 1;
    trial->step.algorithm = algorithm;
    trial->value[trial->step.scratch].offset = offset;
    offset +=
        convolution ? convolution_scratch(&trial->model, &trial->step) : attention_scratch(&trial->model, &trial->step);
    trial->arena_bytes = (size_t)offset;
    if (convolution) {
        trial->outputs = values[step->out].c;
        trial->channels = values[step->in].c / step->p[GROUPS];
        trial->weights_bytes =
            (size_t)convolution_packed(kernels, &trial->step, trial->outputs, trial->channels, true) * sizeof(float);
    }
    return trial->arena_bytes + trial->weights_bytes;
}

vme_status trial_begin(algorithm_trial *trial)
{
    vme_context *context = trial->model.context;
    trial->arena = zeroed_scratch(context, trial->arena_bytes);
    if (trial->arena == NULL || trial->step.kind != STEP_CONV)
        return trial->arena == NULL ? VME_NO_MEMORY : VME_OK;
    trial->weights = zeroed_scratch(context, trial->weights_bytes);
    if (trial->weights == NULL)
        return VME_NO_MEMORY;
    trial->step.weights = trial->weights;
    trial->step.bias = trial->step.weights
                       + convolution_packed(trial->model.kernels, &trial->step, trial->outputs, trial->channels, false);
    return VME_OK;
}

static vme_status trial_run(algorithm_trial *trial)
{
    double began_ns = now_ns();
    vme_status status = (trial->step.kind == STEP_CONV ? convolution_run : attention_run)(
        trial->model.context, &trial->model, &trial->step, trial->arena);
    double ns = now_ns() - began_ns;
    trial->best_ns = trial->best_ns == 0 || ns < trial->best_ns ? ns : trial->best_ns;
    return status;
}

vme_status trials_run(algorithm_trial *trials, int count)
{
    /* all trials use one backend */
    const vme_thread_options before =
        vme_thread_options_set((vme_thread_options){.threads = 1, .kernels = trials->model.kernels});
    vme_status status = VME_OK;
    for (int i = 0; status == VME_OK && i < count; i++) {
        status = trial_run(&trials[i]);
        trials[i].best_ns = 0; /* discarded: the first run faults in its memory */
    }
    double spent_ns = 0;
    for (int round = 0; status == VME_OK && round < ROUNDS_MAX && (round < ROUNDS_MIN || spent_ns < ROUNDS_NS * count);
         round++) {
        double began_ns = now_ns();
        for (int i = 0; status == VME_OK && i < count; i++)
            status = trial_run(&trials[i]);
        spent_ns += now_ns() - began_ns;
    }
    vme_thread_options_set(before);
    return status;
}

/* ---- P */
enum { BACKENDS_MAX = 8 };
static struct {
    pthread_mutex_t lock;
    struct {
        const vme_kernels *kernels;
        double rates[VME_RATES];
    } entries[BACKENDS_MAX]; /* kernels NULL: a free entry */
} measured = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Index of the backend's entry, existing or new. Called with the lock held. */
static int entry_of(const vme_kernels *kernels)
{
    int entry = 0;
    while (entry < BACKENDS_MAX - 1 && measured.entries[entry].kernels != NULL
           && measured.entries[entry].kernels != kernels)
        entry++;
    return entry;
}

void rates_fixed(const vme_kernels *kernels, double rates[VME_RATES])
{
    const double tile = RATES_TILE * kernel_of(kernels)->columns;
    rates[VME_RATE_PRODUCTS] = tile;
    rates[VME_RATE_POINTS_2] = tile / RATES_POINT_2;
    rates[VME_RATE_POINTS_4] = tile / RATES_POINT_4;
    rates[VME_RATE_WEIGHTS] = RATES_WEIGHT_BYTES;
    rates[VME_RATE_BYTES] = RATES_BYTES;
}

void vme_rates_fixed(double rates[VME_RATES]) { rates_fixed(vme_kernels_current(), rates); }

static void make_image(model_value *value, int64_t side, int64_t channels, int64_t margin)
{
    *value = (model_value){.kind = MODEL_COMPUTED,
                           .dtype = VME_FLOAT32,
                           .rank = 4,
                           .n = 1,
                           .c = channels,
                           .h = side,
                           .w = side,
                           .container = -1,
                           .top = margin,
                           .left = margin,
                           .bottom = margin,
                           .right = margin,
                           .pixel_stride = channels,
                           .row_stride = (side + 2 * margin) * channels,
                           .image_stride = (side + 2 * margin) * (side + 2 * margin) * channels};
}

/* Derives one rate from one run: the time left after the work of the other kinds, at the rates known so far, is spent
 * on this kind. If the result is out of bounds, the built-in rate stays. */
static void rate_from(double rates[VME_RATES], vme_rate rate, const rates_work *work, double ns)
{
    rates_work others = *work;
    others.of[rate] = 0;
    /* products and weights overlap; the run is one in which this kind takes longer */
    if (rate == VME_RATE_PRODUCTS || rate == VME_RATE_WEIGHTS)
        others.of[VME_RATE_PRODUCTS] = others.of[VME_RATE_WEIGHTS] = 0;
    double rest_ns = ns - rates_cost(&others, rates);
    double measured_rate = rest_ns > 0 ? work->of[rate] / rest_ns : 0;
    if (rate == VME_RATE_WEIGHTS) /* at most the built-in rate: the weights of this run may all be in a large L3 */
        measured_rate = measured_rate / RATES_FARTHER < rates[rate] ? measured_rate / RATES_FARTHER : rates[rate];
    if (measured_rate > rates[rate] / RATE_RATIO_MAX && measured_rate < rates[rate] * RATE_RATIO_MAX)
        rates[rate] = measured_rate;
}

static vme_status measure(const vme_kernels *kernels, double rates[VME_RATES])
{
    enum { SHAPES = 4 };
    static const struct {
        int side, channels;
        model_algorithm algorithm;
        vme_rate rate;
    } shapes[SHAPES] = {
        {28, 64, CONVOLUTION_DIRECT, VME_RATE_PRODUCTS},
        {2, 384, CONVOLUTION_DIRECT, VME_RATE_WEIGHTS},
        {56, 64, CONVOLUTION_WINOGRAD_2, VME_RATE_POINTS_2},
        {56, 64, CONVOLUTION_WINOGRAD_4, VME_RATE_POINTS_4},
    };
    algorithm_trial *trials = calloc(SHAPES, sizeof *trials);
    vme_context *context = NULL; /* charged to no task: rates belong to the machine */
    vme_status status =
        trials == NULL ? vme_fail(VME_NO_MEMORY, "no memory for measuring") : vme_context_new(NULL, 0, &context);
    int started = 0;
    for (; status == VME_OK && started < SHAPES; started++) {
        model_value values[2];
        const int channels = shapes[started].channels;
        model_step step = {.kind = STEP_CONV,
                           .in = 0,
                           .out = 1,
                           .addend = -1,
                           .k = 9 * channels,
                           .bounds = {0, __builtin_inff()},
                           .p = {[KERNEL_H] = 3,
                                 [KERNEL_W] = 3,
                                 [STRIDE_H] = 1,
                                 [STRIDE_W] = 1,
                                 [PAD_TOP] = 1,
                                 [PAD_LEFT] = 1,
                                 [PAD_BOTTOM] = 1,
                                 [PAD_RIGHT] = 1,
                                 [DILATION_H] = 1,
                                 [DILATION_W] = 1,
                                 [GROUPS] = 1,
                                 [ACTIVATION] = ACTIVATION_RELU}};
        make_image(&values[0], shapes[started].side, channels, 1);
        make_image(&values[1], shapes[started].side, channels, 0);
        (void)trial_lay_out(&trials[started], context, kernels, values, &step, shapes[started].algorithm);
        status = trial_begin(&trials[started]);
    }
    if (status == VME_OK)
        status = trials_run(trials, SHAPES);
    rates_fixed(kernels, rates);
    for (int i = 0; status == VME_OK && i < SHAPES; i++) {
        rates_work work = convolution_algorithm_of(shapes[i].algorithm)
                              ->work(kernels, &trials[i].value[0], &trials[i].value[2], &trials[i].step);
        rate_from(rates, shapes[i].rate, &work, trials[i].best_ns);
    }
    rates[VME_RATE_BYTES] = rates[VME_RATE_WEIGHTS];
    while (started-- > 0)
        trial_end(&trials[started]);
    free(trials);
    if (context != NULL)
        vme_context_unref(context);
    return status;
}

vme_status rates_measured(const vme_kernels *kernels, double rates[VME_RATES])
{
    vme_status status = VME_OK;
    pthread_mutex_lock(&measured.lock);
    int entry = entry_of(kernels);
    if (measured.entries[entry].kernels == kernels)
        memcpy(rates, measured.entries[entry].rates, sizeof measured.entries[entry].rates);
    else if ((status = measure(kernels, rates)) == VME_OK) {
        memcpy(measured.entries[entry].rates, rates, sizeof measured.entries[entry].rates);
        measured.entries[entry].kernels = kernels;
    }
    pthread_mutex_unlock(&measured.lock);
    return status;
}

vme_status vme_rates_measured(double rates[VME_RATES]) { return rates_measured(vme_kernels_current(), rates); }

vme_status vme_rates_set(const double rates[VME_RATES])
{
    double fixed[VME_RATES];
    vme_rates_fixed(fixed);
    for (int i = 0; i < VME_RATES; i++)
        if (!(rates[i] > fixed[i] / RATE_RATIO_MAX && rates[i] < fixed[i] * RATE_RATIO_MAX))
            return vme_fail(VME_BAD_VALUE,
                            "rate %d: %g a nanosecond is implausible for a core; the built-in rate is %g", i, rates[i],
                            fixed[i]);
    pthread_mutex_lock(&measured.lock);
    int entry = entry_of(vme_kernels_current());
    memcpy(measured.entries[entry].rates, rates, sizeof measured.entries[entry].rates);
    measured.entries[entry].kernels = vme_kernels_current();
    pthread_mutex_unlock(&measured.lock);
    return VME_OK;
}

double rates_algorithm(const vme_model *model, const vme_kernels *kernels, const model_step *step,
                       model_algorithm algorithm, const double rates[VME_RATES])
{
    const model_value *out = &model->value[step->out];
    rates_work work;
    if (step->kind != STEP_CONV)
        work = attention_work(kernels, model, step, algorithm);
    else {
        work = convolution_algorithm_of(algorithm)->work(kernels, &model->value[step->in], out, step);
        /* the direct algorithm applies the curve while a tile is in cache; others read and write the output again */
        if (algorithm != CONVOLUTION_DIRECT && model_curve_of(model, step) != NULL)
            work.of[VME_RATE_BYTES] += 2 * sizeof(float) * (double)(out->n * out->h * out->w) * (double)out->c;
    }
    return rates_cost(&work, rates);
}

double rates_step(const vme_model *model, int number, const double rates[VME_RATES])
{
    vme_step description;
    vme_model_step(model, number, &description);
    const rates_work work = {
        {[VME_RATE_PRODUCTS] = (double)description.products, [VME_RATE_BYTES] = (double)description.bytes}};
    return model->step[number].kind == STEP_NOTHING ? 0 : rates_cost(&work, rates);
}

double vme_model_expected(const vme_model *model, int number)
{
    const model_step *step = &model->step[number];
    double rates[VME_RATES];
    if (step->idle)
        return 0;
    rates_fixed(model->kernels, rates);
    if (!model->fixed) /* if memory is short, the rates remain the built-in ones or close to them */
        (void)rates_measured(model->kernels, rates);
    return step->kind == STEP_CONV || model_is_attention(step)
               ? rates_algorithm(model, model->kernels, step, step->algorithm, rates)
               : rates_step(model, number, rates);
}
