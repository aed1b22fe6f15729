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

enum { HEIGHT_MAX = 1 << 12 };

static int64_t aligned(int64_t bytes) { return ceil_div(bytes, VME_ALIGNMENT) * VME_ALIGNMENT; }

static bool is_image(const model_value *value)
{
    return value->channels_last && value->n >= 1 && value->h >= 1 && value->w >= 1 && value->c >= 1;
}

static bool possible(const vme_model *model, const model_step *step)
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
               && model->value[step->in].spread_h == 0 && model->value[step->out].spread_h == 0
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
    return value->kind == MODEL_COMPUTED && value->first >= first && value->last < end;
}

/* Whether these steps can be a chain: they have the same number of images, their outputs have the height of the last
 * one's, and no step of the chain reads an output. */
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
 */
static double saved(const chain_walk *walk)
{
    double bytes = 0;
    for (int i = 0; i < walk->strips; i++) {
        const double all = (double)walk->model->value[walk->strip[i].root].bytes;
        const double far = (all - BANDS_FAR_FROM) / (BANDS_FAR_ALL - BANDS_FAR_FROM);
        bytes += all * (far < 0 ? 0 : far > 1 ? 1 : far);
    }
    return bytes * BANDS_BYTE_NS;
}

/* The scratch memory of a slot with bands of `rows` rows, and the cost in nanoseconds. */
static double measure(chain_walk *walk, int64_t rows, int each_image, model_chain *chain, int64_t *near)
{
    const vme_model *model = walk->model;
    const int64_t h = model->value[walk->step[walk->steps - 1].out].h;
    int64_t strips[BANDS_STEPS_MAX] = {0}, done[BANDS_STEPS_MAX] = {0}, all_done[BANDS_STEPS_MAX], moved = 0,
            starts = 0, squares[BANDS_STEPS_MAX] = {0};
    for (int64_t pieces = 1;; pieces = each_image) {
        moved = starts = 0;
        memset(squares, 0, sizeof squares);
        memset(all_done, 0, sizeof all_done);
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t begin = walk_piece_begin(walk, h, pieces, piece),
                          piece_end = walk_piece_begin(walk, h, pieces, piece + 1);
            walk_start(walk, begin);
            for (int64_t end = begin; end < piece_end;) {
                end = min(end + rows, piece_end);
                walk_target(walk, end);
                for (int i = 0; i < walk->strips; i++) {
                    strip *of = &walk->strip[i];
                    const int64_t first = walk_first_needed(walk, i);
                    moved += of->end > first && first > of->base ? (of->end - first) * model->value[of->root].row : 0;
                    of->base = first;
                    of->end = walk_end_needed(walk, i);
                    strips[i] = max(strips[i], of->end - of->base);
                }
                for (int s = 0; s < walk->steps; s++) {
                    const int64_t more = walk->of[s].upto - walk->of[s].done;
                    starts += more > 0;
                    done[s] = max(done[s], more);
                    all_done[s] += more;
                    if (walk->of[s].unit > 1 && more > 0)
                        squares[s] += winograd_padded(model, &walk->step[s], ceil_div(more, walk->of[s].unit));
                }
                walk_advance(walk);
            }
        }
        if (pieces == each_image)
            break;
    }
    int64_t at = 0, points = 0, weights = 0;
    double cost = (double)starts * BANDS_START_NS + (double)moved * (double)sizeof(float) * BANDS_BYTE_NS;
    for (int i = 0; i < walk->strips; i++) {
        model_value *value = &model->value[walk->strip[i].root];
        value->strip = max(1, strips[i]);
        value->strip_at = at;
        at += aligned(value->strip * value->row * (int64_t)sizeof(float)) + VME_ALIGNMENT;
    }
    for (int s = 0; s < walk->steps; s++) {
        const model_step *step = &walk->step[s];
        if (step->kind != STEP_CONV && step->kind != STEP_DEPTHWISE)
            continue;
        int64_t numbers = step->k;
        if (walk->of[s].unit > 1) {
            const int64_t side = walk->of[s].unit + 2,
                          all = winograd_padded(model, step, ceil_div(model->value[step->out].h, walk->of[s].unit));
            points = max(points, winograd_band_scratch(model, step, max(1, done[s])));
            numbers = step->k / 9 * side * side;
            cost += (double)(squares[s] - all) * (double)(numbers * model->value[step->out].c) * BANDS_PRODUCT_NS;
        }
        /* rows at the borders of pieces are computed twice */
        const model_value *out = &model->value[step->out];
        const double twice =
            (double)max(0, all_done[s] - out->h) * (double)(out->w * out->c * numbers) * BANDS_PRODUCT_NS;
        cost += walk->of[s].unit > 1 ? twice / (double)(walk->of[s].unit * walk->of[s].unit) : twice;
        weights += numbers * model->value[step->out].c * (int64_t)sizeof(float);
    }
    chain->points_at = at;
    chain->slot_bytes = at + aligned(points);
    chain->rows = rows;
    chain->pieces = each_image;
    *near = chain->slot_bytes + weights;
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
    const bool always = model->bands == VME_BANDS_ALWAYS;
    for (int s = first; s < end; s++)
        if (model->step[s].kind != STEP_NOTHING) {
            const int root = model_root(model, model->step[s].out);
            model->value[root].strip = is_inner(model, root, first, end);
        }
    walk_begin(&walk, model, &model->step[first], end - first);
    const int64_t h = model->value[model->step[end - 1].out].h, images = model->value[model->step[end - 1].out].n;
    const int each_image = images % threads == 0 && !always
                               ? 1
                               : (int)max(1, min(threads, h / walk.unit / (always ? 1 : BANDS_PIECE_MIN)));
    const int slots = (int)min(threads, images * each_image);
    const double all = always ? end - first : saved(&walk) - idle_ns(&walk, slots, threads);
    double best = 0;
    int64_t rows = 0, near;
    if (always && walk.strips > 0) {
        best = all;
        rows = walk.unit * (1 + first % 3);
    }
    for (int64_t next = walk.unit; !always && all > 0 && next <= BANDS_ROWS_MAX && next <= h; next += walk.unit) {
        const double cost = measure(&walk, next, each_image, chain, &near);
        if (near > BANDS_NEAR)
            break;
        if (all - cost > best) {
            best = all - cost;
            rows = next;
        }
    }
    if (rows > 0)
        measure(&walk, rows, each_image, chain, &near);
    chain->slots = slots;
    for (int i = 0; i < walk.strips && rows == 0; i++)
        model->value[walk.strip[i].root].strip = 0;
    return best;
}

