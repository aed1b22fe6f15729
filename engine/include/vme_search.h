/* Which algorithm computes each convolution, product with constant weights and attention of a model, and where prepared
 * models are kept, for those who make models: beside vme.h. */
#ifndef VME_SEARCH_H
#define VME_SEARCH_H

#include "vme.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What one core does in a nanosecond. The cost of an operator is its work of each kind by these rates, and a start. */
#define VME_RATES 5
typedef enum vme_rate {
    VME_RATE_PRODUCTS, /* on full tiles of float32 */
    VME_RATE_POINTS_2, /* numbers of Winograd's points, made of pixels or made pixels: squares of 2 */
    VME_RATE_POINTS_4, /* squares of 4 */
    VME_RATE_WEIGHTS,  /* bytes of weights that the near caches do not hold */
    VME_RATE_BYTES,    /* of anything else that is read and written once */
} vme_rate;
/* The built-in ones for the backend in use: what fixed choices go by. */
VME_API void vme_rates_fixed(double rates[VME_RATES]);
/* Those that choices which are not fixed go by: measured now, in some ten milliseconds, if they were neither measured
 * nor set yet. VME_NO_MEMORY. */
VME_API vme_status vme_rates_measured(double rates[VME_RATES]);
/* What an earlier process on this machine measured for this backend. VME_BAD_VALUE: beyond all bounds (16 times the
 * built-in ones, or a 16th). */
VME_API vme_status vme_rates_set(const double rates[VME_RATES]);

/* Whether steps on images that follow each other are done by bands of rows; what is computed is the same. */
typedef enum vme_bands {
    VME_BANDS_WHERE_THEY_PAY,
    VME_BANDS_NEVER,
    VME_BANDS_ALWAYS, /* wherever they can be, and as low as they can be: for tests */
} vme_bands;

typedef struct vme_model_options {
    bool fixed; /* choose by the built-in rates alone: the same on every machine with this backend. Else by measured
                 * ones, and where two algorithms are expected to take nearly the same, by running both for a few
                 * milliseconds */
    const char *
        kept; /* NULL, or a path in a folder of which only this user writes, for this file, engine, backend and CPU: the
               * prepared model is mapped from there, or made and then kept there. What cannot be kept is no error */
    vme_bands bands;
    bool spend; /* the bytes are writable, and nobody reads them afterwards, whatever comes of it: whole pages of
                 * weights go back to the system once they are packed, so that hardly more than the largest constant is
                 * twice in memory; zeros are left there */
    const vme_model
        *like; /* NULL, or a model whose backend and algorithms are taken without a search where it has
                * as many steps, and the same ones choose: the same network with other weights. Borrowed for the call */
} vme_model_options;
/* As vme_model_new, which chooses by these rates and keeps nothing. */
VME_API vme_status vme_model_prepare(vme_context *context, const void *bytes, size_t size,
                                     const vme_model_options *options, vme_model **model);
/* Whether it was mapped from its kept file. */
VME_API bool vme_model_was_kept(const vme_model *model);
/* Nanoseconds that a step is expected to take on one core. */
VME_API double vme_model_expected(const vme_model *model, int step);
/* And a whole run on a backend, with the best algorithm for each step there; 0: it was none to choose from. The least
 * one's is the model's. */
VME_API double vme_model_total(const vme_model *model, int backend);
VME_API int vme_model_backend(const vme_model *model);

#ifdef __cplusplus
}
#endif
#endif
