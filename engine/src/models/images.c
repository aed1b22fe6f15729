/* Makers of the operators on images, those below MODEL_COPY. Operators that concatenate, interleave or select channels
 * need no step if the operands can be computed directly at their place in the result. */
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/numbers.h"

enum { PARAMETER_MAX = 1 << 15 };

static vme_status check_window(uint32_t number, const int32_t p[PARAMETERS_USED])
{
    for (int i = KERNEL_H; i <= DILATION_W; i++) {
        bool is_padding = i >= PAD_TOP && i <= PAD_RIGHT;
        if (p[i] < (is_padding ? 0 : 1) || p[i] > PARAMETER_MAX)
            return MODEL_WRONG(number, "has %d as parameter %d", p[i], i);
    }
    return VME_OK;
}

/* VME_BAD_VALUE unless the window gives `out` its height and width. */
static vme_status check_window_shape(uint32_t number, const int32_t p[PARAMETERS_USED], const model_value *in,
                                     const model_value *out)
{
    int64_t padded[2] = {in->h + p[PAD_TOP] + p[PAD_BOTTOM], in->w + p[PAD_LEFT] + p[PAD_RIGHT]},
            out_size[2] = {out->h, out->w};
    for (int d = 0; d < 2; d++) {
        int64_t window = (int64_t)p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1;
        if (window > padded[d] || (padded[d] - window) / p[STRIDE_H + d] + 1 != out_size[d])
            return MODEL_WRONG(number, "makes %s %lld of %lld", d == 0 ? "height" : "width", (long long)out_size[d],
                               (long long)padded[d]);
        if (p[PAD_TOP + d] >= window || p[PAD_BOTTOM + d] >= window)
            return MODEL_WRONG(number, "has padding beyond its window");
    }
    if (in->rank != 4 || out->rank != 4 || in->n != out->n)
        return MODEL_WRONG(number, "has operands and a result with different numbers of images");
    return VME_OK;
}

static bool is_weights(const model_preparation *preparation, uint32_t tensor)
{
    return preparation->model->value[tensor].kind == MODEL_CONSTANT
           && preparation->model->value[tensor].dtype == VME_FLOAT32;
}

vme_status model_make_product(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    vme_model *model = preparation->model;
    bool images = node->op == MODEL_CONV;
    model_value *in = &model->value[operands[0]];
    const model_value *out = &model->value[step->out];
    if (node->inputs < 2 || operands[1] == MODEL_ABSENT || !is_weights(preparation, operands[1]))
        return MODEL_WRONG(number, "has no constant weights");
    model_tensor_record weights = model_file_tensor(preparation->file, operands[1]);
    step->kind = STEP_CONV;
    if (images) {
        vme_status status = check_window(number, step->p);
        if (status == VME_OK)
            status = check_window_shape(number, step->p, in, out);
        if (status != VME_OK)
            return status;
        if (step->p[GROUPS] < 1 || in->c % step->p[GROUPS] != 0 || out->c % step->p[GROUPS] != 0)
            return MODEL_WRONG(number, "has %d groups, of %lld channels in and %lld out", step->p[GROUPS],
                               (long long)in->c, (long long)out->c);
        if (step->p[GROUPS] > 1 && step->p[GROUPS] == in->c && in->c == out->c)
            step->kind = STEP_DEPTHWISE;
        if (weights.rank != 4 || weights.shape[2] != step->p[KERNEL_H] || weights.shape[3] != step->p[KERNEL_W])
            return MODEL_WRONG(number, "has weights of another window");
        model_margin_widen(in, step->p[PAD_TOP], step->p[PAD_LEFT], step->p[PAD_BOTTOM], step->p[PAD_RIGHT]);
    } else {
        for (int i = KERNEL_H; i <= GROUPS; i++)
            step->p[i] = i >= PAD_TOP && i <= PAD_RIGHT ? 0 : 1;
        if (weights.rank != 2 || in->rank != 2 || out->rank != 2 || in->n != out->n)
            return MODEL_WRONG(number, "does not multiply matrices that fit");
    }
    int64_t channels = in->c / step->p[GROUPS];
    if (weights.shape[1] != channels || weights.shape[0] != out->c)
        return MODEL_WRONG(number, "makes %lld channels of %lld, its weights %lld of %lld", (long long)out->c,
                           (long long)channels, (long long)weights.shape[0], (long long)weights.shape[1]);
    struct packing *packing = &preparation->packing[step_number];
    *packing =
        (struct packing){.weights = true, .weights_at = weights.data_at, .outputs = out->c, .channels = channels};
    step->k = channels * step->p[KERNEL_H] * step->p[KERNEL_W];
    if (node->inputs > 2 && operands[2] != MODEL_ABSENT) {
        model_tensor_record bias = model_file_tensor(preparation->file, operands[2]);
        if (!is_weights(preparation, operands[2]) || bias.rank != 1 || bias.shape[0] != out->c)
            return MODEL_WRONG(number, "has no constant bias of its channels");
        packing->bias = true;
        packing->bias_at = bias.data_at;
    }
    if (node->inputs > 3 && operands[3] != MODEL_ABSENT) {
        step->addend = (int)operands[3];
        if (!model_same_shape(&model->value[operands[3]], out))
            return MODEL_WRONG(number, "has an addend of another shape");
    }
    return VME_OK;
}

