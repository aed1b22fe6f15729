/* Steps that call the engine's operators on tensors: a step's values are viewed as tensors in the arena, or in the
 * model if they are constants, and passed to the operator. Only the operator itself allocates.
 *
 * Shapes and dtypes that the operator would refuse are refused when the model is prepared, so that only values can make
 * a run fail. */
#include "models/tensors.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/outside.h"
#include "models/preparation.h"
#include "models/rows.h"
#include "models/step.h"
#include "models/value.h"
#include "operators/index.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include "vme_order.h"

#include <string.h>

vme_tensor model_tensor(const vme_model *model, int value, char *arena)
{
    const model_value *v = &model->value[value];
    const int outside = model->outside_count == 0 ? 0 : model->value[model_root(model, value)].outside;
    char *block = v->kind == MODEL_CONSTANT || (v->container >= 0 && model->value[v->container].kind == MODEL_CONSTANT)
                      ? model->packed
                  : outside > 0 && arena != NULL ? outside_entry_of(arena, outside)->data
                                                 : arena;
    return (vme_tensor){
        .data = block == NULL ? NULL : block + v->offset + v->margin_bytes,
        .shape = v->shape,
        .strides = v->strides,
        .rank = v->rank,
        .dtype = v->dtype,
    };
}

/* ---- checks */
static vme_status check_input_count(uint32_t number, const model_node_record *node, const uint32_t *operands,
                                    uint32_t min_inputs, uint32_t max_inputs)
{
    if (node->inputs < min_inputs || node->inputs > max_inputs)
        return MODEL_WRONG(number, "has %u operands, expected %u to %u", node->inputs, min_inputs, max_inputs);
    for (uint32_t i = 0; i < min_inputs; i++)
        if (operands[i] == MODEL_ABSENT)
            return MODEL_WRONG(number, "has no operand %u", i);
    return VME_OK;
}

static vme_status check_broadcast(const model_preparation *preparation, uint32_t number, const model_node_record *node,
                                  const model_step *step)
{
    vme_tensor out = model_tensor(preparation->model, step->out, NULL);
    int64_t strides[VME_RANK_MAX];
    for (uint32_t i = 0; i < node->inputs; i++) {
        vme_tensor in = model_tensor(preparation->model, step->operand[i], NULL);
        if (vme_broadcast_strides(&in, &out, strides) != VME_OK)
            return MODEL_WRONG(number, "has operand %u of a shape that does not broadcast to its result's", i);
    }
    return VME_OK;
}

static int dtype_of(const model_preparation *preparation, int value) { return preparation->model->value[value].dtype; }

/* Checks that the step computes in the dtype `loop` that the operator has chosen, and that the choice (`status`)
 * succeeded. */
static vme_status check_loop(uint32_t number, vme_status status, const vme_dtype *loop, const model_step *step)
{
    return status == VME_OK && (int32_t)*loop == step->p[1]
               ? VME_OK
               : MODEL_WRONG(number, "computes in dtype %d, for which operation %d is not defined", step->p[1],
                             step->p[0]);
}

static bool is_dtype(int32_t number) { return number >= 0 && number < VME_DTYPE_COUNT; }

bool model_require_dense(model_preparation *preparation, int tensor, int dtype)
{
    model_value *value = &preparation->model->value[tensor];
    const vme_tensor view = model_tensor(preparation->model, tensor, NULL);
    value->plain = true;
    return value->dtype == dtype && !value->channels_last && vme_is_contiguous(&view);
}

vme_status model_check_no_overlap(const model_preparation *preparation, uint32_t number, const model_step *step)
{
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        if (step->operand[i] >= 0
            && model_root(preparation->model, step->operand[i]) == model_root(preparation->model, step->out))
            return MODEL_WRONG(number, "has a result that overlaps an operand");
    return VME_OK;
}

/* ---- copies: casts, broadcasts, and rearrangements by views */
static vme_status run_copy(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    return vme_copy(context, &in, &out);
}

vme_status model_make_copy(model_preparation *preparation, uint32_t number, const model_node_record *node,
                           const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_copy;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    return status == VME_OK ? check_broadcast(preparation, number, node, step) : status;
}

/* ---- bits: a copy that does not convert */
static vme_status run_bits(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    in.dtype = out.dtype;
    return vme_copy(context, &in, &out);
}

vme_status model_make_bits(model_preparation *preparation, uint32_t number, const model_node_record *node,
                           const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_bits;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    if (status != VME_OK)
        return status;
    const int in = dtype_of(preparation, step->operand[0]), out = dtype_of(preparation, step->out);
    if (vme_dtype_size((vme_dtype)in) != vme_dtype_size((vme_dtype)out) || out == VME_BOOL)
        return MODEL_WRONG(number, "takes dtype %d for %d", in, out);
    return check_broadcast(preparation, number, node, step);
}

