/* Which rows of a chain's values are computed and read, and when: derived from a band of the last step's rows,
 * backwards step by step (bands.h). This file computes no values. */
#include "models/bands_walk.h"
#include "models/file.h"
#include "models/model.h"
#include "models/step.h"
#include "models/value.h"
#include "models/winograd.h"
#include "runtime/numbers.h"

static int strip_of(const chain_walk *walk, int value)
{
    for (int i = 0; value >= 0 && i < walk->strips; i++)
        if (walk->strip[i].root == model_root(walk->model, value))
            return i;
    return -1;
}

void walk_begin(chain_walk *walk, const vme_model *model, const model_step *step, int steps)
{
    *walk = (chain_walk){.model = model, .step = step, .steps = steps, .unit = 1};
    for (int s = 0; s < steps; s++) {
        walk->of[s].in = walk->of[s].addend = walk->of[s].out = -1;
        if (step[s].kind == STEP_NOTHING)
            continue;
        const int root = model_root(model, step[s].out);
        walk->of[s].unit =
            step[s].kind == STEP_CONV && step[s].algorithm != CONVOLUTION_DIRECT ? winograd_unit(&step[s]) : 1;
        if (model->value[root].strip == 0)
            walk->unit = max(walk->unit, walk->of[s].unit);
        else if (strip_of(walk, root) < 0)
            walk->strip[walk->strips++].root = root;
    }
    for (int s = 0; s < steps; s++)
        if (step[s].kind != STEP_NOTHING) {
            walk->of[s].in = strip_of(walk, step[s].in);
            walk->of[s].addend = strip_of(walk, step[s].addend);
            walk->of[s].out = strip_of(walk, step[s].out);
        }
}

static bool has_window(const model_step *step) { return step->kind == STEP_CONV || step->kind == STEP_DEPTHWISE; }
static bool is_pool(const model_step *step) { return step->kind == STEP_MAX_POOL || step->kind == STEP_AVERAGE_POOL; }

/* The first row that a step reads for its rows from `y` on. */
static int64_t first_read(const chain_walk *walk, const model_step *step, int64_t y)
{
    const model_value *in = &walk->model->value[step->in];
    const int64_t first = has_window(step) || is_pool(step) ? y * step->p[STRIDE_H] - step->p[PAD_TOP] : y;
    return max(first, is_pool(step) ? 0 : -in->top);
}

/* One past the last row that a step reads for its rows before `end`. */
static int64_t end_read(const chain_walk *walk, const model_step *step, int64_t unit, int64_t end)
{
    const model_value *in = &walk->model->value[step->in];
    if (!has_window(step) && !is_pool(step))
        return end;
    const int64_t last = ceil_div(end, unit) * unit - 1; /* Winograd squares are computed whole */
    const int64_t after =
        last * step->p[STRIDE_H] - step->p[PAD_TOP] + (int64_t)step->p[DILATION_H] * (step->p[KERNEL_H] - 1) + 1;
    return min(after, in->h + (is_pool(step) ? 0 : in->bottom));
}

void walk_start(chain_walk *walk, int64_t begin)
{
    for (int i = 0; i < walk->strips; i++)
        walk->strip[i].base = INT64_MAX;
    for (int s = walk->steps - 1; s >= 0; s--) {
        const model_step *step = &walk->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        int64_t first = begin;
        if (walk->of[s].out >= 0) {
            strip *out = &walk->strip[walk->of[s].out];
            /* rows that no step reads are not computed */
            first = out->base == INT64_MAX ? walk->model->value[step->out].h
                                           : max(0, out->base) / walk->of[s].unit * walk->of[s].unit;
            out->base = min(out->base, first);
        }
        walk->of[s].done = walk->of[s].upto = first;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? walk->of[s].in : walk->of[s].addend;
            if (from >= 0)
                walk->strip[from].base = min(walk->strip[from].base, i == 0 ? first_read(walk, step, first) : first);
        }
    }
    for (int i = 0; i < walk->strips; i++)
        walk->strip[i].end = walk->strip[i].base;
}

void walk_target(chain_walk *walk, int64_t end)
{
    for (int i = 0; i < walk->strips; i++)
        walk->strip[i].wanted = INT64_MIN;
    for (int s = walk->steps - 1; s >= 0; s--) {
        const model_step *step = &walk->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        const int64_t wanted = walk->of[s].out < 0 ? end : walk->strip[walk->of[s].out].wanted, unit = walk->of[s].unit;
        walk->of[s].upto =
            max(walk->of[s].done, min(walk->model->value[step->out].h, ceil_div(max(wanted, 0), unit) * unit));
        if (walk->of[s].upto == walk->of[s].done)
            continue;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? walk->of[s].in : walk->of[s].addend;
            const int64_t read = i == 0 && from >= 0 ? end_read(walk, step, unit, walk->of[s].upto) : walk->of[s].upto;
            if (from >= 0)
                walk->strip[from].wanted = max(walk->strip[from].wanted, read);
        }
    }
}

int64_t walk_first_needed(const chain_walk *walk, int number)
{
    int64_t first = INT64_MAX;
    for (int s = 0; s < walk->steps; s++) {
        const int64_t done = walk->of[s].done;
        if (walk->of[s].in == number)
            first = min(first, first_read(walk, &walk->step[s], done));
        if (walk->of[s].addend == number || walk->of[s].out == number)
            first = min(first, done);
    }
    return max(first, walk->strip[number].base);
}

int64_t walk_end_needed(const chain_walk *walk, int number)
{
    int64_t end = max(walk->strip[number].wanted, walk->strip[number].end);
    for (int s = 0; s < walk->steps; s++)
        if (walk->of[s].out == number)
            end = max(end, walk->of[s].upto);
    return end;
}

void walk_advance(chain_walk *walk)
{
    for (int s = 0; s < walk->steps; s++)
        walk->of[s].done = walk->of[s].upto;
}

int64_t walk_piece_begin(const chain_walk *walk, int64_t h, int64_t pieces, int64_t piece)
{
    return piece == pieces ? h : h * piece / pieces / walk->unit * walk->unit;
}
