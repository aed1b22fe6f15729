/* Plans in which tensors have no elements, for example because a detector finds nothing.
 *
 * While such a plan is prepared, sizes of 0 count as 1, so that layouts, scratch memory and the checks of operators
 * need no special case, and the plan has the steps of its base. Afterwards the sizes become 0. Steps whose result has
 * no elements are skipped. Of the other steps only the operators in reads_empty may read empty tensors. */
#include "models/empty.h"
#include "models/file.h"
#include "models/step.h"
#include "models/value.h"
#include "runtime/internal.h"

/* Parts of a value without elements, such as those of a concatenation, have none either. */
static bool is_empty(const vme_model *model, int value)
{
    return model->value[value].empty_dims != 0 || model->value[model_root(model, value)].empty_dims != 0;
}

bool empty_found(const vme_model *model)
{
    bool found = false;
    for (int v = 0; v < model->values && !found; v++)
        found = model->value[v].empty_dims != 0;
    return found;
}

/* Whether the step can run if this operand has no elements; the operator checks the shapes again. */
static bool reads_empty(const model_step *step, int operand)
{
    if (step->kind != STEP_TENSOR)
        return false;
    switch (step->op) {
    case MODEL_REDUCE: return step->p[0] != VME_ARGMAX && step->p[0] != VME_ARGMIN;
    case MODEL_MATMUL:
    case MODEL_INTEGER_MEAN:
    case MODEL_SCATTER: return true;
    case MODEL_SUPPRESS: return operand < 2;
    default: return false;
    }
}

vme_status empty_apply_shapes(vme_model *model)
{
    for (int s = 0; s < model->steps; s++) {
        model_step *step = &model->step[s];
        const int images[] = {step->in, step->addend};
        const int result = step->out >= 0 ? step->out : step->in;
        bool possible = true;
        if (is_empty(model, result)) {
            step->idle = true;
            continue;
        }
        for (int i = 0; i < 2; i++)
            possible = possible && (images[i] < 0 || !is_empty(model, images[i]));
        for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
            possible = possible && (step->operand[i] < 0 || !is_empty(model, step->operand[i]) || reads_empty(step, i));
        if (!possible)
            return vme_fail(VME_BAD_VALUE,
                            MODEL_REFUSED "'%s' would make a result that has elements of a tensor that has none",
                            step->name == NULL ? "" : step->name);
    }
    for (int v = 0; v < model->values; v++)
        for (int d = 0; d < model->value[v].rank; d++)
            if (model->value[v].empty_dims >> d & 1)
                model->value[v].shape[d] = 0;
    return VME_OK;
}