/* ---- elementwise */
static vme_status run_unary(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    return vme_unary(context, (vme_unary_op)step->p[0], (vme_dtype)step->p[1], &in, &out);
}

vme_status model_make_unary(model_preparation *preparation, uint32_t number, const model_node_record *node,
                            const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_unary;
    vme_dtype loop, result;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    if (status == VME_OK)
        status = check_broadcast(preparation, number, node, step);
    if (status == VME_OK && (step->p[0] < 0 || step->p[0] >= VME_UNARY_COUNT || !is_dtype(step->p[1])))
        return MODEL_WRONG(number, "has the unknown operation %d or dtype %d", step->p[0], step->p[1]);
    if (status == VME_OK)
        status = check_loop(number, vme_unary_types((vme_unary_op)step->p[0], (vme_dtype)step->p[1], &loop, &result),
                            &loop, step);
    return status;
}

static vme_status run_binary(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor a = model_tensor(model, step->operand[0], arena), b = model_tensor(model, step->operand[1], arena);
    vme_tensor out = model_tensor(model, step->out, arena);
    return vme_binary(context, (vme_binary_op)step->p[0], (vme_dtype)step->p[1], &a, &b, &out);
}

vme_status model_make_binary(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_binary;
    vme_dtype loop, result;
    vme_status status = check_input_count(number, node, operands, 2, 2);
    if (status == VME_OK)
        status = check_broadcast(preparation, number, node, step);
    if (status == VME_OK && (step->p[0] < 0 || step->p[0] >= VME_BINARY_COUNT || !is_dtype(step->p[1])))
        return MODEL_WRONG(number, "has the unknown operation %d or dtype %d", step->p[0], step->p[1]);
    if (status == VME_OK) {
        vme_dtype in = (vme_dtype)step->p[1];
        status = check_loop(number, vme_binary_types((vme_binary_op)step->p[0], in, in, &loop, &result), &loop, step);
    }
    return status;
}

static vme_status run_where(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor condition = model_tensor(model, step->operand[0], arena),
               a = model_tensor(model, step->operand[1], arena);
    vme_tensor b = model_tensor(model, step->operand[2], arena), out = model_tensor(model, step->out, arena);
    /* a single condition, as branches have: the other side is not read */
    const vme_tensor *chosen = *(const unsigned char *)condition.data != 0 ? &a : &b;
    return vme_elements(&condition) == 1 ? vme_copy(context, chosen, &out)
                                         : vme_where(context, &condition, &a, &b, &out);
}

vme_status model_make_where(model_preparation *preparation, uint32_t number, const model_node_record *node,
                            const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_where;
    vme_status status = check_input_count(number, node, operands, 3, 3);
    if (status == VME_OK && dtype_of(preparation, step->operand[0]) != VME_BOOL)
        return MODEL_WRONG(number, "has a condition that is not bool");
    return status == VME_OK ? check_broadcast(preparation, number, node, step) : status;
}

bool model_is_elementwise(const model_step *step)
{
    return step->kind == STEP_TENSOR
           && (step->run == run_copy || step->run == run_unary || step->run == run_binary || step->run == run_where
               || model_is_activation(step));
}

/* ---- reductions */
/* Writes ONNX's maximum or minimum of no elements: the lowest or highest number of the dtype. */
static void write_extreme(bool lowest, vme_dtype dtype, char to[16])
{
    const int bits = 8 * vme_dtype_size(dtype);
    const bool is_signed = dtype >= VME_INT8 && dtype <= VME_INT64;
    uint64_t value = lowest ? 0 : UINT64_MAX >> (64 - bits);
    switch (dtype) {
    case VME_BOOL: value = !lowest; break;
    case VME_FLOAT16: value = lowest ? 0xfc00 : 0x7c00; break;
    case VME_FLOAT32: value = lowest ? 0xff800000 : 0x7f800000; break;
    case VME_FLOAT64: value = lowest ? UINT64_C(0xfff0000000000000) : UINT64_C(0x7ff0000000000000); break;
    default:
        if (is_signed)
            value = lowest ? UINT64_C(1) << (bits - 1) : (UINT64_C(1) << (bits - 1)) - 1;
    }
    memset(to, 0, 16);
    memcpy(to, &value, sizeof value); /* little-endian, like every supported machine */
}

static vme_status run_reduce(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    const bool needs_start = vme_elements(&in) == 0 && (step->p[0] == VME_MAX || step->p[0] == VME_MIN);
    char start[16];
    if (needs_start)
        write_extreme(step->p[0] == VME_MAX, (vme_dtype)step->p[1], start);
    return vme_reduce(context, (vme_reduce_op)step->p[0], (vme_dtype)step->p[1], &in, (uint64_t)step->p[2],
                      needs_start ? start : NULL, &out);
}

