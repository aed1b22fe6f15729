/* How operators become steps: a maker for each operator, and what they share (model.c). */
#ifndef VME_MODEL_MAKERS_H
#define VME_MODEL_MAKERS_H

#include "models/preparation.h"

/* Turns an operator into a step. `operands` are the node's inputs followed by its output, each MODEL_ABSENT or a
 * tensor; input 0 and the output are present, and inputs other than constants have values. `step` comes with in, out,
 * the present operands, p and bounds filled in. */
typedef vme_status model_make(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number);
/* The maker of an operator; NULL: there is no such operator. */
model_make *model_maker(uint32_t op);
const char *model_operator_name(uint32_t op);
/* Shared by makers: */
bool model_is_constant(const model_preparation *preparation, uint32_t tensor);
bool model_same_shape(const model_value *a, const model_value *b);
model_step model_step_empty(step_kind kind);
/* Checks an operand or result of an image operator, and gives it an image's layout if its rank is 4. */
vme_status model_require_image(model_preparation *preparation, uint32_t number, int tensor);
/* Makes the tensor's layout plain; returns whether it has that dtype and is contiguous. */
bool model_require_dense(model_preparation *preparation, int tensor, int dtype);
/* VME_BAD_VALUE if the result overlaps an operand. */
vme_status model_check_no_overlap(const model_preparation *preparation, uint32_t number, const model_step *step);
void model_margin_widen(model_value *value, int64_t top, int64_t left, int64_t bottom, int64_t right);

#define MODEL_WRONG(node, format, ...) vme_fail(VME_BAD_VALUE, MODEL_REFUSED "node %u " format, node, ##__VA_ARGS__)

/* images.c: operators on images */
model_make model_make_product, model_make_pool, model_make_global_average_pool, model_make_add, model_make_clip,
    model_make_flatten, model_make_concat, model_make_slice, model_make_shuffle, model_make_interleave;
/* tensors.c: operators on tensors */
model_make model_make_copy, model_make_unary, model_make_binary, model_make_where, model_make_reduce, model_make_matmul,
    model_make_gather, model_make_scan, model_make_argsort, model_make_scatter, model_make_bits;
/* rows.c: fused operators on rows of float32 */
model_make model_make_softmax, model_make_normalize, model_make_activate;
/* attention.c */
model_make model_make_attention;
/* recurrence.c */
model_make model_make_recurrence;
/* trees.c, coupling.c */
model_make model_make_trees, model_make_couple;
/* integer_products.c, quantized.c, byte_pooling.c */
model_make model_make_integer_product, model_make_quantized, model_make_byte_pooling;
/* narrow_products.c */
model_make model_make_narrow_product;
/* blending.c */
model_make model_make_blending;
/* sampling.c, regions.c: images sampled at computed coordinates */
model_make model_make_sampling, model_make_regions;
/* suppression.c */
model_make model_make_suppression;
/* fourier.c, chance.c */
model_make model_make_fourier, model_make_chance;
/* integer_means.c */
model_make model_make_integer_means;

#endif
