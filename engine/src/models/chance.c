/* Random numbers (vme_random.h): uniform in [low, high), or normal with a mean and a deviation. With a seed every run
 * gives the same numbers, otherwise each run gives new ones.
 *
 * Operand: any tensor; its shape is the result's, its elements are not read. The result is dense, float32 or float64.
 */
#include "vme_random.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <string.h>
#include <sys/random.h>

enum { PIECE = 1 << 14 }; /* elements between two checks of the stop flag */

/* A piece of the result, as a tensor of rank 1. */
static vme_tensor piece_of(const vme_tensor *out, int64_t begin, const int64_t *count, const int64_t *stride)
{
    return (vme_tensor){
        .data = out->data + begin * *stride, .shape = count, .strides = stride, .rank = 1, .dtype = out->dtype};
}

/* numbers = numbers `op` number, element by element. */
static vme_status apply_scalar(vme_context *context, vme_binary_op op, float number, const vme_tensor *numbers)
{
    double value = (double)number;
    const vme_tensor scalar = {.data = (char *)&value, .rank = 0, .dtype = VME_FLOAT64};
    return vme_binary(context, op, (vme_dtype)numbers->dtype, numbers, &scalar, numbers);
}

static vme_status chance_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const vme_tensor out = model_tensor(model, step->out, arena);
    const int64_t elements = vme_elements(&out), stride = vme_dtype_size((vme_dtype)out.dtype);
    float first, second;
    memcpy(&first, &step->p[CHANCE_FIRST], sizeof first);
    memcpy(&second, &step->p[CHANCE_SECOND], sizeof second);
    vme_random_state state = {.buffer_pos = 4}; /* buffer_pos: all words of the block are used */
    if (step->p[CHANCE_SEEDED] != 0) {
        state.key[0] = (uint32_t)step->p[CHANCE_SEED];
        state.key[1] = (uint32_t)step->p[CHANCE_STREAM];
    } else if (getrandom(state.key, sizeof state.key, 0) != (ssize_t)sizeof state.key) {
        return vme_fail(VME_BAD_VALUE, "the system gave no random numbers");
    }
    const bool normal = step->p[CHANCE_KIND] == CHANCE_NORMAL;
    const vme_tensor *const none[3] = {NULL};
    vme_status status = VME_OK;
    for (int64_t begin = 0; status == VME_OK && begin < elements; begin += PIECE) {
        const int64_t count = min(PIECE, elements - begin);
        const vme_tensor piece = piece_of(&out, begin, &count, &stride);
        status = vme_random(context, &state, normal ? VME_RANDOM_NORMAL : VME_RANDOM_UNIFORM, none, &piece);
        if (status == VME_OK)
            status = apply_scalar(context, VME_MULTIPLY, normal ? second : second - first, &piece);
        if (status == VME_OK)
            status = apply_scalar(context, VME_ADD, first, &piece);
    }
    return status;
}

vme_status model_make_chance(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = chance_run;
    const model_value *in = &model->value[step->operand[0]], *out = &model->value[step->out];
    const bool fits = node->inputs == 1 && model_same_shape(in, out) && step->p[CHANCE_KIND] >= 0
                      && step->p[CHANCE_KIND] < CHANCE_KINDS && (out->dtype == VME_FLOAT32 || out->dtype == VME_FLOAT64)
                      && model_require_dense(preparation, step->out, out->dtype);
    if (!fits)
        return MODEL_WRONG(number, "does not make random numbers of its operand's shape");
    return model_check_no_overlap(preparation, number, step);
}
