/* Models with open sizes: a plan is the model of a file at some sizes (plans.c). */
#ifndef VME_MODEL_PLANS_H
#define VME_MODEL_PLANS_H

#include "models/model.h"

#include <pthread.h>

/* Stores in `model` what plans need of its file, which begins at `bytes`. */
vme_status model_open_sizes_init(vme_model *model, const model_file *file, const void *bytes, size_t size);
void model_open_sizes_free(vme_model *model);
enum { PLANS_MAX = 8 };
typedef struct model_plans { /* the most recently used plans */
    pthread_mutex_t lock;
    uint64_t clock; /* counts uses */
    struct {
        vme_model *plan;
        uint64_t last_used; /* the clock at that time */
    } entries[PLANS_MAX];
} model_plans;
/* The plan for inputs of these shapes, a new reference; `model` itself if no size is open. */
vme_status plans_find(model_plans *plans, vme_context *context, vme_model *model, const vme_tensor *const *inputs,
                      vme_model **plan);
void plans_free(model_plans *plans);

#endif
