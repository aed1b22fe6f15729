/* Semi-auto search: which algorithm computes each convolution and each product with constant weights, by what each is expected to take (rates.c;
 * Walle, OSDI '22, section 4.2):
 *
 *     C(operator, backend) = min over algorithms of Q / P + S
 *
 * summed over a model's operators for each backend, of which the one with the least total is taken.
 *
 * Where the two best are expected to take nearly the same, both are run, once a process for each shape, so that a process always chooses alike. */
#include "rates.h"

#include <stdlib.h>
#include <string.h>

enum { KNOWN_MOST = 256, SHAPE = 13 };
static const double NEAR = 1.03;            /* times the least cost: what is timed too */
static const double SURE = 1.05;            /* what is quicker by less than this is not what was expected, and may be chance */

/* ---- the algorithms */
static atomic_int forced = -1;

int vme_convolution_count(void) { return CONVOLUTION_ALGORITHMS; }
const char *vme_convolution_name(int algorithm)
{
    return algorithm < 0 || algorithm >= CONVOLUTION_ALGORITHMS ? "" : convolution_way_of((convolution_algorithm)algorithm)->name;
}

vme_status vme_convolution_force(int algorithm)
{
    if (algorithm < -1 || algorithm >= CONVOLUTION_ALGORITHMS)
        return vme_fail(VME_BAD_VALUE, "there is no convolution algorithm %d; there are %d", algorithm, CONVOLUTION_ALGORITHMS);
    atomic_store(&forced, algorithm);
    return VME_OK;
}

static const model_value *addend_of(const vme_model *model, const model_step *step) { return step->addend < 0 ? NULL : &model->value[step->addend]; }

static bool possible(const vme_model *model, const vme_kernels *kernels, const model_step *step, convolution_algorithm algorithm)
{
    return convolution_way_of(algorithm)->possible(kernels, &model->value[step->in], addend_of(model, step), &model->value[step->out], step);
}

static double cost_of(const vme_model *model, const vme_kernels *kernels, const model_step *step, convolution_algorithm algorithm, const double rates[VME_RATES])
{
    const model_value *out = &model->value[step->out];
    rates_counted made = convolution_way_of(algorithm)->work(kernels, &model->value[step->in], out, step);
    if (algorithm != CONVOLUTION_DIRECT && model_curve_of(step) != NULL)        /* the direct one does it while a tile is near */
        made.of[VME_RATE_BYTES] += 2 * sizeof(float) * (double)(out->n * out->h * out->w) * (double)out->c;
    return rates_cost(&made, rates);
}

/* Bytes that an algorithm's weights take beyond the plain ones, where it gains little by them. A trial does not show what reading them takes in a network,
 * where they come from memory: nothing of it is thought to be hidden. */
static int64_t more_of(const vme_model *model, const model_step *step, convolution_algorithm algorithm)
{
    return algorithm == CONVOLUTION_STRASSEN ? strassen_more(model->kernels, step, model->value[step->out].c, model->value[step->in].c) : 0;
}

/* ---- choices */
/* What near ties of this process came to. */
typedef struct known { const vme_kernels *kernels; int64_t shape[SHAPE]; convolution_algorithm algorithm; } known;
static struct { pthread_mutex_t lock; int count; known of[KNOWN_MOST]; } ties = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* `chosen` is the one that is expected to be quickest, and then the one that was. */
static vme_status break_tie(const vme_model *model, const model_step *step, const bool near[CONVOLUTION_ALGORITHMS], const double rates[VME_RATES],
                            convolution_algorithm *chosen)
{
    const model_value *in = &model->value[step->in], *out = &model->value[step->out];
    const model_value *addend = addend_of(model, step);
    const int32_t *p = step->p;
    int64_t candidates = 0;
    for (int i = 0; i < CONVOLUTION_ALGORITHMS; i++)
        candidates |= (int64_t)near[i] << i;
    const known wanted = {.kernels = model->kernels, .shape = {in->n, in->h, in->w, in->c, out->h, out->w, addend == NULL ? out->c : -out->c,
                                                               p[KERNEL_H], p[KERNEL_W], p[DILATION_H], p[DILATION_W], p[GROUPS], candidates}};
    vme_status status = VME_OK;
    pthread_mutex_lock(&ties.lock);
    for (int i = 0; i < ties.count; i++)
        if (ties.of[i].kernels == wanted.kernels && memcmp(ties.of[i].shape, wanted.shape, sizeof wanted.shape) == 0) {
            *chosen = ties.of[i].algorithm;
            goto done;
        }
    trial *its = calloc(CONVOLUTION_ALGORITHMS, sizeof *its);
    int count = 0;
    if (its == NULL) {
        status = vme_fail(VME_NO_MEMORY, "no memory for a model");
        goto done;
    }
    for (int i = 0; status == VME_OK && i < CONVOLUTION_ALGORITHMS; i++)
        if (near[i])
            status = trial_begin(&its[count++], model->context, model->kernels, in, addend, out, step, (convolution_algorithm)i);
    if (status == VME_OK)
        status = trials_run(its, count);
    double least = 0;
    for (int i = 0; status == VME_OK && i < count; i++) {
        its[i].least += (double)more_of(model, step, its[i].step.algorithm) / rates[VME_RATE_WEIGHTS];
        if (its[i].step.algorithm == *chosen)
            least = its[i].least / SURE;
    }
    for (int i = 0; status == VME_OK && i < count; i++)
        if (its[i].least < least) {
            least = its[i].least;
            *chosen = its[i].step.algorithm;
        }
    if (status == VME_OK && ties.count < KNOWN_MOST) {
        ties.of[ties.count] = wanted;
        ties.of[ties.count++].algorithm = *chosen;
    }
    while (count-- > 0)
        trial_end(&its[count]);
    free(its);
done:
    pthread_mutex_unlock(&ties.lock);
    return status;
}

