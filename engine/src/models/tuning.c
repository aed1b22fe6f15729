/* Semi-automatic search: chooses the algorithm of each convolution, each product with constant weights and each
 * attention by its expected cost (rates.c; Walle, OSDI '22, section 4.2):
 *
 *     C(operator, backend) = min over algorithms of Q / P + S
 *
 * The cost is summed over a model's operators for each backend, and the backend with the lowest total is used.
 *
 * If the expected costs of the best algorithms are nearly equal, they are timed, once in a process for each shape, so
 * that a process always makes the same choice. */
#include "models/tuning.h"
#include "models/attention.h"
#include "models/convolution.h"
#include "models/file.h"
#include "models/model.h"
#include "models/rates.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { TIES_MAX = 256, SHAPE_SIZE = 16, TRIALS_BYTES_MAX = 256 << 20 };

/* ---- the algorithms */
static atomic_int forced = -1;

int vme_algorithm_count(void) { return MODEL_ALGORITHMS; }

const char *vme_algorithm_name(int algorithm)
{
    return algorithm < 0 || algorithm >= MODEL_ALGORITHMS ? ""
           : algorithm < CONVOLUTION_ALGORITHMS           ? convolution_algorithm_of((model_algorithm)algorithm)->name
                                                          : attention_name((model_algorithm)algorithm);
}

vme_status vme_algorithm_force(int algorithm)
{
    if (algorithm < -1 || algorithm >= MODEL_ALGORITHMS)
        return vme_fail(VME_BAD_VALUE, "there is no algorithm %d; there are %d", algorithm, MODEL_ALGORITHMS);
    atomic_store(&forced, algorithm);
    return VME_OK;
}

/* The algorithms of a step's kind, of which the first one is always possible. Empty: there is no choice. */
typedef struct algorithm_range {
    int first, end;
} algorithm_range;
static algorithm_range algorithms_of(const model_step *step)
{
    return step->kind == STEP_CONV    ? (algorithm_range){CONVOLUTION_DIRECT, CONVOLUTION_ALGORITHMS}
           : model_is_attention(step) ? (algorithm_range){ATTENTION_FUSED, MODEL_ALGORITHMS}
                                      : (algorithm_range){0, 0};
}

static const model_value *addend_of(const vme_model *model, const model_step *step)
{
    return step->addend < 0 ? NULL : &model->value[step->addend];
}

static bool possible(const vme_model *model, const vme_kernels *kernels, const model_step *step,
                     model_algorithm algorithm)
{
    return step->kind != STEP_CONV
           || convolution_algorithm_of(algorithm)->possible(kernels, &model->value[step->in], addend_of(model, step),
                                                            &model->value[step->out], step);
}

/* Bytes by which an algorithm's packed weights exceed plain ones. Only Strassen's algorithm counts, because it gains
 * little by them. A trial does not show what reading them costs in a network, where they come from memory: assume no
 * overlap with compute. */
static int64_t extra_bytes_of(const vme_model *model, const model_step *step, model_algorithm algorithm)
{
    return algorithm == CONVOLUTION_STRASSEN
               ? strassen_extra_bytes(model->kernels, step, model->value[step->out].c, model->value[step->in].c)
               : 0;
}

/* ---- choices */
/* A near tie that this process has broken, and the result. */
typedef struct tie {
    const vme_kernels *kernels;
    int64_t shape[SHAPE_SIZE];
    model_algorithm algorithm;
} tie;
static struct {
    pthread_mutex_t lock;
    int count;
    tie entries[TIES_MAX];
} ties = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Writes everything that determines the times of a step's algorithms. The candidates, which are all of one kind, come
 * last. */
