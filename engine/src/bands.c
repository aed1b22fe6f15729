/* Steps on images that follow each other, done by bands of rows: each makes only the rows that the next one needs next, so that what one writes is
 * read from the near caches by the next. What is computed is the same in both ways, to the bit.
 *
 * A chain is some steps in a row. What only they read and write has no place in the arena but a strip of rows in the chain's scratch memory: rows that
 * are needed no longer make room for the next ones, which are moved to the strip's start. What others read is whole, and no step of the chain reads it.
 * Threads take pieces of the image, in slots with strips of their own; rows that two pieces need are made in both.
 *
 *     rows of   input     made                a band more of the last step's rows, and what the steps before it need for that
 *               stem      made |  band
 *               pool      made | band         <- these rows are the chain's
 */
#include "model.h"
#include "pool.h"

#include <stdlib.h>
#include <string.h>

enum {
    STEPS_MOST = 16,            /* of a chain */
    SLOTS_MOST = 8,
    NEAR = 1 << 20,             /* bytes of strips, points and weights of a thread: what stays in its second cache while rows come and go */
    FAR_FROM = 700 << 10, FAR_ALL = 1400 << 10,      /* of a value of so many bytes nothing is still near when it is read, and no byte is */
    ROWS_MOST = 16,             /* of a band */
    PIECE_LEAST = 8,            /* rows, or of squares */
    HEIGHT_MOST = 1 << 12,
};
/* Nanoseconds, of a core as in rates.c: of a byte that is written and read far away instead of near; of a product; and of one band's step. */
static const double SAVED = 0.04, PRODUCT = 0.0125, START = 400;

static int64_t aligned(int64_t bytes) { return parts(bytes, VME_ALIGNMENT) * VME_ALIGNMENT; }

/* ---- which rows when */
typedef struct strip {
    int root;                   /* the value */
    int64_t base;               /* the first row that is there; a margin's are below 0 and from h on */
    int64_t wanted;             /* the row after the last one that a reader wants */
    int64_t end;                /* the row after the last one that is there */
} strip;

typedef struct walk {
    const vme_model *model;
    const model_step *step;
    int steps, strips;
    strip strip[STEPS_MOST];
    struct {
        int in, addend, out;                /* numbers of strips, -1: a whole value, or none */
        int64_t unit;                       /* its bands begin at multiples of it */
        int64_t made, upto;                 /* rows are made up to this one, and in this band up to that one */
    } of[STEPS_MOST];
    int64_t unit;                           /* of pieces and bands of what the chain leaves */
} walk;

static int strip_of(const walk *it, int value)
{
    for (int i = 0; value >= 0 && i < it->strips; i++)
        if (it->strip[i].root == model_root(it->model, value))
            return i;
    return -1;
}

static void walk_begin(walk *it, const vme_model *model, const model_step *step, int steps)
{
    *it = (walk){.model = model, .step = step, .steps = steps, .unit = 1};
    for (int s = 0; s < steps; s++) {
        it->of[s].in = it->of[s].addend = it->of[s].out = -1;
        if (step[s].kind == STEP_NOTHING)
            continue;
        const int root = model_root(model, step[s].out);
        it->of[s].unit = step[s].kind == STEP_CONV && step[s].algorithm != CONVOLUTION_DIRECT ? winograd_unit(&step[s]) : 1;
        if (model->value[root].strip == 0)
            it->unit = most(it->unit, it->of[s].unit);
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
    return most(first, is_pool(step) ? 0 : -in->top);
}

/* The row after the last one that it reads for its rows before `end`. */
static int64_t end_read(const walk *it, const model_step *step, int64_t unit, int64_t end)
{
    const model_value *in = &it->model->value[step->in];
    if (!has_window(step) && !is_pool(step))
        return end;
    const int64_t last = parts(end, unit) * unit - 1;       /* Winograd's squares are whole */
    const int64_t after = last * step->p[STRIDE_H] - step->p[PAD_TOP] + (int64_t)step->p[DILATION_H] * (step->p[KERNEL_H] - 1) + 1;
    return least(after, in->h + (is_pool(step) ? 0 : in->bottom));
}

/* Nothing is there yet, and the last step's rows from `begin` on are wanted. */
static void walk_from(walk *it, int64_t begin)
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
            first = out->base == INT64_MAX ? it->model->value[step->out].h : most(0, out->base) / it->of[s].unit * it->of[s].unit;
            out->base = least(out->base, first);
        }
        it->of[s].made = it->of[s].upto = first;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? it->of[s].in : it->of[s].addend;
            if (from >= 0)
                it->strip[from].base = least(it->strip[from].base, i == 0 ? first_read(it, step, first) : first);
        }
    }
    for (int i = 0; i < it->strips; i++)
        it->strip[i].end = it->strip[i].base;
}

