/* Which rows of a chain's values are made and read when: what a band of the last step's rows needs, step by step
 * backwards (bands.h). Nothing is computed here. */
#include "models/bands_walk.h"
#include "models/file.h"
#include "models/model.h"
#include "models/step.h"
#include "models/value.h"
#include "models/winograd.h"
#include "runtime/numbers.h"

static int strip_of(const walk *it, int value)
{
    for (int i = 0; value >= 0 && i < it->strips; i++)
        if (it->strip[i].root == model_root(it->model, value))
            return i;
    return -1;
}

void walk_begin(walk *it, const vme_model *model, const model_step *step, int steps)
{
    *it = (walk){.model = model, .step = step, .steps = steps, .unit = 1};
    for (int s = 0; s < steps; s++) {
        it->of[s].in = it->of[s].addend = it->of[s].out = -1;
        if (step[s].kind == STEP_NOTHING)
            continue;
        const int root = model_root(model, step[s].out);
        it->of[s].unit =
            step[s].kind == STEP_CONV && step[s].algorithm != CONVOLUTION_DIRECT ? winograd_unit(&step[s]) : 1;
        if (model->value[root].strip == 0)
            it->unit = max(it->unit, it->of[s].unit);
        else if (strip_of(it, root) < 0)
            it->strip[it->strips++].root = root;
    }
    for (int s = 0; s < steps; s++)
        if (step[s].kind != STEP_NOTHING) {
            it->of[s].in = strip_of(it, step[s].in);
            it->of[s].addend = strip_of(it, step[s].addend);
            it->of[s].out = strip_of(it, step[s].out);
        }
}

static bool has_window(const model_step *step) { return step->kind == STEP_CONV || step->kind == STEP_DEPTHWISE; }
static bool is_pool(const model_step *step) { return step->kind == STEP_MAX_POOL || step->kind == STEP_AVERAGE_POOL; }

/* The first row that a step reads for its row `y` and those after it. */
static int64_t first_read(const walk *it, const model_step *step, int64_t y)
{
    const model_value *in = &it->model->value[step->in];
    const int64_t first = has_window(step) || is_pool(step) ? y * step->p[STRIDE_H] - step->p[PAD_TOP] : y;
    return max(first, is_pool(step) ? 0 : -in->top);
}

/* The row after the last one that it reads for its rows before `end`. */
static int64_t end_read(const walk *it, const model_step *step, int64_t unit, int64_t end)
{
    const model_value *in = &it->model->value[step->in];
    if (!has_window(step) && !is_pool(step))
        return end;
    const int64_t last = ceil_div(end, unit) * unit - 1; /* Winograd's squares are whole */
    const int64_t after =
        last * step->p[STRIDE_H] - step->p[PAD_TOP] + (int64_t)step->p[DILATION_H] * (step->p[KERNEL_H] - 1) + 1;
    return min(after, in->h + (is_pool(step) ? 0 : in->bottom));
}

void walk_from(walk *it, int64_t begin)
{
    for (int i = 0; i < it->strips; i++)
        it->strip[i].base = INT64_MAX;
    for (int s = it->steps - 1; s >= 0; s--) {
        const model_step *step = &it->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        int64_t first = begin;
        if (it->of[s].out >= 0) {
            strip *out = &it->strip[it->of[s].out];
            /* what nobody reads is not made */
            first = out->base == INT64_MAX ? it->model->value[step->out].h
                                           : max(0, out->base) / it->of[s].unit * it->of[s].unit;
            out->base = min(out->base, first);
        }
        it->of[s].made = it->of[s].upto = first;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? it->of[s].in : it->of[s].addend;
            if (from >= 0)
                it->strip[from].base = min(it->strip[from].base, i == 0 ? first_read(it, step, first) : first);
        }
    }
    for (int i = 0; i < it->strips; i++)
        it->strip[i].end = it->strip[i].base;
}

void walk_to(walk *it, int64_t end)
{
    for (int i = 0; i < it->strips; i++)
        it->strip[i].wanted = INT64_MIN;
    for (int s = it->steps - 1; s >= 0; s--) {
        const model_step *step = &it->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        const int64_t wanted = it->of[s].out < 0 ? end : it->strip[it->of[s].out].wanted, unit = it->of[s].unit;
        it->of[s].upto = max(it->of[s].made, min(it->model->value[step->out].h, ceil_div(max(wanted, 0), unit) * unit));
        if (it->of[s].upto == it->of[s].made)
            continue;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? it->of[s].in : it->of[s].addend;
            const int64_t read = i == 0 && from >= 0 ? end_read(it, step, unit, it->of[s].upto) : it->of[s].upto;
            if (from >= 0)
                it->strip[from].wanted = max(it->strip[from].wanted, read);
        }
    }
}

int64_t walk_first_needed(const walk *it, int number)
{
    int64_t first = INT64_MAX;
    for (int s = 0; s < it->steps; s++) {
        const int64_t made = it->of[s].made;
        if (it->of[s].in == number)
            first = min(first, first_read(it, &it->step[s], made));
        if (it->of[s].addend == number || it->of[s].out == number)
            first = min(first, made);
    }
    return max(first, it->strip[number].base);
}

int64_t walk_end_needed(const walk *it, int number)
{
    int64_t end = max(it->strip[number].wanted, it->strip[number].end);
    for (int s = 0; s < it->steps; s++)
        if (it->of[s].out == number)
            end = max(end, it->of[s].upto);
    return end;
}

void walk_on(walk *it)
{
    for (int s = 0; s < it->steps; s++)
        it->of[s].made = it->of[s].upto;
}

int64_t walk_piece_begin(const walk *it, int64_t h, int64_t pieces, int64_t piece)
{
    return piece == pieces ? h : h * piece / pieces / it->unit * it->unit;
}
