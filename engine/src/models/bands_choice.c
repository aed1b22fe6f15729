/* Chooses which steps of a model run by bands (bands.c), and the rows of a band: of all divisions of the steps into
 * chains the one with the largest expected saving. A chain saves memory traffic for bytes that would not stay in L2
 * from one step to the next. It costs a start of each step for each band, moves of rows within strips, and rows that
 * two pieces both compute. */
#include "models/bands.h"
#include "models/bands_walk.h"
#include "models/file.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/rows.h"
#include "models/step.h"
#include "models/value.h"
#include "models/winograd.h"
#include "runtime/internal.h"
#include "runtime/machine.h"
#include "runtime/numbers.h"

#include "vme_search.h"

#include <stdlib.h>
#include <string.h>

enum { HEIGHT_MAX = 1 << 12 }; /* rows of a chain's last value; bounds the time of chain_cost */

static int64_t aligned(int64_t bytes) { return ceil_div(bytes, VME_ALIGNMENT) * VME_ALIGNMENT; }

static bool is_image(const model_value *value)
{
    return value->channels_last && value->n >= 1 && value->h >= 1 && value->w >= 1 && value->c >= 1;
}

static bool can_be_in_chain(const vme_model *model, const model_step *step)
{
    switch (step->kind) {
    case STEP_NOTHING: return true;
    case STEP_IMPORT: return is_image(&model->value[step->out]);
    case STEP_CONV:
        if (step->algorithm != CONVOLUTION_DIRECT /* curves are applied to a whole image at once */
            && ((step->algorithm != CONVOLUTION_WINOGRAD_2 && step->algorithm != CONVOLUTION_WINOGRAD_4)
                || model_curve_of(model, step) != NULL))
            return false;
        /* fall through */
    case STEP_DEPTHWISE:
    case STEP_MAX_POOL:
    case STEP_AVERAGE_POOL:
    case STEP_ADD:
    case STEP_CLIP:
    case STEP_SHUFFLE:
    case STEP_COPY:
        return is_image(&model->value[step->in]) && is_image(&model->value[step->out])
               && model->value[step->in].interleave_h == 0 && model->value[step->out].interleave_h == 0
               && (step->addend < 0 || is_image(&model->value[step->addend]))
               && model_root(model, step->in) != model_root(model, step->out)
               && (step->addend < 0 || model_root(model, step->addend) != model_root(model, step->out));
    default: return false;
    }
}

/* Whether only steps `first` to `end` read and write the value. */
static bool is_inner(const vme_model *model, int root, int first, int end)
{
    const model_value *value = &model->value[root];
    return value->kind == MODEL_COMPUTED && value->first_step >= first && value->last_step < end;
}

/* Whether these steps can be a chain: they have one guard and the same number of images, and the values that other
 * steps use have the height of the chain's last value and are not read within the chain. */
static bool are_chain(const vme_model *model, int first, int end)
{
    const model_step *last = &model->step[end - 1];
    if (model->step[first].kind == STEP_NOTHING || last->kind == STEP_NOTHING || model->value[last->out].h > HEIGHT_MAX)
        return false;
    for (int s = first; s < end; s++) {
        const model_step *step = &model->step[s];
        const int root = step->kind == STEP_NOTHING ? -1 : model_root(model, step->out);
        if (root < 0)
            continue;
        if (step->guard != model->step[first].guard)
            return false;
        if (model->value[step->out].n != model->value[last->out].n)
            return false;
        if (is_inner(model, root, first, end))
            continue;
        if (model->value[step->out].h != model->value[last->out].h)
            return false;
        for (int r = first; r < end; r++)
            if (model->step[r].kind != STEP_NOTHING
                && ((model->step[r].in >= 0 && model_root(model, model->step[r].in) == root)
                    || (model->step[r].addend >= 0 && model_root(model, model->step[r].addend) == root)))
                return false;
    }
    return true;
}

/* Upper bound of the nanoseconds saved by a chain of these steps: the traffic of all bytes that would not stay in L2.
 * `evicted` is the fraction of a value's bytes that leave L2: more of larger values. */
static double saved_ns(const chain_walk *walk)
{
    double bytes = 0;
    for (int i = 0; i < walk->strips; i++) {
        const double size = (double)walk->model->value[walk->strip[i].root].bytes;
        const double evicted = (size - BANDS_FAR_FROM) / (BANDS_FAR_ALL - BANDS_FAR_FROM);
        bytes += size * (evicted < 0 ? 0 : evicted > 1 ? 1 : evicted);
    }
    return bytes * BANDS_BYTE_NS;
}

/* The cost of a chain with bands of `rows` rows, in nanoseconds. Sets the chain's slots and its values' strips, and
 * `near_bytes`: the bytes of a slot and of the weights, which should stay in L2. */