vme_status model_make_pool(model_preparation *preparation, uint32_t number, const model_node_record *node,
                           const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->in], *out = &preparation->model->value[step->out];
    step->kind = node->op == MODEL_MAX_POOL ? STEP_MAX_POOL : STEP_AVERAGE_POOL;
    vme_status status = check_window(number, step->p);
    if (status == VME_OK
        && (step->p[UNCOUNTED_BOTTOM] < 0 || step->p[UNCOUNTED_BOTTOM] > step->p[PAD_BOTTOM]
            || step->p[UNCOUNTED_RIGHT] < 0 || step->p[UNCOUNTED_RIGHT] > step->p[PAD_RIGHT]))
        return MODEL_WRONG(number, "excludes more padding than there is");
    if (status == VME_OK)
        status = check_window_shape(number, step->p, in, out);
    return status != VME_OK || in->c == out->c ? status : MODEL_WRONG(number, "changes the channels");
}

vme_status model_make_global_average_pool(model_preparation *preparation, uint32_t number,
                                          const model_node_record *node, const uint32_t *operands, model_step *step,
                                          int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->in], *out = &preparation->model->value[step->out];
    step->kind = STEP_GLOBAL_AVERAGE_POOL;
    return in->rank == 4 && out->rank == 4 && out->n == in->n && out->c == in->c && out->h == 1 && out->w == 1
               ? VME_OK
               : MODEL_WRONG(number, "does not make one pixel of each image");
}

vme_status model_make_add(model_preparation *preparation, uint32_t number, const model_node_record *node,
                          const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    const model_value *in = &preparation->model->value[step->in], *out = &preparation->model->value[step->out];
    step->kind = STEP_ADD;
    if (node->inputs < 2 || operands[1] == MODEL_ABSENT)
        return MODEL_WRONG(number, "has no operands to add");
    step->addend = (int)operands[1];
    return model_same_shape(in, out) && model_same_shape(&preparation->model->value[step->addend], out)
               ? VME_OK
               : MODEL_WRONG(number, "adds operands of different shapes");
}

vme_status model_make_clip(model_preparation *preparation, uint32_t number, const model_node_record *node,
                           const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    step->kind = STEP_CLIP;
    if (node->op == MODEL_RELU)
        step->bounds = (vme_bounds){0, __builtin_inff()};
    return model_same_shape(&preparation->model->value[step->in], &preparation->model->value[step->out])
               ? VME_OK
               : MODEL_WRONG(number, "changes the shape");
}

vme_status model_make_flatten(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->in], *out = &preparation->model->value[step->out];
    step->kind = STEP_FLATTEN;
    return out->rank == 2 && out->n == in->n && out->c == in->c * in->h * in->w
               ? VME_OK
               : MODEL_WRONG(number, "does not make rows of images");
}

/* Operands that are not part of another value are computed directly in the result; others are copied there. */
vme_status model_make_concat(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->kind = STEP_NOTHING;
    vme_model *model = preparation->model;
    int result = (int)operands[node->inputs];
    const model_value *out = &model->value[result];
    int64_t channel = 0;
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (operands[i] == MODEL_ABSENT || (int)operands[i] == result)
            return MODEL_WRONG(number, "concatenates an operand that has no value yet");
        vme_status status = model_require_image(preparation, number, (int)operands[i]);
        if (status != VME_OK)
            return status;
        model_value *part = &model->value[operands[i]];
        if (part->rank != 4 || part->rank != out->rank || part->n != out->n || part->h != out->h || part->w != out->w
            || part->c > out->c - channel)
            return MODEL_WRONG(number, "concatenates operands that do not fit");
        int placed = (int)operands[i];
        if (part->container >= 0) {
            placed = preparation->values++;
            model_value *view = &model->value[placed];
            *view = *part;
            view->name = NULL;
            view->top = view->left = view->bottom = view->right = 0;
            view->interleave_h = view->interleave_w = 0;
            view->is_container = false;
            model_step *copy = &model->step[preparation->steps++];
            *copy = model_step_empty(STEP_COPY);
            copy->op = node->op;
            copy->in = (int)operands[i];
            copy->out = placed;
        }
        model->value[placed].container = result;
        model->value[placed].container_offset = channel * 4;
        model->value[result].is_container = true;
        channel += part->c;
    }
    return channel == out->c
               ? VME_OK
               : MODEL_WRONG(number, "makes %lld channels of %lld", (long long)out->c, (long long)channel);
}

