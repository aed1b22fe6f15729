/* Models with open sizes: batch sizes, sequence lengths and the like, which each call chooses by the shapes of its
 * inputs.
 *
 * The file expresses every number that depends on such sizes as a sum of products of sizes and quotients
 * (docs/model-format.md). A plan is the model of the same file with these numbers evaluated for the sizes of a call. It
 * has steps, layouts and an arena of its own, and shares the algorithms and packed weights of its base. The file is not
 * trusted: evaluated numbers are checked like those of any file. */
#include "models/plans.h"
#include "models/file.h"
#include "models/model.h"
#include "models/preparation.h"
#include "runtime/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OPEN_SIZE_MAX = 1 << 30 };

vme_status model_open_sizes_init(vme_model *model, const model_file *file, const void *bytes, size_t size)
{
    const size_t ports = (size_t)model->inputs + (size_t)model->outputs;
    model->opens = (int)file->opens;
    memcpy(model->open, file->open_list, file->opens * sizeof *model->open);
    model->file_bytes = size;
    model->front_bytes = (size_t)(file->weights - (const char *)bytes);
    model->front = malloc(model->front_bytes);
    model->label = calloc(ports * MODEL_RANK, sizeof *model->label);
    if (model->front == NULL || model->label == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    memcpy(model->front, bytes, model->front_bytes);
    model->names = model->front + (file->names - (const char *)bytes);
    for (uint32_t i = 0; i < file->varyings; i++) {
        model_varying_record varying;
        memcpy(&varying, file->varying_list + i * sizeof varying, sizeof varying);
        for (size_t port = 0; port < ports && varying.field < FIELD_OFFSET; port++) {
            char **label = &model->label[port * MODEL_RANK + varying.field];
            /* the list of outputs follows that of inputs directly */
            if (model_file_number(file->input_list, (uint32_t)port) != varying.tensor || *label != NULL)
                continue;
            *label = strndup(file->names + varying.label_at, varying.label_size);
            if (*label == NULL)
                return vme_fail(VME_NO_MEMORY, "no memory for a model");
        }
    }
    return VME_OK;
}

void model_open_sizes_free(vme_model *model)
{
    const size_t labels = ((size_t)model->inputs + (size_t)model->outputs) * MODEL_RANK;
    for (size_t i = 0; model->label != NULL && i < labels; i++)
        free(model->label[i]);
    free(model->label);
    free(model->notes);
    free(model->front);
}

/* The sum of `count` terms for the variables' `values`; false: it exceeds 64 bits. */
static bool sum_of_terms(const model_file *file, uint32_t first, uint32_t count, const int64_t *values, int64_t *sum)
{
    *sum = 0;
    for (uint32_t i = first; i < first + count; i++) {
        model_term_record term;
        memcpy(&term, file->term_list + (size_t)i * sizeof term, sizeof term);
        int64_t product = term.factor;
        for (int factor = 0; factor < MODEL_DEGREE_MAX; factor++)
            if (term.variables[factor] > 0 && __builtin_mul_overflow(product, values[term.variables[factor]], &product))
                return false;
        if (__builtin_add_overflow(*sum, product, sum))
            return false;
    }
    return true;
}

/* The values of all variables at these sizes. */
static vme_status variables_at(const model_file *file, const int64_t *sizes, int64_t *values)
{
    values[0] = 0;
    memcpy(values + 1, sizes, file->opens * sizeof *sizes);
    for (uint32_t i = 0; i < file->quotients; i++) {
        const model_quotient_record quotient = model_file_quotient(file, i);
        int64_t numerator, denominator;
        if (!sum_of_terms(file, quotient.first_numerator, quotient.numerators, values, &numerator)
            || !sum_of_terms(file, quotient.first_denominator, quotient.denominators, values, &denominator))
            return vme_fail(VME_BAD_VALUE, "a size would be beyond 64 bits");
        if (denominator < 1)
            return vme_fail(VME_BAD_VALUE, "a size would be divided by %lld", (long long)denominator);
        values[1 + file->opens + i] = numerator / denominator - (numerator % denominator < 0);
    }
    return VME_OK;
}

/* Checks the conditions on a call's sizes; if one failed, results would be wrong. */
static vme_status check_needs(const model_file *file, const int64_t *values)
{
    for (uint32_t i = 0; i < file->needs; i++) {
        const model_need_record need = model_file_need(file, i);
        int64_t sum;
        if (!sum_of_terms(file, need.first_term, need.terms, values, &sum))
            return vme_fail(VME_BAD_VALUE, "a size would be beyond 64 bits");
        if (need.at_least != 0 ? sum < 0 : sum != 0)
            return vme_fail(VME_BAD_VALUE, "%.*s", (int)need.text_size, file->names + need.text_at);
    }
    return VME_OK;
}

/* Fails with the last error's message, after the sizes of the call. */
static vme_status add_sizes_to_error(const vme_model *model, const int64_t *sizes, vme_status status)
{
    char list[128] = "", reason[VME_MESSAGE_SIZE];
    size_t length = 0;
    const char *file_message = strstr(vme_message(), MODEL_REFUSED);
    snprintf(reason, sizeof reason, "%s", file_message == NULL ? vme_message() : file_message + strlen(MODEL_REFUSED));
    for (int i = 0; i < model->opens && length < sizeof list; i++)
        length +=
            (size_t)snprintf(list + length, sizeof list - length, "%s%.*s = %lld", i == 0 ? "" : ", ",
                             (int)model->open[i].name_size, model->names + model->open[i].name_at, (long long)sizes[i]);
    return vme_fail(status, "this model does not work at %s: %.300s", list, reason);
}

static vme_status plan_new(vme_context *context, vme_model *base, const int64_t *sizes, vme_model **plan)
{
    model_file file;
    char *front = vme_scratch_new(context, base->front_bytes);
    if (front == NULL)
        return VME_NO_MEMORY;
    memcpy(front, base->front, base->front_bytes);
    int64_t values[1 + MODEL_VARIABLES_MAX];
    vme_status status = model_file_read(front, base->file_bytes, false, &file);
    if (status == VME_OK)
        status = variables_at(&file, sizes, values);
    if (status == VME_OK)
        status = check_needs(&file, values);
    for (uint32_t i = 0; status == VME_OK && i < file.varyings; i++) {
        model_varying_record varying;
        int64_t value;
        memcpy(&varying, file.varying_list + i * sizeof varying, sizeof varying);
        if (!sum_of_terms(&file, varying.first_term, varying.terms, values, &value)) {
            status = vme_fail(VME_BAD_VALUE, "a size would be beyond 64 bits");
            break;
        }
        char *record = front + (file.tensor_records - front) + varying.tensor * sizeof(model_tensor_record);
        size_t offset = varying.field < FIELD_OFFSET
                            ? offsetof(model_tensor_record, shape) + varying.field * sizeof value
                            : offsetof(model_tensor_record, offset) + (varying.field - FIELD_OFFSET) * sizeof value;
        memcpy(record + offset, &value, sizeof value);
    }
    if (status == VME_OK)
        status = model_file_read(front, base->file_bytes, true, &file);
    if (status == VME_OK)
        status = model_new(context, &file, base->file_bytes, NULL, base, plan);
    if (status == VME_OK)
        memcpy((*plan)->open_sizes, sizes, (size_t)base->opens * sizeof *sizes);
    else if (status == VME_BAD_VALUE)
        status = add_sizes_to_error(base, sizes, status);
    vme_scratch_free(context, front, base->front_bytes);
    return status;
}

static vme_status open_sizes_of(const vme_model *model, const vme_tensor *const *inputs, int64_t sizes[MODEL_OPEN_MAX])
{
    for (int i = 0; i < model->inputs; i++) {
        vme_port port;
        vme_model_port(model, false, i, &port);
        if (inputs[i]->rank != port.rank)
            return vme_fail(VME_BAD_SHAPE, "input '%s': expected %d dimensions, got %d", port.name, port.rank,
                            inputs[i]->rank);
    }
    for (int i = 0; i < model->opens; i++) {
        sizes[i] = inputs[model->open[i].input]->shape[model->open[i].dimension];
        if (sizes[i] < 0 || sizes[i] > OPEN_SIZE_MAX)
            return vme_fail(VME_BAD_SHAPE, "input '%s': expected 0 to %d elements in dimension %u, got %lld",
                            model->value[model->input[model->open[i].input]].name, OPEN_SIZE_MAX,
                            model->open[i].dimension, (long long)sizes[i]);
    }
    return VME_OK;
}

/* Returns a new reference to the cached plan for these `opens` sizes, or NULL. */
static vme_model *plan_lookup(model_plans *plans, const int64_t *sizes, int opens)
{
    vme_model *found = NULL;
    pthread_mutex_lock(&plans->lock);
    for (int i = 0; i < PLANS_MAX && found == NULL; i++)
        if (plans->entries[i].plan != NULL
            && memcmp(plans->entries[i].plan->open_sizes, sizes, (size_t)opens * sizeof *sizes) == 0) {
            found = vme_model_ref(plans->entries[i].plan);
            plans->entries[i].last_used = ++plans->clock;
        }
    pthread_mutex_unlock(&plans->lock);
    return found;
}

/* Caches the plan in place of the least recently used one. */
static void plan_store(model_plans *plans, vme_model *plan)
{
    int slot = 0;
    pthread_mutex_lock(&plans->lock);
    for (int i = 1; i < PLANS_MAX; i++)
        if (plans->entries[i].last_used < plans->entries[slot].last_used)
            slot = i;
    vme_model *evicted = plans->entries[slot].plan;
    plans->entries[slot].plan = vme_model_ref(plan);
    plans->entries[slot].last_used = ++plans->clock;
    pthread_mutex_unlock(&plans->lock);
    if (evicted != NULL)
        vme_model_unref(evicted);
}

vme_status plans_find(model_plans *plans, vme_context *context, vme_model *model, const vme_tensor *const *inputs,
                      vme_model **plan)
{
    int64_t sizes[MODEL_OPEN_MAX];
    if (model->opens == 0) {
        *plan = vme_model_ref(model);
        return VME_OK;
    }
    vme_status status = open_sizes_of(model, inputs, sizes);
    if (status != VME_OK || (*plan = plan_lookup(plans, sizes, model->opens)) != NULL)
        return status;
    status = plan_new(context, model, sizes, plan); /* two threads may make the same plan */
    if (status == VME_OK)
        plan_store(plans, *plan);
    return status;
}

void plans_free(model_plans *plans)
{
    for (int i = 0; i < PLANS_MAX; i++)
        if (plans->entries[i].plan != NULL)
            vme_model_unref(plans->entries[i].plan);
    pthread_mutex_destroy(&plans->lock);
}