static double chain_cost(chain_walk *walk, int64_t rows, int image_pieces, model_chain *chain, int64_t *near_bytes)
{
    const vme_model *model = walk->model;
    const int64_t h = model->value[walk->step[walk->steps - 1].out].h;
    int64_t strip_rows[BANDS_STEPS_MAX] = {0}, max_rows[BANDS_STEPS_MAX] = {0}, all_rows[BANDS_STEPS_MAX], moved = 0,
            starts = 0, squares[BANDS_STEPS_MAX] = {0};
    /* strips have room for whole images as well as for pieces; the other counts are those of pieces */
    for (int64_t pieces = 1;; pieces = image_pieces) {
        moved = starts = 0;
        memset(squares, 0, sizeof squares);
        memset(all_rows, 0, sizeof all_rows);
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t begin = walk_piece_begin(walk, h, pieces, piece),
                          piece_end = walk_piece_begin(walk, h, pieces, piece + 1);
            walk_start(walk, begin);
            for (int64_t end = begin; end < piece_end;) {
                end = min(end + rows, piece_end);
                walk_target(walk, end);
                for (int i = 0; i < walk->strips; i++) {
                    row_strip *strip = &walk->strip[i];
                    const int64_t first = walk_first_needed(walk, i);
                    moved += strip->end > first && first > strip->begin
                                 ? (strip->end - first) * model->value[strip->root].row_stride
                                 : 0;
                    strip->begin = first;
                    strip->end = walk_end_needed(walk, i);
                    strip_rows[i] = max(strip_rows[i], strip->end - strip->begin);
                }
                for (int s = 0; s < walk->steps; s++) {
                    const int64_t new_rows = walk->state[s].target - walk->state[s].done;
                    starts += new_rows > 0;
                    max_rows[s] = max(max_rows[s], new_rows);
                    all_rows[s] += new_rows;
                    if (walk->state[s].unit > 1 && new_rows > 0)
                        squares[s] += winograd_padded(model, &walk->step[s], ceil_div(new_rows, walk->state[s].unit));
                }
                walk_advance(walk);
            }
        }
        if (pieces == image_pieces)
            break;
    }
    int64_t offset = 0, points_bytes = 0, weights_bytes = 0;
    double cost = (double)starts * BANDS_START_NS + (double)moved * (double)sizeof(float) * BANDS_BYTE_NS;
    for (int i = 0; i < walk->strips; i++) {
        model_value *value = &model->value[walk->strip[i].root];
        value->strip_rows = max(1, strip_rows[i]);
        value->strip_offset = offset;
        offset += aligned(value->strip_rows * value->row_stride * (int64_t)sizeof(float)) + VME_ALIGNMENT;
    }
    for (int s = 0; s < walk->steps; s++) {
        const model_step *step = &walk->step[s];
        if (step->kind != STEP_CONV && step->kind != STEP_DEPTHWISE)
            continue;
        int64_t products = step->k;
        if (walk->state[s].unit > 1) {
            const int64_t side = walk->state[s].unit + 2,
                          unbanded_squares =
                              winograd_padded(model, step, ceil_div(model->value[step->out].h, walk->state[s].unit));
            points_bytes = max(points_bytes, winograd_band_scratch(model, step, max(1, max_rows[s])));
            products = step->k / 9 * side * side;
            cost += (double)(squares[s] - unbanded_squares) * (double)(products * model->value[step->out].c)
                    * BANDS_PRODUCT_NS;
        }
        /* rows on both sides of a border between pieces are computed in both pieces */
        const model_value *out = &model->value[step->out];
        const double recomputed =
            (double)max(0, all_rows[s] - out->h) * (double)(out->w * out->c * products) * BANDS_PRODUCT_NS;
        cost += walk->state[s].unit > 1 ? recomputed / (double)(walk->state[s].unit * walk->state[s].unit) : recomputed;
        weights_bytes += products * model->value[step->out].c * (int64_t)sizeof(float);
    }
    chain->points_offset = offset;
    chain->slot_bytes = offset + aligned(points_bytes);
    chain->rows = rows;
    chain->image_pieces = image_pieces;
    *near_bytes = chain->slot_bytes + weights_bytes;
    return cost;
}

/* Nanoseconds lost because only `slots` of `threads` threads can work on the chain. */
static double idle_ns(const chain_walk *walk, int slots, int threads)
{
    double products = 0;
    for (int s = 0; s < walk->steps; s++) {
        const model_step *step = &walk->step[s];
        if (step->kind != STEP_CONV && step->kind != STEP_DEPTHWISE)
            continue;
        const model_value *out = &walk->model->value[step->out];
        products += (double)(out->n * out->h * out->w * out->c) * (double)step->k;
    }
    return products * BANDS_PRODUCT_NS * (1.0 / slots - 1.0 / threads);
}