/* Up to where each step goes when the last one's rows before `end` are wanted. */
static void walk_to(walk *it, int64_t end)
{
    for (int i = 0; i < it->strips; i++)
        it->strip[i].wanted = INT64_MIN;
    for (int s = it->steps - 1; s >= 0; s--) {
        const model_step *step = &it->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        const int64_t wanted = it->of[s].out < 0 ? end : it->strip[it->of[s].out].wanted, unit = it->of[s].unit;
        it->of[s].upto = most(it->of[s].made, least(it->model->value[step->out].h, parts(most(wanted, 0), unit) * unit));
        if (it->of[s].upto == it->of[s].made)
            continue;
        for (int i = 0; i < 2; i++) {
            const int from = i == 0 ? it->of[s].in : it->of[s].addend;
            const int64_t read = i == 0 && from >= 0 ? end_read(it, step, unit, it->of[s].upto) : it->of[s].upto;
            if (from >= 0)
                it->strip[from].wanted = most(it->strip[from].wanted, read);
        }
    }
}

/* The first row of a strip that anybody will read or write from now on. */
static int64_t first_needed(const walk *it, int number)
{
    int64_t first = INT64_MAX;
    for (int s = 0; s < it->steps; s++) {
        const int64_t made = it->of[s].made;
        if (it->of[s].in == number)
            first = least(first, first_read(it, &it->step[s], made));
        if (it->of[s].addend == number || it->of[s].out == number)
            first = least(first, made);
    }
    return most(first, it->strip[number].base);
}

/* The row after the last one that is there when the band is done. */
static int64_t end_needed(const walk *it, int number)
{
    int64_t end = most(it->strip[number].wanted, it->strip[number].end);
    for (int s = 0; s < it->steps; s++)
        if (it->of[s].out == number)
            end = most(end, it->of[s].upto);
    return end;
}

static void walk_on(walk *it)
{
    for (int s = 0; s < it->steps; s++)
        it->of[s].made = it->of[s].upto;
}

/* Pieces of an image of `h` rows: where number `piece` begins. */
static int64_t piece_begin(const walk *it, int64_t h, int64_t pieces, int64_t piece)
{
    return piece == pieces ? h : h * piece / pieces / it->unit * it->unit;
}

/* ---- choosing */
static bool is_image(const model_value *value) { return value->channels_last && value->n >= 1 && value->h >= 1 && value->w >= 1 && value->c >= 1; }

static bool possible(const vme_model *model, const model_step *step)
{
    switch (step->kind) {
    case STEP_NOTHING:
        return true;
    case STEP_IMPORT:
        return is_image(&model->value[step->out]);
    case STEP_CONV:
        if (step->algorithm != CONVOLUTION_DIRECT           /* their curves are done to all of an image at once */
            && ((step->algorithm != CONVOLUTION_WINOGRAD_2 && step->algorithm != CONVOLUTION_WINOGRAD_4) || model_curve_of(step) != NULL))
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
               && (step->addend < 0 || is_image(&model->value[step->addend])) && model_root(model, step->in) != model_root(model, step->out)
               && (step->addend < 0 || model_root(model, step->addend) != model_root(model, step->out));
    default:
        return false;
    }
}

/* What only steps `first` to `end` read and write. */
static bool is_inner(const vme_model *model, int root, int first, int end)
{
    const model_value *value = &model->value[root];
    return value->kind == MODEL_COMPUTED && value->first >= first && value->last < end;
}

