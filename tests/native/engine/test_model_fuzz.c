/* Random model files: graphs of every operator over tensors, images, views and open sizes, then the same with numbers that nobody should
 * write, records exchanged, bytes damaged and ends cut off. A file is refused with one status and a sentence, or is a model, whose values have
 * places of their own and whose runs touch nothing but what is theirs (inputs and outputs are blocks of exactly their sizes, which the
 * address sanitizer watches). Of files that are whole, outputs are the same bytes when no two values share memory at all, and with and without
 * bands of rows. Memory that is refused, by the account or by libc, and stops at any time end all that, and nothing stays charged.
 *
 *   test_model_fuzz [seed [rounds]]       the seed of a failure is printed
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model_arena.h"
#include "model_layout.h"
#include "vme_search.h"

enum { ROUNDS = 4000, LARGEST = 1 << 13, MEMORY = 64 << 20, RANK = 4 };

void *__real_malloc(size_t size);       /* never fails here: what models work on */
static uint64_t state, seed_now;

static uint64_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 29) ^ (state >> 47);
}
static int below(int most) { return (int)(random_bits() % (unsigned)most); }
static bool one_in(int most) { return below(most) == 0; }

static void say_seed(int signal_number)
{
    char line[64];
    int length = snprintf(line, sizeof line, "test_model_fuzz: seed %llu\n", (unsigned long long)seed_now);
    if (write(2, line, (size_t)length) == length)
        _exit(128 + signal_number);
}
static void say_seed_at_exit(void)
{
    if (seed_now != 0)
        fprintf(stderr, "test_model_fuzz: seed %llu\n", (unsigned long long)seed_now);
}

/* ---- graphs. Each size is a number, or an open size, whose number is in `open_of` plus 1. */
static int8_t open_of[FILE_TENSORS][MODEL_RANK];
static bool readable[FILE_TENSORS], is_image[FILE_TENSORS], is_viewed[FILE_TENSORS];
static int64_t open_size[MODEL_OPEN_MOST];          /* at which the file's numbers are */

typedef struct shape { int rank; int64_t size[MODEL_RANK]; int8_t open[MODEL_RANK]; } shape;
typedef struct product { int64_t factor; uint8_t exponents[MODEL_OPEN_MOST]; } product;

static bool room(int more)
{
    return tensor_count + (uint32_t)more < FILE_TENSORS && varying_count + 17u * (uint32_t)more < FILE_VARYINGS && weights_size < FILE_MOST / 8;
}

static void vary(uint32_t tensor, uint32_t place, product number)
{
    bool varies = false;
    for (int i = 0; i < MODEL_OPEN_MOST; i++)
        varies = varies || number.exponents[i] > 0;
    if (!varies || number.factor == 0)
        return;
    model_term_record term = {.factor = number.factor};
    memcpy(term.exponents, number.exponents, sizeof term.exponents);
    terms[term_count] = term;
    varyings[varying_count++] = (model_varying_record){.tensor = tensor, .place = place, .first_term = term_count++, .terms = 1, .label_size = 1};
}

static product times(product number, const shape *of, int d)
{
    if (of->open[d] > 0)
        number.exponents[of->open[d] - 1]++;
    else
        number.factor *= of->size[d];
    return number;
}

static int64_t worked_out(product number)
{
    for (int i = 0; i < MODEL_OPEN_MOST; i++)
        for (int n = 0; n < number.exponents[i]; n++)
            number.factor *= open_size[i];
    return number.factor;
}

static uint32_t add_tensor(model_tensor_record record, const shape *of)
{
    record.name_size = (uint32_t)below(3);
    uint32_t tensor = tensor_add(record, of->rank, of->size);
    readable[tensor] = record.kind == MODEL_CONSTANT;
    is_image[tensor] = is_viewed[tensor] = false;
    memcpy(open_of[tensor], of->open, sizeof of->open);
    for (int d = 0; d < of->rank; d++)
        vary(tensor, (uint32_t)d, times((product){.factor = 1}, of, d));
    return tensor;
}

static shape shape_of(uint32_t tensor)
{
    shape made = {.rank = (int)tensors[tensor].rank};
    memcpy(made.size, tensors[tensor].shape, sizeof made.size);
    memcpy(made.open, open_of[tensor], sizeof made.open);
    return made;
}

static uint32_t computed(int dtype, const shape *of) { return add_tensor((model_tensor_record){.dtype = (uint32_t)dtype}, of); }

static bool is_fixed(const shape *of)
{
    for (int d = 0; d < of->rank; d++)
        if (of->open[d] > 0)
            return false;
    return true;
}

static int64_t elements(const int64_t *sizes, int rank)
{
    int64_t count = 1;
    for (int d = 0; d < rank; d++)
        count *= sizes[d];
    return count;
}

/* Numbers of all kinds, most of them ordinary. */
static void fill(char *data, int64_t count, int dtype, int64_t most)
{
    int size = vme_dtype_size((vme_dtype)dtype), kind = below(8);
    for (int64_t i = 0; i < count; i++, data += size) {
        const uint64_t bits[2] = {random_bits() << 30 ^ random_bits(), random_bits()};
        const int small = below(9) - 4;
        if (kind == 0 && dtype != VME_BOOL)
            memcpy(data, bits, (size_t)size);
        else if (dtype == VME_FLOAT32 || dtype == VME_COMPLEX64)
            memcpy(data, (float[2]){(float)small, (float)below(3)}, (size_t)size);
        else if (dtype == VME_FLOAT64 || dtype == VME_COMPLEX128)
            memcpy(data, (double[2]){small / 2.0, below(3)}, (size_t)size);
        else if (dtype == VME_BOOL)
            *data = (char)below(kind == 0 ? 256 : 2);
        else if (dtype == VME_FLOAT16)
            memcpy(data, &(uint16_t){(uint16_t)(0x3c00 + 64 * below(16))}, 2);
        else
            memcpy(data, &(int64_t){one_in(60) ? small * 100 : below((int)most)}, (size_t)size);
    }
}

