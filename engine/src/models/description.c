/* What a prepared model reports about itself: its inputs and outputs, and its steps. */
#include "models/attention.h"
#include "models/file.h"
#include "models/integer_products.h"
#include "models/narrow_products.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/recurrence.h"
#include "models/step.h"
#include "models/value.h"

#include "vme_search.h"

int vme_model_count(const vme_model *model, bool outputs) { return outputs ? model->outputs : model->inputs; }

void vme_model_port(const vme_model *model, bool outputs, int number, vme_port *port)
{
    const model_value *value = &model->value[outputs ? model->output[number] : model->input[number]];
    *port = (vme_port){.name = value->name, .shape = value->shape, .rank = value->rank, .dtype = value->dtype};
    if (model->label != NULL)
        port->open = (const char *const *)model->label + (size_t)(number + (outputs ? model->inputs : 0)) * MODEL_RANK;
}

const char *vme_model_notes(const vme_model *model) { return model->notes == NULL ? "" : model->notes; }

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

/* Elements times the terms that each one sums, saturated: a view may repeat elements until the product overflows. */
static int64_t products_of(const model_value *out, int64_t terms)
{
    int64_t products;
    return __builtin_mul_overflow(elements(out), terms, &products) ? INT64_MAX : products;
}

static const char *algorithm_of(const model_step *step)
{
    return step->kind == STEP_NOTHING                            ? "nothing"
           : step->kind == STEP_DEPTHWISE                        ? "depthwise"
           : step->kind == STEP_CONV || model_is_attention(step) ? vme_algorithm_name((int)step->algorithm)
                                                                 : "";
}

static const char *operator_of(const model_step *step)
{
    static const char *const names[][CURVES] = {
        {"Conv+gelu", "Conv+gelu tanh", "Conv+sigmoid", "Conv+silu", "Conv+mish", "Conv+hard sigmoid",
         "Conv+hard swish"},
        {"Gemm+gelu", "Gemm+gelu tanh", "Gemm+sigmoid", "Gemm+silu", "Gemm+mish", "Gemm+hard sigmoid",
         "Gemm+hard swish"},
    };
    const int curve = step->op == MODEL_CONV || step->op == MODEL_GEMM ? step->p[ACTIVATION] - ACTIVATION_CURVES : -1;
    return curve < 0 ? model_operator_name(step->op) : names[step->op == MODEL_GEMM][curve];
}

const char *model_step_kind(const model_step *step)
{
    return step->name != NULL || (step->kind != STEP_IMPORT && step->kind != STEP_EXPORT) ? operator_of(step)
           : step->kind == STEP_IMPORT                                                    ? "Input"
                                                                                          : "Output";
}

void vme_model_step(const vme_model *model, int number, vme_step *described)
{
    const model_step *step = &model->step[number];
    const bool port = step->name == NULL && (step->kind == STEP_IMPORT || step->kind == STEP_EXPORT);
    const model_value *result = &model->value[step->out >= 0 ? step->out : step->in];
    *described = (vme_step){
        .name = port                 ? result->name
                : step->name == NULL ? ""
                                     : step->name,
        .kind = model_step_kind(step),
        .algorithm = algorithm_of(step),
        .shape = result->shape,
        .rank = result->rank,
        .dtype = result->dtype,
    };
    if (step->kind == STEP_NOTHING || step->idle)
        return;
    if (step->kind == STEP_CONV || step->kind == STEP_DEPTHWISE) {
        described->products = products_of(result, step->k);
        described->bytes = result->c * (step->k + 1) * (int64_t)sizeof(float);
    } else if (step->op == MODEL_MATMUL && !port) {
        const model_value *left = &model->value[step->operand[0]];
        described->products = products_of(result, left->shape[left->rank - 1]);
    } else if (step->op == MODEL_ATTENTION && !port) {
        const model_value *left = &model->value[step->operand[0]], *weights = &model->value[step->operand[1]];
        const int64_t keys = weights->shape[weights->rank - 1];
        described->products =
            products_of(result, keys + keys * left->shape[left->rank - 1] / result->shape[result->rank - 1]);
    } else if (step->op == MODEL_RECURRENCE && !port)
        described->products = recurrence_products(model, step);
    else if (step->op == MODEL_INTEGER_PRODUCT && !port)
        described->products = products_of(result, integer_product_terms(model, step));
    else if (step->op == MODEL_NARROW_PRODUCT && !port)
        described->products = products_of(result, narrow_product_terms(model, step));
    described->bytes += bytes_of(model, step->in) + bytes_of(model, step->addend) + bytes_of(model, step->out);
    if (port)
        described->bytes += described->bytes; /* counted twice: the caller's array has the same size */
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        described->bytes += bytes_of(model, step->operand[i]);
}
