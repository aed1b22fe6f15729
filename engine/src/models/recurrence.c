/* Recurrent layers: RNN, GRU and LSTM as ONNX defines them, in one or both directions.
 *
 * The gates' products with the inputs are not part of the step: one product for all times computes them, including both
 * biases (except the candidate's bias of a GRU whose reset gate multiplies the product). For each time, the step
 * multiplies the previous state with its weights and computes the next state. Rows of the batch and directions are
 * independent: threads take blocks of rows of one direction and process all times of a block in order, with its states
 * in scratch memory of their own.
 *
 * Operands: 0 gates of the inputs [times, batch, directions * gates * hidden]; 1 weights [directions, slivers, hidden,
 * VME_SLIVER], the columns of all gates side by side (GRU: the candidate's begin with a new sliver), padded; 2 bias of
 * GRU's candidate [directions, hidden]; 3 peepholes of LSTM [directions, 3 * hidden]; 4 initial state, 5 initial cell
 * [directions, batch, hidden]; 6 lengths [batch], int64. Those from 2 on may be absent. Gates are in ONNX's order: LSTM
 * input, output, forget, cell; GRU update, reset, candidate.
 *
 * The result is [times + 1, directions, batch, hidden], for LSTM times + 2: the states of all times, the last state,
 * the last cell. Shorter rows are followed by zeros, and their last states are those of their own last time. */
#include "models/recurrence.h"
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/row_kernels.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"
#include "runtime/pool.h"

#include <math.h>
#include <string.h>

enum {
    BLOCK_ROWS = 8 * VME_SLIVER_ROWS, /* rows of the batch: their gates stay in L2 */
};

typedef struct function {
    recurrence_function name;
    float a, b;
} function;

typedef struct recurrence {
    vme_context *context;
    const model_row_kernels *kernels;
    recurrence_kind kind;
    int flags;
    float clip;
    bool usual[2];                                                /* of each direction: only sigmoid and tanh */
    function functions[2][RECURRENCE_GATES];                      /* of gates, candidate, cell */
    vme_tensor gates, bias, peepholes, state, cell, lengths, out; /* absent: data NULL */
    const float *weights;
    int64_t times, directions, batch, hidden;
    int64_t slivers, candidate; /* of one direction; GRU: the candidate's slivers are those from `candidate` on */
    int64_t block_rows, blocks; /* of one direction */
    int64_t slot_floats;
    float *slots;
} recurrence;

static int gates_of(recurrence_kind kind) { return kind == RECURRENCE_LSTM ? 4 : kind == RECURRENCE_GRU ? 3 : 1; }
static int64_t slivers_of(recurrence_kind kind, int64_t hidden)
{
    return kind == RECURRENCE_GRU ? ceil_div(2 * hidden, VME_SLIVER) + ceil_div(hidden, VME_SLIVER)
                                  : ceil_div(gates_of(kind) * hidden, VME_SLIVER);
}

/* Floats of a row in a slot: products of all slivers, the state, the cell (GRU: the state times the reset gate), and
 * room for gates. */
static int64_t row_floats(recurrence_kind kind, int64_t hidden)
{
    return slivers_of(kind, hidden) * VME_SLIVER + 2 * hidden + gates_of(kind) * hidden;
}

/* ---- functions other than the usual ones */
static void apply_function(const recurrence *job, const function *by, int64_t n, float *x)
{
    const float a = by->a, b = by->b;
    switch (by->name) {
    case FUNCTION_SIGMOID: job->kernels->curve(CURVE_SIGMOID, n, x, x); return;
    case FUNCTION_TANH: job->kernels->bend_tanh(n, x); return;
    case FUNCTION_SCALED_TANH:
        job->kernels->scale(n, b, x);
        job->kernels->bend_tanh(n, x);
        job->kernels->scale(n, a, x);
        return;
    default: break;
    }
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i];
        switch (by->name) {
        case FUNCTION_RELU: x[i] = v < 0 ? 0 : v; break;
        case FUNCTION_AFFINE: x[i] = a * v + b; break;
        case FUNCTION_LEAKY_RELU: x[i] = v < 0 ? a * v : v; break;
        case FUNCTION_THRESHOLDED_RELU: x[i] = v <= a ? 0 : v; break;
        case FUNCTION_HARD_SIGMOID: x[i] = a * v + b < 0 ? 0 : a * v + b > 1 ? 1 : a * v + b; break;
        case FUNCTION_ELU: x[i] = v < 0 ? a * expm1f(v) : v; break;
        case FUNCTION_SOFTSIGN: x[i] = v / (1 + fabsf(v)); break;
        case FUNCTION_SOFTPLUS: x[i] = v > 0 ? v + log1pf(expf(-v)) : log1pf(expf(v)); break;
        default: break;
        }
    }
}

