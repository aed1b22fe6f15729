/* For code that prepares models: the choice of the algorithm for each convolution, product with constant weights and
 * attention, and files of prepared models. Complements vme.h. */
#ifndef VME_SEARCH_H
#define VME_SEARCH_H

#include "vme.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Work of one core per nanosecond, by kind of work. The expected time of an operator is computed from its work of each
 * kind, divided by these rates, plus a fixed cost (models/rates.c). */
#define VME_RATES 5
typedef enum vme_rate {
    VME_RATE_PRODUCTS, /* multiply-adds on full tiles of float32 */
    VME_RATE_POINTS_2, /* Winograd points transformed from or to pixels, for squares of 2 */
    VME_RATE_POINTS_4, /* the same for squares of 4 */
    VME_RATE_WEIGHTS,  /* bytes of weights loaded from beyond L2 */
    VME_RATE_BYTES,    /* bytes of all other data, which is read and written once */
} vme_rate;
/* The built-in rates of the backend in use, for fixed choices. */
VME_API void vme_rates_fixed(double rates[VME_RATES]);
/* The rates for choices that are not fixed. If they were neither measured nor set yet, measures them now, in some ten
 * milliseconds. May fail with VME_NO_MEMORY. */
VME_API vme_status vme_rates_measured(double rates[VME_RATES]);
/* Sets the rates that an earlier process on this machine measured for this backend. VME_BAD_VALUE: implausible (more
 * than 16 times the built-in ones, or less than a 16th). */
VME_API vme_status vme_rates_set(const double rates[VME_RATES]);

/* Whether consecutive steps on images run by bands of rows. Results do not depend on it. */
typedef enum vme_bands {
    VME_BANDS_WHERE_THEY_PAY,
    VME_BANDS_NEVER,
    VME_BANDS_ALWAYS, /* wherever possible, with as few rows as possible, for tests */
} vme_bands;

typedef struct vme_model_options {
    bool fixed; /* choose by the built-in rates only: the same choices on every machine with this backend. Otherwise
                 * choose by measured rates, and time algorithms whose expected costs are nearly equal, for a few
                 * milliseconds */
    const char *kept; /* NULL, or the path of a file of the prepared model, specific to this model file, engine, backend
                       * and CPU, in a folder that only this user can write. If the file is valid, the model is mapped
                       * from it; otherwise it is prepared and written there. A failed write is not an error */
    vme_bands bands;
    bool spend; /* the caller gives up the contents of `bytes`, which are writable, even on failure: whole pages of
                 * weights are returned to the system once they are packed (and read as zeros), so that little more than
                 * the largest constant is in memory twice */
    const vme_model
        *like; /* NULL, or a model of the same network with other weights, borrowed for the call: its backend and
                * algorithms are used without a search, if it has as many steps with the same kinds of choices */
} vme_model_options;
/* Like vme_model_new, which uses built-in rates and keeps no file. */
VME_API vme_status vme_model_prepare(vme_context *context, const void *bytes, size_t size,
                                     const vme_model_options *options, vme_model **model);
/* Whether the model was mapped from the file `kept`. */
VME_API bool vme_model_was_kept(const vme_model *model);
/* Expected nanoseconds of a step on one core. */
VME_API double vme_model_expected(const vme_model *model, int step);
/* Expected nanoseconds of a run on a backend, with the best algorithm for each step; 0: not a candidate. The model uses
 * the cheapest backend. */
VME_API double vme_model_total(const vme_model *model, int backend);
VME_API int vme_model_backend(const vme_model *model);

#ifdef __cplusplus
}
#endif
#endif
