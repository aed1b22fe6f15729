/* Prepares a model, or a plan of one for other sizes: computes every shape and checks it against the file's, chooses
 * layouts and margins, turns nodes into steps, assigns arena offsets (arena.c) and packs the weights (weights.c). The
 * file's bytes are not needed afterwards.
 *
 * A prepared model is never written, so any number of sessions on any threads may read it. */
#include "models/model.h"
#include "models/arena.h"
#include "models/attention.h"
#include "models/bands.h"
#include "models/outside.h"
#include "models/empty.h"
#include "models/file.h"
#include "models/integer_products.h"
#include "models/kept.h"
#include "models/makers.h"
#include "models/narrow_products.h"
#include "models/plans.h"
#include "models/preparation.h"
#include "models/recurrence.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/trees.h"
#include "models/tuning.h"
#include "models/value.h"
#include "models/weights.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    /* Packed weights may exceed plain ones by 1 / SPARE_FRACTION of the file; BERT then takes less memory than in ONNX
     * Runtime. */
    SPARE_FRACTION = 3,
    CACHE_WAY = 4096, /* bytes: on most CPUs addresses this far apart map to the same set of L1 */
};

#define NOT_A_MODEL(...) vme_fail(VME_BAD_VALUE, MODEL_REFUSED __VA_ARGS__)