/* A range of an image's channels, read in place. */
vme_status model_make_slice(model_preparation *preparation, uint32_t number, const model_node_record *node,
                            const uint32_t *operands, model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &preparation->model->value[step->in];
    model_value *out = &preparation->model->value[step->out];
    int64_t channel = step->p[CHANNEL];
    step->kind = STEP_NOTHING;
    if (in->rank != 4 || out->rank != 4 || out->n != in->n || out->h != in->h || out->w != in->w || channel < 0
        || channel >= in->c || out->c > in->c - channel)
        return MODEL_WRONG(number, "slices channels beyond its operand's");
    out->container = step->in;
    out->container_offset = channel * 4;
    preparation->model->value[step->in].is_container = true;
    return VME_OK;
}

/* Operands that nothing else reads are computed directly in the result; others are copied there. */
vme_status model_make_interleave(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                 const uint32_t *operands, model_step *step, int step_number)
{
    vme_model *model = preparation->model;
    const int result = (int)operands[node->inputs], down = step->p[STRIDE_H], across = step->p[STRIDE_W];
    const model_value *out = &model->value[result];
    if (down < 1 || across < 1 || down > PARAMETER_MAX || across > PARAMETER_MAX
        || node->inputs != (uint32_t)(down * across) || out->rank != 4 || out->h < down || out->w < across)
        return MODEL_WRONG(number, "does not interleave pixels of %u images", node->inputs);
    for (uint32_t i = 0; i < node->inputs; i++) {
        const int y = (int)i / across, x = (int)i % across;
        int placed = (int)operands[i];
        if (operands[i] == MODEL_ABSENT || placed == result)
            return MODEL_WRONG(number, "interleaves an operand that has no value yet");
        vme_status status = model_require_image(preparation, number, placed);
        if (status != VME_OK)
            return status;
        const model_value *part = &model->value[placed];
        if (part->rank != 4 || part->n != out->n || part->c != out->c || part->h != ceil_div(out->h - y, down)
            || part->w != ceil_div(out->w - x, across))
            return MODEL_WRONG(number, "interleaves images that do not fit");
        if (part->container >= 0 || part->is_container || part->readers > 1) {
            model_value *view = &model->value[preparation->values];
            *view = *part;
            view->name = NULL;
            view->top = view->left = view->bottom = view->right = 0;
            model_step *copy = &model->step[preparation->steps++];
            *copy = model_step_empty(STEP_COPY);
            copy->op = node->op;
            copy->in = placed;
            copy->out = placed = preparation->values++;
        }
        model_value *value = &model->value[placed];
        value->container = result;
        value->container_offset = 0;
        value->is_container = false;
        value->interleave_h = down, value->interleave_w = across;
        value->phase_h = y, value->phase_w = x;
    }
    model->value[result].is_container = true;
    /* the node's own step clears the margin around the pixels; no other step does */
    model_step margin = model_step_empty(STEP_MARGIN);
    margin.op = node->op;
    margin.out = result;
    model_step *first = &model->step[step_number];
    margin.name = first->name;
    *first = margin;
    return VME_OK;
}

vme_status model_make_shuffle(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    const model_value *in = &preparation->model->value[step->in], *out = &preparation->model->value[step->out];
    int32_t groups = step->p[GROUPS];
    step->kind = STEP_SHUFFLE;
    if (node->inputs == 2) {
        if (operands[1] == MODEL_ABSENT || !model_same_shape(in, &preparation->model->value[operands[1]])
            || groups != 2)
            return MODEL_WRONG(number, "does not shuffle two halves");
        step->addend = (int)operands[1];
    }
    if (in->rank != 4 || groups < 1 || out->c % groups != 0 || in->rank != out->rank || in->n != out->n
        || in->h != out->h || in->w != out->w || in->c * node->inputs != out->c || node->inputs > 2)
        return MODEL_WRONG(number, "does not shuffle %d equal groups of channels", groups);
    return VME_OK;
}