/* Whether these steps can be a chain: of as many images all of them, what they leave is as high as what the last one makes, and none of them reads it. */
static bool are_chain(const vme_model *model, int first, int end)
{
    const model_step *last = &model->step[end - 1];
    if (model->step[first].kind == STEP_NOTHING || last->kind == STEP_NOTHING || model->value[last->out].h > HEIGHT_MOST)
        return false;
    for (int s = first; s < end; s++) {
        const model_step *step = &model->step[s];
        const int root = step->kind == STEP_NOTHING ? -1 : model_root(model, step->out);
        if (root < 0)
            continue;
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

/* Nanoseconds that a chain of these steps saves at most: each byte that would not stay near is written and read there. */
static double saved(const walk *it)
{
    double bytes = 0;
    for (int i = 0; i < it->strips; i++) {
        const double all = (double)it->model->value[it->strip[i].root].bytes, far = (all - FAR_FROM) / (FAR_ALL - FAR_FROM);
        bytes += all * (far < 0 ? 0 : far > 1 ? 1 : far);
    }
    return bytes * SAVED;
}

/* What the bands of so many rows want in their slots, and the nanoseconds that they cost. */
static double measure(walk *it, int64_t rows, int slots, model_chain *chain, int64_t *near)
{
    const vme_model *model = it->model;
    const int64_t h = model->value[it->step[it->steps - 1].out].h;
    int64_t strips[STEPS_MOST] = {0}, made[STEPS_MOST] = {0}, all_made[STEPS_MOST], moved = 0, starts = 0, squares[STEPS_MOST] = {0};
    for (int64_t pieces = 1;; pieces = slots) {
        moved = starts = 0;
        memset(squares, 0, sizeof squares);
        memset(all_made, 0, sizeof all_made);
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t begin = piece_begin(it, h, pieces, piece), piece_end = piece_begin(it, h, pieces, piece + 1);
            walk_from(it, begin);
            for (int64_t end = begin; end < piece_end;) {
                end = least(end + rows, piece_end);
                walk_to(it, end);
                for (int i = 0; i < it->strips; i++) {
                    strip *of = &it->strip[i];
                    const int64_t first = first_needed(it, i);
                    moved += of->end > first && first > of->base ? (of->end - first) * model->value[of->root].row : 0;
                    of->base = first;
                    of->end = end_needed(it, i);
                    strips[i] = most(strips[i], of->end - of->base);
                }
                for (int s = 0; s < it->steps; s++) {
                    const int64_t more = it->of[s].upto - it->of[s].made;
                    starts += more > 0;
                    made[s] = most(made[s], more);
                    all_made[s] += more;
                    if (it->of[s].unit > 1 && more > 0)
                        squares[s] += winograd_padded(model, &it->step[s], parts(more, it->of[s].unit));
                }
                walk_on(it);
            }
        }
        if (pieces == slots)
            break;
    }
    int64_t at = 0, points = 0, weights = 0;
    double cost = (double)starts * START + (double)moved * (double)sizeof(float) * SAVED;
    for (int i = 0; i < it->strips; i++) {
        model_value *value = &model->value[it->strip[i].root];
        value->strip = most(1, strips[i]);
        value->strip_at = at;
        at += aligned(value->strip * value->row * (int64_t)sizeof(float)) + VME_ALIGNMENT;
    }
    for (int s = 0; s < it->steps; s++) {
        const model_step *step = &it->step[s];
        if (step->kind != STEP_CONV && step->kind != STEP_DEPTHWISE)
            continue;
        int64_t numbers = step->k;
        if (it->of[s].unit > 1) {
            const int64_t side = it->of[s].unit + 2, all = winograd_padded(model, step, parts(model->value[step->out].h, it->of[s].unit));
            points = most(points, winograd_band_scratch(model, step, most(1, made[s])));
            numbers = step->k / 9 * side * side;
            cost += (double)(squares[s] - all) * (double)(numbers * model->value[step->out].c) * PRODUCT;
        }
        /* between pieces some rows are made twice */
        const model_value *out = &model->value[step->out];
        const double twice = (double)most(0, all_made[s] - out->h) * (double)(out->w * out->c * numbers) * PRODUCT;
        cost += it->of[s].unit > 1 ? twice / (double)(it->of[s].unit * it->of[s].unit) : twice;
        weights += numbers * model->value[step->out].c * (int64_t)sizeof(float);
    }
    chain->points_at = at;
    chain->slot_bytes = at + aligned(points);
    chain->rows = rows;
    chain->slots = slots;
    *near = chain->slot_bytes + weights;
    return cost;
}

/* What these steps save as a chain with the best bands that stay near, 0: nothing; values get their strips. */
static double try_chain(const vme_model *model, int first, int end, int threads, model_chain *chain)
{
    walk it;
    const bool always = model->bands == VME_BANDS_ALWAYS;
    for (int s = first; s < end; s++)
        if (model->step[s].kind != STEP_NOTHING) {
            const int root = model_root(model, model->step[s].out);
            model->value[root].strip = is_inner(model, root, first, end);
        }
    walk_begin(&it, model, &model->step[first], end - first);
    const int64_t h = model->value[model->step[end - 1].out].h;
    const int slots = (int)most(1, least(threads, h / it.unit / (always ? 1 : PIECE_LEAST)));
    const double all = always ? end - first : saved(&it);
    double best = 0;
    int64_t rows = 0, near;
    if (always && it.strips > 0) {
        best = all;
        rows = it.unit * (1 + first % 3);
    }
    for (int64_t next = it.unit; !always && all > 0 && next <= ROWS_MOST && next <= h; next += it.unit) {
        const double cost = measure(&it, next, slots, chain, &near);
        if (near > NEAR)
            break;
        if (all - cost > best) {
            best = all - cost;
            rows = next;
        }
    }
    if (rows > 0)
        measure(&it, rows, slots, chain, &near);
    for (int i = 0; i < it.strips && rows == 0; i++)
        model->value[it.strip[i].root].strip = 0;
    return best;
}

static void chain_make(model_making *it, int first, int end, model_chain chain)
{
    vme_model *model = it->model;
    chain.steps = end - first;
    chain.scratch = it->values++;
    model->values = it->values;
    model_value *scratch = &model->value[chain.scratch];
    scratch->bytes = chain.slots * chain.slot_bytes;
    scratch->first = first;
    scratch->last = end - 1;
    model->step[first].chain = chain;
    for (int s = first; s < end; s++) {
        model_step *step = &model->step[s];
        if (step->kind == STEP_NOTHING)
            continue;
        if (step->scratch >= 0) {               /* a slot has it */
            model->value[step->scratch].bytes = 0;
            step->scratch = -1;
        }
        const int values[] = {step->in, step->addend, step->out};
        for (int i = 0; i < 3; i++)
            if (values[i] >= 0) {
                model_value *root = &model->value[model_root(model, values[i])];
                root->first = root->first > first ? first : root->first;        /* all live as long as the chain, then */
                if (root->strip > 0)
                    root->bytes = 0;
            }
    }
}

vme_status chains_choose(model_making *it)
{
    vme_model *model = it->model;
    const int threads = vme_threads() < SLOTS_MOST ? vme_threads() : SLOTS_MOST;
    struct { double saved; int end; } *best = NULL;     /* of the steps from each one on: in which step its chain ends */
    vme_status status = VME_OK;
    if (model->bands == VME_BANDS_NEVER)
        return VME_OK;
    best = calloc((size_t)model->steps + 1, sizeof *best);
    if (best == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a model");
    for (int first = model->steps - 1; first >= 0; first--) {
        best[first].saved = best[first + 1].saved;
        best[first].end = first + 1;
        for (int end = first; end < model->steps && end - first < STEPS_MOST && possible(model, &model->step[end]);) {
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
            chain_make(it, first, best[first].end, chain);
        }
done:
    free(best);
    return status;
}

/* ---- running */
typedef struct chain_job {
    vme_context *context;
    const vme_model *model;
    const model_step *step;                 /* the first */
    char *arena;
    const vme_tensor *const *inputs;
    const walk *begun;
    int64_t pieces;                         /* of an image */
    atomic_llong *ns;                       /* of each step; NULL: nobody asks */
} chain_job;

static float *strip_row(const chain_job *it, const strip *of, int64_t slot, int64_t y)
{
    const model_value *value = &it->model->value[of->root];
    return (float *)(it->arena + it->model->value[it->step->chain.scratch].offset + slot * it->step->chain.slot_bytes + value->strip_at)
           + (y - of->base) * value->row;
}

/* Zeros left and right of the strip's rows, which stay there. */
static void clear_sides(const chain_job *it, const strip *of, int64_t slot)
{
    const model_value *value = &it->model->value[of->root];
    const strip first = {.root = of->root};
    for (int64_t y = 0; y < value->strip && value->left + value->right > 0 && !vme_stopping(it->context); y++) {
        float *row = strip_row(it, &first, slot, y);
        memset(row, 0, (size_t)(value->left * value->pixel) * sizeof(float));
        memset(row + (value->left + value->w) * value->pixel, 0, (size_t)(value->right * value->pixel) * sizeof(float));
    }
}

static void clear_rows(const chain_job *it, const strip *of, int64_t slot, int64_t begin, int64_t end)
{
    if (begin < end)
        model_clear(it->context, strip_row(it, of, slot, begin), (size_t)((end - begin) * it->model->value[of->root].row) * sizeof(float));
}

/* Makes room: rows that are needed no longer go. */
static void strip_on(const chain_job *it, const walk *at, int number, strip *of, int64_t slot)
{
    const model_value *value = &it->model->value[of->root];
    const int64_t first = first_needed(at, number), end = end_needed(at, number);
    if (of->end > first && first > of->base) {
        const float *from = strip_row(it, of, slot, first);
        memmove(strip_row(it, of, slot, of->base), from, (size_t)((of->end - first) * value->row) * sizeof(float));
    }
    of->base = first;
    clear_rows(it, of, slot, most(of->end, first), least(end, 0));
    clear_rows(it, of, slot, most(most(of->end, first), value->h), end);
    of->end = end;
}

/* Where a value lies while its strip has these rows. */
static const model_value *lies(const chain_job *it, const walk *at, int value, int number, int64_t slot, model_value *copy)
{
    if (value < 0 || number < 0)
        return value < 0 ? NULL : &it->model->value[value];
    const strip *of = &at->strip[number];
    const model_value *root = &it->model->value[of->root];
    *copy = it->model->value[value];
    copy->offset += it->model->value[it->step->chain.scratch].offset + slot * it->step->chain.slot_bytes + root->strip_at - root->offset
                    - (root->top + of->base) * root->row * (int64_t)sizeof(float);
    copy->image = 0;
    return copy;
}

static void do_item(const chain_job *it, walk *at, int64_t slot, int64_t item)
{
    const model_chain *chain = &it->step->chain;
    const int64_t n = item / it->pieces, piece = item % it->pieces, h = it->model->value[it->step[chain->steps - 1].out].h;
    const int64_t begin = piece_begin(at, h, it->pieces, piece), piece_end = piece_begin(at, h, it->pieces, piece + 1);
    walk_from(at, begin);
    for (int64_t end = begin; end < piece_end && !vme_stopping(it->context);) {
        end = least(end + chain->rows, piece_end);
        walk_to(at, end);
        for (int i = 0; i < at->strips; i++)
            strip_on(it, at, i, &at->strip[i], slot);
        for (int s = 0; s < chain->steps && !vme_stopping(it->context); s++) {
            const model_step *step = &it->step[s];
            if (step->kind == STEP_NOTHING || at->of[s].upto == at->of[s].made)
                continue;
            const uint64_t began = it->ns == NULL ? 0 : model_now_ns();
            model_value in, addend, out;
            const model_band band = {
                .in = lies(it, at, step->in, at->of[s].in, slot, &in), .addend = lies(it, at, step->addend, at->of[s].addend, slot, &addend),
                .out = lies(it, at, step->out, at->of[s].out, slot, &out), .arena = it->arena,
                .scratch = it->arena + it->model->value[chain->scratch].offset + slot * chain->slot_bytes + chain->points_at,
                .outside = step->kind == STEP_IMPORT ? it->inputs[step->port]->data : NULL, .n = n, .begin = at->of[s].made, .end = at->of[s].upto,
            };
            step_band(it->context, it->model, step, &band);
            if (it->ns != NULL)
                atomic_fetch_add_explicit(&it->ns[s], (long long)(model_now_ns() - began), memory_order_relaxed);
        }
        walk_on(at);
    }
}

static void do_items(void *argument, int64_t slot, vme_items *items)
{
    const chain_job *it = argument;
    walk at = *it->begun;
    for (int i = 0; i < at.strips; i++)
        clear_sides(it, &at.strip[i], slot);
    for (int64_t item; vme_item_next(items, &item);)
        do_item(it, &at, slot, item);
}

vme_status chain_run(vme_context *context, const vme_model *model, int first, char *arena, const vme_tensor *const *inputs, uint64_t *ns)
{
    const model_step *step = &model->step[first];
    const int steps = step->chain.steps, threads = vme_parallel_threads();
    const uint64_t began = ns == NULL ? 0 : model_now_ns();
    const int64_t images = model->value[step[steps - 1].out].n;
    atomic_llong spent[STEPS_MOST];
    walk begun;
    walk_begin(&begun, model, step, steps);
    chain_job it = {.context = context, .model = model, .step = step, .arena = arena, .inputs = inputs, .begun = &begun};
    const int64_t slots = least(step->chain.slots, threads);
    it.pieces = slots == 1 ? 1 : step->chain.slots;
    for (int s = 0; s < steps; s++) {
        atomic_init(&spent[s], 0);
        if (step[s].kind != STEP_NOTHING && begun.of[s].out < 0)
            model_clear_margin(context, &model->value[step[s].out], arena);
    }
    it.ns = ns == NULL ? NULL : spent;
    const vme_status status = vme_parallel_slots(context, slots, images * it.pieces, do_items, &it);
    if (ns != NULL) {                           /* threads at the same time: each step has its part of the whole */
        const uint64_t whole = model_now_ns() - began;
        double sum = 0;
        for (int s = 0; s < steps; s++)
            sum += (double)atomic_load(&spent[s]);
        for (int s = 0; s < steps; s++)
            ns[s] = sum > 0 ? (uint64_t)((double)whole * (double)atomic_load(&spent[s]) / sum) : 0;
    }
    return status;
}
