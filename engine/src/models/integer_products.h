/* Steps of products of bytes (integer_products.c). */
#ifndef VME_MODEL_INTEGER_PRODUCTS_H
#define VME_MODEL_INTEGER_PRODUCTS_H

#include "models/preparation.h"
#include "models/step.h"

bool model_is_integer_product(const model_step *step);
int64_t integer_product_scratch(const vme_model *model, model_step *step);     /* in bytes; sets the step's slots */
int64_t integer_product_terms(const vme_model *model, const model_step *step); /* terms of each sum */

/* ---- checks, which byte_pooling.c shares */
/* Makes the tensor's layout plain; returns whether it is contiguous and has that dtype and shape. True if there is
 * none. */
bool byte_tensor_is_dense(model_preparation *preparation, int tensor, int dtype, int rank, const int64_t *shape);
/* Whether the window, the parameters of an operator on images, gives `out` its sizes for those of `in`; both are [n,
 * height, width, channels]. */
bool byte_window_fits(const model_value *in, const model_value *out, const int32_t *p);

#endif