static uint32_t constant_like(int dtype, const shape *of, int64_t most)
{
    const int64_t count = elements(of->size, of->rank), bytes = count * vme_dtype_size((vme_dtype)dtype);
    CHECK(weights_size + (uint64_t)bytes + 64 <= sizeof weights * 3 / 4);
    model_tensor_record made = {.dtype = (uint32_t)dtype, .kind = MODEL_CONSTANT, .data_at = weights_size, .data_size = (uint64_t)bytes};
    fill((char *)weights + weights_size, count, dtype, most);
    weights_size = (weights_size + (uint64_t)bytes + 63) / 64 * 64;
    return add_tensor(made, of);
}

static uint32_t base_of(uint32_t tensor) { return tensors[tensor].kind == MODEL_VIEW ? tensors[tensor].base : tensor; }

/* One that has a value, of this dtype and rank (-1: any), or MODEL_ABSENT. */
static uint32_t pick(int dtype, int rank, bool plain)
{
    for (int i = 0; i < 30; i++) {
        uint32_t t = one_in(3) ? (uint32_t)below((int)tensor_count) : tensor_count - 1 - (uint32_t)below(tensor_count < 8 ? (int)tensor_count : 8);
        if (readable[base_of(t)] && (dtype < 0 || tensors[t].dtype == (uint32_t)dtype) && (rank < 0 || tensors[t].rank == (uint32_t)rank)
            && (!plain || !is_image[t]))
            return t;
    }
    return MODEL_ABSENT;
}

static uint32_t pick_image(void)
{
    for (int i = 0; i < 20; i++) {
        uint32_t t = pick(VME_FLOAT32, 4, false);
        if (t != MODEL_ABSENT && tensors[t].kind == MODEL_COMPUTED && !is_viewed[t] && open_of[t][1] + open_of[t][2] + open_of[t][3] == 0)
            return t;
    }
    return MODEL_ABSENT;
}

static bool same_shape(uint32_t a, uint32_t b)
{
    return tensors[a].rank == tensors[b].rank && memcmp(tensors[a].shape, tensors[b].shape, tensors[a].rank * 8) == 0
           && memcmp(open_of[a], open_of[b], tensors[a].rank) == 0;
}

static bool broadcast(uint32_t a, uint32_t b, shape *made)
{
    shape one = shape_of(a), other = shape_of(b);
    *made = one.rank >= other.rank ? one : other;
    const shape *less = one.rank >= other.rank ? &other : &one;
    for (int d = 0; d < less->rank; d++) {
        int at = d + made->rank - less->rank;
        bool unit = made->size[at] == 1 && made->open[at] == 0;
        if (less->size[d] == 1 && less->open[d] == 0)
            continue;
        if (!unit && (less->size[d] != made->size[at] || less->open[d] != made->open[at]))
            return false;
        made->size[at] = less->size[d];
        made->open[at] = less->open[d];
    }
    return elements(made->size, made->rank) <= LARGEST;
}

/* Strides, in elements, of a contiguous tensor. */
static void strides_of(const shape *of, product *strides)
{
    product step = {.factor = 1};
    for (int d = of->rank - 1; d >= 0; d--) {
        strides[d] = step;
        step = times(step, of, d);
    }
}

static uint32_t view(uint32_t base, const shape *of, product offset, const product *strides)
{
    model_tensor_record record = {.dtype = tensors[base].dtype, .kind = MODEL_VIEW, .base = base, .offset = worked_out(offset)};
    for (int d = 0; d < of->rank; d++)
        record.strides[d] = worked_out(strides[d]);
    uint32_t made = add_tensor(record, of);
    vary(made, PLACE_OFFSET, offset);
    for (int d = 0; d < of->rank; d++)
        vary(made, PLACE_STRIDES + (uint32_t)d, strides[d]);
    is_viewed[base] = true;
    return made;
}

/* Dimensions in another order, parts of them in steps, now and then one that is only repeated. */
static void add_view(void)
{
    uint32_t base = pick(-1, -1, true);
    if (base == MODEL_ABSENT || tensors[base].kind == MODEL_VIEW || is_image[base] || !room(1))
        return;
    shape of = shape_of(base), seen = {.rank = of.rank};
    product strides[MODEL_RANK], turned[MODEL_RANK] = {{0}}, offset = {0};
    strides_of(&of, strides);
    int order[MODEL_RANK];
    for (int d = 0; d < of.rank; d++) {
        int at = below(d + 1);
        order[d] = order[at];
        order[at] = d;
    }
    const bool cut = is_fixed(&of), turn = !one_in(3);
    for (int d = 0; d < of.rank; d++) {
        int from = turn ? order[d] : d;
        seen.size[d] = of.size[from];
        seen.open[d] = of.open[from];
        turned[d] = strides[from];
        if (cut && one_in(3)) {
            int64_t first = below((int)of.size[from]), step = 1 + below(2);
            seen.size[d] = 1 + (of.size[from] - 1 - first) / step;
            offset.factor += first * strides[from].factor;
            if (one_in(3)) {
                offset.factor += (seen.size[d] - 1) * step * strides[from].factor;
                step = -step;
            }
            turned[d].factor *= step;
        }
    }
    if (seen.rank < 6 && one_in(4)) {
        turned[seen.rank] = (product){0};
        seen.size[seen.rank++] = 1 + below(3);
    }
    if (elements(seen.size, seen.rank) <= LARGEST)
        view(base, &seen, offset, turned);
}

static model_node_record *add(uint32_t op, uint32_t inputs, const uint32_t *list, uint32_t out)
{
    uint32_t numbers[FILE_OPERANDS];
    memcpy(numbers, list, inputs * sizeof *numbers);
    numbers[inputs] = out;
    model_node_record *made = node(op, inputs, numbers);
    made->name_size = (uint32_t)below(4);
    readable[base_of(out)] = true;
    return made;
}

