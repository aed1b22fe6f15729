/* Runs consecutive steps on images by bands of rows: each step computes only the rows that the next one needs next, so
 * that intermediate rows are read from L1 or L2. The results are bit-identical to running the steps one by one.
 *
 * A chain is a range of consecutive steps. A value that only the chain reads and writes has no place in the arena but a
 * strip of rows in the chain's scratch memory: rows that are no longer needed are dropped, and the rest is moved to the
 * strip's start. A value that others read is computed in full in the arena, and no step of the chain reads it. Threads
 * take pieces of the image, in slots with strips of their own; rows that two pieces need are computed in both.
 *
 *     input   |===========|   rows that the stem reads for this band
 *     stem      |=======|     rows that the pool reads for this band
 *     pool        |===|       the band: some rows of the chain's last value */
#include "models/bands.h"
#include "models/bands_walk.h"
#include "models/model.h"
#include "models/step.h"
#include "models/steps.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include <string.h>

typedef struct chain_job {
    vme_context *context;
    const vme_model *model;
    const model_step *step; /* the chain's first step */
    char *arena;
    const vme_tensor *const *inputs;
    const chain_walk *begun;
    int64_t pieces;   /* of each image */
    atomic_llong *ns; /* time of each step; NULL: not wanted */
} chain_job;

static float *strip_row(const chain_job *job, const strip *of, int64_t slot, int64_t y)
{
    const model_value *value = &job->model->value[of->root];
    return (float *)(job->arena + job->model->value[job->step->chain.scratch].offset
                     + slot * job->step->chain.slot_bytes + value->strip_at)
           + (y - of->base) * value->row;
}

/* Zeros the columns left and right of the strip's rows; they stay zero. */
static void clear_sides(const chain_job *job, const strip *of, int64_t slot)
{
    const model_value *value = &job->model->value[of->root];
    const strip first = {.root = of->root};
    for (int64_t y = 0; y < value->strip && value->left + value->right > 0 && !vme_stopping(job->context); y++) {
        float *row = strip_row(job, &first, slot, y);
        memset(row, 0, (size_t)(value->left * value->pixel) * sizeof(float));
        memset(row + (value->left + value->w) * value->pixel, 0, (size_t)(value->right * value->pixel) * sizeof(float));
    }
}

static void clear_rows(const chain_job *job, const strip *of, int64_t slot, int64_t begin, int64_t end)
{
    if (begin < end)
        model_clear(job->context, strip_row(job, of, slot, begin),
                    (size_t)((end - begin) * job->model->value[of->root].row) * sizeof(float));
}

/* Drops rows that are no longer needed, to make room in the strip. */
static void strip_advance(const chain_job *job, const chain_walk *at, int number, strip *of, int64_t slot)
{
    const model_value *value = &job->model->value[of->root];
    const int64_t first = walk_first_needed(at, number), end = walk_end_needed(at, number);
    if (of->end > first && first > of->base) {
        const float *from = strip_row(job, of, slot, first);
        memmove(strip_row(job, of, slot, of->base), from, (size_t)((of->end - first) * value->row) * sizeof(float));
    }
    of->base = first;
    clear_rows(job, of, slot, max(of->end, first), min(end, 0));
    clear_rows(job, of, slot, max(max(of->end, first), value->h), end);
    of->end = end;
}

/* The value with the address that its strip has at present. */
static const model_value *with_strip(const chain_job *job, const chain_walk *at, int value, int number, int64_t slot,
                                     model_value *copy)
{
    if (value < 0 || number < 0)
        return value < 0 ? NULL : &job->model->value[value];
    const strip *of = &at->strip[number];
    const model_value *root = &job->model->value[of->root];
    *copy = job->model->value[value];
    copy->offset += job->model->value[job->step->chain.scratch].offset + slot * job->step->chain.slot_bytes
                    + root->strip_at - root->offset - (root->top + of->base) * root->row * (int64_t)sizeof(float);
    copy->image = 0;
    return copy;
}

