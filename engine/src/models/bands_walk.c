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
        walk->state[s].in = walk->state[s].addend = walk->state[s].out = -1;
        if (step[s].kind == STEP_NOTHING)
            continue;
        const int root = model_root(model, step[s].out);
        walk->state[s].unit =
            step[s].kind == STEP_CONV && step[s].algorithm != CONVOLUTION_DIRECT ? winograd_unit(&step[s]) : 1;
        if (model->value[root].strip_rows == 0)
            walk->unit = max(walk->unit, walk->state[s].unit);
        else if (strip_of(walk, root) < 0)
            walk->strip[walk->strips++].root = root;
    }
    for (int s = 0; s < steps; s++)
        if (step[s].kind != STEP_NOTHING) {
            walk->state[s].in = strip_of(walk, step[s].in);
            walk->state[s].addend = strip_of(walk, step[s].addend);
            walk->state[s].out = strip_of(walk, step[s].out);
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
        walk->strip[i].begin = INT64_MAX;
    for (int s = walk->steps - 1; s >= 0; s--) {
        const model_step *step = &walk->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        int64_t first = begin;
        if (walk->state[s].out >= 0) {
            row_strip *out = &walk->strip[walk->state[s].out];
            /* rows that no step reads are not computed */
            first = out->begin == INT64_MAX ? walk->model->value[step->out].h
                                            : max(0, out->begin) / walk->state[s].unit * walk->state[s].unit;
            out->begin = min(out->begin, first);
        }
        walk->state[s].done = walk->state[s].target = first;
        for (int i = 0; i < 2; i++) {
            const int strip_number = i == 0 ? walk->state[s].in : walk->state[s].addend;
            if (strip_number >= 0)
                walk->strip[strip_number].begin =
                    min(walk->strip[strip_number].begin, i == 0 ? first_read(walk, step, first) : first);
        }
    }
    for (int i = 0; i < walk->strips; i++)
        walk->strip[i].end = walk->strip[i].begin;
}

void walk_target(chain_walk *walk, int64_t end)
{
    for (int i = 0; i < walk->strips; i++)
        walk->strip[i].needed_end = INT64_MIN;
    for (int s = walk->steps - 1; s >= 0; s--) {
        const model_step *step = &walk->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        const int64_t needed_end = walk->state[s].out < 0 ? end : walk->strip[walk->state[s].out].needed_end,
                      unit = walk->state[s].unit;
        walk->state[s].target =
            max(walk->state[s].done, min(walk->model->value[step->out].h, ceil_div(max(needed_end, 0), unit) * unit));
        if (walk->state[s].target == walk->state[s].done)
            continue;
        for (int i = 0; i < 2; i++) {
            const int strip_number = i == 0 ? walk->state[s].in : walk->state[s].addend;
            const int64_t read_end =
                i == 0 && strip_number >= 0 ? end_read(walk, step, unit, walk->state[s].target) : walk->state[s].target;
            if (strip_number >= 0)
                walk->strip[strip_number].needed_end = max(walk->strip[strip_number].needed_end, read_end);
        }
    }
}

int64_t walk_first_needed(const chain_walk *walk, int strip_number)
{
    int64_t first = INT64_MAX;
    for (int s = 0; s < walk->steps; s++) {
        const int64_t done = walk->state[s].done;
        if (walk->state[s].in == strip_number)
            first = min(first, first_read(walk, &walk->step[s], done));
        if (walk->state[s].addend == strip_number || walk->state[s].out == strip_number)
            first = min(first, done);
    }
    return max(first, walk->strip[strip_number].begin);
}

int64_t walk_end_needed(const chain_walk *walk, int strip_number)
{
    int64_t end = max(walk->strip[strip_number].needed_end, walk->strip[strip_number].end);
    for (int s = 0; s < walk->steps; s++)
        if (walk->state[s].out == strip_number)
            end = max(end, walk->state[s].target);
    return end;
}

void walk_advance(chain_walk *walk)
{
    for (int s = 0; s < walk->steps; s++)
        walk->state[s].done = walk->state[s].target;
}

int64_t walk_piece_begin(const chain_walk *walk, int64_t h, int64_t pieces, int64_t piece)
{
    return piece == pieces ? h : h * piece / pieces / walk->unit * walk->unit;
}
