/* What a step is expected to take on one core, and trials of algorithms, which measure it: for tuning.c. */
#ifndef VME_RATES_H
#define VME_RATES_H

#include "models/model.h"

#include "vme_search.h"

/* The work of a step, of each kind. */
typedef struct rates_counted {
    double of[VME_RATES];
} rates_counted;
/* Rows of tiles for `rows` that follow each other, as they cost. */
double rates_tile_rows(const vme_gemm_kernel *kernel, int64_t rows);
/* Nanoseconds at these rates. */
double rates_cost(const rates_counted *work, const double rates[VME_RATES]);
/* What a step costs by one of its algorithms; and one that has none to choose from. */
double rates_algorithm(const vme_model *model, const vme_kernels *kernels, const model_step *step,
                       model_algorithm algorithm, const double rates[VME_RATES]);
double rates_step(const vme_model *model, int number, const double rates[VME_RATES]);
void rates_fixed(const vme_kernels *kernels, double rates[VME_RATES]);
/* Measured now if they were neither measured nor set yet. VME_NO_MEMORY. */
vme_status rates_known(const vme_kernels *kernels, double rates[VME_RATES]);

/* One algorithm on zeros, with weights that are not packed: only the time counts. */
enum { TRIAL_OPERANDS = 4, TRIAL_VALUES = 4 + TRIAL_OPERANDS };
typedef struct algorithm_trial {
    vme_model model;
    model_value value[TRIAL_VALUES]; /* in, addend, out, operands, scratch */
    model_step step;
    void *arena, *weights;
    size_t arena_bytes, weights_bytes;
    double best_ns; /* nanoseconds; 0: not run yet */
} algorithm_trial;
/* A trial of `step`, whose numbers of values are those of `values`. What it holds is for trial_end, also when it
 * fails. */
vme_status trial_begin(algorithm_trial *trial, vme_context *context, const vme_kernels *kernels,
                       const model_value *values, const model_step *step, model_algorithm algorithm);
/* Some rounds of all in turn, on this thread alone: a machine that is busy for a moment is so for all. */
vme_status trials_run(algorithm_trial *trials, int count);
void trial_end(algorithm_trial *trial);

#endif