static void clip_arguments(const recurrence *job, int64_t n, float *x)
{
    const float bound = job->clip;
    for (int64_t i = 0; i < n && bound < __builtin_inff(); i++)
        x[i] = x[i] > bound ? bound : x[i] < -bound ? -bound : x[i];
}

/* One row at one time. */
typedef struct row {
    const float *x, *p; /* the gates' products with the input, and with the state */
    const float *bias, *peepholes;
    float *h, *c, *y, *room;
    const function *functions;
} row;

static void apply_gate_function(const recurrence *job, const row *at, int which, int64_t n, float *x)
{
    clip_arguments(job, n, x);
    apply_function(job, &at->functions[which], n, x);
}

/* room[i] = x[i] + p[i], plus the peephole's weight times the cell */
static void add_up(const row *at, int64_t from, int64_t n, const float *peephole)
{
    for (int64_t i = 0; i < n; i++)
        at->room[from + i] = at->x[from + i] + at->p[from + i] + (peephole == NULL ? 0 : peephole[i] * at->c[i]);
}

static void lstm_row(const recurrence *job, const row *at)
{
    const int64_t n = job->hidden;
    float *in = at->room, *out = in + n, *forget = in + 2 * n, *candidate = in + 3 * n;
    const float *peepholes = at->peepholes;
    add_up(at, 0, n, peepholes);
    add_up(at, 2 * n, n, peepholes == NULL ? NULL : peepholes + 2 * n);
    add_up(at, 3 * n, n, NULL);
    apply_gate_function(job, at, 0, n, in);
    if (job->flags & RECURRENCE_INPUT_FORGET)
        for (int64_t i = 0; i < n; i++)
            forget[i] = 1 - in[i];
    else
        apply_gate_function(job, at, 0, n, forget);
    apply_gate_function(job, at, 1, n, candidate);
    for (int64_t i = 0; i < n; i++)
        at->h[i] = at->c[i] = forget[i] * at->c[i] + in[i] * candidate[i];
    add_up(at, n, n, peepholes == NULL ? NULL : peepholes + n);
    apply_gate_function(job, at, 0, n, out);
    apply_function(job, &at->functions[2], n, at->h);
    for (int64_t i = 0; i < n; i++)
        at->y[i] = at->h[i] *= out[i];
}

/* The reset gate of a GRU that multiplies the state: writes h times the gate to c, which the candidate's weights then
 * multiply. */
static void gru_reset_row(const recurrence *job, const row *at)
{
    const int64_t n = job->hidden;
    float *reset = at->room + n;
    add_up(at, n, n, NULL);
    apply_gate_function(job, at, 0, n, reset);
    for (int64_t i = 0; i < n; i++)
        at->c[i] = reset[i] * at->h[i];
}

static void gru_row(const recurrence *job, const row *at)
{
    const int64_t n = job->hidden;
    const float *products = at->p + job->candidate * VME_SLIVER;
    float *update = at->room, *reset = update + n, *candidate = update + 2 * n;
    add_up(at, 0, n, NULL);
    apply_gate_function(job, at, 0, n, update);
    if (job->flags & RECURRENCE_RESET_AFTER) {
        add_up(at, n, n, NULL);
        apply_gate_function(job, at, 0, n, reset);
    }
    for (int64_t i = 0; i < n; i++) {
        float more = products[i];
        if (job->flags & RECURRENCE_RESET_AFTER)
            more = reset[i] * (more + (at->bias == NULL ? 0 : at->bias[i]));
        candidate[i] = at->x[2 * n + i] + more;
    }
    apply_gate_function(job, at, 1, n, candidate);
    for (int64_t i = 0; i < n; i++)
        at->y[i] = at->h[i] = (1 - update[i]) * candidate[i] + update[i] * at->h[i];
}