static void activation(model_node_record *made)
{
    const uint32_t op = made->op;
    made->parameters[ACTIVATION] = below(op == MODEL_CONV || op == MODEL_GEMM ? ACTIVATION_CURVES + CURVES : ACTIVATION_CURVES);
    memcpy(&made->parameters[LOW], (float[2]){-1, 2}, 8);
}

static bool image_node(uint32_t x, uint32_t op)
{
    shape in = shape_of(x), out = in;
    uint32_t list[4] = {x, MODEL_ABSENT, MODEL_ABSENT, MODEL_ABSENT}, inputs = 1;
    model_node_record made = {.op = op};
    int32_t *p = made.parameters;
    const bool weighed = op == MODEL_CONV, pooled = op == MODEL_MAX_POOL || op == MODEL_AVERAGE_POOL;
    if (weighed && in.size[1] > 64)
        return false;
    if (weighed || pooled) {
        for (int d = 0; d < 2; d++) {
            p[KERNEL_H + d] = one_in(2) ? 3 : 1 + below(4);
            p[STRIDE_H + d] = one_in(2) ? 1 : 1 + below(3);
            p[DILATION_H + d] = one_in(4) ? 1 + below(2) : 1;
            int across = p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1;
            p[PAD_TOP + d] = below(across < 4 ? across : 4);
            p[PAD_BOTTOM + d] = one_in(2) ? p[PAD_TOP + d] : below(across < 4 ? across : 4);
            int64_t left = in.size[2 + d] + p[PAD_TOP + d] + p[PAD_BOTTOM + d] - across;
            if (left < 0)
                return false;
            out.size[2 + d] = left / p[STRIDE_H + d] + 1;
            if (op == MODEL_AVERAGE_POOL)
                p[UNCOUNTED_BOTTOM + d] = below(p[PAD_BOTTOM + d] + 1);
        }
        p[COUNT_PADDING] = op == MODEL_AVERAGE_POOL ? below(2) : 0;
        p[GROUPS] = 1;
    }
    activation(&made);
    if (weighed) {
        out.size[1] = one_in(2) ? in.size[1] : 1 + below(one_in(4) ? 40 : 9);
        p[GROUPS] = one_in(3) && out.size[1] == in.size[1] ? (int32_t)in.size[1] : one_in(4) && in.size[1] % 2 == 0 && out.size[1] % 2 == 0 ? 2 : 1;
        shape w = {.rank = 4, .size = {out.size[1], in.size[1] / p[GROUPS], p[KERNEL_H], p[KERNEL_W]}}, b = {.rank = 1, .size = {out.size[1]}};
        list[1] = constant_like(VME_FLOAT32, &w, 9);
        inputs = 2 + (uint32_t)below(3);
        if (inputs > 2 && one_in(2))
            list[2] = constant_like(VME_FLOAT32, &b, 9);
        for (int i = 0; i < 10 && inputs == 4 && list[3] == MODEL_ABSENT; i++) {
            uint32_t addend = pick_image();
            if (addend != MODEL_ABSENT && memcmp(tensors[addend].shape, out.size, 32) == 0 && open_of[addend][0] == out.open[0])
                list[3] = addend, is_image[addend] = true;
        }
    } else if (op == MODEL_GLOBAL_AVERAGE_POOL) {
        out.size[2] = out.size[3] = 1;
    } else if (op == MODEL_ADD) {
        inputs = 2;
        list[1] = pick_image();
        if (list[1] == MODEL_ABSENT || !same_shape(x, list[1]))
            list[1] = x;
        is_image[list[1]] = true;
    } else if (op == MODEL_FLATTEN) {
        out = (shape){.rank = 2, .size = {in.size[0], in.size[1] * in.size[2] * in.size[3]}, .open = {in.open[0]}};
    } else if (op == MODEL_SLICE) {
        p[CHANNEL] = below((int)in.size[1]);
        out.size[1] = 1 + below((int)in.size[1] - p[CHANNEL]);
    } else if (op == MODEL_SHUFFLE) {
        p[GROUPS] = 2;
        if (one_in(2)) {
            inputs = 2;
            list[1] = x;
            out.size[1] *= 2;
        } else if (in.size[1] % 2 != 0)
            p[GROUPS] = (int32_t)in.size[1];
    } else if (op == MODEL_CONCAT) {
        inputs = 1 + (uint32_t)below(3);
        out.size[1] = 0;
        for (uint32_t i = 0; i < inputs; i++) {
            uint32_t part = i == 0 ? x : pick_image();
            shape of = part == MODEL_ABSENT ? in : shape_of(part);
            of.size[1] = in.size[1];
            if (part == MODEL_ABSENT || memcmp(of.size, in.size, 32) != 0 || of.open[0] != in.open[0])
                part = x;
            list[i] = part;
            is_image[part] = true;
            out.size[1] += tensors[part].shape[1];
        }
    }
    if (elements(out.size, out.rank) > LARGEST)
        return false;
    is_image[x] = true;
    uint32_t made_tensor = computed(VME_FLOAT32, &out);
    is_image[made_tensor] = out.rank == 4;
    memcpy(add(op, inputs, list, made_tensor)->parameters, p, sizeof made.parameters);
    return true;
}

static bool matrix_node(uint32_t x)
{
    shape in = shape_of(x);
    if (tensors[x].kind == MODEL_VIEW || tensors[x].kind == MODEL_CONSTANT || in.open[1] != 0 || in.size[1] > 512)
        return false;
    const uint32_t op = one_in(3) ? MODEL_RELU : one_in(3) ? MODEL_CLIP : one_in(4) ? MODEL_FLATTEN : MODEL_GEMM;
    shape out = in, w = {.rank = 2, .size = {1 + below(20), in.size[1]}};
    uint32_t list[4] = {x, MODEL_ABSENT, MODEL_ABSENT, MODEL_ABSENT}, inputs = 1;
    if (op == MODEL_GEMM) {
        inputs = 2;
        list[1] = constant_like(VME_FLOAT32, &w, 9);
        out.size[1] = w.size[0];
    }
    activation(add(op, inputs, list, computed(VME_FLOAT32, &out)));
    return true;
}