vme_status model_make_reduce(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_reduce;
    vme_dtype loop, result;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    if (status != VME_OK)
        return status;
    if (step->p[0] < 0 || step->p[0] >= VME_REDUCE_COUNT || !is_dtype(step->p[1]))
        return MODEL_WRONG(number, "has the unknown operation %d or dtype %d", step->p[0], step->p[1]);
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    bool gives_index = step->p[0] == VME_ARGMAX || step->p[0] == VME_ARGMIN;
    bool fits = in->rank == out->rank && step->p[2] >= 0 && step->p[2] >> in->rank == 0
                && (!gives_index || __builtin_popcount((unsigned)step->p[2]) == 1);
    for (int d = 0; fits && d < in->rank; d++)
        fits = out->shape[d] == (step->p[2] >> d & 1 ? 1 : in->shape[d]);
    if (!fits)
        return MODEL_WRONG(number, "does not reduce axes %#x of its operand to its result", (unsigned)step->p[2]);
    return check_loop(number, vme_reduce_types((vme_reduce_op)step->p[0], (vme_dtype)step->p[1], &loop, &result), &loop,
                      step);
}

/* ---- products */
static vme_status run_matmul(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor a = model_tensor(model, step->operand[0], arena), b = model_tensor(model, step->operand[1], arena);
    vme_tensor out = model_tensor(model, step->out, arena);
    return vme_matmul(context, &a, &b, &out);
}

vme_status model_make_matmul(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_matmul;
    vme_status status = check_input_count(number, node, operands, 2, 2);
    if (status != VME_OK)
        return status;
    vme_tensor a = model_tensor(preparation->model, step->operand[0], NULL),
               b = model_tensor(preparation->model, step->operand[1], NULL);
    vme_tensor out = model_tensor(preparation->model, step->out, NULL);
    int64_t strides[VME_RANK_MAX];
    bool fits = a.rank >= 2 && b.rank >= 2 && out.rank >= 2 && a.dtype == b.dtype && a.dtype == out.dtype
                && a.shape[a.rank - 1] == b.shape[b.rank - 2] && out.shape[out.rank - 2] == a.shape[a.rank - 2]
                && out.shape[out.rank - 1] == b.shape[b.rank - 1];
    a.rank -= 2;
    b.rank -= 2;
    out.rank -= 2;
    if (!fits || vme_broadcast_strides(&a, &out, strides) != VME_OK
        || vme_broadcast_strides(&b, &out, strides) != VME_OK)
        return MODEL_WRONG(number, "does not multiply matrices that fit");
    return VME_OK;
}

/* ---- scans and order */
static vme_status run_scan(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    return vme_scan(context, (vme_scan_op)step->p[0], (vme_dtype)step->p[1], &in, step->p[2], &out);
}

static vme_status run_argsort(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena);
    return vme_top(context, &in, step->p[0], step->p[1] != 0, &out);
}

/* Whether the step's operand and result have one shape, and `axis` is one of its dimensions, along which the result may
 * be shorter if `may_shorten`. */
static bool is_along_axis(const model_preparation *preparation, const model_step *step, int32_t axis, bool may_shorten)
{
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    bool fits = in->rank == out->rank && axis >= 0 && axis < in->rank;
    for (int d = 0; fits && d < in->rank; d++)
        fits = in->shape[d] == out->shape[d] || (may_shorten && d == axis && out->shape[d] < in->shape[d]);
    return fits;
}

vme_status model_make_scan(model_preparation *preparation, uint32_t number, const model_node_record *node,
                           const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_scan;
    vme_dtype loop, result;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    if (status != VME_OK)
        return status;
    if (step->p[0] < 0 || step->p[0] >= VME_SCAN_COUNT || !is_dtype(step->p[1]))
        return MODEL_WRONG(number, "has the unknown operation %d or dtype %d", step->p[0], step->p[1]);
    if (!is_along_axis(preparation, step, step->p[2], false))
        return MODEL_WRONG(number, "does not scan along axis %d to its result", step->p[2]);
    return check_loop(number, vme_scan_types((vme_scan_op)step->p[0], (vme_dtype)step->p[1], &loop, &result), &loop,
                      step);
}

vme_status model_make_argsort(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_argsort;
    vme_status status = check_input_count(number, node, operands, 1, 1);
    if (status == VME_OK
        && (!is_along_axis(preparation, step, step->p[0], true) || dtype_of(preparation, step->out) != VME_INT64))
        return MODEL_WRONG(number, "has a result that is not int64 of the operand's shape, or no axis %d", step->p[0]);
    return status;
}

