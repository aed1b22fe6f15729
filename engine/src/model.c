/* Prepares a model, or a plan of one for other sizes: works out every shape and holds it against the file's, chooses layouts and margins, makes steps of the nodes, gives every value its
 * place in the arena by when it lives, and packs the weights. The file's bytes are not needed afterwards.
 *
 * A model is never written again, so any number of sessions on any threads read it. */
#include "model.h"

#include "vme_search.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PARAMETER_MOST = 1 << 15,
    SPEND_PAGE = 1 << 16,                   /* a multiple of any system's page */
    SPEND_LEAST = 1 << 20,
    SPARE_PART = 3,                         /* of the file: what sums of weights may take besides. BERT's process takes less than ONNX Runtime's so */
};

#define NOT_A_MODEL(...) vme_fail(VME_BAD_VALUE, MODEL_REFUSED __VA_ARGS__)
#define WRONG MODEL_WRONG

/* ---- values */
static void value_read(model_making *it, uint32_t tensor)
{
    model_tensor_record record = model_file_tensor(it->file, tensor);
    model_value *value = &it->model->value[tensor];
    int64_t element = vme_dtype_size((vme_dtype)record.dtype), step = element;
    value->kind = (int)record.kind;
    value->dtype = (int)record.dtype;
    value->rank = (int)record.rank;
    value->first = value->within = value->offset = -1;
    memcpy(value->shape, record.shape, sizeof value->shape);
    for (int d = value->rank - 1; d >= 0; d--) {
        value->strides[d] = record.kind == MODEL_VIEW ? record.strides[d] * element : step;
        step *= record.shape[d];
    }
    value->bytes = (step + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
    if (record.kind == MODEL_VIEW) {
        value->within = (int)record.base;
        value->inside = record.offset * element;
        it->model->value[record.base].plain = true;
    }
    if (value->dtype == VME_FLOAT32 && (value->rank == 2 || value->rank == 4)) {
        value->n = value->shape[0];
        value->c = value->shape[1];
        value->h = value->rank == 4 ? value->shape[2] : 1;
        value->w = value->rank == 4 ? value->shape[3] : 1;
        value->pixel = value->c;
        value->row = value->w * value->c;
        value->image = value->h * value->row;
    }
}

static uint32_t base_of(const model_making *it, uint32_t tensor)
{
    const model_value *value = &it->model->value[tensor];
    return value->kind == MODEL_VIEW ? (uint32_t)value->within : tensor;
}

static bool is_constant(const model_making *it, uint32_t tensor) { return it->model->value[base_of(it, tensor)].kind == MODEL_CONSTANT; }
static bool has_value(const model_making *it, uint32_t tensor) { return is_constant(it, tensor) || it->defined[base_of(it, tensor)] != 0; }

/* Of what an input or a node makes. A view gives a part of its base a value. */
static vme_status value_define(model_making *it, uint32_t tensor, const char *what)
{
    char *defined = &it->defined[base_of(it, tensor)];
    bool part = it->model->value[tensor].kind == MODEL_VIEW;
    if (is_constant(it, tensor) || (!part && *defined != 0))
        return NOT_A_MODEL("tensor %u is %s, and has a value already", tensor, what);
    *defined = part && *defined != 2 ? 1 : 2;
    return VME_OK;
}

/* What an operator of images reads or makes: of rank 4 it lies as an image from now on. */
static vme_status image_value(model_making *it, uint32_t number, int tensor)
{
    model_value *value = &it->model->value[tensor];
    bool dense = value->rank != 2 || ((value->shape[1] == 1 || value->strides[1] == 4)
                                      && (value->shape[0] == 1 || value->strides[0] == 4 * value->shape[1]));
    if (value->dtype != VME_FLOAT32 || is_constant(it, (uint32_t)tensor) || !dense
        || (value->rank != 2 && (value->rank != 4 || value->kind == MODEL_VIEW || value->plain)))
        return WRONG(number, "wants images or matrices of float32 that no view sees, tensor %d is none", tensor);
    value->channels_last = value->rank == 4;
    return VME_OK;
}

static vme_status value_name(model_making *it, uint32_t tensor)
{
    model_tensor_record record = model_file_tensor(it->file, tensor);
    model_value *value = &it->model->value[tensor];
    if (it->model->base != NULL)
        value->name = it->model->base->value[tensor].name;
    else if (value->name == NULL)
        value->name = strndup(it->file->names + record.name_at, record.name_size);
    return value->name != NULL ? VME_OK : vme_fail(VME_NO_MEMORY, "no memory for a model");
}

static void margin_widen(model_value *value, int64_t top, int64_t left, int64_t bottom, int64_t right)
{
    value->top = most(value->top, top);
    value->left = most(value->left, left);
    value->bottom = most(value->bottom, bottom);
    value->right = most(value->right, right);
}

static void image_strides(model_value *value)
{
    int64_t strides[4] = {value->image * 4, 4, value->row * 4, value->pixel * 4};
    memcpy(value->strides, strides, sizeof strides);
    value->start = (value->top * value->row + value->left * value->pixel) * 4;
}

static vme_status image_lay_out(model_value *value)
{
    int64_t total;
    value->pixel = value->c;
    if (__builtin_mul_overflow(value->left + value->w + value->right, value->pixel, &value->row)
        || __builtin_mul_overflow(value->top + value->h + value->bottom, value->row, &value->image)
        || __builtin_mul_overflow(value->n, value->image, &total) || total > MODEL_ELEMENTS_MOST)
        return vme_fail(VME_NO_MEMORY, "a value of this model with its margin is too large");
    image_strides(value);
    value->bytes = (total * (int64_t)sizeof(float) + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
    return VME_OK;
}

/* An image within another one has its margin, which is as wide as any of them wants. */
static vme_status images_lay_out(vme_model *model)
{
    vme_status status = VME_OK;
    for (int v = 0; v < model->values; v++) {
        const model_value *value = &model->value[v];
        if (value->channels_last && value->within >= 0)
            margin_widen(&model->value[model_root(model, v)], value->top, value->left, value->bottom, value->right);
    }
    for (int v = 0; status == VME_OK && v < model->values; v++)
        if (model->value[v].channels_last && model->value[v].within < 0)
            status = image_lay_out(&model->value[v]);
    for (int v = 0; status == VME_OK && v < model->values; v++) {
        model_value *value = &model->value[v];
        if (value->channels_last && value->within >= 0) {
            const model_value *root = &model->value[model_root(model, v)];
            margin_widen(value, root->top, root->left, root->bottom, root->right);
            value->pixel = root->pixel;
            value->row = root->row;
            value->image = root->image;
            image_strides(value);
        }
    }
    return status;
}

/* ---- nodes */
static vme_status window_check(uint32_t number, const int32_t p[PARAMETERS_USED])
{
    for (int i = KERNEL_H; i <= DILATION_W; i++) {
        bool pad = i >= PAD_TOP && i <= PAD_RIGHT;
        if (p[i] < (pad ? 0 : 1) || p[i] > PARAMETER_MOST)
            return WRONG(number, "has %d as parameter %d", p[i], i);
    }
    return VME_OK;
}

/* Sizes of what a window makes of height and width; VME_BAD_VALUE unless `out` has them. */
static vme_status window_shape(uint32_t number, const int32_t p[PARAMETERS_USED], const model_value *in, const model_value *out)
{
    int64_t room[2] = {in->h + p[PAD_TOP] + p[PAD_BOTTOM], in->w + p[PAD_LEFT] + p[PAD_RIGHT]}, size[2] = {out->h, out->w};
    for (int d = 0; d < 2; d++) {
        int64_t window = (int64_t)p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1;
        if (window > room[d] || (room[d] - window) / p[STRIDE_H + d] + 1 != size[d])
            return WRONG(number, "makes %s %lld of %lld", d == 0 ? "height" : "width", (long long)size[d], (long long)room[d]);
        if (p[PAD_TOP + d] >= window || p[PAD_BOTTOM + d] >= window)
            return WRONG(number, "has padding beyond its window");
    }
    if (in->rank != 4 || out->rank != 4 || in->n != out->n)
        return WRONG(number, "wants images, as many as it makes");
    return VME_OK;
}

static bool same_shape(const model_value *a, const model_value *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
}

static bool is_weights(const model_making *it, uint32_t tensor)
{
    return it->model->value[tensor].kind == MODEL_CONSTANT && it->model->value[tensor].dtype == VME_FLOAT32;
}

static vme_status make_product(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                               int step_number)
{
    vme_model *model = it->model;
    bool images = node->op == MODEL_CONV;
    model_value *in = &model->value[operands[0]];
    const model_value *out = &model->value[step->out];
    if (node->inputs < 2 || operands[1] == MODEL_ABSENT || !is_weights(it, operands[1]))
        return WRONG(number, "has no constant weights");
    model_tensor_record weights = model_file_tensor(it->file, operands[1]);
    step->kind = STEP_CONV;
    if (images) {
        vme_status status = window_check(number, step->p);
        if (status == VME_OK)
            status = window_shape(number, step->p, in, out);
        if (status != VME_OK)
            return status;
        if (step->p[GROUPS] < 1 || in->c % step->p[GROUPS] != 0 || out->c % step->p[GROUPS] != 0)
            return WRONG(number, "has %d groups, of %lld channels in and %lld out", step->p[GROUPS], (long long)in->c, (long long)out->c);
        if (step->p[GROUPS] > 1 && step->p[GROUPS] == in->c && in->c == out->c)
            step->kind = STEP_DEPTHWISE;
        if (weights.rank != 4 || weights.shape[2] != step->p[KERNEL_H] || weights.shape[3] != step->p[KERNEL_W])
            return WRONG(number, "has weights of another window");
        margin_widen(in, step->p[PAD_TOP], step->p[PAD_LEFT], step->p[PAD_BOTTOM], step->p[PAD_RIGHT]);
    } else {
        for (int i = KERNEL_H; i <= GROUPS; i++)
            step->p[i] = i >= PAD_TOP && i <= PAD_RIGHT ? 0 : 1;
        if (weights.rank != 2 || in->rank != 2 || out->rank != 2 || in->n != out->n)
            return WRONG(number, "does not multiply matrices that fit");
    }
    int64_t channels = in->c / step->p[GROUPS];
    if (weights.shape[1] != channels || weights.shape[0] != out->c)
        return WRONG(number, "makes %lld channels of %lld, its weights %lld of %lld", (long long)out->c, (long long)channels,
                     (long long)weights.shape[0], (long long)weights.shape[1]);
    struct packing *packing = &it->packing[step_number];
    *packing = (struct packing){.weights = true, .weights_at = weights.data_at, .outputs = out->c, .channels = channels};
    step->k = channels * step->p[KERNEL_H] * step->p[KERNEL_W];
    if (node->inputs > 2 && operands[2] != MODEL_ABSENT) {
        model_tensor_record bias = model_file_tensor(it->file, operands[2]);
        if (!is_weights(it, operands[2]) || bias.rank != 1 || bias.shape[0] != out->c)
            return WRONG(number, "has no constant bias of its channels");
        packing->bias = true;
        packing->bias_at = bias.data_at;
    }
    if (node->inputs > 3 && operands[3] != MODEL_ABSENT) {
        step->addend = (int)operands[3];
        if (!same_shape(&model->value[operands[3]], out))
            return WRONG(number, "adds what has another shape");
    }
    return VME_OK;
}

static vme_status make_pool(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                                int step_number)
{
    (void)operands, (void)step_number;
    const model_value *in = &it->model->value[step->in], *out = &it->model->value[step->out];
    step->kind = node->op == MODEL_MAX_POOL ? STEP_MAX_POOL : STEP_AVERAGE_POOL;
    vme_status status = window_check(number, step->p);
    if (status == VME_OK && (step->p[UNCOUNTED_BOTTOM] < 0 || step->p[UNCOUNTED_BOTTOM] > step->p[PAD_BOTTOM]
                             || step->p[UNCOUNTED_RIGHT] < 0 || step->p[UNCOUNTED_RIGHT] > step->p[PAD_RIGHT]))
        return WRONG(number, "counts padding that is none");
    if (status == VME_OK)
        status = window_shape(number, step->p, in, out);
    return status != VME_OK || in->c == out->c ? status : WRONG(number, "changes the channels");
}

static vme_status make_global_average_pool(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands,
                                           model_step *step, int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &it->model->value[step->in], *out = &it->model->value[step->out];
    step->kind = STEP_GLOBAL_AVERAGE_POOL;
    return in->rank == 4 && out->rank == 4 && out->n == in->n && out->c == in->c && out->h == 1 && out->w == 1
        ? VME_OK : WRONG(number, "does not make one pixel of each image");
}

static vme_status make_add(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                           int step_number)
{
    (void)step_number;
    const model_value *in = &it->model->value[step->in], *out = &it->model->value[step->out];
    step->kind = STEP_ADD;
    if (node->inputs < 2 || operands[1] == MODEL_ABSENT)
        return WRONG(number, "adds nothing");
    step->addend = (int)operands[1];
    return same_shape(in, out) && same_shape(&it->model->value[step->addend], out) ? VME_OK : WRONG(number, "adds other shapes");
}

static vme_status make_clip(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                            int step_number)
{
    (void)operands, (void)step_number;
    step->kind = STEP_CLIP;
    if (node->op == MODEL_RELU)
        step->bounds = (vme_bounds){0, __builtin_inff()};
    return same_shape(&it->model->value[step->in], &it->model->value[step->out]) ? VME_OK : WRONG(number, "changes the shape");
}

static vme_status make_flatten(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                               int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &it->model->value[step->in], *out = &it->model->value[step->out];
    step->kind = STEP_FLATTEN;
    return out->rank == 2 && out->n == in->n && out->c == in->c * in->h * in->w ? VME_OK : WRONG(number, "does not make rows of images");
}

static model_step empty_step(step_kind kind)
{
    model_step step = {.kind = kind, .in = -1, .addend = -1, .out = -1, .scratch = -1};
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        step.operand[i] = -1;
    return step;
}

/* Operands that nothing else claims lie in the result; others are copied there. */
static vme_status make_concat(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                              int step_number)
{
    (void)step_number;
    step->kind = STEP_NOTHING;
    vme_model *model = it->model;
    int made = (int)operands[node->inputs];
    const model_value *out = &model->value[made];
    int64_t channel = 0;
    for (uint32_t i = 0; i < node->inputs; i++) {
        if (operands[i] == MODEL_ABSENT || (int)operands[i] == made)
            return WRONG(number, "puts together what has no value yet");
        vme_status status = image_value(it, number, (int)operands[i]);
        if (status != VME_OK)
            return status;
        model_value *part = &model->value[operands[i]];
        if (part->rank != 4 || part->rank != out->rank || part->n != out->n || part->h != out->h || part->w != out->w || part->c > out->c - channel)
            return WRONG(number, "puts together what does not fit");
        int at = (int)operands[i];
        if (part->within >= 0) {
            at = it->values++;
            model_value *view = &model->value[at];
            *view = *part;
            view->name = NULL;
            view->top = view->left = view->bottom = view->right = 0;
            model_step *copy = &model->step[it->steps++];
            *copy = empty_step(STEP_COPY);
            copy->op = node->op;
            copy->in = (int)operands[i];
            copy->out = at;
        }
        model->value[at].within = made;
        model->value[at].inside = channel * 4;
        channel += part->c;
    }
    return channel == out->c ? VME_OK : WRONG(number, "makes %lld channels of %lld", (long long)out->c, (long long)channel);
}

/* Channels of an image, read where they lie. */
static vme_status make_slice(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                             int step_number)
{
    (void)node, (void)operands, (void)step_number;
    const model_value *in = &it->model->value[step->in];
    model_value *out = &it->model->value[step->out];
    int64_t channel = step->p[CHANNEL];
    step->kind = STEP_NOTHING;
    if (in->rank != 4 || out->rank != 4 || out->n != in->n || out->h != in->h || out->w != in->w || channel < 0 || channel >= in->c
        || out->c > in->c - channel)
        return WRONG(number, "takes channels that are not there");
    out->within = step->in;
    out->inside = channel * 4;
    return VME_OK;
}

static vme_status make_shuffle(model_making *it, uint32_t number, const model_node_record *node, const uint32_t *operands, model_step *step,
                               int step_number)
{
    (void)step_number;
    const model_value *in = &it->model->value[step->in], *out = &it->model->value[step->out];
    int32_t groups = step->p[GROUPS];
    step->kind = STEP_SHUFFLE;
    if (node->inputs == 2) {
        if (operands[1] == MODEL_ABSENT || !same_shape(in, &it->model->value[operands[1]]) || groups != 2)
            return WRONG(number, "does not shuffle two halves");
        step->addend = (int)operands[1];
    }
    if (in->rank != 4 || groups < 1 || out->c % groups != 0 || in->rank != out->rank || in->n != out->n || in->h != out->h || in->w != out->w
        || in->c * node->inputs != out->c || node->inputs > 2)
        return WRONG(number, "does not shuffle %d equal groups of channels", groups);
    return VME_OK;
}

static const struct {
    model_make *make;
    const char *name;
    bool images;                /* works on images: its operand 0, operand 3 or (of two inputs) 1 and its result are ones */
} operators[MODEL_OPS] = {
    [MODEL_CONV] = {make_product, "Conv", true},
    [MODEL_MAX_POOL] = {make_pool, "MaxPool", true},
    [MODEL_GLOBAL_AVERAGE_POOL] = {make_global_average_pool, "GlobalAveragePool", true},
    [MODEL_GEMM] = {make_product, "Gemm", true},
    [MODEL_ADD] = {make_add, "Add", true},
    [MODEL_RELU] = {make_clip, "Relu", true},
    [MODEL_FLATTEN] = {make_flatten, "Flatten", true},
    [MODEL_CLIP] = {make_clip, "Clip", true},
    [MODEL_AVERAGE_POOL] = {make_pool, "AveragePool", true},
    [MODEL_CONCAT] = {make_concat, "Concat", true},
    [MODEL_SLICE] = {make_slice, "Slice", true},
    [MODEL_SHUFFLE] = {make_shuffle, "Shuffle", true},
    [MODEL_COPY] = {model_make_copy, "Copy"},
    [MODEL_UNARY] = {model_make_unary, "Unary"},
    [MODEL_BINARY] = {model_make_binary, "Binary"},
    [MODEL_WHERE] = {model_make_where, "Where"},
    [MODEL_REDUCE] = {model_make_reduce, "Reduce"},
    [MODEL_MATMUL] = {model_make_matmul, "MatMul"},
    [MODEL_GATHER] = {model_make_gather, "Gather"},
    [MODEL_SOFTMAX] = {model_make_softmax, "Softmax"},
    [MODEL_NORMALIZE] = {model_make_normalize, "Normalize"},
    [MODEL_ACTIVATE] = {model_make_activate, "Activate"},
    [MODEL_SCAN] = {model_make_scan, "Scan"},
    [MODEL_ARGSORT] = {model_make_argsort, "Argsort"},
    [MODEL_SCATTER] = {model_make_scatter, "Scatter"},
    [MODEL_ATTENTION] = {model_make_attention, "Attention"},
};

model_make *model_maker(uint32_t op) { return op < MODEL_OPS ? operators[op].make : NULL; }

static vme_status activation_read(uint32_t number, model_step *step)
{
    const bool product = step->op == MODEL_CONV || step->op == MODEL_GEMM;
    step->bounds = (vme_bounds){-__builtin_inff(), __builtin_inff()};
    switch (step->p[ACTIVATION]) {
    case ACTIVATION_NONE:
        return VME_OK;
    case ACTIVATION_RELU:
        step->bounds.low = 0;
        return VME_OK;
    case ACTIVATION_CLIP:
        memcpy(&step->bounds.low, &step->p[LOW], 4);
        memcpy(&step->bounds.high, &step->p[HIGH], 4);
        return step->bounds.low <= step->bounds.high ? VME_OK : WRONG(number, "clips to no range");
    default:
        return product && step->p[ACTIVATION] >= ACTIVATION_CURVES && step->p[ACTIVATION] < ACTIVATION_CURVES + CURVES
            ? VME_OK : WRONG(number, "has the unknown activation %d", step->p[ACTIVATION]);
    }
}

static vme_status make_node(model_making *it, uint32_t number)
{
    int step_number = it->steps++;
    model_step *step = &it->model->step[step_number];
    model_node_record node = model_file_node(it->file, number);
    uint32_t operands[MODEL_NODE_INPUTS + 1];
    const bool images = operators[node.op].images;
    *step = empty_step(STEP_TENSOR);
    step->op = node.op;
    step->name = it->model->base != NULL ? it->model->base->step[step_number].name : strndup(it->file->names + node.name_at, node.name_size);
    if (step->name == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    if (!images && node.inputs > MODEL_STEP_OPERANDS)
        return WRONG(number, "has %u operands", node.inputs);
    for (uint32_t i = 0; i < node.inputs + node.outputs; i++)
        operands[i] = model_file_number(it->file->operand_list, node.first_operand + i);
    for (uint32_t i = 0; i < node.inputs; i++) {
        if (operands[i] == MODEL_ABSENT)
            continue;
        if (!has_value(it, operands[i]))
            return WRONG(number, "reads tensor %u, which has no value yet", operands[i]);
        if (images)
            continue;
        step->operand[i] = (int)operands[i];
        if (is_constant(it, operands[i]))
            it->wanted[base_of(it, operands[i])] = true;
    }
    vme_status status = value_define(it, operands[node.inputs], "computed");
    if (status != VME_OK)
        return status;
    step->out = (int)operands[node.inputs];
    memcpy(step->p, node.parameters, sizeof step->p);
    if (images) {
        step->in = (int)operands[0];
        if ((status = activation_read(number, step)) != VME_OK || (status = image_value(it, number, step->in)) != VME_OK || (status = image_value(it, number, step->out)) != VME_OK)
            return status;
    }
    status = operators[node.op].make(it, number, &node, operands, step, step_number);
    return status == VME_OK && step->addend >= 0 ? image_value(it, number, step->addend) : status;
}

/* What is computed element by element of an image lies as one too, where nothing wants it plain. */
static void spread_layouts(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        model_value *out = step->out < 0 ? NULL : &model->value[step->out];
        if (!model_is_elementwise(step) || out->rank != 4 || out->dtype != VME_FLOAT32 || out->kind == MODEL_VIEW || out->plain)
            continue;
        for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
            if (step->operand[i] >= 0 && model->value[step->operand[i]].channels_last && same_shape(&model->value[step->operand[i]], out))
                out->channels_last = true;
    }
}

/* ---- the arena */
typedef struct place { int value; int64_t bytes; } place;

static int by_size(const void *left, const void *right)
{
    const place *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return a->value - b->value;
}

static int by_offset(const void *left, const void *right)
{
    const model_value *a = *(const model_value *const *)left, *b = *(const model_value *const *)right;
    return (a->offset > b->offset) - (a->offset < b->offset);
}

/* Says of values that lie in no other which steps use them first and last. */
static void find_lives(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        int used[4 + MODEL_STEP_OPERANDS] = {step->in, step->addend, step->out, step->scratch};
        memcpy(used + 4, step->operand, sizeof step->operand);
        for (int i = 0; i < 4 + MODEL_STEP_OPERANDS; i++)
            if (used[i] >= 0) {
                model_value *value = &model->value[model_root(model, used[i])];
                if (value->first < 0)
                    value->first = s;
                value->last = s;
            }
    }
}

/* Largest first, each at the lowest place that no value which lives at the same time has. */
static vme_status plan_arena(vme_model *model)
{
    int placed = 0;
    int64_t total = 0;
    place *order = calloc((size_t)model->values, sizeof *order);
    const model_value **beside = calloc((size_t)model->values, sizeof *beside);
    vme_status status = VME_OK;
    if (order == NULL || beside == NULL) {
        status = vme_fail(VME_NO_MEMORY, "no memory for a model");
        goto done;
    }
    for (int v = 0; v < model->values; v++)
        if (model->value[v].kind == MODEL_COMPUTED && model->value[v].within < 0 && model->value[v].first >= 0)
            order[placed++] = (place){v, model->value[v].bytes};
    qsort(order, (size_t)placed, sizeof *order, by_size);
    for (int i = 0; i < placed; i++) {
        model_value *value = &model->value[order[i].value];
        int count = 0;
        if (vme_stopping(model->context)) {
            status = vme_stopped_here(model->context);
            goto done;
        }
        for (int j = 0; j < i; j++) {
            const model_value *other = &model->value[order[j].value];
            if (other->first <= value->last && value->first <= other->last)
                beside[count++] = other;
        }
        qsort(beside, (size_t)count, sizeof *beside, by_offset);
        int64_t at = 0;
        for (int j = 0; j < count && beside[j]->offset < at + value->bytes; j++)
            at = most(at, beside[j]->offset + beside[j]->bytes);
        value->offset = at;
        total = most(total, at + value->bytes);
        if (total > MODEL_ELEMENTS_MOST) {
            status = vme_fail(VME_NO_MEMORY, "the values of this model are too large");
            goto done;
        }
    }
    model->arena_bytes = (size_t)total;
done:
    free(order);
    free(beside);
    return status;
}

/* ---- the whole */
static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Where in the file's weights the first byte lies that constants from `tensor` on or steps from `s` on are still packed from. */
static uint64_t first_unpacked(const model_making *it, uint32_t tensor, int s)
{
    uint64_t first = UINT64_MAX;
    for (; tensor < it->file->tensors; tensor++)
        if (it->wanted[tensor])
            first = earlier(first, model_file_tensor(it->file, tensor).data_at);
    for (; s < it->model->steps; s++) {
        const struct packing *packing = &it->packing[s];
        if (packing->weights)
            first = earlier(first, packing->bias ? earlier(packing->weights_at, packing->bias_at) : packing->weights_at);
    }
    return first;
}

/* Gives pages of weights back that lie before what is still to be packed, after `bytes` more were: not for few, looking takes time too. */
static void spend(model_making *it, uint64_t bytes, uint32_t tensor, int s)
{
    if (it->spent == NULL || bytes < SPEND_LEAST)
        return;
    const uint64_t first = first_unpacked(it, tensor, s), room = (uint64_t)(it->end - it->file->weights);
    const uintptr_t before = (uintptr_t)(it->file->weights + earlier(first, room)) & ~(uintptr_t)(SPEND_PAGE - 1);
    if (before <= (uintptr_t)it->spent)
        return;
    madvise(it->spent, before - (uintptr_t)it->spent, MADV_DONTNEED);      /* else they stay, and that is all */
    it->spent = (char *)before;
}

/* The weights of products as their tiles want them, then the constants that steps read as they are. */
static vme_status pack_weights(model_making *it)
{
    vme_model *model = it->model;
    int64_t total = 0;
    for (int s = 0; s < model->steps; s++)
        if (it->packing[s].weights) {
            it->packing[s].at = total;
            const model_step *step = &model->step[s];
            total += ((step->kind == STEP_DEPTHWISE ? depthwise_packed(step, it->packing[s].outputs)
                       : convolution_packed(model->kernels, step, it->packing[s].outputs, it->packing[s].channels, true)) + 15) / 16 * 16;
        }
    for (int v = 0; v < (int)it->file->tensors; v++)
        if (it->wanted[v]) {
            model->value[v].offset = total * (int64_t)sizeof(float);
            total += model->value[v].bytes / (int64_t)sizeof(float);
        }
    model->packed_bytes = (size_t)total * sizeof(float);
    if (model->base != NULL && model->base->packed_bytes != model->packed_bytes)
        return NOT_A_MODEL("its weights depend on open sizes");
    model->packed = model->base != NULL ? model->base->packed : kept_packed(it);
    const bool kept = model->packed != NULL;
    if (!kept) {
        if (model->map != NULL)                 /* of another build's layout */
            munmap(model->map, model->map_bytes);
        model->map = NULL;
        model->packed = vme_scratch_new(model->context, model->packed_bytes);
    }
    if (model->packed == NULL)
        return VME_NO_MEMORY;
    for (int v = 0; v < (int)it->file->tensors; v++)
        if (it->wanted[v] && !kept) {
            model_tensor_record record = model_file_tensor(it->file, (uint32_t)v);
            memcpy(model->packed + model->value[v].offset, it->file->weights + record.data_at, record.data_size);
            spend(it, record.data_size, (uint32_t)v + 1, 0);
        }
    for (int s = 0; s < model->steps; s++) {
        const struct packing *packing = &it->packing[s];
        model_step *step = &model->step[s];
        if (!packing->weights)
            continue;
        const char *weights = kept ? NULL : it->file->weights + packing->weights_at;
        const char *bias = kept || !packing->bias ? NULL : it->file->weights + packing->bias_at;
        if (vme_stopping(model->context))
            return vme_stopped_here(model->context);
        step->weights = (float *)model->packed + packing->at;
        if (kept)
            step->bias = step->weights + (step->kind == STEP_DEPTHWISE ? packing->outputs * step->k
                                          : convolution_packed(model->kernels, step, packing->outputs, packing->channels, false));
        else if (step->kind == STEP_DEPTHWISE)
            depthwise_pack(step, packing->outputs, weights, bias);
        else
            convolution_pack(model->kernels, step, packing->outputs, packing->channels, weights, bias);
        spend(it, (uint64_t)(packing->outputs * step->k) * sizeof(float), it->file->tensors, s + 1);
    }
    spend(it, SPEND_LEAST, it->file->tensors, model->steps);
    kept_return(it);
    return VME_OK;
}

/* Values that lie within others lie where those do. */
static void place_views(vme_model *model)
{
    for (int v = 0; v < model->values; v++) {
        model_value *value = &model->value[v];
        if (value->within < 0)
            continue;
        value->offset = 0;
        for (int at = v; at >= 0; at = model->value[at].within)
            value->offset += model->value[at].within >= 0 ? model->value[at].inside : model->value[at].offset;
    }
}

static model_step port_step(step_kind kind, uint32_t port)
{
    model_step step = empty_step(kind);
    step.port = (int)port;
    return step;
}

static void scratch_needed(model_making *it, model_step *step, int64_t bytes)
{
    if (bytes == 0)
        return;
    step->scratch = it->values++;
    it->model->values = it->values;
    it->model->value[step->scratch].bytes = (bytes + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
}

static vme_status make(model_making *it)
{
    vme_model *model = it->model;
    const model_file *file = it->file;
    vme_status status = VME_OK;
    int s = 0;
    for (uint32_t v = 0; v < file->tensors; v++)
        value_read(it, v);
    for (int v = (int)file->tensors; v < model->values; v++)        /* scratch memory of steps, where it gets bytes */
        model->value[v] = (model_value){.kind = MODEL_COMPUTED, .first = -1, .within = -1};
    for (uint32_t i = 0; status == VME_OK && i < file->inputs; i++, s++) {
        uint32_t tensor = model_file_number(file->input_list, i);
        if (model->value[tensor].kind != MODEL_COMPUTED)
            return NOT_A_MODEL("input %u is a constant or a view", i);
        status = value_define(it, tensor, "an input");
        if (status == VME_OK)
            status = value_name(it, tensor);
        model->input[i] = (int)tensor;
        model->step[s] = port_step(STEP_IMPORT, i);
        model->step[s].out = (int)tensor;
    }
    it->values = (int)file->tensors;
    it->steps = s;
    for (uint32_t i = 0; status == VME_OK && i < file->nodes; i++)
        status = make_node(it, i);
    s = it->steps;
    for (uint32_t i = 0; status == VME_OK && i < file->outputs; i++, s++) {
        uint32_t tensor = model_file_number(file->output_list, i);
        if (is_constant(it, tensor) || !has_value(it, tensor))
            return NOT_A_MODEL("output %u is not computed", i);
        status = value_name(it, tensor);
        model->output[i] = (int)tensor;
        model->step[s] = port_step(STEP_EXPORT, i);
        model->step[s].in = (int)tensor;
    }
    if (status != VME_OK)
        return status;
    model->values = it->values;
    model->steps = s;
    spread_layouts(model);
    status = images_lay_out(model);
    if (status == VME_OK && model->base == NULL)
        status = backend_choose(model, it->kept != NULL);
    for (s = 0; status == VME_OK && s < model->steps; s++) {
        model_step *step = &model->step[s];
        model_value *in = step->in < 0 ? NULL : &model->value[step->in], *out = step->out < 0 ? NULL : &model->value[step->out];
        /* the numbers of one pixel lie as they will */
        if (step->kind == STEP_FLATTEN && in->bytes == out->bytes && in->h == 1 && in->w == 1 && in->image == in->c && out->within < 0) {
            step->kind = STEP_NOTHING;
            out->within = step->in;
        }
        if (step->kind == STEP_CONV) {
            int64_t bytes = 0;
            const bool before = model->base != NULL || it->kept != NULL;
            const convolution_algorithm chosen = model->base != NULL ? model->base->step[s].algorithm
                : before ? (convolution_algorithm)it->kept[s] : CONVOLUTION_DIRECT;
            status = convolution_choose(model, step, before ? &chosen : NULL, &bytes);
            scratch_needed(it, step, bytes);
        } else if (model_is_attention(step))
            scratch_needed(it, step, attention_scratch(model, step));
    }
    if (status == VME_OK) {
        find_lives(model);
        status = chains_choose(it);
    }
    if (status == VME_OK)
        status = plan_arena(model);
    if (status == VME_OK)
        status = pack_weights(it);
    place_views(model);
    return status;
}

vme_status vme_model_new(vme_context *context, const void *bytes, size_t size, vme_model **made)
{
    return vme_model_prepare(context, bytes, size, &(vme_model_options){.fixed = true}, made);
}

/* The arrays of a model and of its making, zeroed. Those of a plan, which VMs make, are charged; it has as many values and steps as its base, and scratch
 * memory of steps besides. */
static vme_status arrays_new(model_making *it)
{
    vme_model *model = it->model;
    const model_file *file = it->file;
    model->steps = model->base != NULL ? model->base->steps : (int)(file->inputs + file->nodes + file->operands + file->outputs);
    model->most_steps = model->steps;
    /* at most: parts of concatenations, and scratch memory of steps and of chains of two or more */
    model->values = (model->base != NULL ? model->base->values : (int)(file->tensors + file->operands)) + model->steps + model->steps / 2;
    const size_t values = (size_t)model->values, steps = (size_t)model->steps;
    if (model->base != NULL) {
        size_t bytes = sizeof *model + values * (sizeof *model->value + sizeof *it->wanted) + steps * (sizeof *model->step + sizeof *it->packing);
        if (vme_context_charge(model->context, bytes) != VME_OK)
            return VME_NO_MEMORY;
        vme_context_note_peak(model->context);
        model->charged = bytes;
    }
    model->value = calloc(values, sizeof *model->value);
    model->step = calloc(steps, sizeof *model->step);
    model->input = calloc(file->inputs, sizeof *model->input);
    model->output = calloc(file->outputs, sizeof *model->output);
    it->defined = calloc(file->tensors, sizeof *it->defined);
    it->wanted = calloc(values, sizeof *it->wanted);
    it->packing = calloc(steps, sizeof *it->packing);
    return model->value == NULL || model->step == NULL || model->input == NULL || model->output == NULL || it->defined == NULL
        || it->packing == NULL || it->wanted == NULL ? vme_fail(VME_NO_MEMORY, "no memory for a model") : VME_OK;
}

vme_status model_new(vme_context *context, const model_file *file, size_t size, const vme_model_options *options, vme_model *base,
                     vme_model **made)
{
    model_making it = {.file = file, .model = calloc(1, sizeof *it.model)};
    if (it.model == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    if (base == NULL && options->spend) {       /* whole pages after the first byte of weights */
        it.spent = (char *)(((uintptr_t)file->weights + SPEND_PAGE - 1) & ~(uintptr_t)(SPEND_PAGE - 1));
        it.end = (char *)(uintptr_t)file->tensor_records - MODEL_HEADER + size;
    }
    vme_model *model = it.model;
    atomic_init(&model->refs, 1);
    model->context = vme_context_ref(context);
    model->base = base == NULL ? NULL : vme_model_ref(base);
    model->kernels = base == NULL ? vme_kernels_current() : base->kernels;
    model->inputs = (int)file->inputs;
    model->outputs = (int)file->outputs;
    model->fixed = base == NULL ? options->fixed : base->fixed;
    model->spare = (int64_t)size / SPARE_PART;
    model->bands = base == NULL ? options->bands : base->bands;
    vme_status status = arrays_new(&it);
    if (status == VME_OK) {
        if (base == NULL && options->kept != NULL)
            kept_open(&it, options->kept, size);
        status = make(&it);
    }
    if (status == VME_OK && base == NULL && options->kept != NULL && model->map == NULL)
        kept_write(model, options->kept, size);
    free(it.defined);
    free(it.wanted);
    free(it.packing);
    if (status == VME_OK)
        *made = model;
    else
        vme_model_unref(model);
    return status;
}

vme_status vme_model_prepare(vme_context *context, const void *bytes, size_t size, const vme_model_options *options, vme_model **made)
{
    model_file file;
    vme_model *model = NULL;
    vme_status status = model_file_read(bytes, size, &file);
    if (status == VME_OK)
        status = model_new(context, &file, size, options, NULL, &model);
    if (status == VME_OK && file.opens > 0)
        status = model_open(model, &file, bytes, size);
    if (status == VME_OK)
        *made = model;
    else if (model != NULL)
        vme_model_unref(model);
    return status;
}

vme_model *vme_model_ref(vme_model *model)
{
    atomic_fetch_add_explicit(&model->refs, 1, memory_order_relaxed);
    return model;
}

void vme_model_unref(vme_model *model)
{
    if (atomic_fetch_sub_explicit(&model->refs, 1, memory_order_acq_rel) != 1)
        return;
    for (int v = 0; model->base == NULL && model->value != NULL && v < model->values; v++)
        free(model->value[v].name);
    for (int s = 0; model->base == NULL && model->step != NULL && s < model->steps; s++)
        free(model->step[s].name);
    if (model->map != NULL)
        munmap(model->map, model->map_bytes);
    else if (model->base == NULL)
        vme_scratch_free(model->context, model->packed, model->packed_bytes);
    model_close(model);
    free(model->value);
    free(model->step);
    free(model->input);
    free(model->output);
    if (model->charged > 0)
        vme_context_release(model->context, model->charged);
    if (model->base != NULL)
        vme_model_unref(model->base);
    vme_context_unref(model->context);
    free(model);
}

bool vme_model_was_kept(const vme_model *model) { return model->map != NULL; }
int vme_model_count(const vme_model *model, bool outputs) { return outputs ? model->outputs : model->inputs; }

void vme_model_port(const vme_model *model, bool outputs, int number, vme_port *port)
{
    const model_value *value = &model->value[outputs ? model->output[number] : model->input[number]];
    *port = (vme_port){.name = value->name, .shape = value->shape, .rank = value->rank, .dtype = value->dtype};
    if (model->label != NULL)
        port->open = (const char *const *)model->label + (size_t)(number + (outputs ? model->inputs : 0)) * MODEL_RANK;
}

/* ---- what it does, step by step */
int vme_model_steps(const vme_model *model) { return model->steps; }

static int64_t elements(const model_value *value)
{
    int64_t count = 1;
    for (int d = 0; d < value->rank; d++)
        count *= value->shape[d];
    return count;
}

static int64_t bytes_of(const vme_model *model, int value)
{
    return value < 0 ? 0 : elements(&model->value[value]) * vme_dtype_size((vme_dtype)model->value[value].dtype);
}

/* What each of a value's elements adds up; a view may have an element so often that a number has no room for it. */
static int64_t products_of(const model_value *made, int64_t each)
{
    int64_t products;
    return __builtin_mul_overflow(elements(made), each, &products) ? INT64_MAX : products;
}

static const char *algorithm_of(const model_step *step)
{
    return step->kind == STEP_NOTHING ? "nothing" : step->kind == STEP_DEPTHWISE ? "depthwise"
           : step->kind == STEP_CONV ? vme_convolution_name((int)step->algorithm)
           : model_is_attention(step) ? step->slots > 0 ? "fused" : "apart" : "";
}

static const char *kind_of(const model_step *step)
{
    static const char *const curved[][CURVES] = {
        {"Conv+gelu", "Conv+gelu tanh", "Conv+sigmoid", "Conv+silu", "Conv+mish"}, {"Gemm+gelu", "Gemm+gelu tanh", "Gemm+sigmoid", "Gemm+silu", "Gemm+mish"},
    };
    const int curve = step->op == MODEL_CONV || step->op == MODEL_GEMM ? step->p[ACTIVATION] - ACTIVATION_CURVES : -1;
    return curve < 0 ? operators[step->op].name : curved[step->op == MODEL_GEMM][curve];
}

void vme_model_step(const vme_model *model, int number, vme_step *told)
{
    const model_step *step = &model->step[number];
    const bool port = step->name == NULL && (step->kind == STEP_IMPORT || step->kind == STEP_EXPORT);
    const model_value *made = &model->value[step->out >= 0 ? step->out : step->in];
    *told = (vme_step){
        .name = port ? made->name : step->name == NULL ? "" : step->name,
        .kind = port ? (step->kind == STEP_IMPORT ? "Input" : "Output") : kind_of(step),
        .algorithm = algorithm_of(step), .shape = made->shape, .rank = made->rank, .dtype = made->dtype,
    };
    if (step->kind == STEP_NOTHING)
        return;
    if (step->kind == STEP_CONV || step->kind == STEP_DEPTHWISE) {
        told->products = products_of(made, step->k);
        told->bytes = made->c * (step->k + 1) * (int64_t)sizeof(float);
    } else if (step->op == MODEL_MATMUL && !port) {
        const model_value *left = &model->value[step->operand[0]];
        told->products = products_of(made, left->shape[left->rank - 1]);
    }
    else if (step->op == MODEL_ATTENTION && !port) {
        const model_value *left = &model->value[step->operand[0]], *weights = &model->value[step->operand[1]];
        const int64_t keys = weights->shape[weights->rank - 1];
        told->products = products_of(made, keys + keys * left->shape[left->rank - 1] / made->shape[made->rank - 1]);
    }
    told->bytes += bytes_of(model, step->in) + bytes_of(model, step->addend) + bytes_of(model, step->out);
    if (port)
        told->bytes += told->bytes;         /* the caller's array is as large */
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        told->bytes += bytes_of(model, step->operand[i]);
}