static int any_dtype(void) { return one_in(2) ? VME_FLOAT32 : below(VME_DTYPE_COUNT); }

/* What is written lies in a tensor of its own, or in both halves of one, which two views are. */
static void copy_to_halves(uint32_t x)
{
    shape in = shape_of(x), whole = in;
    int axis = in.rank == 0 ? -1 : below(in.rank);
    if (axis < 0 || in.open[axis] != 0 || elements(in.size, in.rank) * 2 > LARGEST)
        return;
    whole.size[axis] *= 2;
    uint32_t base = computed((int)tensors[x].dtype, &whole);
    product strides[MODEL_RANK], offset = {0};
    strides_of(&whole, strides);
    for (int half = 0; half < 2; half++) {
        add(MODEL_COPY, 1, &x, view(base, &in, offset, strides));
        offset = strides[axis];
        offset.factor *= in.size[axis];
    }
}

static void tensor_node(void)
{
    uint32_t x = pick(one_in(2) ? VME_FLOAT32 : -1, -1, false), y, list[6] = {x};
    if (x == MODEL_ABSENT)
        return;
    shape in = shape_of(x), out;
    const int dtype = (int)tensors[x].dtype, axis = in.rank == 0 ? 0 : below(in.rank);
    const bool flat = is_fixed(&in);
    vme_dtype loop, result;
    model_node_record *made;
    switch (below(14)) {
    case 0:
        for (int d = 0; d < in.rank; d++)
            if (in.size[d] == 1 && in.open[d] == 0)
                in.size[d] = 1 + below(3);
        if (elements(in.size, in.rank) <= LARGEST)
            add(MODEL_COPY, 1, list, computed(any_dtype(), &in));
        return;
    case 1: {
        const int op = below(VME_UNARY_COUNT);
        if (vme_unary_types((vme_unary_op)op, (vme_dtype)dtype, &loop, &result) != VME_OK)
            return;
        made = add(MODEL_UNARY, 1, list, computed((int)result, &in));
        made->parameters[0] = op;
        made->parameters[1] = (int32_t)loop;
        return;
    }
    case 2: case 3: {
        const int op = below(VME_BINARY_COUNT);
        list[1] = y = pick(one_in(4) ? -1 : dtype, -1, false);
        if (y == MODEL_ABSENT || !broadcast(x, y, &out)
            || vme_binary_types((vme_binary_op)op, (vme_dtype)dtype, (vme_dtype)tensors[y].dtype, &loop, &result) != VME_OK)
            return;
        made = add(MODEL_BINARY, 2, list, computed((int)result, &out));
        made->parameters[0] = op;
        made->parameters[1] = (int32_t)loop;
        return;
    }
    case 4: {
        uint32_t condition = pick(VME_BOOL, -1, false);
        list[0] = condition == MODEL_ABSENT ? constant_like(VME_BOOL, &(shape){.rank = 1, .size = {1}}, 2) : condition;
        list[1] = x;
        list[2] = y = pick(-1, -1, false);
        if (y == MODEL_ABSENT || !broadcast(list[0], x, &out))
            return;
        uint32_t between = computed(dtype, &out);           /* which nothing makes where the rest does not fit */
        if (!broadcast(between, y, &out))
            return;
        add(MODEL_WHERE, 3, list, computed(dtype, &out));
        return;
    }
    case 5: {
        const int op = below(VME_REDUCE_COUNT);
        int axes = op == VME_ARGMAX || op == VME_ARGMIN ? 1 << axis : below(1 << in.rank);
        if (vme_reduce_types((vme_reduce_op)op, (vme_dtype)dtype, &loop, &result) != VME_OK || (in.rank == 0 && axes != 0))
            return;
        for (int d = 0; d < in.rank; d++)
            if (axes >> d & 1)
                in.size[d] = 1, in.open[d] = 0;
        made = add(MODEL_REDUCE, 1, list, computed((int)result, &in));
        memcpy(made->parameters, (int32_t[3]){op, (int32_t)loop, axes}, 12);
        return;
    }
    case 6: {
        if (in.rank < 2 || in.open[in.rank - 1] != 0 || in.size[in.rank - 1] > 512)
            return;
        shape b = {.rank = 2, .size = {in.size[in.rank - 1], 1 + below(12)}};
        list[1] = constant_like(dtype, &b, 9);
        in.size[in.rank - 1] = b.size[1];
        if (elements(in.size, in.rank) <= LARGEST)
            add(MODEL_MATMUL, 2, list, computed(dtype, &in));
        return;
    }
    case 7: {
        shape places = {.rank = below(3), .size = {1 + below(4), 1 + below(3)}};
        if (in.rank == 0 || in.rank + places.rank > 6 || in.open[axis] != 0)
            return;
        list[1] = constant_like(VME_INT64, &places, in.size[axis]);
        out = in;
        out.rank = in.rank - 1 + places.rank;
        for (int d = axis; d < out.rank; d++) {
            bool tail = d >= axis + places.rank;
            out.size[d] = tail ? in.size[d - places.rank + 1] : places.size[d - axis];
            out.open[d] = tail ? in.open[d - places.rank + 1] : 0;
        }
        if (elements(out.size, out.rank) <= LARGEST)
            add(MODEL_GATHER, 2, list, computed(dtype, &out))->parameters[0] = axis;
        return;
    }
    case 8: {
        shape places = {.rank = 1, .size = {1 + below(4)}}, values = in;
        if (in.rank == 0 || !flat || elements(in.size, in.rank) > LARGEST / 4)
            return;
        values.size[axis] = places.size[0];
        list[1] = constant_like(dtype, &values, 9);
        list[2] = constant_like(VME_INT64, &places, in.size[axis]);
        const int ops[] = {-1, VME_ADD, VME_MULTIPLY, VME_MAXIMUM, VME_MINIMUM};
        made = add(MODEL_SCATTER, 3, list, computed(dtype, &in));
        made->parameters[0] = axis;
        made->parameters[1] = ops[below(5)];
        return;
    }
    case 9: {
        if (dtype != VME_FLOAT32 || is_image[x] || in.rank == 0 || in.open[in.rank - 1] != 0)
            return;
        shape row = {.rank = 1, .size = {in.size[in.rank - 1]}};
        is_viewed[x] = true;
        const bool soft = one_in(2);
        uint32_t inputs = soft ? 1 : 2;
        list[1] = constant_like(VME_FLOAT32, &row, 9);
        if (one_in(2)) {
            inputs++;
            if (!soft)
                list[2] = constant_like(VME_FLOAT32, &row, 9);
        }
        uint32_t made_tensor = computed(VME_FLOAT32, &in);
        is_viewed[made_tensor] = true;
        made = add(soft ? MODEL_SOFTMAX : MODEL_NORMALIZE, inputs, list, made_tensor);
        made->parameters[0] = soft ? below(2) : 0;
        memcpy(&made->parameters[soft], &(float){one_in(4) ? __builtin_nanf("") : 0.5f}, 4);
        return;
    }
    case 10:
        if (dtype == VME_FLOAT32)
            add(MODEL_ACTIVATE, 1, list, computed(VME_FLOAT32, &in))->parameters[0] = below(CURVES);
        return;
    case 11:
        if (in.rank == 0)
            return;
        if (one_in(2)) {
            made = add(MODEL_ARGSORT, 1, list, computed(VME_INT64, &in));
            memcpy(made->parameters, (int32_t[2]){axis, below(2)}, 8);
        } else {
            const int op = below(VME_SCAN_COUNT);
            if (vme_scan_types((vme_scan_op)op, (vme_dtype)dtype, &loop, &result) != VME_OK)
                return;
            made = add(MODEL_SCAN, 1, list, computed((int)result, &in));
            memcpy(made->parameters, (int32_t[3]){op, (int32_t)loop, axis}, 12);
        }
        return;
    case 12: {
        if (dtype != VME_FLOAT32 || is_image[x] || in.rank < 2 || in.open[in.rank - 1] != 0)
            return;
        const int64_t depth = in.size[in.rank - 1];
        if (tensors[x].kind != MODEL_VIEW && one_in(2)) {           /* attention of rows to each other */
            shape turned = in;
            product strides[MODEL_RANK], last;
            strides_of(&in, strides);
            last = strides[in.rank - 1];
            strides[in.rank - 1] = strides[in.rank - 2];
            strides[in.rank - 2] = last;
            turned.size[in.rank - 1] = in.size[in.rank - 2];
            turned.open[in.rank - 1] = in.open[in.rank - 2];
            turned.size[in.rank - 2] = depth;
            turned.open[in.rank - 2] = 0;
            list[1] = view(x, &turned, (product){0}, strides);
            list[2] = x;
        } else {
            shape k = {.rank = 2, .size = {depth, 1 + below(70)}}, v = {.rank = 2, .size = {k.size[1], 1 + below(70)}};
            in.size[in.rank - 1] = v.size[1];
            if (elements(in.size, in.rank) > LARGEST)
                return;
            list[1] = constant_like(VME_FLOAT32, &k, 9);
            list[2] = constant_like(VME_FLOAT32, &v, 9);
            list[3] = constant_like(VME_FLOAT32, &(shape){.rank = 1, .size = {k.size[1]}}, 9);
        }
        is_viewed[x] = true;
        uint32_t attended = computed(VME_FLOAT32, &in);
        is_viewed[attended] = true;
        made = add(MODEL_ATTENTION, list[2] == x || one_in(2) ? 3 : 4, list, attended);
        memcpy(&made->parameters[0], &(float){one_in(4) ? __builtin_nanf("") : 0.5f}, 4);
        return;
    }
    default:
        copy_to_halves(x);
    }
}