static void chain_make(model_preparation *preparation, int first, int end, model_chain chain)
{
    vme_model *model = preparation->model;
    chain.steps = end - first;
    chain.scratch = preparation->values++;
    model->values = preparation->values;
    model_value *scratch = &model->value[chain.scratch];
    scratch->bytes = chain.slots * chain.slot_bytes;
    scratch->first = first;
    scratch->last = end - 1;
    model->step[first].chain = chain;
    for (int s = first; s < end; s++) {
        model_step *step = &model->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        if (step->scratch >= 0) { /* the chain's slots hold it instead */
            model->value[step->scratch].bytes = 0;
            step->scratch = -1;
        }
        const int values[] = {step->in, step->addend, step->out};
        for (int i = 0; i < 3; i++)
            if (values[i] >= 0) {
                model_value *root = &model->value[model_root(model, values[i])];
                root->first = root->first > first ? first : root->first; /* the chain's steps overlap: each of its
                                                                          * values lives from the first one on */
                if (root->strip > 0)
                    root->bytes = 0;
            }
    }
}

vme_status chains_choose(model_preparation *preparation)
{
    vme_model *model = preparation->model;
    const int threads = vme_threads() < BANDS_SLOTS_MAX ? vme_threads() : BANDS_SLOTS_MAX;
    struct {
        double saved;
        int end;
    } *best = NULL; /* for each step: where the chain that begins there ends */
    vme_status status = VME_OK;
    if (model->bands == VME_BANDS_NEVER)
        return VME_OK;
    best = calloc((size_t)model->steps + 1, sizeof *best);
    if (best == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    for (int first = model->steps - 1; first >= 0; first--) {
        best[first].saved = best[first + 1].saved;
        best[first].end = first + 1;
        for (int end = first;
             end < model->steps && end - first < BANDS_STEPS_MAX && possible(model, &model->step[end]);) {
            model_chain chain;
            if (vme_stopping(model->context)) {
                status = vme_stopped_here(model->context);
                goto done;
            }
            end++;
            if (end - first < 2 || !are_chain(model, first, end))
                continue;
            const double gained = try_chain(model, first, end, threads, &chain);
            if (gained > 0 && gained + best[end].saved > best[first].saved) {
                best[first].saved = gained + best[end].saved;
                best[first].end = end;
            }
        }
    }
    for (int v = 0; v < model->values; v++)
        model->value[v].strip = 0;
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
