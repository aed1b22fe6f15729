/* What a step is expected to take on one core, and trials of convolutions, which measure it: for search.c. */
#ifndef VME_RATES_H
#define VME_RATES_H

#include "model.h"

#include "vme_search.h"

/* Nanoseconds at these rates. */
double rates_cost(const rates_counted *work, const double rates[VME_RATES]);
/* What a step other than STEP_CONV costs. */
double rates_step(const vme_model *model, int number, const double rates[VME_RATES]);
void rates_fixed(const vme_kernels *kernels, double rates[VME_RATES]);
/* Measured now if they were neither measured nor set yet. VME_NO_MEMORY. */
vme_status rates_known(const vme_kernels *kernels, double rates[VME_RATES]);

/* One algorithm on zeros, with weights that are not packed: only the time counts. */
typedef struct trial {
    vme_model model;
    model_value value[4];                   /* in, addend, out, scratch */
    model_step step;
    void *arena, *weights;
    size_t arena_bytes, weights_bytes;
    double least;                           /* nanoseconds; 0: not run yet */
} trial;
/* A trial of `step`, whose values are the ones given (`addend` may be NULL). What it holds is for trial_end, also when it fails. */
vme_status trial_begin(trial *it, vme_context *context, const vme_kernels *kernels, const model_value *in, const model_value *addend,
                       const model_value *out, const model_step *step, convolution_algorithm algorithm);
/* Some rounds of all in turn, on this thread alone: a machine that is busy for a moment is so for all. */
vme_status trials_run(trial *its, int count);
void trial_end(trial *it);

#endif