static void build(void)
{
    model_file_begin();
    memset(names, 'n', sizeof names - 1);
    open_count = one_in(2) ? 0 : 1 + (uint32_t)below(3);
    for (uint32_t i = 0; i < open_count; i++)
        open_size[i] = 2 + (int64_t)i;
    input_count = open_count + 1 + (uint32_t)below(2);
    for (uint32_t i = 0; i < input_count; i++) {
        const bool picture = i == 0 || one_in(4);
        shape of = {.rank = picture ? 4 : below(RANK + 1)};
        for (int d = 0; d < of.rank; d++)
            of.size[d] = picture && d > 0 ? 1 + below(d == 1 ? 20 : 10) : 1 + below(5);
        if (i < open_count) {
            const int d = picture || of.rank == 0 ? 0 : below(of.rank);
            of.rank += of.rank == 0;
            of.size[d] = open_size[i];
            of.open[d] = (int8_t)(i + 1);
            opens[i] = (model_open_record){.name_size = 1, .input = i, .dimension = (uint32_t)d};
        }
        ports[i] = computed(picture ? VME_FLOAT32 : any_dtype(), &of);
        readable[ports[i]] = true;
    }
    for (int tries = 1 + below(24); tries > 0 && node_count + 4 < FILE_NODES && operand_count + 12 < FILE_OPERANDS && room(8); tries--) {
        const uint32_t image = one_in(2) ? pick_image() : MODEL_ABSENT, matrix = one_in(3) ? pick(VME_FLOAT32, 2, false) : MODEL_ABSENT;
        static const uint32_t ops[] = {MODEL_CONV, MODEL_CONV, MODEL_MAX_POOL, MODEL_GLOBAL_AVERAGE_POOL, MODEL_ADD, MODEL_RELU, MODEL_FLATTEN, MODEL_CLIP,
                                       MODEL_AVERAGE_POOL, MODEL_CONCAT, MODEL_SLICE, MODEL_SHUFFLE};
        if (image != MODEL_ABSENT)
            image_node(image, ops[below((int)(sizeof ops / sizeof *ops))]);
        else if (matrix != MODEL_ABSENT && one_in(2))
            matrix_node(matrix);
        else
            tensor_node();
        if (one_in(3))
            add_view();
    }
    while (output_count < 1 + seed_now % 3) {
        uint32_t t = pick(-1, -1, false);
        if (t != MODEL_ABSENT && tensors[base_of(t)].kind != MODEL_CONSTANT)
            ports[input_count + output_count++] = t;
    }
}