static void write_shape(const vme_model *model, const model_step *step, int64_t candidates, int64_t shape[SHAPE_SIZE])
{
    const model_value *out = &model->value[step->out];
    const int32_t *p = step->p;
    memset(shape, 0, SHAPE_SIZE * sizeof *shape);
    shape[SHAPE_SIZE - 1] = candidates;
    if (step->kind == STEP_CONV) {
        const model_value *in = &model->value[step->in];
        const int64_t values[] = {in->n,
                                  in->h,
                                  in->w,
                                  in->c,
                                  out->h,
                                  out->w,
                                  step->addend < 0 ? out->c : -out->c,
                                  p[KERNEL_H],
                                  p[KERNEL_W],
                                  p[DILATION_H],
                                  p[DILATION_W],
                                  p[GROUPS]};
        memcpy(shape, values, sizeof values);
        return;
    }
    const model_value *operands[] = {&model->value[step->operand[0]], &model->value[step->operand[1]],
                                     &model->value[step->operand[2]], out};
    *shape++ = step->operand[3] >= 0;
    for (int i = 0; i < 4; i++, shape += 3) {
        shape[0] = operands[i]->shape[operands[i]->rank - 1];
        memcpy(shape + 1, operands[i]->strides + operands[i]->rank - 2, 2 * sizeof *shape);
    }
    shape[0] = out->shape[out->rank - 2];
    shape[1] = 1;
    for (int d = 0; d < out->rank - 2; d++)
        shape[1] *= out->shape[d];
}

/* Times the candidates. `chosen` is the expected best one on entry and the measured best one on return. It stays the
 * expected one if the trials of a large step would take more than TRIALS_BYTES_MAX together: open sizes can make a step
 * far larger here than in any call. */
static vme_status break_tie(const vme_model *model, const model_step *step, const bool is_candidate[MODEL_ALGORITHMS],
                            const double rates[VME_RATES], model_algorithm *chosen)
{
    int64_t candidates = 0;
    for (int i = 0; i < MODEL_ALGORITHMS; i++)
        candidates |= (int64_t)is_candidate[i] << i;
    tie new_tie = {.kernels = model->kernels};
    write_shape(model, step, candidates, new_tie.shape);
    vme_status status = VME_OK;
    pthread_mutex_lock(&ties.lock);
    for (int i = 0; i < ties.count; i++)
        if (ties.entries[i].kernels == new_tie.kernels
            && memcmp(ties.entries[i].shape, new_tie.shape, sizeof new_tie.shape) == 0) {
            *chosen = ties.entries[i].algorithm;
            goto done;
        }
    algorithm_trial *trials = calloc(MODEL_ALGORITHMS, sizeof *trials);
    int count = 0;
    if (trials == NULL) {
        status = vme_fail(VME_NO_MEMORY, "no memory for a model");
        goto done;
    }
    size_t bytes = 0;
    for (int i = 0; i < MODEL_ALGORITHMS; i++)
        if (is_candidate[i])
            bytes +=
                trial_lay_out(&trials[count++], model->context, model->kernels, model->value, step, (model_algorithm)i);
    if (bytes > TRIALS_BYTES_MAX) {
        free(trials);
        goto done;
    }
    for (int i = 0; status == VME_OK && i < count; i++)
        status = trial_begin(&trials[i]);
    if (status == VME_OK)
        status = trials_run(trials, count);
    double best_ns = 0;
    for (int i = 0; status == VME_OK && i < count; i++) {
        trials[i].best_ns += (double)extra_bytes_of(model, step, trials[i].step.algorithm) / rates[VME_RATE_WEIGHTS];
        if (trials[i].step.algorithm == *chosen)
            best_ns = trials[i].best_ns / TUNING_SURE;
    }
    for (int i = 0; status == VME_OK && i < count; i++)
        if (trials[i].best_ns < best_ns) {
            best_ns = trials[i].best_ns;
            *chosen = trials[i].step.algorithm;
        }
    if (status == VME_OK && ties.count < TIES_MAX) {
        new_tie.algorithm = *chosen;
        ties.entries[ties.count++] = new_tie;
    }
    while (count-- > 0)
        trial_end(&trials[count]);
    free(trials);
done:
    pthread_mutex_unlock(&ties.lock);
    return status;
}

