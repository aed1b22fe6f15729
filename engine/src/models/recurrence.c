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
    bool standard[2];                                             /* of each direction: only sigmoid and tanh */
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
 * the gates. */
static int64_t row_floats(recurrence_kind kind, int64_t hidden)
{
    return slivers_of(kind, hidden) * VME_SLIVER + 2 * hidden + gates_of(kind) * hidden;
}

/* ---- functions other than the standard ones */
static void apply_function(const recurrence *job, const function *applied, int64_t n, float *x)
{
    const float a = applied->a, b = applied->b;
    switch (applied->name) {
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
        switch (applied->name) {
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

/* One row at one time: its operands and results. */
typedef struct row_step {
    const float *x, *p; /* the gates' products with the input and with the state */
    const float *bias, *peepholes;
    float *h, *c, *y; /* state, cell, and the row of the result */
    float *gates;     /* scratch memory for all gates */
    const function *functions;
} row_step;

static void apply_gate_function(const recurrence *job, const row_step *row, int function_number, int64_t n, float *x)
{
    clip_arguments(job, n, x);
    apply_function(job, &row->functions[function_number], n, x);
}

/* gates[i] = x[i] + p[i], plus the peephole's weight times the cell */
static void add_products(const row_step *row, int64_t from, int64_t n, const float *peephole)
{
    for (int64_t i = 0; i < n; i++)
        row->gates[from + i] = row->x[from + i] + row->p[from + i] + (peephole == NULL ? 0 : peephole[i] * row->c[i]);
}

static void lstm_row(const recurrence *job, const row_step *row)
{
    const int64_t n = job->hidden;
    float *in = row->gates, *out = in + n, *forget = in + 2 * n, *candidate = in + 3 * n;
    const float *peepholes = row->peepholes;
    add_products(row, 0, n, peepholes);
    add_products(row, 2 * n, n, peepholes == NULL ? NULL : peepholes + 2 * n);
    add_products(row, 3 * n, n, NULL);
    apply_gate_function(job, row, 0, n, in);
    if (job->flags & RECURRENCE_INPUT_FORGET)
        for (int64_t i = 0; i < n; i++)
            forget[i] = 1 - in[i];
    else
        apply_gate_function(job, row, 0, n, forget);
    apply_gate_function(job, row, 1, n, candidate);
    for (int64_t i = 0; i < n; i++)
        row->h[i] = row->c[i] = forget[i] * row->c[i] + in[i] * candidate[i];
    add_products(row, n, n, peepholes == NULL ? NULL : peepholes + n);
    apply_gate_function(job, row, 0, n, out);
    apply_function(job, &row->functions[2], n, row->h);
    for (int64_t i = 0; i < n; i++)
        row->y[i] = row->h[i] *= out[i];
}

/* The reset gate of a GRU that multiplies the state: writes h times the gate to c, which the candidate's weights then
 * multiply. */
static void gru_reset_row(const recurrence *job, const row_step *row)
{
    const int64_t n = job->hidden;
    float *reset = row->gates + n;
    add_products(row, n, n, NULL);
    apply_gate_function(job, row, 0, n, reset);
    for (int64_t i = 0; i < n; i++)
        row->c[i] = reset[i] * row->h[i];
}

static void gru_row(const recurrence *job, const row_step *row)
{
    const int64_t n = job->hidden;
    const float *products = row->p + job->candidate * VME_SLIVER;
    float *update = row->gates, *reset = update + n, *candidate = update + 2 * n;
    add_products(row, 0, n, NULL);
    apply_gate_function(job, row, 0, n, update);
    if (job->flags & RECURRENCE_RESET_AFTER) {
        add_products(row, n, n, NULL);
        apply_gate_function(job, row, 0, n, reset);
    }
    for (int64_t i = 0; i < n; i++) {
        float product = products[i];
        if (job->flags & RECURRENCE_RESET_AFTER)
            product = reset[i] * (product + (row->bias == NULL ? 0 : row->bias[i]));
        candidate[i] = row->x[2 * n + i] + product;
    }
    apply_gate_function(job, row, 1, n, candidate);
    for (int64_t i = 0; i < n; i++)
        row->y[i] = row->h[i] = (1 - update[i]) * candidate[i] + update[i] * row->h[i];
}

static void rnn_row(const recurrence *job, const row_step *row)
{
    const int64_t n = job->hidden;
    add_products(row, 0, n, NULL);
    apply_gate_function(job, row, 0, n, row->gates);
    memcpy(row->h, row->gates, (size_t)n * sizeof(float));
    memcpy(row->y, row->gates, (size_t)n * sizeof(float));
}

static void next_state(const recurrence *job, const row_step *row, bool standard)
{
    const model_row_kernels *kernels = job->kernels;
    const int64_t n = job->hidden;
    switch (job->kind) {
    case RECURRENCE_LSTM:
        standard ? kernels->lstm(n, row->x, row->p, row->c, row->h, row->y) : lstm_row(job, row);
        break;
    case RECURRENCE_GRU:
        standard ? kernels->gru(n, row->x, row->p, row->p + job->candidate * VME_SLIVER, row->bias, row->h, row->y)
                 : gru_row(job, row);
        break;
    default: standard ? kernels->tanh(n, row->x, row->p, row->h, row->y) : rnn_row(job, row); break;
    }
}

/* ---- blocks of rows */
typedef struct row_block {
    int64_t direction, first, rows;
    bool backward;
    float *products, *h, *c; /* of the block's rows */
    float *gates;            /* of one row */
    int64_t product_row;
} row_block;

/* Products of `from` with slivers `begin` to `end`. */
static void multiply(const recurrence *job, const row_block *block, const float *from, int64_t begin, int64_t end)
{
    const float *weights = job->weights + block->direction * job->slivers * job->hidden * VME_SLIVER;
    for (int64_t s = begin; s < end; s++)
        for (int64_t r = 0; r < block->rows; r += VME_SLIVER_ROWS) {
            if (vme_stopping(job->context))
                return;
            job->kernels->product((int)min(VME_SLIVER_ROWS, block->rows - r), job->hidden, from + r * job->hidden,
                                  job->hidden, weights + s * job->hidden * VME_SLIVER,
                                  block->products + r * block->product_row + s * VME_SLIVER, block->product_row);
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
static const float *state_row(const vme_tensor *state, const row_block *block, int64_t item)
{
    return (const float *)((const char *)state->data + block->direction * state->strides[0] + item * state->strides[1]);
}

static float *output_row(const recurrence *job, const row_block *block, int64_t time, int64_t item)
{
    return (float *)job->out.data + ((time * job->directions + block->direction) * job->batch + item) * job->hidden;
}

static void load_state(const recurrence *job, const row_block *block, const vme_tensor *state, float *to)
{
    const size_t bytes = (size_t)job->hidden * sizeof(float);
    for (int64_t r = 0; r < block->rows; r++)
        if (state->data == NULL)
            memset(to + r * job->hidden, 0, bytes);
        else
            memcpy(to + r * job->hidden, state_row(state, block, block->first + r), bytes);
}

/* Row r of the block at step `step` of its sequence. Rows that run backwards begin at their last time. */
static row_step row_step_of(const recurrence *job, const row_block *block, int64_t r, int64_t step, int64_t length)
{
    const int64_t item = block->first + r, time = block->backward ? length - 1 - step : step;
    return (row_step){
        .x =
            (const float *)((const char *)job->gates.data + time * job->gates.strides[0] + item * job->gates.strides[1])
            + block->direction * gates_of(job->kind) * job->hidden,
        .p = block->products + r * block->product_row,
        .bias = job->bias.data == NULL ? NULL : (const float *)job->bias.data + block->direction * job->hidden,
        .peepholes = job->peepholes.data == NULL
                         ? NULL
                         : (const float *)job->peepholes.data + block->direction * 3 * job->hidden,
        .h = block->h + r * job->hidden,
        .c = block->c + r * job->hidden,
        .y = output_row(job, block, time, item),
        .gates = block->gates,
        .functions = job->functions[block->direction],
    };
}

static void run_step(const recurrence *job, const row_block *block, int64_t step)
{
    const bool standard = job->standard[block->direction],
               reset_first = job->kind == RECURRENCE_GRU && !(job->flags & RECURRENCE_RESET_AFTER);
    multiply(job, block, block->h, 0, reset_first ? job->candidate : job->slivers);
    for (int64_t r = 0; reset_first && r < block->rows; r++) {
        const int64_t length = length_of(job, block->first + r);
        if (step >= length || vme_stopping(job->context))
            continue;
        const row_step row = row_step_of(job, block, r, step, length);
        if (standard)
            job->kernels->gru_reset(job->hidden, row.x, row.p, row.h, row.c);
        else
            gru_reset_row(job, &row);
    }
    if (reset_first)
        multiply(job, block, block->c, job->candidate, job->slivers);
    for (int64_t r = 0; r < block->rows && !vme_stopping(job->context); r++) {
        const int64_t length = length_of(job, block->first + r);
        if (step < length) {
            const row_step row = row_step_of(job, block, r, step, length);
            next_state(job, &row, standard);
        } else
            memset(output_row(job, block, step, block->first + r), 0, (size_t)job->hidden * sizeof(float));
    }
}

static void run_block(const recurrence *job, int64_t number, float *slot)
{
    row_block block = {.direction = number / job->blocks, .first = number % job->blocks * job->block_rows};
    const size_t bytes = (size_t)job->hidden * sizeof(float);
    block.rows = min(job->block_rows, job->batch - block.first);
    block.backward = block.direction > 0 || (job->flags & RECURRENCE_REVERSE);
    block.product_row = job->slivers * VME_SLIVER;
    block.products = slot;
    block.h = slot + job->block_rows * block.product_row;
    block.c = block.h + job->block_rows * job->hidden;
    block.gates = block.c + job->block_rows * job->hidden;
    load_state(job, &block, &job->state, block.h);
    load_state(job, &block, &job->cell, block.c);
    for (int64_t step = 0; step < job->times && !vme_stopping(job->context); step++)
        run_step(job, &block, step);
    for (int64_t r = 0; r < block.rows && !vme_stopping(job->context); r++) {
        const bool empty = length_of(job, block.first + r) == 0;
        float *last = output_row(job, &block, job->times, block.first + r);
        empty ? memset(last, 0, bytes) : memcpy(last, block.h + r * job->hidden, bytes);
        if (job->kind != RECURRENCE_LSTM)
            continue;
        last = output_row(job, &block, job->times + 1, block.first + r);
        empty ? memset(last, 0, bytes) : memcpy(last, block.c + r * job->hidden, bytes);
    }
}

static void run_blocks(void *argument, int64_t slot, vme_items *blocks)
{
    const recurrence *job = argument;
    for (int64_t number; vme_item_next(blocks, &number);)
        run_block(job, number, job->slots + slot * job->slot_floats);
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
    const int64_t thread_rows = ceil_div(job->batch * job->directions, threads);
    job->block_rows = min(min(BLOCK_ROWS, job->batch), ceil_div(thread_rows, VME_SLIVER_ROWS) * VME_SLIVER_ROWS);
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
        bool standard =
            job->clip == __builtin_inff() && !(job->flags & RECURRENCE_INPUT_FORGET) && step->operand[3] < 0;
        for (int gate = 0; gate < RECURRENCE_GATES; gate++) {
            const int32_t *p =
                step->p + RECURRENCE_FUNCTIONS + (direction * RECURRENCE_GATES + gate) * RECURRENCE_FUNCTION;
            function *to = &job->functions[direction][gate];
            to->name = (recurrence_function)p[0];
            memcpy(&to->a, &p[1], sizeof to->a);
            memcpy(&to->b, &p[2], sizeof to->b);
            if (job->kind != RECURRENCE_RNN || gate == 0)
                standard = standard
                           && to->name == (gate == 0 && job->kind != RECURRENCE_RNN ? FUNCTION_SIGMOID : FUNCTION_TANH);
        }
        job->standard[direction] = standard;
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
    return status == VME_OK ? vme_parallel_slots(context, step->slots, job.blocks * job.directions, run_blocks, &job)
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
    int64_t stride = vme_dtype_size((vme_dtype)value->dtype);
    bool fits = value->dtype == dtype && value->rank == rank && !value->channels_last;
    for (int d = rank - 1; fits && d >= 0; d--) {
        fits = value->shape[d] == shape[d]
               && (value->shape[d] == 1 || value->strides[d] == stride || (!dense && d < rank - 1));
        stride *= value->shape[d];
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
                  result[] = {gates->shape[0] + (kind == RECURRENCE_LSTM ? 2 : 1), directions, batch, hidden};
    const bool fits = directions <= 2 && hidden <= MODEL_ROW_MAX
                      && is_tensor(preparation, step->operand[0], VME_FLOAT32, 3, all_gates, false)
                      && is_tensor(preparation, step->operand[1], VME_FLOAT32, 4, weights, true)
                      && is_tensor(preparation, step->operand[2], VME_FLOAT32, 2, bias, true)
                      && is_tensor(preparation, step->operand[3], VME_FLOAT32, 2, peepholes, true)
                      && is_tensor(preparation, step->operand[4], VME_FLOAT32, 3, state, false)
                      && is_tensor(preparation, step->operand[5], VME_FLOAT32, 3, state, false)
                      && is_tensor(preparation, step->operand[6], VME_INT64, 1, &batch, true)
                      && is_tensor(preparation, step->out, VME_FLOAT32, 4, result, true);
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