/* ---- what nobody should write */
static uint64_t hostile(void)
{
    static const int64_t numbers[] = {
        0, 1, 2, 3, 5, -1, -2, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, INT64_MIN + 1, 1 << 15, 1 << 16, 1 << 20, 1 << 30, (int64_t)1 << 32, (int64_t)1 << 40,
        ((int64_t)1 << 40) + 1, (int64_t)1 << 44, (int64_t)1 << 62, -((int64_t)1 << 40), 0x7fc00000, 0x7f800000, 0xff800000, 0x80000000, 64, 255,
    };
    return one_in(3) ? (uint64_t)below(64) : (uint64_t)numbers[below((int)(sizeof numbers / sizeof *numbers))];
}

/* One thing changed in what is added, before it is written. */
static void hurt(void)
{
    model_tensor_record *tensor = &tensors[below((int)tensor_count)];
    model_node_record *made = node_count == 0 ? NULL : &nodes[below((int)node_count)];
    switch (below(13)) {
    case 0: tensor->shape[below(MODEL_RANK)] = (int64_t)hostile(); break;
    case 1: tensor->strides[below(MODEL_RANK)] = (int64_t)hostile(); break;
    case 2: tensor->offset = (int64_t)hostile(); break;
    case 3: tensor->rank = (uint32_t)hostile(); break;
    case 4: tensor->dtype = (uint32_t)hostile(); break;
    case 5: tensor->kind = (uint32_t)below(3), tensor->base = (uint32_t)below((int)tensor_count); break;
    case 6: *tensor = tensors[below((int)tensor_count)]; break;
    case 7: if (operand_count > 0) operands[below((int)operand_count)] = one_in(6) ? (uint32_t)hostile() : (uint32_t)below((int)tensor_count); break;
    case 8: case 9: if (made != NULL) made->parameters[below(PARAMETERS_USED)] = (int32_t)hostile(); break;
    case 10:
        if (made != NULL)
            *(one_in(2) ? &made->op : one_in(2) ? &made->inputs : &made->first_operand) = one_in(2) ? (uint32_t)below(MODEL_OPS) : (uint32_t)hostile();
        break;
    case 11:
        if (made != NULL) {
            model_node_record *other = &nodes[below((int)node_count)], kept = *made;
            *made = *other;
            *other = kept;
        }
        break;
    default:
        if (term_count > 0 && one_in(2))
            terms[below((int)term_count)] = (model_term_record){.factor = (int64_t)hostile(), .exponents = {(uint8_t)below(6), (uint8_t)below(3)}};
        else if (varying_count > 0)
            ((uint32_t *)&varyings[below((int)varying_count)])[below(6)] = one_in(2) ? (uint32_t)below(20) : (uint32_t)hostile();
        else
            ports[below((int)(input_count + output_count))] = (uint32_t)below((int)tensor_count);
    }
}

/* ---- runs */
static atomic_int charges, refuse_at, stop_at;         /* helpers charge, too */
static vme_context *context;

static bool charge(void *owner, size_t bytes)
{
    (void)owner;
    const int number = atomic_fetch_add(&charges, 1) + 1;
    if (number == stop_at)
        vme_context_stop(context, true);
    return number != refuse_at && bytes <= MEMORY;
}

typedef struct block { char *data; size_t bytes; vme_tensor tensor; int64_t shape[VME_RANK_MOST], strides[VME_RANK_MOST]; } block;

/* false: it is too large. */
static bool block_for(block *made, const vme_port *port, const int64_t *sizes, bool filled)
{
    for (int d = 0; d < port->rank; d++)
        made->shape[d] = port->open != NULL && port->open[d] != NULL ? sizes[below(MODEL_OPEN_MOST)] : port->shape[d];
    made->tensor = (vme_tensor){NULL, NULL, made->shape, made->strides, port->rank, port->dtype};
    if (vme_shape_bytes((vme_dtype)port->dtype, port->rank, made->shape, made->strides, &made->bytes) != VME_OK || made->bytes > LARGEST * 16)
        return false;
    made->data = made->tensor.data = __real_malloc(made->bytes);
    CHECK(made->data != NULL || made->bytes == 0);
    if (filled)
        fill(made->data, (int64_t)made->bytes / vme_dtype_size((vme_dtype)port->dtype), port->dtype, 5);
    else
        memset(made->data, 0, made->bytes);
    return true;
}

static bool is_small(const vme_model *model)
{
    int64_t all = 0;
    for (int v = 0; v < model->values; v++) {
        int64_t count = 1;
        for (int d = 0; d < model->value[v].rank && count <= LARGEST; d++)
            if (__builtin_mul_overflow(count, model->value[v].shape[d], &count))
                return false;
        all += count;
        if (count > LARGEST || all > 16 * LARGEST || model->value[v].bytes > 1 << 20)
            return false;
    }
    for (int s = 0; s < model->steps; s++)          /* windows whose numbers are nearly all margin */
        if (model->step[s].kind != STEP_TENSOR && (model->step[s].p[KERNEL_H] > 64 || model->step[s].p[KERNEL_W] > 64))
            return false;
    return model->arena_bytes <= 1 << 24;
}