static void rnn_row(const recurrence *job, const row *at)
{
    const int64_t n = job->hidden;
    add_up(at, 0, n, NULL);
    apply_gate_function(job, at, 0, n, at->room);
    memcpy(at->h, at->room, (size_t)n * sizeof(float));
    memcpy(at->y, at->room, (size_t)n * sizeof(float));
}

static void next_state(const recurrence *job, const row *at, bool usual)
{
    const model_row_kernels *kernels = job->kernels;
    const int64_t n = job->hidden;
    switch (job->kind) {
    case RECURRENCE_LSTM: usual ? kernels->lstm(n, at->x, at->p, at->c, at->h, at->y) : lstm_row(job, at); break;
    case RECURRENCE_GRU:
        usual ? kernels->gru(n, at->x, at->p, at->p + job->candidate * VME_SLIVER, at->bias, at->h, at->y)
              : gru_row(job, at);
        break;
    default: usual ? kernels->tanh(n, at->x, at->p, at->h, at->y) : rnn_row(job, at); break;
    }
}

/* ---- blocks of rows */
typedef struct block {
    int64_t direction, first, rows;
    bool backward;
    float *products, *h, *c, *room; /* of the block's rows; room is that of one row */
    int64_t product_row;
} block;

/* Products of `from` with slivers `begin` to `end`. */
static void multiply(const recurrence *job, const block *part, const float *from, int64_t begin, int64_t end)
{
    const float *weights = job->weights + part->direction * job->slivers * job->hidden * VME_SLIVER;
    for (int64_t s = begin; s < end; s++)
        for (int64_t r = 0; r < part->rows; r += VME_SLIVER_ROWS) {
            if (vme_stopping(job->context))
                return;
            job->kernels->product((int)min(VME_SLIVER_ROWS, part->rows - r), job->hidden, from + r * job->hidden,
                                  job->hidden, weights + s * job->hidden * VME_SLIVER,
                                  part->products + r * part->product_row + s * VME_SLIVER, part->product_row);
        }
}

static int64_t length_of(const recurrence *job, int64_t item)
{
    int64_t length = job->times;
    if (job->lengths.data != NULL)
        memcpy(&length, (const char *)job->lengths.data + item * job->lengths.strides[0], sizeof length);
    return length;
}

/* Address of a row in a state [directions, batch, hidden]. */
static const float *state_at(const vme_tensor *state, const block *part, int64_t item)
{
    return (const float *)((const char *)state->data + part->direction * state->strides[0] + item * state->strides[1]);
}

static float *out_at(const recurrence *job, const block *part, int64_t time, int64_t item)
{
    return (float *)job->out.data + ((time * job->directions + part->direction) * job->batch + item) * job->hidden;
}

static void first_state(const recurrence *job, const block *part, const vme_tensor *state, float *to)
{
    const size_t bytes = (size_t)job->hidden * sizeof(float);
    for (int64_t r = 0; r < part->rows; r++)
        if (state->data == NULL)
            memset(to + r * job->hidden, 0, bytes);
        else
            memcpy(to + r * job->hidden, state_at(state, part, part->first + r), bytes);
}

