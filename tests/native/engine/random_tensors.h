/* Tensors of random model files, for test_model_fuzz.c: inputs, constants, values and views, of sizes that are numbers
 * or open. Everything follows from one seed. */
#ifndef TEST_RANDOM_TENSORS_H
#define TEST_RANDOM_TENSORS_H

#include <string.h>

#include "model_layout.h"

enum { LARGEST = 1 << 13 }; /* elements of a tensor */

static uint64_t state, seed_now;

static uint64_t random_bits(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 29) ^ (state >> 47);
}
static int below(int max) { return (int)(random_bits() % (unsigned)max); }
static bool one_in(int max) { return below(max) == 0; }

/* Each size is a number, or an open size, whose number is in `open_of` plus 1. */
static int8_t open_of[FILE_TENSORS][MODEL_RANK];
static bool readable[FILE_TENSORS], is_image[FILE_TENSORS], is_viewed[FILE_TENSORS];
static int64_t open_size[MODEL_OPEN_MAX]; /* at which the file's numbers are */
static uint32_t distinct;                 /* open size i, from this number on, is a second name of size i % distinct */

typedef struct shape {
    int rank;
    int64_t size[MODEL_RANK];
    int8_t open[MODEL_RANK];
} shape;
typedef struct product {
    int64_t factor;
    uint8_t exponents[MODEL_OPEN_MAX];
} product;

static bool room(int more)
{
    return tensor_count + (uint32_t)more < FILE_TENSORS && varying_count + 17u * (uint32_t)more < FILE_VARYINGS
           && weights_size < FILE_MAX / 8;
}

/* The open size, or a quotient that it is too: twice of it by two. */
static uint8_t variable_of(int size)
{
    const uint32_t same = (open_count - (uint32_t)size + distinct - 1) / distinct;
    const uint8_t variable = (uint8_t)(1 + (uint32_t)size + distinct * (term_count % same));
    if (one_in(2) || quotient_count == MODEL_QUOTIENTS_MAX || open_count + quotient_count == MODEL_VARIABLES_MAX
        || term_count > 2 * FILE_VARYINGS - 3)
        return variable;
    quotients[quotient_count] = (model_quotient_record){term_count, 1, term_count + 1, 1};
    terms[term_count++] = (model_term_record){2, {variable}};
    terms[term_count++] = (model_term_record){2, {0}};
    return (uint8_t)(1 + open_count + quotient_count++);
}

static void vary(uint32_t tensor, uint32_t field, product number)
{
    bool varies = false;
    for (int i = 0; i < MODEL_OPEN_MAX; i++)
        varies = varies || number.exponents[i] > 0;
    if (!varies || number.factor == 0)
        return;
    model_term_record term = {.factor = number.factor};
    int place = 0;
    for (int i = 0; i < MODEL_OPEN_MAX; i++)
        for (int n = 0; n < number.exponents[i] && place < MODEL_DEGREE_MAX; n++)
            term.variables[place++] = variable_of(i);
    terms[term_count] = term;
    varyings[varying_count++] = (model_varying_record){
        .tensor = tensor, .field = field, .first_term = term_count++, .terms = 1, .label_size = 1};
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
    for (int i = 0; i < MODEL_OPEN_MAX; i++)
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
    shape result = {.rank = (int)tensors[tensor].rank};
    memcpy(result.size, tensors[tensor].shape, sizeof result.size);
    memcpy(result.open, open_of[tensor], sizeof result.open);
    return result;
}

static uint32_t computed(int dtype, const shape *of)
{
    return add_tensor((model_tensor_record){.dtype = (uint32_t)dtype}, of);
}

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
static void fill(char *data, int64_t count, int dtype, int64_t max)
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
            memcpy(data, &(int64_t){one_in(60) ? small * 100 : below((int)max)}, (size_t)size);
    }
}

static uint32_t constant_like(int dtype, const shape *of, int64_t max)
{
    const int64_t count = elements(of->size, of->rank), bytes = count * vme_dtype_size((vme_dtype)dtype);
    CHECK(weights_size + (uint64_t)bytes + 64 <= sizeof weights * 3 / 4);
    model_tensor_record result = {
        .dtype = (uint32_t)dtype, .kind = MODEL_CONSTANT, .data_at = weights_size, .data_size = (uint64_t)bytes};
    fill((char *)weights + weights_size, count, dtype, max);
    weights_size = (weights_size + (uint64_t)bytes + 63) / 64 * 64;
    return add_tensor(result, of);
}

static uint32_t base_of(uint32_t tensor) { return tensors[tensor].kind == MODEL_VIEW ? tensors[tensor].base : tensor; }

/* One that has a value, of this dtype and rank (-1: any), or MODEL_ABSENT. */
static uint32_t pick(int dtype, int rank, bool plain)
{
    for (int i = 0; i < 30; i++) {
        uint32_t t = one_in(3) ? (uint32_t)below((int)tensor_count)
                               : tensor_count - 1 - (uint32_t)below(tensor_count < 8 ? (int)tensor_count : 8);
        if (readable[base_of(t)] && (dtype < 0 || tensors[t].dtype == (uint32_t)dtype)
            && (rank < 0 || tensors[t].rank == (uint32_t)rank) && (!plain || !is_image[t]))
            return t;
    }
    return MODEL_ABSENT;
}

static uint32_t pick_image(void)
{
    for (int i = 0; i < 20; i++) {
        uint32_t t = pick(VME_FLOAT32, 4, false);
        if (t != MODEL_ABSENT && tensors[t].kind == MODEL_COMPUTED && !is_viewed[t]
            && open_of[t][1] + open_of[t][2] + open_of[t][3] == 0)
            return t;
    }
    return MODEL_ABSENT;
}

static bool same_shape(uint32_t a, uint32_t b)
{
    return tensors[a].rank == tensors[b].rank && memcmp(tensors[a].shape, tensors[b].shape, tensors[a].rank * 8) == 0
           && memcmp(open_of[a], open_of[b], tensors[a].rank) == 0;
}

static bool broadcast(uint32_t a, uint32_t b, shape *result)
{
    shape one = shape_of(a), other = shape_of(b);
    *result = one.rank >= other.rank ? one : other;
    const shape *less = one.rank >= other.rank ? &other : &one;
    for (int d = 0; d < less->rank; d++) {
        int at = d + result->rank - less->rank;
        bool unit = result->size[at] == 1 && result->open[at] == 0;
        if (less->size[d] == 1 && less->open[d] == 0)
            continue;
        if (!unit && (less->size[d] != result->size[at] || less->open[d] != result->open[at]))
            return false;
        result->size[at] = less->size[d];
        result->open[at] = less->open[d];
    }
    return elements(result->size, result->rank) <= LARGEST;
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
    model_tensor_record record = {
        .dtype = tensors[base].dtype, .kind = MODEL_VIEW, .base = base, .offset = worked_out(offset)};
    for (int d = 0; d < of->rank; d++)
        record.strides[d] = worked_out(strides[d]);
    uint32_t result = add_tensor(record, of);
    vary(result, FIELD_OFFSET, offset);
    for (int d = 0; d < of->rank; d++)
        vary(result, FIELD_STRIDES + (uint32_t)d, strides[d]);
    is_viewed[base] = true;
    return result;
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

#endif