static void do_item(const chain_job *job, chain_walk *at, int64_t slot, int64_t item)
{
    const model_chain *chain = &job->step->chain;
    const int64_t n = item / job->pieces, piece = item % job->pieces,
                  h = job->model->value[job->step[chain->steps - 1].out].h;
    const int64_t begin = walk_piece_begin(at, h, job->pieces, piece),
                  piece_end = walk_piece_begin(at, h, job->pieces, piece + 1);
    walk_start(at, begin);
    for (int64_t end = begin; end < piece_end && !vme_stopping(job->context);) {
        end = min(end + chain->rows, piece_end);
        walk_target(at, end);
        for (int i = 0; i < at->strips; i++)
            strip_advance(job, at, i, &at->strip[i], slot);
        for (int s = 0; s < chain->steps && !vme_stopping(job->context); s++) {
            const model_step *step = &job->step[s];
            if (step->kind == STEP_NOTHING || at->of[s].upto == at->of[s].done)
                continue;
            const uint64_t began = job->ns == NULL ? 0 : model_now_ns();
            model_value in, addend, out;
            const model_band band = {
                .in = with_strip(job, at, step->in, at->of[s].in, slot, &in),
                .addend = with_strip(job, at, step->addend, at->of[s].addend, slot, &addend),
                .out = with_strip(job, at, step->out, at->of[s].out, slot, &out),
                .arena = job->arena,
                .scratch =
                    job->arena + job->model->value[chain->scratch].offset + slot * chain->slot_bytes + chain->points_at,
                .outside = step->kind == STEP_IMPORT ? job->inputs[step->port]->data : NULL,
                .n = n,
                .begin = at->of[s].done,
                .end = at->of[s].upto,
            };
            step_band(job->context, job->model, step, &band);
            if (job->ns != NULL)
                atomic_fetch_add_explicit(&job->ns[s], (long long)(model_now_ns() - began), memory_order_relaxed);
        }
        walk_advance(at);
    }
}

static void do_items(void *argument, int64_t slot, vme_items *items)
{
    const chain_job *job = argument;
    chain_walk at = *job->begun;
    for (int i = 0; i < at.strips; i++)
        clear_sides(job, &at.strip[i], slot);
    for (int64_t item; vme_item_next(items, &item);)
        do_item(job, &at, slot, item);
}

vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena,
                     const vme_tensor *const *inputs, uint64_t *ns)
{
    const model_step *step = &model->step[first];
    const int steps = step->chain.steps, threads = vme_parallel_threads();
    const uint64_t began = ns == NULL ? 0 : model_now_ns();
    const int64_t images = model->value[step[steps - 1].out].n;
    atomic_llong spent[BANDS_STEPS_MAX];
    chain_walk begun;
    walk_begin(&begun, model, step, steps);
    chain_job job = {
        .context = context, .model = model, .step = step, .arena = arena, .inputs = inputs, .begun = &begun};
    const int64_t slots = min(step->chain.slots, threads);
    job.pieces = slots == 1 ? 1 : step->chain.pieces;
    for (int s = 0; s < steps; s++) {
        atomic_init(&spent[s], 0);
        if (step[s].kind != STEP_NOTHING && begun.of[s].out < 0)
            model_clear_margin(context, &model->value[step[s].out], arena);
    }
    job.ns = ns == NULL ? NULL : spent;
    const vme_status status = vme_parallel_slots(context, slots, images * job.pieces, do_items, &job);
    if (ns != NULL) { /* threads overlap: the elapsed time is divided among the steps in proportion */
        const uint64_t whole = model_now_ns() - began;
        double sum = 0;
        for (int s = 0; s < steps; s++)
            sum += (double)atomic_load(&spent[s]);
        for (int s = 0; s < steps; s++)
            ns[s] = sum > 0 ? (uint64_t)((double)whole * (double)atomic_load(&spent[s]) / sum) : 0;
    }
    return status;
}