/* The row at its own step `step`: rows that run backwards begin at their last time. */
static row row_at(const recurrence *job, const block *part, int64_t r, int64_t step, int64_t length)
{
    const int64_t item = part->first + r, time = part->backward ? length - 1 - step : step;
    return (row){
        .x =
            (const float *)((const char *)job->gates.data + time * job->gates.strides[0] + item * job->gates.strides[1])
            + part->direction * gates_of(job->kind) * job->hidden,
        .p = part->products + r * part->product_row,
        .bias = job->bias.data == NULL ? NULL : (const float *)job->bias.data + part->direction * job->hidden,
        .peepholes =
            job->peepholes.data == NULL ? NULL : (const float *)job->peepholes.data + part->direction * 3 * job->hidden,
        .h = part->h + r * job->hidden,
        .c = part->c + r * job->hidden,
        .y = out_at(job, part, time, item),
        .room = part->room,
        .functions = job->functions[part->direction],
    };
}

static void do_step(const recurrence *job, const block *part, int64_t step)
{
    const bool usual = job->usual[part->direction],
               reset_first = job->kind == RECURRENCE_GRU && !(job->flags & RECURRENCE_RESET_AFTER);
    multiply(job, part, part->h, 0, reset_first ? job->candidate : job->slivers);
    for (int64_t r = 0; reset_first && r < part->rows; r++) {
        const int64_t length = length_of(job, part->first + r);
        if (step >= length || vme_stopping(job->context))
            continue;
        const row at = row_at(job, part, r, step, length);
        if (usual)
            job->kernels->gru_reset(job->hidden, at.x, at.p, at.h, at.c);
        else
            gru_reset_row(job, &at);
    }
    if (reset_first)
        multiply(job, part, part->c, job->candidate, job->slivers);
    for (int64_t r = 0; r < part->rows && !vme_stopping(job->context); r++) {
        const int64_t length = length_of(job, part->first + r);
        if (step < length) {
            const row at = row_at(job, part, r, step, length);
            next_state(job, &at, usual);
        } else
            memset(out_at(job, part, step, part->first + r), 0, (size_t)job->hidden * sizeof(float));
    }
}

static void do_block(const recurrence *job, int64_t number, float *slot)
{
    block part = {.direction = number / job->blocks, .first = number % job->blocks * job->block_rows};
    const size_t bytes = (size_t)job->hidden * sizeof(float);
    part.rows = min(job->block_rows, job->batch - part.first);
    part.backward = part.direction > 0 || (job->flags & RECURRENCE_REVERSE);
    part.product_row = job->slivers * VME_SLIVER;
    part.products = slot;
    part.h = slot + job->block_rows * part.product_row;
    part.c = part.h + job->block_rows * job->hidden;
    part.room = part.c + job->block_rows * job->hidden;
    first_state(job, &part, &job->state, part.h);
    first_state(job, &part, &job->cell, part.c);
    for (int64_t step = 0; step < job->times && !vme_stopping(job->context); step++)
        do_step(job, &part, step);
    for (int64_t r = 0; r < part.rows && !vme_stopping(job->context); r++) {
        const bool empty = length_of(job, part.first + r) == 0;
        float *last = out_at(job, &part, job->times, part.first + r);
        empty ? memset(last, 0, bytes) : memcpy(last, part.h + r * job->hidden, bytes);
        if (job->kind != RECURRENCE_LSTM)
            continue;
        last = out_at(job, &part, job->times + 1, part.first + r);
        empty ? memset(last, 0, bytes) : memcpy(last, part.c + r * job->hidden, bytes);
    }
}

static void do_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const recurrence *job = argument;
    for (int64_t number; vme_item_next(blocks, &number);)
        do_block(job, number, job->slots + slot * job->slot_floats);
}

/* ---- the step */
static void lay_out(recurrence *job, const vme_model *model, const model_step *step, int threads)
{
    const model_value *gates = &model->value[step->operand[0]], *out = &model->value[step->out];
    job->kind = (recurrence_kind)step->p[RECURRENCE_KIND];
    job->flags = step->p[RECURRENCE_FLAGS];
    job->times = gates->shape[0];
    job->batch = gates->shape[1];
    job->directions = out->shape[1];
    job->hidden = out->shape[3];
    job->slivers = slivers_of(job->kind, job->hidden);
    job->candidate = job->kind == RECURRENCE_GRU ? ceil_div(2 * job->hidden, VME_SLIVER) : job->slivers;
    const int64_t each = ceil_div(job->batch * job->directions, threads);
    job->block_rows = min(min(BLOCK_ROWS, job->batch), ceil_div(each, VME_SLIVER_ROWS) * VME_SLIVER_ROWS);
    job->blocks = ceil_div(job->batch, job->block_rows);
    job->slot_floats =
        ceil_div(job->block_rows * row_floats(job->kind, job->hidden), VME_ALIGNMENT / 4) * (VME_ALIGNMENT / 4);
}

