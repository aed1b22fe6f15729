/* Runs consecutive steps on images by bands of rows: each step computes only the rows that the next one needs next, so
 * that intermediate rows are read from L1 or L2. The results are bit-identical to running the steps one by one.
 *
 * A chain is a range of consecutive steps. A value that only the chain reads and writes has no place in the arena but a
 * strip of rows in the chain's scratch memory: rows that are no longer needed are dropped, and the rest is moved to the
 * strip's start. A value that other steps read is computed in full in the arena, and no step of the chain reads it.
 * Threads take pieces of the image, in slots with strips of their own; rows that two pieces need are computed in both.
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
    const chain_walk *initial; /* each thread walks a copy */
    int64_t image_pieces;      /* pieces of each image */
    atomic_llong *ns;          /* time of each step, in nanoseconds; NULL: not measured */
} chain_job;

static float *strip_row(const chain_job *job, const row_strip *strip, int64_t slot, int64_t y)
{
    const model_value *value = &job->model->value[strip->root];
    return (float *)(job->arena + job->model->value[job->step->chain.scratch].offset
                     + slot * job->step->chain.slot_bytes + value->strip_offset)
           + (y - strip->begin) * value->row_stride;
}

/* Zeros the columns left and right of the strip's rows; they stay zero. */
static void clear_sides(const chain_job *job, const row_strip *strip, int64_t slot)
{
    const model_value *value = &job->model->value[strip->root];
    const row_strip first = {.root = strip->root};
    for (int64_t y = 0; y < value->strip_rows && value->left + value->right > 0 && !vme_stopping(job->context); y++) {
        float *row = strip_row(job, &first, slot, y);
        memset(row, 0, (size_t)(value->left * value->pixel_stride) * sizeof(float));
        memset(row + (value->left + value->w) * value->pixel_stride, 0,
               (size_t)(value->right * value->pixel_stride) * sizeof(float));
    }
}

static void clear_rows(const chain_job *job, const row_strip *strip, int64_t slot, int64_t begin, int64_t end)
{
    if (begin < end)
        model_clear(job->context, strip_row(job, strip, slot, begin),
                    (size_t)((end - begin) * job->model->value[strip->root].row_stride) * sizeof(float));
}

/* Drops rows that are no longer needed, so that the strip has room for this band's rows, and zeros the margin's rows.
 */
static void strip_advance(const chain_job *job, const chain_walk *walk, int strip_number, row_strip *strip,
                          int64_t slot)
{
    const model_value *value = &job->model->value[strip->root];
    const int64_t first = walk_first_needed(walk, strip_number), end = walk_end_needed(walk, strip_number);
    if (strip->end > first && first > strip->begin) {
        const float *from = strip_row(job, strip, slot, first);
        memmove(strip_row(job, strip, slot, strip->begin), from,
                (size_t)((strip->end - first) * value->row_stride) * sizeof(float));
    }
    strip->begin = first;
    clear_rows(job, strip, slot, max(strip->end, first), min(end, 0));
    clear_rows(job, strip, slot, max(max(strip->end, first), value->h), end);
    strip->end = end;
}

/* The value at the address where its row 0 would be, by its strip's current position. `copy` receives it. */
static const model_value *value_in_strip(const chain_job *job, const chain_walk *walk, int value, int strip_number,
                                         int64_t slot, model_value *copy)
{
    if (value < 0 || strip_number < 0)
        return value < 0 ? NULL : &job->model->value[value];
    const row_strip *strip = &walk->strip[strip_number];
    const model_value *root = &job->model->value[strip->root];
    *copy = job->model->value[value];
    copy->offset += job->model->value[job->step->chain.scratch].offset + slot * job->step->chain.slot_bytes
                    + root->strip_offset - root->offset
                    - (root->top + strip->begin) * root->row_stride * (int64_t)sizeof(float);
    copy->image_stride = 0;
    return copy;
}

