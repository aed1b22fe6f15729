/* Steps of products with narrow weights (narrow_products.c). */
#ifndef VME_MODEL_NARROW_PRODUCTS_H
#define VME_MODEL_NARROW_PRODUCTS_H

#include "models/step.h"

bool model_is_narrow_product(const model_step *step);
int64_t narrow_product_scratch(const vme_model *model, model_step *step);     /* in bytes; sets the step's slots */
int64_t narrow_product_terms(const vme_model *model, const model_step *step); /* terms of each sum */

#endif