/* The saving of these steps as a chain, with the best bands that fit in L2; 0: none. Sets the strips of its values. */
static double try_chain(const vme_model *model, int first, int end, int threads, model_chain *chain)
{
    chain_walk walk;
    const bool forced = model->bands == VME_BANDS_ALWAYS;
    for (int s = first; s < end; s++)
        if (model->step[s].kind != STEP_NOTHING) {
            const int root = model_root(model, model->step[s].out);
            model->value[root].strip_rows = is_inner(model, root, first, end);
        }
    walk_begin(&walk, model, &model->step[first], end - first);
    const int64_t h = model->value[model->step[end - 1].out].h, images = model->value[model->step[end - 1].out].n;
    const int image_pieces = images % threads == 0 && !forced
                                 ? 1
                                 : (int)max(1, min(threads, h / walk.unit / (forced ? 1 : BANDS_PIECE_MIN)));
    const int slots = (int)min(threads, images * image_pieces);
    const double saving = forced ? end - first : saved_ns(&walk) - idle_ns(&walk, slots, threads);
    double best_saving = 0;
    int64_t best_rows = 0, near_bytes;
    if (forced && walk.strips > 0) {
        best_saving = saving;
        best_rows = walk.unit * (1 + first % 3);
    }
    for (int64_t candidate = walk.unit; !forced && saving > 0 && candidate <= BANDS_ROWS_MAX && candidate <= h;
         candidate += walk.unit) {
        const double cost = chain_cost(&walk, candidate, image_pieces, chain, &near_bytes);
        if (near_bytes > BANDS_NEAR)
            break;
        if (saving - cost > best_saving) {
            best_saving = saving - cost;
            best_rows = candidate;
        }
    }
    if (best_rows > 0)
        chain_cost(&walk, best_rows, image_pieces, chain, &near_bytes);
    chain->slots = slots;
    for (int i = 0; i < walk.strips && best_rows == 0; i++)
        model->value[walk.strip[i].root].strip_rows = 0;
    return best_saving;
}

static void chain_make(model_preparation *preparation, int first, int end, model_chain chain)
{
    vme_model *model = preparation->model;
    chain.steps = end - first;
    chain.scratch = preparation->values++;
    model->values = preparation->values;
    model_value *scratch = &model->value[chain.scratch];
    scratch->bytes = chain.slots * chain.slot_bytes;
    scratch->first_step = first;
    scratch->last_step = end - 1;
    model->step[first].chain = chain;
    for (int s = first; s < end; s++) {
        model_step *step = &model->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        if (step->scratch >= 0) { /* the chain's slots replace it */
            model->value[step->scratch].bytes = 0;
            step->scratch = -1;
        }
        const int values[] = {step->in, step->addend, step->out};
        for (int i = 0; i < 3; i++)
            if (values[i] >= 0) {
                model_value *root = &model->value[model_root(model, values[i])];
                /* the chain's steps overlap in time: each of its values lives from the first step on */
                root->first_step = root->first_step > first ? first : root->first_step;
                if (root->strip_rows > 0)
                    root->bytes = 0;
            }
    }
}

vme_status chains_choose(model_preparation *preparation)
{
    vme_model *model = preparation->model;
    const int threads = vme_threads() < BANDS_SLOTS_MAX ? vme_threads() : BANDS_SLOTS_MAX;
    struct {
        double saved_ns;
        int end;
    } *best = NULL; /* for each step: where the chain that begins there ends */
    vme_status status = VME_OK;
    if (model->bands == VME_BANDS_NEVER)
        return VME_OK;
    best = calloc((size_t)model->steps + 1, sizeof *best);
    if (best == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    for (int first = model->steps - 1; first >= 0; first--) {
        best[first].saved_ns = best[first + 1].saved_ns;
        best[first].end = first + 1;
        for (int end = first;
             end < model->steps && end - first < BANDS_STEPS_MAX && can_be_in_chain(model, &model->step[end]);) {
            model_chain chain;
            if (vme_stopping(model->context)) {
                status = vme_stopped_here(model->context);
                goto done;
            }
            end++;
            if (end - first < 2 || !are_chain(model, first, end))
                continue;
            const double saving = try_chain(model, first, end, threads, &chain);
            if (saving > 0 && saving + best[end].saved_ns > best[first].saved_ns) {
                best[first].saved_ns = saving + best[end].saved_ns;
                best[first].end = end;
            }
        }
    }
    for (int v = 0; v < model->values; v++)
        model->value[v].strip_rows = 0;
    for (int first = 0; first < model->steps; first = best[first].end)
        if (best[first].end > first + 1) {
            model_chain chain;
            try_chain(model, first, best[first].end, threads, &chain);
            chain_make(preparation, first, best[first].end, chain);
        }
done:
    free(best);
    return status;
}