static void run_piece(const chain_job *job, chain_walk *walk, int64_t slot, int64_t number)
{
    const model_chain *chain = &job->step->chain;
    const int64_t n = number / job->image_pieces, piece = number % job->image_pieces,
                  h = job->model->value[job->step[chain->steps - 1].out].h;
    const int64_t begin = walk_piece_begin(walk, h, job->image_pieces, piece),
                  piece_end = walk_piece_begin(walk, h, job->image_pieces, piece + 1);
    walk_start(walk, begin);
    for (int64_t end = begin; end < piece_end && !vme_stopping(job->context);) {
        end = min(end + chain->rows, piece_end);
        walk_target(walk, end);
        for (int i = 0; i < walk->strips; i++)
            strip_advance(job, walk, i, &walk->strip[i], slot);
        for (int s = 0; s < chain->steps && !vme_stopping(job->context); s++) {
            const model_step *step = &job->step[s];
            if (step->kind == STEP_NOTHING || walk->state[s].target == walk->state[s].done)
                continue;
            const uint64_t began = job->ns == NULL ? 0 : model_now_ns();
            model_value in, addend, out;
            const model_band band = {
                .in = value_in_strip(job, walk, step->in, walk->state[s].in, slot, &in),
                .addend = value_in_strip(job, walk, step->addend, walk->state[s].addend, slot, &addend),
                .out = value_in_strip(job, walk, step->out, walk->state[s].out, slot, &out),
                .arena = job->arena,
                .scratch = job->arena + job->model->value[chain->scratch].offset + slot * chain->slot_bytes
                           + chain->points_offset,
                .caller_data = step->kind == STEP_IMPORT ? job->inputs[step->port]->data : NULL,
                .n = n,
                .begin = walk->state[s].done,
                .end = walk->state[s].target,
            };
            step_band(job->context, job->model, step, &band);
            if (job->ns != NULL)
                atomic_fetch_add_explicit(&job->ns[s], (long long)(model_now_ns() - began), memory_order_relaxed);
        }
        walk_advance(walk);
    }
}

static void run_pieces(void *argument, int64_t slot, vme_items *items)
{
    const chain_job *job = argument;
    chain_walk walk = *job->initial;
    for (int i = 0; i < walk.strips; i++)
        clear_sides(job, &walk.strip[i], slot);
    for (int64_t item; vme_item_next(items, &item);)
        run_piece(job, &walk, slot, item);
}

vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena,
                     const vme_tensor *const *inputs, uint64_t *ns)
{
    const model_step *step = &model->step[first];
    const int steps = step->chain.steps, threads = vme_parallel_threads();
    const uint64_t began = ns == NULL ? 0 : model_now_ns();
    const int64_t images = model->value[step[steps - 1].out].n;
    atomic_llong step_ns[BANDS_STEPS_MAX];
    chain_walk initial;
    walk_begin(&initial, model, step, steps);
    chain_job job = {
        .context = context, .model = model, .step = step, .arena = arena, .inputs = inputs, .initial = &initial};
    const int64_t slots = min(step->chain.slots, threads);
    job.image_pieces = slots == 1 ? 1 : step->chain.image_pieces;
    for (int s = 0; s < steps; s++) {
        atomic_init(&step_ns[s], 0);
        if (step[s].kind != STEP_NOTHING && initial.state[s].out < 0)
            model_clear_margin(context, &model->value[step[s].out], arena);
    }
    job.ns = ns == NULL ? NULL : step_ns;
    const vme_status status = vme_parallel_slots(context, slots, images * job.image_pieces, run_pieces, &job);
    if (ns != NULL) { /* threads overlap: the elapsed time is divided among the steps in proportion */
        const uint64_t elapsed_ns = model_now_ns() - began;
        double total = 0;
        for (int s = 0; s < steps; s++)
            total += (double)atomic_load(&step_ns[s]);
        for (int s = 0; s < steps; s++)
            ns[s] = total > 0 ? (uint64_t)((double)elapsed_ns * (double)atomic_load(&step_ns[s]) / total) : 0;
    }
    return status;
}
