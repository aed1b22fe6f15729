/* Packs a model's weights in the formats of its steps, and releases the file's own weights as it goes. Steps that use
 * the same weights in the same format, such as the passes of a loop, share them, so that they stay in a cache. */
#include "models/weights.h"
#include "models/convolution.h"
#include "models/depthwise.h"
#include "models/file.h"
#include "models/kept.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "runtime/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    RELEASE_PAGE = 1 << 16, /* bytes, a multiple of every system's page size */
    RELEASE_MIN = 1 << 20,  /* bytes */
};

static uint64_t min_offset(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Offset in the file's weights of the first byte that is still to be packed, for the constants from `tensor` on and the
 * steps from `s` on. */
static uint64_t first_unpacked(const model_preparation *preparation, uint32_t tensor, int s)
{
    uint64_t first = UINT64_MAX;
    for (; tensor < preparation->file->tensors; tensor++)
        if (preparation->stored_unpacked[tensor])
            first = min_offset(first, model_file_tensor(preparation->file, tensor).data_at);
    for (; s < preparation->model->steps; s++) {
        const struct packing *packing = &preparation->packing[s];
        if (packing->weights && !packing->shared)
            first = min_offset(first,
                               packing->bias ? min_offset(packing->weights_at, packing->bias_at) : packing->weights_at);
    }
    return first;
}

void weights_release_init(model_preparation *preparation, size_t size)
{
    /* whole pages after the first byte of weights */
    preparation->release_begin =
        (char *)(((uintptr_t)preparation->file->weights + RELEASE_PAGE - 1) & ~(uintptr_t)(RELEASE_PAGE - 1));
    preparation->release_end = (char *)(uintptr_t)preparation->file->tensor_records - MODEL_HEADER + size;
}

/* Releases the pages before the first weights that are still to be packed, after `bytes` were packed. Does nothing for
 * few bytes, because the search for those weights has a cost too. */
static void release_packed(model_preparation *preparation, uint64_t bytes, uint32_t tensor, int s)
{
    if (preparation->release_begin == NULL || bytes < RELEASE_MIN)
        return;
    const uint64_t first = first_unpacked(preparation, tensor, s),
                   size = (uint64_t)(preparation->release_end - preparation->file->weights);
    const uintptr_t end =
        (uintptr_t)(preparation->file->weights + min_offset(first, size)) & ~(uintptr_t)(RELEASE_PAGE - 1);
    if (end <= (uintptr_t)preparation->release_begin)
        return;
    /* on failure the pages stay in memory */
    madvise(preparation->release_begin, end - (uintptr_t)preparation->release_begin, MADV_DONTNEED);
    preparation->release_begin = (char *)end;
}

/* Whether both steps' packed weights are the same bytes. */
static bool have_same_packing(const model_preparation *preparation, int first, int second)
{
    const struct packing *a = &preparation->packing[first], *b = &preparation->packing[second];
    const model_step *p = &preparation->model->step[first], *q = &preparation->model->step[second];
    return a->weights_at == b->weights_at && a->bias == b->bias && a->bias_at == b->bias_at && a->outputs == b->outputs
           && a->channels == b->channels && p->kind == q->kind && p->algorithm == q->algorithm && p->k == q->k
           && memcmp(p->p, q->p, sizeof p->p[0] * (GROUPS + 1)) == 0;
}

/* Sets the offset of each step's packed weights, which is that of an earlier step with the same ones; adds their floats
 * to *total. */
static vme_status assign_offsets(model_preparation *preparation, int64_t *total)
{
    const vme_model *model = preparation->model;
    size_t table_size = 16;
    while (table_size < 2 * (size_t)model->steps)
        table_size *= 2;
    int *table = calloc(table_size, sizeof *table); /* hash table of step numbers plus 1, by their weights; 0: free */
    if (table == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    for (int s = 0; s < model->steps; s++) {
        struct packing *packing = &preparation->packing[s];
        const model_step *step = &model->step[s];
        if (!packing->weights)
            continue;
        /* offsets are multiples of 64; the upper bits of the product depend on all of their bits */
        size_t slot = (size_t)((packing->weights_at + 3 * packing->bias_at) * UINT64_C(0x9e3779b97f4a7c15) >> 32)
                      & (table_size - 1);
        while (table[slot] > 0 && !have_same_packing(preparation, table[slot] - 1, s))
            slot = (slot + 1) & (table_size - 1);
        packing->shared = table[slot] > 0;
        if (packing->shared) {
            packing->packed_at = preparation->packing[table[slot] - 1].packed_at;
            continue;
        }
        table[slot] = s + 1;
        packing->packed_at = *total;
        *total +=
            ((step->kind == STEP_DEPTHWISE ? depthwise_packed(step, preparation->packing[s].outputs)
                                           : convolution_packed(model->kernels, step, preparation->packing[s].outputs,
                                                                preparation->packing[s].channels, true))
             + 15)
            / 16 * 16;
    }
    free(table);
    return VME_OK;
}

vme_status weights_pack(model_preparation *preparation)
{
    vme_model *model = preparation->model;
    int64_t total = 0;
    const vme_status status = assign_offsets(preparation, &total);
    if (status != VME_OK)
        return status;
    for (int v = 0; v < (int)preparation->file->tensors; v++)
        if (preparation->stored_unpacked[v]) {
            model->value[v].offset = total * (int64_t)sizeof(float);
            total += model->value[v].bytes / (int64_t)sizeof(float);
        }
    model->packed_bytes = (size_t)total * sizeof(float);
    if (model->base != NULL && model->base->packed_bytes != model->packed_bytes)
        return vme_fail(VME_BAD_VALUE, MODEL_REFUSED "its weights depend on open sizes");
    model->packed = model->base != NULL ? model->base->packed : kept_packed(preparation);
    const bool kept = model->packed != NULL;
    if (!kept) {
        if (model->map != NULL) /* the kept file has the layout of another build */
            munmap(model->map, model->map_bytes);
        model->map = NULL;
        model->packed = vme_scratch_new(model->context, model->packed_bytes);
    }
    if (model->packed == NULL)
        return VME_NO_MEMORY;
    for (int v = 0; v < (int)preparation->file->tensors; v++)
        if (preparation->stored_unpacked[v] && !kept) {
            model_tensor_record record = model_file_tensor(preparation->file, (uint32_t)v);
            memcpy(model->packed + model->value[v].offset, preparation->file->weights + record.data_at,
                   record.data_size);
            release_packed(preparation, record.data_size, (uint32_t)v + 1, 0);
        }
    for (int s = 0; s < model->steps; s++) {
        const struct packing *packing = &preparation->packing[s];
        model_step *step = &model->step[s];
        if (!packing->weights)
            continue;
        const char *weights = kept ? NULL : preparation->file->weights + packing->weights_at;
        const char *bias = kept || !packing->bias ? NULL : preparation->file->weights + packing->bias_at;
        if (vme_stopping(model->context))
            return vme_stopped_here(model->context);
        step->weights = (float *)model->packed + packing->packed_at;
        if (kept || packing->shared)
            step->bias = step->weights
                         + (step->kind == STEP_DEPTHWISE
                                ? packing->outputs * step->k
                                : convolution_packed(model->kernels, step, packing->outputs, packing->channels, false));
        else if (step->kind == STEP_DEPTHWISE)
            depthwise_pack(step, packing->outputs, weights, bias);
        else
            convolution_pack(model->kernels, step, packing->outputs, packing->channels, weights, bias);
        release_packed(preparation, (uint64_t)(packing->outputs * step->k) * sizeof(float), preparation->file->tensors,
                       s + 1);
    }
    release_packed(preparation, RELEASE_MIN, preparation->file->tensors, model->steps);
    kept_load(preparation);
    return VME_OK;
}
