/* Whether a prepared model's values have places of their own in its arena while they live: for tests, which look into models. */
#ifndef TEST_MODEL_ARENA_H
#define TEST_MODEL_ARENA_H

#include <string.h>

#include "../check.h"
#include "model.h"

static int outermost(const vme_model *model, int number)
{
    while (model->value[number].within >= 0)
        number = model->value[number].within;
    return number;
}

/* Whether all values that are there at the same step have places of their own within the arena. */
static bool arena_is_sound(const vme_model *model)
{
    enum { MOST = 1024 };
    int first[MOST], last[MOST];
    CHECK(model->values <= MOST);
    for (int v = 0; v < MOST; v++)
        first[v] = last[v] = -1;
    for (int s = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        int used[4 + MODEL_STEP_OPERANDS] = {step->in, step->addend, step->out, step->scratch};
        memcpy(used + 4, step->operand, sizeof step->operand);
        for (int i = 0; i < 4 + MODEL_STEP_OPERANDS; i++)
            if (used[i] >= 0) {
                int root = outermost(model, used[i]);
                first[root] = first[root] < 0 ? s : first[root];
                last[root] = s;
            }
    }
    for (int a = 0; a < model->values; a++)
        for (int b = 0; b <= a && first[a] >= 0; b++) {
            const model_value *one = &model->value[a], *other = &model->value[b];
            if (one->kind != MODEL_COMPUTED || other->kind != MODEL_COMPUTED || first[b] < 0)
                continue;
            if (a == b ? one->offset < 0 || one->offset + one->bytes > (int64_t)model->arena_bytes
                       : first[a] <= last[b] && first[b] <= last[a] && one->offset < other->offset + other->bytes
                             && other->offset < one->offset + one->bytes)
                return false;
        }
    return true;
}

#endif
