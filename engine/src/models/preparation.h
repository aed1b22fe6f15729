/* The state of preparing a model from its file (model.c). */
#ifndef VME_MODEL_PREPARATION_H
#define VME_MODEL_PREPARATION_H

#include "models/model.h"

typedef struct model_preparation {
    vme_model *model;
    const model_file *file;
    int values, steps;     /* so far; parts of concatenations follow the tensors */
    char *defined;         /* of each tensor: 0 undefined, 1 partly defined, 2 defined */
    bool *stored_unpacked; /* of each tensor: a constant that steps read as it is in the file */
    struct packing {
        bool weights, bias;           /* whether the step has them */
        uint64_t weights_at, bias_at; /* their offsets in the file's weights */
        int64_t outputs, channels;
        int64_t packed_at; /* offset in the packed block, in floats */
        bool shared;       /* an earlier step has packed the same weights at this offset */
    } *packing;            /* one for each step */
    const char *kept;      /* the choices in the kept file, one for each step; NULL: no file */
    const vme_model *like; /* a model whose choices are copied, or NULL */
    /* the weights from `release_begin` to `release_end` have not been released yet; NULL: the caller keeps the bytes,
     * so nothing is released */
    char *release_begin, *release_end;
} model_preparation;
/* The model of a validated file. If `base` is not NULL, it is a plan of it: the file is base's at other sizes. */
vme_status model_new(vme_context *context, const model_file *file, size_t size, const vme_model_options *options,
                     vme_model *base, vme_model **result);

#endif
