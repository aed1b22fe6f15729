/* Semi-auto search: which algorithm computes each convolution, by what each is expected to take (rates.c; Walle, OSDI '22, section 4.2):
 *
 *     C(operator) = min over algorithms of Q / P + S
 *
 * Where the two best are expected to take nearly the same, both are run, once a process for each shape, so that a process always chooses alike. */
#include "rates.h"

#include <stdlib.h>
#include <string.h>

enum { KNOWN_MOST = 256 };
static const double NEAR = 1.15;            /* times the least cost: what is timed too */
static const double SURE = 1.05;            /* what is quicker by less than this is not what was expected, and may be chance */

/* ---- the algorithms */
static const char *const names[CONVOLUTION_ALGORITHMS] = {"direct", "winograd2", "winograd4"};
static atomic_int forced = -1;

int vme_convolution_count(void) { return CONVOLUTION_ALGORITHMS; }
const char *vme_convolution_name(int algorithm) { return algorithm < 0 || algorithm >= CONVOLUTION_ALGORITHMS ? "" : names[algorithm]; }

vme_status vme_convolution_force(int algorithm)
{
    if (algorithm < -1 || algorithm >= CONVOLUTION_ALGORITHMS)
        return vme_fail(VME_BAD_VALUE, "there is no convolution algorithm %d; there are %d", algorithm, CONVOLUTION_ALGORITHMS);
    atomic_store(&forced, algorithm);
    return VME_OK;
}

static bool possible(const model_step *step, convolution_algorithm algorithm)
{
    const int32_t *p = step->p;
    const bool plain = p[ACTIVATION] != ACTIVATION_CLIP;        /* Winograd's kernels know no other bound than 0 */
    return algorithm == CONVOLUTION_DIRECT
           || (algorithm > CONVOLUTION_DIRECT && algorithm < CONVOLUTION_ALGORITHMS && p[GROUPS] == 1 && plain && p[KERNEL_H] == 3
               && p[KERNEL_W] == 3 && p[STRIDE_H] * p[STRIDE_W] == 1 && p[DILATION_H] * p[DILATION_W] == 1);
}

/* ---- choices */
/* What near ties of this process came to. */
typedef struct known { const vme_kernels *kernels; int64_t shape[7]; convolution_algorithm algorithm; } known;
static struct { pthread_mutex_t lock; int count; known of[KNOWN_MOST]; } ties = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* `chosen` is the one that is expected to be quickest, and then the one that was. */
static vme_status break_tie(const vme_model *model, const model_step *step, const bool near[CONVOLUTION_ALGORITHMS], convolution_algorithm *chosen)
{
    const model_value *in = &model->value[step->in], *out = &model->value[step->out];
    const model_value *addend = step->addend < 0 ? NULL : &model->value[step->addend];
    const known wanted = {.kernels = model->kernels, .shape = {in->n, in->h, in->w, in->c, out->h, out->w, addend == NULL ? out->c : -out->c}};
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
    for (int i = 0; status == VME_OK && i < count; i++)
        if (its[i].step.algorithm == *chosen)
            least = its[i].least / SURE;
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

vme_status convolution_choose(const vme_model *model, model_step *step, const convolution_algorithm *kept, int64_t *scratch)
{
    const model_value *in = &model->value[step->in], *out = &model->value[step->out];
    const int wish = model->base != NULL ? -1 : atomic_load(&forced);      /* a plan's weights are packed already */
    double rates[VME_RATES], costs[CONVOLUTION_ALGORITHMS];
    int possibilities = 0;
    vme_status status = VME_OK;
    step->algorithm = CONVOLUTION_DIRECT;
    for (int i = 0; i < CONVOLUTION_ALGORITHMS; i++)
        possibilities += possible(step, (convolution_algorithm)i);
    if (wish >= 0 || kept != NULL)
        step->algorithm = possible(step, wish >= 0 ? (convolution_algorithm)wish : *kept)
            ? wish >= 0 ? (convolution_algorithm)wish : *kept : CONVOLUTION_DIRECT;
    else if (possibilities > 1) {
        bool near[CONVOLUTION_ALGORITHMS] = {false};
        int ties_found = 0;
        rates_fixed(model->kernels, rates);
        if (!model->fixed)
            status = rates_known(model->kernels, rates);
        for (int i = 0; status == VME_OK && i < CONVOLUTION_ALGORITHMS; i++) {
            if (!possible(step, (convolution_algorithm)i))
                continue;
            rates_counted made = rates_work(model->kernels, in, out, step, (convolution_algorithm)i);
            costs[i] = rates_cost(&made, rates);
            step->algorithm = costs[i] < costs[step->algorithm] ? (convolution_algorithm)i : step->algorithm;
        }
        for (int i = 0; status == VME_OK && i < CONVOLUTION_ALGORITHMS; i++) {
            near[i] = possible(step, (convolution_algorithm)i) && costs[i] < costs[step->algorithm] * NEAR;
            ties_found += near[i];
        }
        if (status == VME_OK && !model->fixed && ties_found > 1)
            status = break_tie(model, step, near, &step->algorithm);
    }
    *scratch = step->algorithm == CONVOLUTION_DIRECT ? 0 : winograd_scratch(model, step);
    return status;
}