vme_status convolution_choose(vme_model *model, model_step *step, const convolution_algorithm *kept, int64_t *scratch)
{
    const int forced_now = atomic_load(&forced), wish = model->base != NULL || forced_now < 0 ? kept == NULL ? -1 : (int)*kept : forced_now;
    double rates[VME_RATES], costs[CONVOLUTION_ALGORITHMS];
    bool can[CONVOLUTION_ALGORITHMS];
    int candidates = 0;
    vme_status status = VME_OK;
    step->algorithm = CONVOLUTION_DIRECT;
    for (int i = 0; i < CONVOLUTION_ALGORITHMS; i++) {
        can[i] = possible(model, model->kernels, step, (convolution_algorithm)i) && (wish >= 0 || more_of(model, step, (convolution_algorithm)i) <= model->spare);
        candidates += can[i];
    }
    if (wish >= 0)
        step->algorithm = wish < CONVOLUTION_ALGORITHMS && can[wish] ? (convolution_algorithm)wish : CONVOLUTION_DIRECT;
    else if (candidates > 1) {
        rates_fixed(model->kernels, rates);
        if (!model->fixed)
            status = rates_known(model->kernels, rates);
        for (int i = 0; status == VME_OK && i < CONVOLUTION_ALGORITHMS; i++) {
            if (!can[i])
                continue;
            costs[i] = cost_of(model, model->kernels, step, (convolution_algorithm)i, rates);
            step->algorithm = costs[i] < costs[step->algorithm] ? (convolution_algorithm)i : step->algorithm;
        }
        for (int i = 0; status == VME_OK && i < CONVOLUTION_ALGORITHMS; i++)
            if (can[i] && costs[i] >= costs[step->algorithm] * NEAR) {
                can[i] = false;
                candidates--;
            }
        if (status == VME_OK && !model->fixed && candidates > 1)
            status = break_tie(model, step, can, rates, &step->algorithm);
        model->spare -= more_of(model, step, step->algorithm);
    }
    *scratch = convolution_scratch(model, step);
    return status;
}

/* ---- backends */
static double total_of(const vme_model *model, const vme_kernels *kernels, const double rates[VME_RATES])
{
    double total = 0;
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        double least = step->kind == STEP_CONV ? cost_of(model, kernels, step, CONVOLUTION_DIRECT, rates) : rates_step(model, s, rates);
        for (int i = CONVOLUTION_DIRECT + 1; step->kind == STEP_CONV && i < CONVOLUTION_ALGORITHMS; i++)
            if (possible(model, kernels, step, (convolution_algorithm)i)) {
                double cost = cost_of(model, kernels, step, (convolution_algorithm)i, rates);
                least = cost < least ? cost : least;
            }
        total += least;
    }
    return total;
}

/* The built-in rates tell first. One that they leave behind is measured, too, where they promise more of it than the best one was found to do. */
vme_status backend_choose(vme_model *model, bool kept)
{
    const int best = vme_backend_current();
    const bool measure = !model->fixed && !kept;
    double rates[VME_RATES];
    int chosen = best;
    for (int b = 0; b < vme_backend_count(); b++)
        if (vme_backend_available(b) && (b == best || !vme_backend_forced())) {
            rates_fixed(vme_kernels_of(b), rates);
            model->total[b] = total_of(model, vme_kernels_of(b), rates);
        }
    vme_status status = measure ? rates_known(vme_kernels_of(best), rates) : VME_OK;
    if (measure && status == VME_OK)
        model->total[best] = total_of(model, vme_kernels_of(best), rates);
    for (int b = 0; status == VME_OK && b < vme_backend_count(); b++) {
        if (model->total[b] == 0 || b == best || model->total[b] * SURE >= model->total[chosen])
            continue;
        if (measure && (status = rates_known(vme_kernels_of(b), rates)) == VME_OK)
            model->total[b] = total_of(model, vme_kernels_of(b), rates);
        chosen = model->total[b] * SURE < model->total[chosen] ? b : chosen;
    }
    if (!kept)
        model->kernels = vme_kernels_of(chosen);
    return status;
}

double vme_model_total(const vme_model *model, int backend) { return backend < 0 || backend >= vme_backend_count() ? 0 : model->total[backend]; }

int vme_model_backend(const vme_model *model)
{
    int backend = 0;
    while (vme_kernels_of(backend) != model->kernels)
        backend++;
    return backend;
}
