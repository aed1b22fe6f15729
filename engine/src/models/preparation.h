/* A model that is being made of its file (model.c). */
#ifndef VME_MODEL_PREPARATION_H
#define VME_MODEL_PREPARATION_H

#include "models/model.h"

typedef struct model_preparation {
    vme_model *model;
    const model_file *file;
    int values, steps; /* so far: parts of concatenations follow the tensors */
    char *defined;     /* of each tensor: 0 it has no value yet, 1 parts of it have, 2 it has one */
    bool *wanted;      /* constants that steps read as they are */
    struct packing {
        bool weights, bias;            /* there are some, which begin */
        uint64_t weights_at, bias_at;  /* so far into the file's weights */
        int64_t outputs, channels, at; /* floats into the packed block */
    } *packing;                        /* one a step */
    const char *kept;                  /* the kept file's choices, one a step; NULL: there is none */
    const vme_model *like;             /* whose choices are taken; NULL: nobody's */
    /* weights from here on have not been given back, and end there; NULL: their bytes are not ours to spend */
    char *spent, *end;
} model_preparation;
/* The model of a file whose form is right. A plan of `base` if that is not NULL: the file is base's at other sizes. */
vme_status model_new(vme_context *context, const model_file *file, size_t size, const vme_model_options *options,
                     vme_model *base, vme_model **result);

#endif