vme_status algorithm_choose(vme_model *model, model_step *step, const model_algorithm *kept, int64_t *scratch)
{
    const bool is_plan = model->base != NULL;
    const int forced_now = atomic_load(&forced),
              preset = (is_plan && kept != NULL) || forced_now < 0 ? kept == NULL ? -1 : (int)*kept : forced_now;
    const algorithm_range range = algorithms_of(step);
    double rates[VME_RATES], costs[MODEL_ALGORITHMS];
    bool is_candidate[MODEL_ALGORITHMS] = {false};
    int candidates = 0;
    vme_status status = VME_OK;
    step->algorithm = (model_algorithm)range.first;
    for (int i = range.first; i < range.end; i++) {
        is_candidate[i] = possible(model, model->kernels, step, (model_algorithm)i)
                          && (preset >= 0 || extra_bytes_of(model, step, (model_algorithm)i) <= model->spare_bytes);
        candidates += is_candidate[i];
    }
    if (preset >= 0)
        step->algorithm = preset < MODEL_ALGORITHMS && is_candidate[preset] ? (model_algorithm)preset : step->algorithm;
    else if (candidates > 1) {
        const bool fixed = model->fixed || is_plan; /* a call that waits for a plan must not wait for measurements */
        rates_fixed(model->kernels, rates);
        if (!fixed)
            status = rates_measured(model->kernels, rates);
        for (int i = range.first; status == VME_OK && i < range.end; i++) {
            if (!is_candidate[i])
                continue;
            costs[i] = rates_algorithm(model, model->kernels, step, (model_algorithm)i, rates);
            step->algorithm = costs[i] < costs[step->algorithm] ? (model_algorithm)i : step->algorithm;
        }
        for (int i = range.first; status == VME_OK && i < range.end; i++)
            if (is_candidate[i] && costs[i] >= costs[step->algorithm] * TUNING_NEAR) {
                is_candidate[i] = false;
                candidates--;
            }
        if (status == VME_OK && !fixed && candidates > 1)
            status = break_tie(model, step, is_candidate, rates, &step->algorithm);
        model->spare_bytes -= extra_bytes_of(model, step, step->algorithm);
    }
    *scratch = step->kind == STEP_CONV ? convolution_scratch(model, step) : attention_scratch(model, step);
    return status;
}

/* ---- backends */
static double model_cost(const vme_model *model, const vme_kernels *kernels, const double rates[VME_RATES])
{
    double total = 0;
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        const algorithm_range range = algorithms_of(step);
        double best_ns = range.first < range.end
                             ? rates_algorithm(model, kernels, step, (model_algorithm)range.first, rates)
                             : rates_step(model, s, rates);
        for (int i = range.first + 1; i < range.end; i++)
            if (possible(model, kernels, step, (model_algorithm)i)) {
                double cost = rates_algorithm(model, kernels, step, (model_algorithm)i, rates);
                best_ns = cost < best_ns ? cost : best_ns;
            }
        total += best_ns;
    }
    return total;
}

/* Whether a cost is certainly below `bound`: by a fraction of it, and by more than starting a step takes. For small
 * models the rates are not precise enough to tell: at the single row with which open sizes are prepared, narrow vectors
 * always seem to win. */
static bool surely_below(double cost, double bound) { return cost * TUNING_SURE + RATES_START_NS < bound; }

/* Compares totals by the built-in rates first. A backend with a higher total is measured as well if its built-in rates
 * promise less time than was measured for the best one. */
vme_status backend_choose(vme_model *model, bool kept)
{
    const int default_backend = vme_backend_current();
    const bool measure = !model->fixed && !kept;
    double rates[VME_RATES];
    int chosen = default_backend;
    for (int b = 0; b < vme_backend_count(); b++)
        if (vme_backend_available(b) && (b == default_backend || !vme_backend_forced())) {
            rates_fixed(vme_kernels_of(b), rates);
            model->expected_ns[b] = model_cost(model, vme_kernels_of(b), rates);
        }
    vme_status status = measure ? rates_measured(vme_kernels_of(default_backend), rates) : VME_OK;
    if (measure && status == VME_OK)
        model->expected_ns[default_backend] = model_cost(model, vme_kernels_of(default_backend), rates);
    for (int b = 0; status == VME_OK && b < vme_backend_count(); b++) {
        if (model->expected_ns[b] == 0 || b == default_backend
            || !surely_below(model->expected_ns[b], model->expected_ns[chosen]))
            continue;
        if (measure && (status = rates_measured(vme_kernels_of(b), rates)) == VME_OK)
            model->expected_ns[b] = model_cost(model, vme_kernels_of(b), rates);
        chosen = surely_below(model->expected_ns[b], model->expected_ns[chosen]) ? b : chosen;
    }
    if (!kept)
        model->kernels = vme_kernels_of(chosen);
    return status;
}

double vme_model_total(const vme_model *model, int backend)
{
    return backend < 0 || backend >= vme_backend_count() ? 0 : model->expected_ns[backend];
}

int vme_model_backend(const vme_model *model)
{
    int backend = 0;
    while (vme_kernels_of(backend) != model->kernels)
        backend++;
    return backend;
}
