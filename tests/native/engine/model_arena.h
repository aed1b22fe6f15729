/* Whether a prepared model's values have places of their own in its arena while they live: for tests, which look into
 * models. */
#ifndef TEST_MODEL_ARENA_H
#define TEST_MODEL_ARENA_H

#include <string.h>

#include "../check.h"
#include "models/model.h"

static int outermost(const vme_model *model, int number)
{
    while (model->value[number].container >= 0)
        number = model->value[number].container;
    return number;
}

/* Whether all values that are there at the same step or chain of steps have places of their own within the arena. */
static bool arena_is_sound(const vme_model *model)
{
    enum { MAX = 1024 };
    int first[MAX], last[MAX];
    CHECK(model->values <= MAX);
    for (int v = 0; v < MAX; v++)
        first[v] = last[v] = -1;
    for (int s = 0, begin = 0, end = 0; s < model->steps; s++) {
        const model_step *step = &model->step[s];
        if (step->chain.steps > 0) { /* whose values all live as long as it */
            begin = s;
            end = s + step->chain.steps;
            first[step->chain.scratch] = begin;
            last[step->chain.scratch] = end - 1;
        }
        if (step->kind == STEP_NOTHING)
            continue;
        int used[4 + MODEL_STEP_OPERANDS] = {step->in, step->addend, step->out, step->scratch};
        memcpy(used + 4, step->operand, sizeof step->operand);
        for (int i = 0; i < 4 + MODEL_STEP_OPERANDS; i++)
            if (used[i] >= 0) {
                int root = outermost(model, used[i]);
                int from = s < end ? begin : s, to = s < end ? end - 1 : s;
                first[root] = first[root] < 0 ? from : first[root];
                last[root] = last[root] > to ? last[root] : to;
            }
    }
    for (int a = 0; a < model->values; a++)
        for (int b = 0; b <= a && first[a] >= 0; b++) {
            const model_value *one = &model->value[a], *other = &model->value[b];
            if (one->kind != MODEL_COMPUTED || other->kind != MODEL_COMPUTED || first[b] < 0 || one->bytes == 0
                || other->bytes == 0 || one->outside > 0 || other->outside > 0) /* outside: the caller's memory */
                continue;
            if (a == b ? one->offset < 0 || one->offset + one->bytes > (int64_t)model->arena_bytes
                       : first[a] <= last[b] && first[b] <= last[a] && one->offset < other->offset + other->bytes
                             && other->offset < one->offset + one->bytes)
                return false;
        }
    return true;
}

#endif