/* ---- values */
static void value_read(model_preparation *preparation, uint32_t tensor)
{
    model_tensor_record record = model_file_tensor(preparation->file, tensor);
    model_value *value = &preparation->model->value[tensor];
    int64_t element = vme_dtype_size((vme_dtype)record.dtype), stride = element;
    value->kind = (int)record.kind;
    value->dtype = (int)record.dtype;
    value->rank = (int)record.rank;
    value->first_step = value->container = value->offset = -1;
    memcpy(value->shape, record.shape, sizeof value->shape);
    for (int d = 0; d < value->rank; d++)
        if (value->shape[d] == 0) {
            value->shape[d] = 1;
            value->empty_dims |= 1u << d;
        }
    for (int d = value->rank - 1; d >= 0; d--) {
        value->strides[d] = record.kind == MODEL_VIEW && value->empty_dims == 0 ? record.strides[d] * element : stride;
        stride *= value->shape[d];
    }
    value->bytes = (stride + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
    if (record.kind == MODEL_VIEW) {
        value->container = (int)record.base;
        value->container_offset = value->empty_dims == 0 ? record.offset * element : 0;
        preparation->model->value[record.base].plain = true;
    }
    if (value->dtype == VME_FLOAT32 && (value->rank == 2 || value->rank == 4)) {
        value->n = value->shape[0];
        value->c = value->shape[1];
        value->h = value->rank == 4 ? value->shape[2] : 1;
        value->w = value->rank == 4 ? value->shape[3] : 1;
        value->pixel_stride = value->c;
        value->row_stride = value->w * value->c;
        value->image_stride = value->h * value->row_stride;
    }
}

static uint32_t base_of(const model_preparation *preparation, uint32_t tensor)
{
    const model_value *value = &preparation->model->value[tensor];
    return value->kind == MODEL_VIEW ? (uint32_t)value->container : tensor;
}

bool model_is_constant(const model_preparation *preparation, uint32_t tensor)
{
    return preparation->model->value[base_of(preparation, tensor)].kind == MODEL_CONSTANT;
}
static bool has_value(const model_preparation *preparation, uint32_t tensor)
{
    return model_is_constant(preparation, tensor) || preparation->defined[base_of(preparation, tensor)] != 0;
}

/* Marks an input or the result of a node as defined. Defining a view defines a part of its base. */
static vme_status value_define(model_preparation *preparation, uint32_t tensor, const char *what)
{
    char *defined = &preparation->defined[base_of(preparation, tensor)];
    bool is_view = preparation->model->value[tensor].kind == MODEL_VIEW;
    if (model_is_constant(preparation, tensor) || (!is_view && *defined != 0))
        return NOT_A_MODEL("tensor %u is %s, and has a value already", tensor, what);
    *defined = is_view && *defined != 2 ? 1 : 2;
    return VME_OK;
}

vme_status model_require_image(model_preparation *preparation, uint32_t number, int tensor)
{
    model_value *value = &preparation->model->value[tensor];
    bool dense = value->rank != 2
                 || ((value->shape[1] == 1 || value->strides[1] == 4)
                     && (value->shape[0] == 1 || value->strides[0] == 4 * value->shape[1]));
    if (value->dtype != VME_FLOAT32 || model_is_constant(preparation, (uint32_t)tensor) || !dense
        || (value->rank != 2 && (value->rank != 4 || value->kind == MODEL_VIEW || value->plain)))
        return MODEL_WRONG(number, "needs float32 images or matrices without views; tensor %d is not one", tensor);
    value->channels_last = value->rank == 4;
    return VME_OK;
}

static vme_status value_name(model_preparation *preparation, uint32_t tensor)
{
    model_tensor_record record = model_file_tensor(preparation->file, tensor);
    model_value *value = &preparation->model->value[tensor];
    if (preparation->model->base != NULL)
        value->name = preparation->model->base->value[tensor].name;
    else if (value->name == NULL)
        value->name = strndup(preparation->file->names + record.name_at, record.name_size);
    return value->name != NULL ? VME_OK : vme_fail(VME_NO_MEMORY, "no memory for a model");
}

void model_margin_widen(model_value *value, int64_t top, int64_t left, int64_t bottom, int64_t right)
{
    value->top = max(value->top, top);
    value->left = max(value->left, left);
    value->bottom = max(value->bottom, bottom);
    value->right = max(value->right, right);
}

static void image_strides(model_value *value)
{
    int64_t strides[4] = {value->image_stride * 4, 4, value->row_stride * 4, value->pixel_stride * 4};
    memcpy(value->strides, strides, sizeof strides);
    value->margin_bytes = (value->top * value->row_stride + value->left * value->pixel_stride) * 4;
}

/* Elements from one row of c elements to the next: with a cache line of padding if the rows of a tile would otherwise
 * map to the same set of L1. */
static int64_t row_stride(const model_value *value)
{
    return value->may_be_padded && value->n * value->h * value->w > 1
                   && value->c * (int64_t)sizeof(float) % CACHE_WAY == 0
               ? value->c + VME_ALIGNMENT / (int64_t)sizeof(float)
               : value->c;
}

/* Sets the layout of a matrix that only products use: its rows may be padded. */
static void matrix_lay_out(model_value *value)
{
    value->pixel_stride = value->row_stride = value->image_stride = row_stride(value);
    value->strides[0] = value->pixel_stride * (int64_t)sizeof(float);
    value->bytes = (value->n * value->strides[0] + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
}

static void forbid_padding(vme_model *model, int value)
{
    if (value >= 0)
        model->value[model_root(model, value)].may_be_padded = false;
}

/* Finds the values whose rows may be padded: images that no operator on tensors uses, and matrices that only products
 * use. */
static void find_paddable(vme_model *model)
{
    for (int v = 0; v < model->values; v++) {
        model_value *value = &model->value[v];
        value->may_be_padded = value->channels_last
                               || (value->dtype == VME_FLOAT32 && value->rank == 2 && value->kind != MODEL_CONSTANT
                                   && value->kind != MODEL_VIEW && !value->plain);
    }
    for (int v = 0; v < model->values; v++)
        if (model->value[v].container >= 0 && !model->value[v].channels_last)
            forbid_padding(model, v);
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        const int used[] = {step->in, step->addend, step->out};
        for (int i = 0; i < 3; i++)
            if (step->kind == STEP_TENSOR
                || (step->kind != STEP_CONV && used[i] >= 0 && !model->value[used[i]].channels_last))
                forbid_padding(model, used[i]);
        for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
            forbid_padding(model, step->operand[i]);
    }
}

static vme_status image_lay_out(model_value *value)
{
    int64_t total;
    value->pixel_stride = row_stride(value);
    if (__builtin_mul_overflow(value->left + value->w + value->right, value->pixel_stride, &value->row_stride)
        || __builtin_mul_overflow(value->top + value->h + value->bottom, value->row_stride, &value->image_stride)
        || __builtin_mul_overflow(value->n, value->image_stride, &total) || total > MODEL_ELEMENTS_MAX)
        return vme_fail(VME_NO_MEMORY, "a value of this model with its margin is too large");
    image_strides(value);
    value->bytes = (total * (int64_t)sizeof(float) + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
    return VME_OK;
}

/* Sets the layouts of images and matrices. An image within another one has the outer image's margin, which is the
 * widest that any of them needs. */
static vme_status lay_out(vme_model *model)
{
    vme_status status = VME_OK;
    find_paddable(model);
    for (int v = 0; v < model->values; v++) {
        const model_value *value = &model->value[v];
        if (value->channels_last && value->container >= 0)
            model_margin_widen(&model->value[model_root(model, v)], value->top, value->left, value->bottom,
                               value->right);
    }
    for (int v = 0; status == VME_OK && v < model->values; v++)
        if (model->value[v].channels_last && model->value[v].container < 0)
            status = image_lay_out(&model->value[v]);
        else if (model->value[v].may_be_padded)
            matrix_lay_out(&model->value[v]);
    for (int v = 0; status == VME_OK && v < model->values; v++) {
        model_value *value = &model->value[v];
        if (value->channels_last && value->container >= 0) {
            const model_value *root = &model->value[model_root(model, v)];
            const bool interleaved = value->interleave_h > 0;
            if (interleaved)
                value->container_offset += ((root->top + value->phase_h) * root->row_stride
                                            + (root->left + value->phase_w) * root->pixel_stride)
                                           * 4;
            else
                model_margin_widen(value, root->top, root->left, root->bottom, root->right);
            value->pixel_stride = root->pixel_stride * (interleaved ? value->interleave_w : 1);
            value->row_stride = root->row_stride * (interleaved ? value->interleave_h : 1);
            value->image_stride = root->image_stride;
            image_strides(value);
        }
    }
    return status;
}

/* ---- nodes */
bool model_same_shape(const model_value *a, const model_value *b)
{
    return a->rank == b->rank && memcmp(a->shape, b->shape, sizeof(int64_t) * (size_t)a->rank) == 0;
}

model_step model_step_empty(step_kind kind)
{
    model_step step = {.kind = kind, .in = -1, .addend = -1, .out = -1, .scratch = -1, .guard = -1};
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        step.operand[i] = -1;
    return step;
}

static const struct {
    model_make *make;
    const char *name;
    bool images; /* operand 0, the result, and the addend (operand 3, or 1 of two inputs) are images */
} operators[MODEL_OPS] = {
    [MODEL_CONV] = {model_make_product, "Conv", true},
    [MODEL_MAX_POOL] = {model_make_pool, "MaxPool", true},
    [MODEL_GLOBAL_AVERAGE_POOL] = {model_make_global_average_pool, "GlobalAveragePool", true},
    [MODEL_GEMM] = {model_make_product, "Gemm", true},
    [MODEL_ADD] = {model_make_add, "Add", true},
    [MODEL_RELU] = {model_make_clip, "Relu", true},
    [MODEL_FLATTEN] = {model_make_flatten, "Flatten", true},
    [MODEL_CLIP] = {model_make_clip, "Clip", true},
    [MODEL_AVERAGE_POOL] = {model_make_pool, "AveragePool", true},
    [MODEL_CONCAT] = {model_make_concat, "Concat", true},
    [MODEL_SLICE] = {model_make_slice, "Slice", true},
    [MODEL_SHUFFLE] = {model_make_shuffle, "Shuffle", true},
    [MODEL_INTERLEAVE] = {model_make_interleave, "Interleave", true},
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
    [MODEL_RECURRENCE] = {model_make_recurrence, "Recurrence"},
    [MODEL_TREES] = {model_make_trees, "Trees"},
    [MODEL_COUPLE] = {model_make_couple, "Couple"},
    [MODEL_INTEGER_PRODUCT] = {model_make_integer_product, "IntegerProduct"},
    [MODEL_QUANTIZE] = {model_make_quantized, "Quantize"},
    [MODEL_DEQUANTIZE] = {model_make_quantized, "Dequantize"},
    [MODEL_QUANTIZED_ADD] = {model_make_quantized, "QuantizedAdd"},
    [MODEL_QUANTIZED_MULTIPLY] = {model_make_quantized, "QuantizedMultiply"},
    [MODEL_LOOK_UP] = {model_make_quantized, "LookUp"},
    [MODEL_NARROW_PRODUCT] = {model_make_narrow_product, "NarrowProduct"},
    [MODEL_BLEND] = {model_make_blending, "Blend"},
    [MODEL_SAMPLE] = {model_make_sampling, "Sample"},
    [MODEL_REGIONS] = {model_make_regions, "Regions"},
    [MODEL_FOURIER] = {model_make_fourier, "Fourier"},
    [MODEL_CHANCE] = {model_make_chance, "Chance"},
    [MODEL_BITS] = {model_make_bits, "Bits"},
    [MODEL_SUPPRESS] = {model_make_suppression, "Suppress"},
    [MODEL_BYTE_MAX_POOL] = {model_make_byte_pooling, "ByteMaxPool"},
    [MODEL_INTEGER_MEAN] = {model_make_integer_means, "IntegerMean"},
};

model_make *model_maker(uint32_t op) { return op < MODEL_OPS ? operators[op].make : NULL; }
const char *model_operator_name(uint32_t op) { return operators[op].name; }

static vme_status activation_read(uint32_t number, model_step *step)
{
    const bool product = step->op == MODEL_CONV || step->op == MODEL_GEMM;
    step->bounds = (vme_bounds){-__builtin_inff(), __builtin_inff()};
    switch (step->p[ACTIVATION]) {
    case ACTIVATION_NONE: return VME_OK;
    case ACTIVATION_RELU: step->bounds.low = 0; return VME_OK;
    case ACTIVATION_CLIP:
        memcpy(&step->bounds.low, &step->p[LOW], 4);
        memcpy(&step->bounds.high, &step->p[HIGH], 4);
        return step->bounds.low <= step->bounds.high ? VME_OK
                                                     : MODEL_WRONG(number, "has a lower bound above its upper bound");
    default:
        return product && step->p[ACTIVATION] >= ACTIVATION_CURVES && step->p[ACTIVATION] < ACTIVATION_CURVES + CURVES
                   ? VME_OK
                   : MODEL_WRONG(number, "has the unknown activation %d", step->p[ACTIVATION]);
    }
}

/* Checks that the values which the guard and its parents read are single bools that steps have computed. */
static vme_status check_guard(model_preparation *preparation, uint32_t number, int guard)
{
    const vme_model *model = preparation->model;
    for (; guard >= 0; guard = model->guard[guard].parent) {
        const uint32_t tensor = (uint32_t)model->guard[guard].value;
        const model_value *value = &model->value[tensor];
        bool fits = value->dtype == VME_BOOL && value->empty_dims == 0 && has_value(preparation, tensor)
                    && !model_is_constant(preparation, tensor);
        for (int d = 0; d < value->rank; d++)
            fits = fits && value->shape[d] == 1;
        if (!fits)
            return MODEL_WRONG(number, "has a guard on tensor %u, which is not a computed bool", tensor);
    }
    return VME_OK;
}

bool model_guard_holds(const vme_model *model, int guard, char *arena)
{
    bool holds = true;
    for (; holds && guard >= 0; guard = model->guard[guard].parent) {
        const vme_tensor condition = model_tensor(model, model->guard[guard].value, arena);
        holds = (*(const unsigned char *)condition.data != 0) == model->guard[guard].side;
    }
    return holds;
}

static vme_status make_node(model_preparation *preparation, uint32_t number)
{
    int step_number = preparation->steps++;
    model_step *step = &preparation->model->step[step_number];
    model_node_record node = model_file_node(preparation->file, number);
    uint32_t operands[MODEL_NODE_INPUTS + 1];
    const bool images = operators[node.op].images;
    *step = model_step_empty(STEP_TENSOR);
    step->op = node.op;
    step->name = preparation->model->base != NULL ? preparation->model->base->step[step_number].name
                                                  : strndup(preparation->file->names + node.name_at, node.name_size);
    if (step->name == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    if (!images && node.inputs > MODEL_STEP_OPERANDS)
        return MODEL_WRONG(number, "has %u operands", node.inputs);
    for (uint32_t i = 0; i < node.inputs + node.outputs; i++)
        operands[i] = model_file_number(preparation->file->operand_list, node.first_operand + i);
    for (uint32_t i = 0; i < node.inputs; i++) {
        if (operands[i] == MODEL_ABSENT)
            continue;
        if (!has_value(preparation, operands[i]))
            return MODEL_WRONG(number, "reads tensor %u, which has no value yet", operands[i]);
        if (images)
            continue;
        step->operand[i] = (int)operands[i];
        if (model_is_constant(preparation, operands[i]))
            preparation->stored_unpacked[base_of(preparation, operands[i])] = true;
    }
    vme_status status = value_define(preparation, operands[node.inputs], "computed");
    if (status != VME_OK)
        return status;
    step->out = (int)operands[node.inputs];
    memcpy(step->p, node.parameters, sizeof step->p);
    if (images) {
        step->in = (int)operands[0];
        if ((status = activation_read(number, step)) != VME_OK
            || (status = model_require_image(preparation, number, step->in)) != VME_OK
            || (status = model_require_image(preparation, number, step->out)) != VME_OK)
            return status;
    }
    status = check_guard(preparation, number, (int)node.guard - 1);
    if (status == VME_OK)
        status = operators[node.op].make(preparation, number, &node, operands, step, step_number);
    for (int s = step_number; s < preparation->steps; s++)
        preparation->model->step[s].guard = (int)node.guard - 1;
    return status == VME_OK && step->addend >= 0 ? model_require_image(preparation, number, step->addend) : status;
}

/* Element-wise results of images get an image's layout too, unless something needs them plain. */
static void propagate_layouts(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        model_value *out = step->out < 0 ? NULL : &model->value[step->out];
        if (!model_is_elementwise(step) || out->rank != 4 || out->dtype != VME_FLOAT32 || out->kind == MODEL_VIEW
            || out->plain)
            continue;
        for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
            if (step->operand[i] >= 0 && model->value[step->operand[i]].channels_last
                && model_same_shape(&model->value[step->operand[i]], out))
                out->channels_last = true;
    }
}

/* ---- whole models */
static model_step port_step(step_kind kind, uint32_t port)
{
    model_step step = model_step_empty(kind);
    step.port = (int)port;
    return step;
}

static void add_scratch(model_preparation *preparation, model_step *step, int64_t bytes)
{
    if (bytes == 0)
        return;
    step->scratch = preparation->values++;
    preparation->model->values = preparation->values;
    preparation->model->value[step->scratch].bytes = (bytes + VME_ALIGNMENT - 1) / VME_ALIGNMENT * VME_ALIGNMENT;
}

static void count_reader(const model_preparation *preparation, uint32_t tensor)
{
    if (tensor != MODEL_ABSENT)
        preparation->model->value[tensor].readers = min(2, preparation->model->value[tensor].readers + 1);
}

static void count_readers(const model_preparation *preparation)
{
    const model_file *file = preparation->file;
    for (uint32_t i = 0; i < file->nodes; i++) {
        const model_node_record node = model_file_node(file, i);
        for (uint32_t j = 0; j < node.inputs; j++)
            count_reader(preparation, model_file_number(file->operand_list, node.first_operand + j));
    }
    for (uint32_t i = 0; i < file->outputs; i++)
        count_reader(preparation, model_file_number(file->output_list, i));
}

static bool has_choice(const model_step *step) { return step->kind == STEP_CONV || model_is_attention(step); }

/* Whether both models have the same number of steps, with choices of the same kinds: then the choices of one fit the
 * other. */
static bool have_same_choices(const vme_model *model, const vme_model *other)
{
    bool same = model->steps == other->steps;
    for (int s = 0; same && s < model->steps; s++)
        same = has_choice(&model->step[s]) == has_choice(&other->step[s])
               && (!has_choice(&model->step[s]) || model->step[s].kind == other->step[s].kind);
    return same;
}

static vme_status build(model_preparation *preparation)
{
    vme_model *model = preparation->model;
    const model_file *file = preparation->file;
    vme_status status = VME_OK;
    int s = 0;
    for (uint32_t v = 0; v < file->tensors; v++)
        value_read(preparation, v);
    count_readers(preparation);
    for (int v = (int)file->tensors; v < model->values; v++) /* values for the scratch memory of steps */
        model->value[v] = (model_value){.kind = MODEL_COMPUTED, .first_step = -1, .container = -1};
    for (uint32_t i = 0; status == VME_OK && i < file->inputs; i++, s++) {
        uint32_t tensor = model_file_number(file->input_list, i);
        if (model->value[tensor].kind != MODEL_COMPUTED)
            return NOT_A_MODEL("input %u is a constant or a view", i);
        status = value_define(preparation, tensor, "an input");
        if (status == VME_OK)
            status = value_name(preparation, tensor);
        model->input[i] = (int)tensor;
        model->step[s] = port_step(STEP_IMPORT, i);
        model->step[s].out = (int)tensor;
    }
    preparation->values = (int)file->tensors;
    preparation->steps = s;
    for (uint32_t i = 0; i < file->guards; i++) {
        const model_guard_record guard = model_file_guard(file, i);
        model->guard[i] = (struct model_guard){(int)guard.tensor, (int)guard.parent - 1, guard.side != 0};
    }
    for (uint32_t i = 0; status == VME_OK && i < file->nodes; i++)
        status = make_node(preparation, i);
    s = preparation->steps;
    for (uint32_t i = 0; status == VME_OK && i < file->outputs; i++, s++) {
        uint32_t tensor = model_file_number(file->output_list, i);
        if (model_is_constant(preparation, tensor) || !has_value(preparation, tensor))
            return NOT_A_MODEL("output %u is not computed", i);
        status = value_name(preparation, tensor);
        model->output[i] = (int)tensor;
        model->step[s] = port_step(STEP_EXPORT, i);
        model->step[s].in = (int)tensor;
    }
    if (status != VME_OK)
        return status;
    model->values = preparation->values;
    model->steps = s;
    propagate_layouts(model);
    status = lay_out(model);
    if (status == VME_OK)
        outside_find(model);
    if (preparation->like != NULL && preparation->kept == NULL && have_same_choices(model, preparation->like))
        model->kernels = preparation->like->kernels;
    else
        preparation->like = NULL;
    const bool chosen_before = preparation->kept != NULL || preparation->like != NULL;
    if (status == VME_OK && model->base == NULL)
        status = backend_choose(model, chosen_before);
    for (s = 0; status == VME_OK && s < model->steps; s++) {
        model_step *step = &model->step[s];
        model_value *in = step->in < 0 ? NULL : &model->value[step->in],
                    *out = step->out < 0 ? NULL : &model->value[step->out];
        /* images of one pixel are flattened in place: a pixel's elements are contiguous in any layout */
        if (step->kind == STEP_FLATTEN && in->bytes == out->bytes && in->h == 1 && in->w == 1
            && in->image_stride == in->c && out->container < 0 && in->interleave_h == 0) {
            step->kind = STEP_NOTHING;
            out->container = step->in;
        }
        if (has_choice(step)) {
            int64_t bytes = 0;
            /* a convolution shares the base's weights; attention has none and chooses for its own sizes */
            const bool from_base = model->base != NULL && step->kind == STEP_CONV;
            const model_algorithm chosen = from_base                   ? model->base->step[s].algorithm
                                           : preparation->kept != NULL ? (model_algorithm)preparation->kept[s]
                                           : preparation->like != NULL ? preparation->like->step[s].algorithm
                                                                       : CONVOLUTION_DIRECT;
            status = algorithm_choose(model, step, from_base || chosen_before ? &chosen : NULL, &bytes);
            add_scratch(preparation, step, bytes);
        } else if (model_is_recurrence(step))
            add_scratch(preparation, step, recurrence_scratch(model, step));
        else if (model_is_trees(step))
            add_scratch(preparation, step, trees_scratch(model, step));
        else if (model_is_integer_product(step))
            add_scratch(preparation, step, integer_product_scratch(model, step));
        else if (model_is_narrow_product(step))
            add_scratch(preparation, step, narrow_product_scratch(model, step));
    }
    const bool has_empty = empty_found(model);
    if (status == VME_OK) {
        arena_find_lifetimes(model);
        if (!has_empty)
            status = chains_choose(preparation);
    }
    if (status == VME_OK)
        status = arena_plan(model);
    if (status == VME_OK)
        status = weights_pack(preparation);
    arena_place_views(model);
    for (s = 0; status == VME_OK && model->base == NULL && s < model->steps; s++)
        if (model_is_trees(&model->step[s]))
            status = trees_check(model, &model->step[s]);
    return status == VME_OK && has_empty ? empty_apply_shapes(model) : status;
}

vme_status vme_model_new(vme_context *context, const void *bytes, size_t size, vme_model **result)
{
    return vme_model_prepare(context, bytes, size, &(vme_model_options){.fixed = true}, result);
}

/* Allocates the arrays of a model and of its preparation, zeroed. Those of a plan, which VMs make, are charged. A plan
 * has the values and steps of its base, and scratch memory of steps in addition. */
static vme_status arrays_new(model_preparation *preparation)
{
    vme_model *model = preparation->model;
    const model_file *file = preparation->file;
    model->steps =
        model->base != NULL ? model->base->steps : (int)(file->inputs + file->nodes + file->operands + file->outputs);
    model->max_steps = model->steps;
    /* an upper bound, with parts of concatenations and scratch memory of steps and of chains, which have two steps or
     * more */
    model->values = (model->base != NULL ? model->base->values : (int)(file->tensors + file->operands)) + model->steps
                    + model->steps / 2;
    const size_t values = (size_t)model->values, steps = (size_t)model->steps;
    if (model->base != NULL) {
        size_t bytes = sizeof *model + values * (sizeof *model->value + sizeof *preparation->stored_unpacked)
                       + steps * (sizeof *model->step + sizeof *preparation->packing)
                       + (size_t)file->guards * sizeof *model->guard;
        if (vme_context_charge(model->context, bytes) != VME_OK)
            return VME_NO_MEMORY;
        vme_context_note_peak(model->context);
        model->charged_bytes = bytes;
    }
    model->value = calloc(values, sizeof *model->value);
    model->step = calloc(steps, sizeof *model->step);
    model->input = calloc(file->inputs, sizeof *model->input);
    model->output = calloc(file->outputs, sizeof *model->output);
    model->guards = (int)file->guards;
    model->guard = calloc((size_t)file->guards + 1, sizeof *model->guard);
    preparation->defined = calloc(file->tensors, sizeof *preparation->defined);
    preparation->stored_unpacked = calloc(values, sizeof *preparation->stored_unpacked);
    preparation->packing = calloc(steps, sizeof *preparation->packing);
    return model->value == NULL || model->step == NULL || model->input == NULL || model->output == NULL
                   || model->guard == NULL || preparation->defined == NULL || preparation->packing == NULL
                   || preparation->stored_unpacked == NULL
               ? vme_fail(VME_NO_MEMORY, "no memory for a model")
               : VME_OK;
}

vme_status model_new(vme_context *context, const model_file *file, size_t size, const vme_model_options *options,
                     vme_model *base, vme_model **result)
{
    model_preparation preparation = {.file = file, .model = calloc(1, sizeof *preparation.model)};
    if (preparation.model == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    if (base == NULL && options->spend)
        weights_release_init(&preparation, size);
    vme_model *model = preparation.model;
    atomic_init(&model->refs, 1);
    model->context = vme_context_ref(context);
    model->base = base == NULL ? NULL : vme_model_ref(base);
    model->kernels = base == NULL ? vme_kernels_current() : base->kernels;
    model->inputs = (int)file->inputs;
    model->outputs = (int)file->outputs;
    model->fixed = base == NULL ? options->fixed : base->fixed;
    model->spare_bytes = (int64_t)size / SPARE_FRACTION;
    model->bands = base == NULL ? options->bands : base->bands;
    vme_status status = arrays_new(&preparation);
    if (status == VME_OK && base == NULL && file->notes_size > 0) {
        model->notes = strndup(file->names + file->notes_at, file->notes_size);
        status = model->notes == NULL ? vme_fail(VME_NO_MEMORY, "no memory for a model") : VME_OK;
    }
    if (status == VME_OK) {
        if (base == NULL && options->kept != NULL)
            kept_open(&preparation, options->kept, size);
        if (base == NULL)
            preparation.like = options->like;
        status = build(&preparation);
    }
    if (status == VME_OK && base == NULL && options->kept != NULL && model->map == NULL)
        kept_write(model, options->kept, size);
    free(preparation.defined);
    free(preparation.stored_unpacked);
    free(preparation.packing);
    if (status == VME_OK)
        *result = model;
    else
        vme_model_unref(model);
    return status;
}

static vme_status part_prepare(vme_context *context, const void *bytes, size_t size, const vme_model_options *options,
                               vme_model **result)
{
    model_file file;
    vme_model *model = NULL;
    vme_status status = model_file_read(bytes, size, false, &file);
    if (status == VME_OK)
        status = model_new(context, &file, size, options, NULL, &model);
    if (status == VME_OK && file.opens > 0)
        status = model_open_sizes_init(model, &file, bytes, size);
    if (status == VME_OK)
        *result = model;
    else if (model != NULL)
        vme_model_unref(model);
    return status;
}

vme_status vme_model_prepare(vme_context *context, const void *bytes, size_t size, const vme_model_options *options,
                             vme_model **result)
{
    vme_model *first = NULL, **part = &first;
    vme_model_options part_options = *options;
    vme_status status = VME_OK;
    size_t remaining = size;
    for (int number = 0; status == VME_OK && (number == 0 || remaining > 0); number++) {
        const size_t part_size = model_file_size(bytes, remaining);
        if (part_size < remaining)
            part_options.kept = NULL; /* a kept file has one part */
        status = number < MODEL_PARTS_MAX
                     ? part_prepare(context, bytes, part_size, &part_options, part)
                     : vme_fail(VME_BAD_VALUE, MODEL_REFUSED "it has more than %d parts", MODEL_PARTS_MAX);
        if (status == VME_OK)
            part = &(*part)->next;
        bytes = (const char *)bytes + part_size;
        remaining -= part_size;
    }
    if (status == VME_OK)
        *result = first;
    else if (first != NULL)
        vme_model_unref(first);
    return status;
}

vme_model *vme_model_part(vme_model *model, int number)
{
    while (model != NULL && number-- > 0)
        model = model->next;
    return model;
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
    if (model->next != NULL)
        vme_model_unref(model->next);
    if (model->map != NULL)
        munmap(model->map, model->map_bytes);
    else if (model->base == NULL)
        vme_scratch_free(model->context, model->packed, model->packed_bytes);
    model_open_sizes_free(model);
    free(model->value);
    free(model->step);
    free(model->input);
    free(model->output);
    free(model->guard);
    if (model->charged_bytes > 0)
        vme_context_release(model->context, model->charged_bytes);
    if (model->base != NULL)
        vme_model_unref(model->base);
    vme_context_unref(model->context);
    free(model);
}

bool vme_model_was_kept(const vme_model *model) { return model->map != NULL; }