static vme_tensor operand_of(const vme_model *model, const model_step *step, int number, char *arena)
{
    return step->operand[number] < 0 ? (vme_tensor){0} : model_tensor(model, step->operand[number], arena);
}

static void read_functions(recurrence *job, const model_step *step)
{
    memcpy(&job->clip, &step->p[RECURRENCE_CLIP], sizeof job->clip);
    for (int direction = 0; direction < 2; direction++) {
        bool usual = job->clip == __builtin_inff() && !(job->flags & RECURRENCE_INPUT_FORGET) && step->operand[3] < 0;
        for (int gate = 0; gate < RECURRENCE_GATES; gate++) {
            const int32_t *p =
                step->p + RECURRENCE_FUNCTIONS + (direction * RECURRENCE_GATES + gate) * RECURRENCE_FUNCTION;
            function *to = &job->functions[direction][gate];
            to->name = (recurrence_function)p[0];
            memcpy(&to->a, &p[1], sizeof to->a);
            memcpy(&to->b, &p[2], sizeof to->b);
            if (job->kind != RECURRENCE_RNN || gate == 0)
                usual =
                    usual && to->name == (gate == 0 && job->kind != RECURRENCE_RNN ? FUNCTION_SIGMOID : FUNCTION_TANH);
        }
        job->usual[direction] = usual;
    }
}

static vme_status check_lengths(const recurrence *job)
{
    for (int64_t item = 0; job->lengths.data != NULL && item < job->batch; item++) {
        const int64_t length = length_of(job, item);
        if (length < 0 || length > job->times)
            return vme_fail(VME_BAD_VALUE, "sequence_lens[%lld]: expected 0 to %lld, got %lld", (long long)item,
                            (long long)job->times, (long long)length);
    }
    return VME_OK;
}

static vme_status recurrence_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    recurrence job = {
        .context = context,
        .kernels = model->kernels->rows,
        .gates = operand_of(model, step, 0, arena),
        .weights = (const float *)operand_of(model, step, 1, arena).data,
        .bias = operand_of(model, step, 2, arena),
        .peepholes = operand_of(model, step, 3, arena),
        .state = operand_of(model, step, 4, arena),
        .cell = operand_of(model, step, 5, arena),
        .lengths = operand_of(model, step, 6, arena),
        .out = model_tensor(model, step->out, arena),
        .slots = (float *)(arena + model->value[step->scratch].offset),
    };
    lay_out(&job, model, step, step->slots);
    read_functions(&job, step);
    vme_status status = check_lengths(&job);
    return status == VME_OK ? vme_parallel_slots(context, step->slots, job.blocks * job.directions, do_blocks, &job)
                            : status;
}

bool model_is_recurrence(const model_step *step) { return step->run == recurrence_run; }

int64_t recurrence_scratch(const vme_model *model, model_step *step)
{
    recurrence job;
    lay_out(&job, model, step, (int)min(vme_threads(), VME_SLOTS_MAX));
    step->slots = (int)min(min(job.blocks * job.directions, vme_threads()), VME_SLOTS_MAX);
    lay_out(&job, model, step, step->slots);
    return job.slot_floats * step->slots * (int64_t)sizeof(float);
}

int64_t recurrence_products(const vme_model *model, const model_step *step)
{
    recurrence job;
    lay_out(&job, model, step, 1);
    int64_t products;
    return __builtin_mul_overflow(job.times * job.batch * job.directions, job.slivers * VME_SLIVER * job.hidden,
                                  &products)
               ? INT64_MAX
               : products;
}