/* All that is told of a model: numbers that are worked out, too. */
static void look_at(const vme_model *model)
{
    for (int s = 0; s < vme_model_steps(model); s++) {
        vme_step step;
        vme_model_step(model, s, &step);
        CHECK(step.name != NULL && step.kind != NULL && step.algorithm != NULL && step.rank <= MODEL_RANK);
        (void)vme_model_expected(model, s);
    }
    CHECK(arena_is_sound(model));
}

/* Every value in a place of its own. */
static void spread(vme_model *model)
{
    int64_t at = 0;
    for (int v = 0; v < model->values; v++)
        if (model->value[v].kind == MODEL_COMPUTED && model->value[v].within < 0 && model->value[v].offset >= 0) {
            model->value[v].offset = at;
            at += model->value[v].bytes + 64;
        }
    for (int v = 0; v < model->values; v++)
        if (model->value[v].within >= 0) {
            int64_t offset = 0;
            int place = v;
            for (; model->value[place].within >= 0; place = model->value[place].within)
                offset += model->value[place].inside;
            model->value[v].offset = offset + model->value[place].offset;
        }
    model->arena_bytes = (size_t)at;
}

static void *stop_soon(void *argument)
{
    for (volatile int i = *(const int *)argument; i > 0; i--)
        ;
    vme_context_stop(context, true);
    return NULL;
}

/* One run, which may be stopped by another thread. */
static vme_status run_once(vme_session *session, const vme_tensor *const *inputs, const vme_tensor *const *outputs, int stop_after)
{
    pthread_t stopper;
    if (stop_after >= 0)
        CHECK(pthread_create(&stopper, NULL, stop_soon, &stop_after) == 0);
    vme_status status = vme_session_run(session, inputs, outputs);
    if (stop_after >= 0) {
        pthread_join(stopper, NULL);
        vme_context_stop(context, false);
    }
    return status;
}

/* The answers of `other`, which is the same file, to the same inputs: the same bytes. */
static void compare_with(vme_model *other, unsigned flags, const vme_tensor *const *inputs, const vme_tensor *const *outputs, char *const *answers, const block *made)
{
    vme_session *session;
    vme_model *plan;
    CHECK(vme_session_new(context, other, &session) == VME_OK && vme_session_options(session, 0, flags) == VME_OK);
    CHECK(vme_session_plan(session, inputs, &plan) == VME_OK);
    look_at(plan);
    CHECK(vme_session_run(session, inputs, outputs) == VME_OK);
    for (int i = 0; i < other->outputs; i++)
        CHECK(memcmp(answers[i], made[i].data, made[i].bytes) == 0);
    vme_model_unref(plan);
    vme_session_free(session);
}

/* `other`: what the outputs are compared with, or NULL; `flags` are the session's. */
static vme_status run_session(vme_session *session, const vme_model *model, const int64_t *sizes, vme_model *other, unsigned flags, int stop_after)
{
    block blocks[2 * FILE_TENSORS] = {{0}};
    const vme_tensor *tensors_of[2 * FILE_TENSORS] = {NULL};
    vme_model *plan = NULL;
    vme_status status = VME_OK;
    int count = 0;
    bool small = true;
    for (int i = 0; i < model->inputs; i++, count++) {
        vme_port port;
        vme_model_port(model, false, i, &port);
        tensors_of[count] = &blocks[count].tensor;
        small = block_for(&blocks[count], &port, sizes, true) && small;
    }
    status = vme_session_plan(session, tensors_of, &plan);
    if (status == VME_OK) {
        look_at(plan);
        small = small && is_small(plan);
        for (int i = 0; i < model->outputs && small; i++, count++) {
            vme_port port;
            vme_model_port(plan, true, i, &port);
            tensors_of[count] = &blocks[count].tensor;
            small = block_for(&blocks[count], &port, sizes, false);
        }
    }
    if (status == VME_OK && small) {
        const vme_tensor *const *outputs = tensors_of + model->inputs;
        status = run_once(session, tensors_of, outputs, stop_after);
        if (status == VME_OK && other != NULL) {
            char *answers[FILE_TENSORS];
            for (int i = 0; i < model->outputs; i++) {
                answers[i] = __real_malloc(blocks[model->inputs + i].bytes);
                memcpy(answers[i], blocks[model->inputs + i].data, blocks[model->inputs + i].bytes);
            }
            compare_with(other, flags, tensors_of, outputs, answers, &blocks[model->inputs]);
            spread(plan);
            CHECK(vme_session_run(session, tensors_of, outputs) == VME_OK);
            for (int i = 0; i < model->outputs; i++) {
                CHECK(memcmp(answers[i], blocks[model->inputs + i].data, blocks[model->inputs + i].bytes) == 0);
                free(answers[i]);
            }
        }
    }
    if (plan != NULL)
        vme_model_unref(plan);
    for (int i = 0; i < count; i++)
        free(blocks[i].data);
    return status;
}

enum { WHOLE, HURT, DAMAGED, KINDS };
static int ran[KINDS], refused[KINDS];

