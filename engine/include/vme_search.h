/* The choice of the algorithm for each convolution, product with constant weights and attention of a model, and files
 * of prepared models; for code that prepares models. Complements vme.h. */
#ifndef VME_SEARCH_H
#define VME_SEARCH_H

#include "vme.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rates of one core per nanosecond. The cost of an operator is its work of each kind divided by these rates, plus a
 * start. */
#define VME_RATES 5
typedef enum vme_rate {
    VME_RATE_PRODUCTS, /* on full tiles of float32 */
    VME_RATE_POINTS_2, /* Winograd points transformed from or to pixels: squares of 2 */
    VME_RATE_POINTS_4, /* squares of 4 */
    VME_RATE_WEIGHTS,  /* bytes of weights that L1 and L2 do not hold */
    VME_RATE_BYTES,    /* of all other data that is read and written once */
} vme_rate;
/* The built-in rates of the backend in use, for fixed choices. */
VME_API void vme_rates_fixed(double rates[VME_RATES]);
/* The rates for choices that are not fixed: measured now, in some ten milliseconds, if they were neither measured nor
 * set yet. VME_NO_MEMORY. */
VME_API vme_status vme_rates_measured(double rates[VME_RATES]);
/* Sets the rates that an earlier process on this machine measured for this backend. VME_BAD_VALUE: implausible (more
 * than 16 times the built-in ones, or less than a 16th). */
VME_API vme_status vme_rates_set(const double rates[VME_RATES]);

/* Whether consecutive steps on images run by bands of rows; results are the same. */
typedef enum vme_bands {
    VME_BANDS_WHERE_THEY_PAY,
    VME_BANDS_NEVER,
    VME_BANDS_ALWAYS, /* wherever possible, with the lowest possible bands: for tests */
} vme_bands;

typedef struct vme_model_options {
    bool fixed; /* choose by the built-in rates only: the same on every machine with this backend. Otherwise by measured
                 * rates, and if the expected costs of two algorithms are nearly equal, by running both for a few
                 * milliseconds */
    const char *kept; /* NULL, or a path in a folder that only this user can write, for this file, engine, backend and
                       * CPU: the prepared model is mapped from there, or prepared and then written there. Failing to
                       * write it is no error */
    vme_bands bands;
    bool spend; /* the bytes are writable and not read afterwards, even on failure: whole pages of weights are returned
                 * to the system once they are packed, so that hardly more than the largest constant is in memory twice;
                 * zeros remain */
    const vme_model
        *like; /* NULL, or a model whose backend and algorithms are used without a search if it has as many steps with
                * the same kinds of choices: the same network with other weights. Borrowed for the call */
} vme_model_options;
/* Like vme_model_new, which uses built-in rates and keeps no file. */
VME_API vme_status vme_model_prepare(vme_context *context, const void *bytes, size_t size,
                                     const vme_model_options *options, vme_model **model);
/* Whether it was mapped from its kept file. */
VME_API bool vme_model_was_kept(const vme_model *model);
/* Expected nanoseconds of a step on one core. */
VME_API double vme_model_expected(const vme_model *model, int step);
/* Expected nanoseconds of a whole run on a backend, with the best algorithm for each step; 0: not a candidate. The
 * model uses the cheapest backend. */
VME_API double vme_model_total(const vme_model *model, int backend);
VME_API int vme_model_backend(const vme_model *model);

#ifdef __cplusplus
}
#endif
#endif
