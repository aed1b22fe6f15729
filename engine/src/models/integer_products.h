/* Steps of products of bytes (integer_products.c). */
#ifndef VME_MODEL_INTEGER_PRODUCTS_H
#define VME_MODEL_INTEGER_PRODUCTS_H

#include "models/preparation.h"
#include "models/step.h"

bool model_is_integer_product(const model_step *step);
int64_t integer_product_scratch(const vme_model *model, model_step *step);     /* in bytes; sets the step's slots */
int64_t integer_product_terms(const vme_model *model, const model_step *step); /* terms of each sum */

/* Checks that byte_pooling.c shares: whether the tensor, if there is one, is contiguous, of that dtype and shape; and
 * whether the window (parameters of an operator on images) makes the sizes of `out` from those of `in`, both [n,
 * height, width, channels]. */
bool byte_tensor_is_dense(model_preparation *preparation, int tensor, int dtype, int rank, const int64_t *shape);
bool byte_window_fits(const model_value *in, const model_value *out, const int32_t *p);

#endif
