/* Expected costs of steps on one core, and trials of algorithms that measure them; for tuning.c. */
#ifndef VME_RATES_H
#define VME_RATES_H

#include "models/model.h"

#include "vme_search.h"

/* The work of a step, by kind. */
typedef struct rates_work {
    double of[VME_RATES];
} rates_work;
/* The cost of `rows` consecutive rows, in rows of full tiles. */
double rates_tile_rows(const vme_gemm_kernel *kernel, int64_t rows);
/* Nanoseconds at these rates. */
double rates_cost(const rates_work *work, const double rates[VME_RATES]);
/* The cost of a step with one of its algorithms, and of a step without a choice. */
double rates_algorithm(const vme_model *model, const vme_kernels *kernels, const model_step *step,
                       model_algorithm algorithm, const double rates[VME_RATES]);
double rates_step(const vme_model *model, int number, const double rates[VME_RATES]);
void rates_fixed(const vme_kernels *kernels, double rates[VME_RATES]);
/* Measures the rates if they were neither measured nor set. VME_NO_MEMORY. */
vme_status rates_measured(const vme_kernels *kernels, double rates[VME_RATES]);

/* A timed run of one algorithm on zeros, with unpacked weights: only the time counts. */
enum { TRIAL_OPERANDS = 4, TRIAL_VALUES = 4 + TRIAL_OPERANDS };
typedef struct algorithm_trial {
    vme_model model;
    model_value value[TRIAL_VALUES]; /* in, addend, out, operands, scratch */
    model_step step;
    void *arena, *weights;
    size_t arena_bytes, weights_bytes;
    int64_t outputs, channels; /* of a convolution: its channels, and those that it reads in each group */
    double best_ns;            /* nanoseconds; 0: not run yet */
} algorithm_trial;
/* Lays out a trial of `step`, whose value numbers index `values`. Returns the bytes that trial_begin will take. */
size_t trial_lay_out(algorithm_trial *trial, vme_context *context, const vme_kernels *kernels,
                     const model_value *values, const model_step *step, model_algorithm algorithm);
/* Allocates the memory. After VME_NO_MEMORY, call trial_end as well. */
vme_status trial_begin(algorithm_trial *trial);
/* Runs some rounds of all trials in turn, on this thread only, so that a moment of other load affects all of them. */
vme_status trials_run(algorithm_trial *trials, int count);
void trial_end(algorithm_trial *trial);

#endif
