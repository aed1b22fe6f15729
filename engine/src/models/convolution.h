/* Convolutions: the interface of all algorithms (convolution.c). */
#ifndef VME_MODEL_CONVOLUTION_H
#define VME_MODEL_CONVOLUTION_H

#include "models/rates.h"

/* One algorithm. `possible` and the packed weights do not depend on open sizes. */
typedef struct convolution_algorithm {
    const char *name;
    bool (*possible)(const vme_kernels *kernels, const model_value *in, const model_value *addend,
                     const model_value *out, const model_step *step);
    rates_work (*work)(const vme_kernels *kernels, const model_value *in, const model_value *out,
                       const model_step *step);
    int64_t (*scratch)(const vme_model *model, model_step *step); /* in bytes; sets the step's slots. NULL: none */
    /* Floats of packed weights, and the packing itself, into zeroed memory. */
    int64_t (*packed)(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
    void (*pack)(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                 const char *weights, float *packed);
    model_run *run;
} convolution_algorithm;
const convolution_algorithm *convolution_algorithm_of(model_algorithm algorithm);
/* each in a file of its own */
extern const convolution_algorithm convolution_winograd_2, convolution_winograd_4, convolution_strassen,
    convolution_im2col;
/* Weights of the direct algorithm and of those that share its format. */
int64_t direct_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
void direct_pack(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                 const char *weights, float *packed);
/* Bytes of weights in addition to the direct ones. */
int64_t strassen_extra_bytes(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels);
/* Whether it is a 1x1 convolution on evenly spaced pixels, and so a product of two matrices. `addend` may be NULL. */
bool convolution_is_product(const model_value *in, const model_value *addend, const model_value *out,
                            const model_step *step);
/* Floats of the packed weights, with or without the bias; at most 2^44. */
int64_t convolution_packed(const vme_kernels *kernels, const model_step *step, int64_t outputs, int64_t channels,
                           bool bias);
/* Packs weights [outputs, channels of a group, kh, kw], of any alignment, and the bias (NULL: none) to `step->weights`,
 * and sets `step->bias`. */
void convolution_pack(const vme_kernels *kernels, model_step *step, int64_t outputs, int64_t channels,
                      const char *weights, const char *bias);
int64_t convolution_scratch(const vme_model *model, model_step *step);
vme_status convolution_run(vme_context *context, const vme_model *model, const model_step *step, char *arena);
/* Bands run on the calling thread, until the context is stopped. */
void convolution_band(vme_context *context, const vme_model *model, const model_step *step, const model_band *band);

#endif