/* The seed's file, prepared and run: always the same. */
static vme_status try_one(int *kind, int stop_after)
{
    state = seed_now;
    random_bits();
    const int backend = below(vme_backend_count());
    CHECK(vme_backend_force(vme_backend_available(backend) ? backend : -1) == VME_OK);
    CHECK(vme_convolution_force(below(vme_convolution_count() + 1) - 1) == VME_OK);
    build();
    *kind = one_in(3) ? WHOLE : one_in(3) ? DAMAGED : HURT;
    for (int i = *kind == HURT ? 1 + below(3) : 0; i > 0; i--)
        hurt();
    model_file_write();
    const size_t odd = one_in(4) ? (size_t)below(8) : 0, size = *kind == DAMAGED && one_in(4) ? (size_t)below((int)file_size) : file_size;
    unsigned char *copy = __real_malloc(size + odd), *bytes = copy + odd;
    memcpy(bytes, file, size);
    const size_t records = size < file_size - (size_t)weights_size ? size : file_size - (size_t)weights_size;
    for (int i = *kind == DAMAGED && records > 0 ? 1 + below(4) : 0; i > 0; i--)
        if (one_in(3) && records > 8)
            memcpy(bytes + (size_t)below((int)records / 4) * 4, &(uint32_t){(uint32_t)hostile()}, 4);
        else
            bytes[below((int)records)] = (unsigned char)below(256);
    charges = 0;
    vme_model *model, *other = NULL;
    vme_session *session = NULL;
    vme_model_options options = {.fixed = !one_in(16), .bands = (vme_bands)(seed_now % 3)};
    vme_status status = vme_model_prepare(context, bytes, size, &options, &model);
    const int charged = charges;
    options.bands = options.bands == VME_BANDS_NEVER ? VME_BANDS_ALWAYS : VME_BANDS_NEVER;
    if (status == VME_OK && *kind == WHOLE && stop_after < 0 && refuse_at == 0 && stop_at == 0)
        CHECK(vme_model_prepare(context, bytes, size, &options, &other) == VME_OK);
    charges = charged;
    free(copy);
    if (status == VME_OK) {
        look_at(model);
        int64_t sizes[MODEL_OPEN_MOST];
        const int64_t many = one_in(12) ? (int64_t)hostile() : 1 + below(4);
        for (int i = 0; i < MODEL_OPEN_MOST; i++)
            sizes[i] = one_in(30) ? (int64_t)hostile() : one_in(10) ? 1 + below(4) : many;
        status = vme_session_new(context, model, &session);
        int threads = one_in(3) ? 1 + below(2) : 0;
#ifdef __SANITIZE_THREAD__
        if (*kind != WHOLE)             /* a view can have one element in many places: its writers race, and harm nobody else */
            threads = 1;
#endif
        const unsigned flags = status == VME_OK && one_in(6) ? VME_FLUSH_SUBNORMALS : 0;
        if (status == VME_OK)
            CHECK(vme_session_options(session, threads, flags) == VME_OK);
        if (status == VME_OK)
            status = run_session(session, model, sizes, other, flags, stop_after);
        vme_session_free(session);
        if (other != NULL)
            vme_model_unref(other);
        vme_model_unref(model);
    }
    vme_context_stop(context, false);
    vme_statistics statistics;
    vme_context_statistics(context, &statistics);
    CHECK(statistics.live_bytes == 0 && statistics.buffers == 0);
    if (status != VME_OK)
        CHECK(strlen(vme_message()) > 0);
    return status;
}

/* Seeds that once failed: an activation wrote into channels beside its own. */
static const uint64_t kept[] = {1003729};
enum { KEPT = sizeof kept / sizeof *kept };

int main(int count, char **arguments)
{
    uint64_t first = count > 1 ? strtoull(arguments[1], NULL, 0) : 20261122;
    int rounds = count > 2 ? atoi(arguments[2]) : ROUNDS, without = 0, stopped = 0;
    atexit(say_seed_at_exit);
    for (int i = 0; i < 4; i++)
        if (getenv("FUZZ_SIGNALS") != NULL)
            signal((int[]){SIGSEGV, SIGABRT, SIGFPE, SIGBUS}[i], say_seed);
    CHECK(vme_context_new(&(vme_account){.charge = charge}, 0, &context) == VME_OK);
    for (int round = -KEPT; round < rounds; round++) {
        int kind;
        seed_now = round < 0 ? kept[-1 - round] : first + (uint64_t)round;
        refuse_at = stop_at = 0;
        vme_status status = try_one(&kind, -1);
        CHECK(status != VME_STOPPED && status != VME_READ_ONLY && status != VME_BAD_AXIS);
        (status == VME_OK ? ran : refused)[kind]++;
        const int least = charges;
        if (seed_now % 4 == 0)
            for (int at = 1; at <= least; at++) {
                refuse_at = at;
                vme_status answer = try_one(&kind, -1);
                CHECK(answer == VME_NO_MEMORY || answer == status);
                without += answer == VME_NO_MEMORY;
                refuse_at = 0;
                stop_at = at;
                answer = try_one(&kind, -1);
                CHECK(answer == VME_STOPPED || answer == status);
                stopped += answer == VME_STOPPED;
                stop_at = 0;
            }
        if (seed_now % 8 == 1)
            for (long after = 0, failed = 1; failed; after++) {
                failing_malloc(after);
                refuse_at = -1;
                vme_status answer = try_one(&kind, -1);
                refuse_at = 0;
                failed = failing_malloc(-1);
                CHECK(answer == status || (failed && answer == VME_NO_MEMORY));
                without += answer == VME_NO_MEMORY;
            }
        if (seed_now % 8 == 2) {
            vme_status answer = try_one(&kind, below(20000));
            CHECK(answer == VME_STOPPED || answer == status);
            stopped += answer == VME_STOPPED;
        }
    }
    seed_now = 0;
    CHECK(vme_convolution_force(-1) == VME_OK);
    vme_context_unref(context);
    printf("model fuzz: %d, %d, %d whole, hurt and damaged files ran, %d, %d, %d did not; %d times without memory, %d stopped\n", ran[WHOLE], ran[HURT],
           ran[DAMAGED], refused[WHOLE], refused[HURT], refused[DAMAGED], without, stopped);
    CHECK(rounds < 1000 || (ran[WHOLE] > 4 * refused[WHOLE] && ran[HURT] > rounds / 50 && refused[HURT] > rounds / 10 && without > 0 && stopped > 0));
    return 0;
}