/* ---- checks */
static bool is_tensor(model_preparation *preparation, int tensor, int dtype, int rank, const int64_t *shape, bool dense)
{
    if (tensor < 0)
        return true;
    model_value *value = &preparation->model->value[tensor];
    int64_t step = vme_dtype_size((vme_dtype)value->dtype);
    bool fits = value->dtype == dtype && value->rank == rank && !value->channels_last;
    for (int d = rank - 1; fits && d >= 0; d--) {
        fits = value->shape[d] == shape[d]
               && (value->shape[d] == 1 || value->strides[d] == step || (!dense && d < rank - 1));
        step *= value->shape[d];
    }
    value->plain = true; /* its rows are read in place, so it never gets an image's layout */
    return fits;
}

vme_status model_make_recurrence(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                 const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const model_value *gates = &preparation->model->value[step->operand[0]],
                      *out = &preparation->model->value[step->out];
    const int32_t *p = step->p;
    step->run = recurrence_run;
    if (node->inputs > 7 || step->operand[1] < 0)
        return MODEL_WRONG(number, "has %u operands, expected weights and at most 7", node->inputs);
    if (p[RECURRENCE_KIND] < 0 || p[RECURRENCE_KIND] >= RECURRENCE_KINDS
        || (p[RECURRENCE_FLAGS] & ~RECURRENCE_FLAGS_ALL))
        return MODEL_WRONG(number, "is a recurrence of the unknown kind %d or flags %d", p[RECURRENCE_KIND],
                           p[RECURRENCE_FLAGS]);
    for (int i = RECURRENCE_FUNCTIONS; i < RECURRENCE_USED; i += RECURRENCE_FUNCTION)
        if (p[i] < 0 || p[i] >= FUNCTIONS)
            return MODEL_WRONG(number, "has the unknown function %d", p[i]);
    const recurrence_kind kind = (recurrence_kind)p[RECURRENCE_KIND];
    if (gates->rank != 3 || out->rank != 4)
        return MODEL_WRONG(number, "has gates or a result of the wrong rank");
    const int64_t directions = out->shape[1], batch = gates->shape[1], hidden = out->shape[3];
    const int64_t all_gates[] = {gates->shape[0], batch, directions * gates_of(kind) * hidden},
                  weights[] = {directions, slivers_of(kind, hidden), hidden, VME_SLIVER},
                  state[] = {directions, batch, hidden}, bias[] = {directions, hidden},
                  peepholes[] = {directions, 3 * hidden},
                  all[] = {gates->shape[0] + (kind == RECURRENCE_LSTM ? 2 : 1), directions, batch, hidden};
    const bool fits = directions <= 2 && hidden <= MODEL_ROW_MAX
                      && is_tensor(preparation, step->operand[0], VME_FLOAT32, 3, all_gates, false)
                      && is_tensor(preparation, step->operand[1], VME_FLOAT32, 4, weights, true)
                      && is_tensor(preparation, step->operand[2], VME_FLOAT32, 2, bias, true)
                      && is_tensor(preparation, step->operand[3], VME_FLOAT32, 2, peepholes, true)
                      && is_tensor(preparation, step->operand[4], VME_FLOAT32, 3, state, false)
                      && is_tensor(preparation, step->operand[5], VME_FLOAT32, 3, state, false)
                      && is_tensor(preparation, step->operand[6], VME_INT64, 1, &batch, true)
                      && is_tensor(preparation, step->out, VME_FLOAT32, 4, all, true);
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    if ((step->operand[2] >= 0) != (kind == RECURRENCE_GRU && (p[RECURRENCE_FLAGS] & RECURRENCE_RESET_AFTER))
        || (kind != RECURRENCE_LSTM && (step->operand[3] >= 0 || step->operand[5] >= 0)))
        return MODEL_WRONG(number, "has a bias, peepholes or a cell that its kind does not have, or lacks a bias");
    for (int i = 0; i < 7; i++)
        if (step->operand[i] >= 0
            && model_root(preparation->model, step->operand[i]) == model_root(preparation->model, step->out))
            return MODEL_WRONG(number, "has a result that overlaps an operand");
    return VME_OK;
}