/* ---- gather and scatter */
/* Writes the index tensors, the operands from `first` on, and pointers to them to the arrays; returns their number. */
static int indices_of(const vme_model *model, const model_step *step, int first, char *arena,
                      vme_tensor index[MODEL_STEP_OPERANDS], const vme_tensor *indices[MODEL_STEP_OPERANDS])
{
    int count = 0;
    for (; first + count < MODEL_STEP_OPERANDS && step->operand[first + count] >= 0; count++) {
        index[count] = model_tensor(model, step->operand[first + count], arena);
        indices[count] = &index[count];
    }
    return count;
}

/* Checks that `selected` has the shape of `indexed` after indexing its dimensions from p[0] on by the index tensors,
 * the operands from `first_index` on. */
static vme_status check_indices(const model_preparation *preparation, uint32_t number, const model_step *step,
                                int first_index, const model_value *indexed, const model_value *selected)
{
    vme_tensor index[MODEL_STEP_OPERANDS];
    const vme_tensor *indices[MODEL_STEP_OPERANDS];
    int count = indices_of(preparation->model, step, first_index, NULL, index, indices), first_dim = step->p[0], rank;
    int64_t shape[VME_RANK_MAX];
    for (int i = 0; i < count; i++)
        if (index[i].dtype != VME_INT64)
            return MODEL_WRONG(number, "has indices that are not int64");
    if (count < 1 || first_dim < 0 || first_dim > indexed->rank - count || indexed->dtype != selected->dtype
        || vme_shape_broadcast(count, indices, &rank, shape) != VME_OK)
        return MODEL_WRONG(number, "takes %d dimensions from number %d of %d", count, first_dim, indexed->rank);
    bool fits = selected->rank == indexed->rank - count + rank;
    for (int d = 0; fits && d < selected->rank; d++)
        fits = selected->shape[d]
               == (d < first_dim          ? indexed->shape[d]
                   : d < first_dim + rank ? shape[d - first_dim]
                                          : indexed->shape[d - rank + count]);
    return fits ? VME_OK : MODEL_WRONG(number, "does not make the shape of its result");
}

static vme_status run_gather(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), out = model_tensor(model, step->out, arena),
               index[MODEL_STEP_OPERANDS];
    const vme_tensor *indices[MODEL_STEP_OPERANDS];
    int count = indices_of(model, step, 1, arena, index, indices);
    return vme_gather(context, &in, step->p[0], count, indices, &out);
}

vme_status model_make_gather(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_gather;
    vme_status status = check_input_count(number, node, operands, node->inputs, MODEL_STEP_OPERANDS);
    return status == VME_OK ? check_indices(preparation, number, step, 1, &preparation->model->value[step->operand[0]],
                                            &preparation->model->value[step->out])
                            : status;
}

/* Copies the operand, then writes the values, or the results of the operation on both, at the indices. Operand and
 * result of a continued input (outside.c) are the same memory. */
static vme_status run_scatter(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    vme_tensor in = model_tensor(model, step->operand[0], arena), values = model_tensor(model, step->operand[1], arena);
    vme_tensor out = model_tensor(model, step->out, arena), index[MODEL_STEP_OPERANDS];
    const vme_tensor *indices[MODEL_STEP_OPERANDS];
    int count = indices_of(model, step, 2, arena, index, indices);
    vme_status status = in.data == out.data ? VME_OK : vme_copy(context, &in, &out);
    return status == VME_OK ? vme_scatter_by(context, &values, step->p[0], count, indices, step->p[1], &out) : status;
}

vme_status model_make_scatter(model_preparation *preparation, uint32_t number, const model_node_record *node,
                              const uint32_t *operands, model_step *step, int step_number)
{
    (void)step_number;
    step->run = run_scatter;
    vme_status status =
        check_input_count(number, node, operands, node->inputs < 3 ? 3 : node->inputs, MODEL_STEP_OPERANDS);
    if (status != VME_OK)
        return status;
    const model_value *in = &preparation->model->value[step->operand[0]], *out = &preparation->model->value[step->out];
    if (in->dtype != out->dtype || in->rank != out->rank
        || memcmp(in->shape, out->shape, sizeof(int64_t) * (size_t)in->rank) != 0)
        return MODEL_WRONG(number, "has a result of another shape or dtype than its operand");
    if (step->p[1] != -1 && !vme_scatters_by(step->p[1], out->dtype))
        return MODEL_WRONG(number, "has the unknown operation %d for dtype %d", step->p[1], out->dtype);
    return check_indices(preparation, number, step, 2, out, &preparation->model->value[step->operand[1]]);
}
