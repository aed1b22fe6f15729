/* Values in the caller's memory instead of the arena: outputs that operators on tensors write and nothing else reads,
 * and inputs that such an output continues.
 *
 * An output continues an input as a decoder's key and value caches do: the rows of earlier tokens, followed by those of
 * the new token. It is a scatter into an input of the same shape that nothing else reads: a tensor of fixed capacity
 * into which rows are written. Both are at the output's address. A caller that passes one array as both has it updated
 * in place: nothing is copied, and the next token is another call with the same sizes. If they are two arrays, the
 * input is copied to the output first.
 *
 * All other inputs are copied to the arena: a caller may change its arrays during a run, which must not affect values
 * that a step has checked.
 *
 * The caller's memory is not cleared before a run, unlike the arena. So such an output is written only by operators
 * that write every element of it. If none of them ran, because no guard held, the output is cleared after the run. */
#include "models/outside.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <string.h>

static int64_t bytes_of(const vme_tensor *tensor)
{
    int64_t bytes = vme_dtype_size((vme_dtype)tensor->dtype);
    for (int d = 0; d < tensor->rank; d++)
        bytes *= tensor->shape[d];
    return bytes;
}

static bool is_contiguous(const model_value *value)
{
    int64_t stride = vme_dtype_size((vme_dtype)value->dtype);
    for (int d = value->rank - 1; d >= 0; d--) {
        if (value->shape[d] != 1 && value->strides[d] != stride)
            return false;
        stride *= value->shape[d];
    }
    return true;
}

/* Whether the value is a whole contiguous tensor of its port, and not part of another value. */
static bool is_whole(const vme_model *model, int number)
{
    const model_value *value = &model->value[number];
    return value->kind == MODEL_COMPUTED && value->container < 0 && !value->channels_last && value->outside == 0
           && is_contiguous(value);
}

/* Whether the step is an operator that writes all elements of its result, and its result is all of `value`. */
static bool writes_all(const vme_model *model, const model_step *step, int value)
{
    if (step->kind != STEP_TENSOR || model_root(model, step->out) != value)
        return false;
    const vme_tensor out = model_tensor(model, step->out, NULL), whole = model_tensor(model, value, NULL);
    switch (step->op) {
    case MODEL_UNARY:
    case MODEL_BINARY:
    case MODEL_WHERE:
    case MODEL_COPY:
    case MODEL_REDUCE:
    case MODEL_MATMUL:
        return is_contiguous(&model->value[step->out]) && bytes_of(&out) == bytes_of(&whole)
               && model->value[step->out].container_offset == 0
               && model->value[step->out].margin_bytes == model->value[value].margin_bytes;
    default: return false;
    }
}

/* Index of the port with this value; -1: none or several. */
static int port_of(const int *ports, int count, int value)
{
    int found = -1;
    for (int i = 0; i < count; i++)
        if (ports[i] == value) {
            if (found >= 0)
                return -1;
            found = i;
        }
    return found;
}

/* The number of step operands that are the value or a part of it. */
static int count_reads(const vme_model *model, int value)
{
    int count = 0;
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        int read[2 + MODEL_STEP_OPERANDS] = {step->in, step->addend};
        for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
            read[2 + i] = step->operand[i];
        for (int i = 0; i < 2 + MODEL_STEP_OPERANDS; i++)
            count += read[i] >= 0 && model_root(model, read[i]) == value;
    }
    return count;
}

/* Whether all steps that use the value or a part of it access it as a tensor. Steps of images address the arena. */
static bool is_tensor_only(const vme_model *model, int value)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        const int used[] = {step->in, step->addend, step->out};
        for (int i = 0; i < 3; i++)
            if (used[i] >= 0 && model_root(model, used[i]) == value && step->kind != STEP_TENSOR
                && step->kind != STEP_IMPORT && step->kind != STEP_EXPORT)
                return false;
        const int exported = step->kind == STEP_EXPORT ? step->in : -1;
        if (exported >= 0 && model_root(model, exported) == value && model->value[exported].channels_last)
            return false;
    }
    return true;
}

/* Whether a step other than `except` writes to the value or to a part of it. */
static bool written_by_other_step(const vme_model *model, int value, int except)
{
    for (int s = 0; s < model->steps; s++)
        if (s != except && model->step[s].out >= 0 && model_root(model, model->step[s].out) == value)
            return true;
    return false;
}

