/* Assigns arena offsets to values, by their lifetimes. */
#include "models/arena.h"
#include "models/outside.h"
#include "models/file.h"
#include "models/model.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <stdlib.h>
#include <string.h>

typedef struct value_size {
    int value;
    int64_t bytes;
} value_size;

static int by_size(const void *left, const void *right)
{
    const value_size *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->value - b->value;
}

static int by_offset(const void *left, const void *right)
{
    const model_value *a = *(const model_value *const *)left, *b = *(const model_value *const *)right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

static void extend_lifetime(vme_model *model, int value_number, int step)
{
    model_value *value = &model->value[model_root(model, value_number)];
    if (value->first_step < 0)
        value->first_step = step;
    value->last_step = step;
}

void arena_find_lifetimes(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        int used[4 + MODEL_STEP_OPERANDS] = {step->in, step->addend, step->out, step->scratch};
        memcpy(used + 4, step->operand, sizeof step->operand);
        for (int i = 0; i < 4 + MODEL_STEP_OPERANDS; i++)
            if (used[i] >= 0)
                extend_lifetime(model, used[i], s);
        for (int guard = step->guard; guard >= 0; guard = model->guard[guard].parent)
            extend_lifetime(model, model->guard[guard].value, s);
    }
}

vme_status arena_plan(vme_model *model)
{
    int count = 0;
    const int64_t begin = outside_table_bytes(model);
    int64_t total = begin;
    value_size *order = calloc((size_t)model->values, sizeof *order);
    const model_value **overlapping = calloc((size_t)model->values, sizeof *overlapping);
    vme_status status = VME_OK;
    if (order == NULL || overlapping == NULL) {
        status = vme_fail(VME_NO_MEMORY, "no memory for a model");
        goto done;
    }
    for (int v = 0; v < model->values; v++)
        if (model->value[v].kind == MODEL_COMPUTED && model->value[v].container < 0 && model->value[v].first_step >= 0
            && model->value[v].outside == 0)
            order[count++] = (value_size){v, model->value[v].bytes};
    qsort(order, (size_t)count, sizeof *order, by_size);
    for (int i = 0; i < count; i++) {
        model_value *value = &model->value[order[i].value];
        int overlaps = 0;
        if (vme_stopping(model->context)) {
            status = vme_stopped_here(model->context);
            goto done;
        }
        for (int j = 0; j < i; j++) {
            const model_value *other = &model->value[order[j].value];
            if (other->first_step <= value->last_step && value->first_step <= other->last_step)
                overlapping[overlaps++] = other;
        }
        qsort(overlapping, (size_t)overlaps, sizeof *overlapping, by_offset);
        int64_t offset = begin;
        for (int j = 0; j < overlaps && overlapping[j]->offset < offset + value->bytes; j++)
            offset = max(offset, overlapping[j]->offset + overlapping[j]->bytes);
        value->offset = offset;
        total = max(total, offset + value->bytes);
        if (total > MODEL_ELEMENTS_MAX) {
            status = vme_fail(VME_NO_MEMORY, "the values of this model are too large");
            goto done;
        }
    }
    model->arena_bytes = (size_t)total;
done:
    free(order);
    free(overlapping);
    return status;
}

void arena_place_views(vme_model *model)
{
    for (int v = 0; v < model->values; v++) {
        model_value *value = &model->value[v];
        if (value->container < 0)
            continue;
        value->offset = 0;
        for (int outer = v; outer >= 0; outer = model->value[outer].container)
            value->offset +=
                model->value[outer].container >= 0 ? model->value[outer].container_offset : model->value[outer].offset;
    }
}