/* Finds inputs that outputs continue, and places both at the output's address. */
static void find_continued_inputs(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        if (step->kind != STEP_TENSOR || step->op != MODEL_SCATTER)
            continue;
        const int from = step->operand[0], to = step->out, input = port_of(model->input, model->inputs, from);
        if (input < 0 || port_of(model->output, model->outputs, to) < 0 || !is_whole(model, from)
            || !is_whole(model, to) || count_reads(model, from) != 1 || written_by_other_step(model, from, input)
            || written_by_other_step(model, to, s) || !is_tensor_only(model, to))
            continue;
        model->value[from].outside = model->value[to].outside = ++model->outside_count;
        model->value[from].offset = model->value[to].offset = 0;
    }
}

/* Whether every step that writes the value writes all of it. */
static bool always_filled(const vme_model *model, int value)
{
    for (int s = 0; s < model->steps; s++)
        if (model->step[s].out >= 0 && model_root(model, model->step[s].out) == value
            && !writes_all(model, &model->step[s], value))
            return false;
    return true;
}

void outside_find(vme_model *model)
{
    find_continued_inputs(model);
    for (int i = 0; i < model->outputs; i++) {
        const int value = model->output[i];
        if (port_of(model->output, model->outputs, value) < 0 || port_of(model->input, model->inputs, value) >= 0
            || !is_whole(model, value) || count_reads(model, value) != 1 || !is_tensor_only(model, value)
            || !always_filled(model, value))
            continue;
        model->value[value].outside = ++model->outside_count;
        model->value[value].offset = 0;
        for (int s = 0; s < model->steps; s++)
            if (writes_all(model, &model->step[s], value))
                model->step[s].fills_outside = model->outside_count;
    }
}

int64_t outside_table_bytes(const vme_model *model)
{
    return ceil_div(model->outside_count * (int64_t)sizeof(outside_entry), VME_ALIGNMENT) * VME_ALIGNMENT;
}

outside_entry *outside_entry_of(char *arena, int number) { return (outside_entry *)(void *)arena + (number - 1); }

void outside_end(const vme_model *model, const vme_tensor *const *outputs, char *arena)
{
    for (int i = 0; i < model->outputs; i++) {
        const int number = model->value[model->output[i]].outside;
        if (number > 0 && !outside_entry_of(arena, number)->filled && bytes_of(outputs[i]) > 0)
            memset(outputs[i]->data, 0, (size_t)bytes_of(outputs[i]));
    }
}

int outside_continued_input(const vme_model *model, int number)
{
    const int outside = model->value[model->output[number]].outside;
    for (int i = 0; outside > 0 && i < model->inputs; i++)
        if (model->value[model->input[i]].outside == outside)
            return i;
    return -1;
}

int vme_model_continues(const vme_model *model, int output) { return outside_continued_input(model, output); }

static bool overlap(const vme_tensor *a, const vme_tensor *b)
{
    const uintptr_t first = (uintptr_t)a->data, second = (uintptr_t)b->data;
    return first < second + (uintptr_t)bytes_of(b) && second < first + (uintptr_t)bytes_of(a);
}

/* The error of output number `output`, whose array overlaps that of another port. */
static vme_status overlap_error(const vme_model *model, int output, bool is_output, int other)
{
    const int other_value = is_output ? model->output[other] : model->input[other];
    return vme_fail(VME_BAD_VALUE, "output '%s': its array overlaps that of %s '%s'",
                    model->value[model->output[output]].name, is_output ? "output" : "input",
                    model->value[other_value].name);
}

vme_status outside_begin(vme_context *context, const vme_model *model, const vme_tensor *const *inputs,
                         const vme_tensor *const *outputs, char *arena)
{
    vme_status status = VME_OK;
    for (int i = 0; status == VME_OK && i < model->outputs; i++) {
        const int number = model->value[model->output[i]].outside, input = outside_continued_input(model, i);
        if (number == 0)
            continue;
        *outside_entry_of(arena, number) = (outside_entry){.data = outputs[i]->data, .filled = input >= 0};
        if (input < 0)
            continue;
        for (int j = 0; j < model->inputs; j++)
            if ((j != input || inputs[j]->data != outputs[i]->data) && overlap(outputs[i], inputs[j]))
                return overlap_error(model, i, false, j);
        for (int j = 0; j < model->outputs; j++)
            if (j != i && overlap(outputs[i], outputs[j]))
                return overlap_error(model, i, true, j);
        if (inputs[input]->data != outputs[i]->data)
            status = vme_copy(context, inputs[input], outputs[i]);
    }
    return status;
}
