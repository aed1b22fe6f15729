/* Random graphs, for test_model_fuzz.c: nodes of every operator on tensors and images, which fit what they read. */
#ifndef TEST_RANDOM_GRAPHS_H
#define TEST_RANDOM_GRAPHS_H

#include "random_tensors.h"

enum { RANK = 4 }; /* of inputs, at most */

static model_node_record *add(uint32_t op, uint32_t inputs, const uint32_t *list, uint32_t out)
{
    uint32_t numbers[FILE_OPERANDS];
    memcpy(numbers, list, inputs * sizeof *numbers);
    numbers[inputs] = out;
    model_node_record *result = node(op, inputs, numbers);
    result->name_size = (uint32_t)below(4);
    readable[base_of(out)] = true;
    return result;
}

static void activation(model_node_record *result)
{
    const uint32_t op = result->op;
    result->parameters[ACTIVATION] =
        below(op == MODEL_CONV || op == MODEL_GEMM ? ACTIVATION_CURVES + CURVES : ACTIVATION_CURVES);
    memcpy(&result->parameters[LOW], (float[2]){-1, 2}, 8);
}

static bool image_node(uint32_t x, uint32_t op)
{
    shape in = shape_of(x), out = in;
    uint32_t list[4] = {x, MODEL_ABSENT, MODEL_ABSENT, MODEL_ABSENT}, inputs = 1;
    model_node_record result = {.op = op};
    int32_t *p = result.parameters;
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
    activation(&result);
    if (weighed) {
        out.size[1] = one_in(2) ? in.size[1] : 1 + below(one_in(4) ? 40 : 9);
        p[GROUPS] = one_in(3) && out.size[1] == in.size[1]                     ? (int32_t)in.size[1]
                    : one_in(4) && in.size[1] % 2 == 0 && out.size[1] % 2 == 0 ? 2
                                                                               : 1;
        shape w = {.rank = 4, .size = {out.size[1], in.size[1] / p[GROUPS], p[KERNEL_H], p[KERNEL_W]}},
              b = {.rank = 1, .size = {out.size[1]}};
        list[1] = constant_like(VME_FLOAT32, &w, 9);
        inputs = 2 + (uint32_t)below(3);
        if (inputs > 2 && one_in(2))
            list[2] = constant_like(VME_FLOAT32, &b, 9);
        for (int i = 0; i < 10 && inputs == 4 && list[3] == MODEL_ABSENT; i++) {
            uint32_t addend = pick_image();
            if (addend != MODEL_ABSENT && memcmp(tensors[addend].shape, out.size, 32) == 0
                && open_of[addend][0] == out.open[0])
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
    } else if (op == MODEL_INTERLEAVE) {
        p[STRIDE_H] = 1 + below(2), p[STRIDE_W] = 1 + below(2);
        inputs = (uint32_t)(p[STRIDE_H] * p[STRIDE_W]);
        out.size[2] *= p[STRIDE_H], out.size[3] *= p[STRIDE_W];
        for (uint32_t i = 1; i < inputs; i++) {
            list[i] = pick_image();
            if (list[i] == MODEL_ABSENT || !same_shape(x, list[i]))
                list[i] = x;
            is_image[list[i]] = true;
        }
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
    uint32_t result_tensor = computed(VME_FLOAT32, &out);
    is_image[result_tensor] = out.rank == 4;
    memcpy(add(op, inputs, list, result_tensor)->parameters, p, sizeof result.parameters);
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

/* The output is a tensor of its own, or two views, the halves of one tensor. */
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

/* Through the times of a tensor of rank 3, all of whose numbers are gates. */
static void recurrence_node(uint32_t x)
{
    const recurrence_kind kind = (recurrence_kind)below(RECURRENCE_KINDS);
    const int64_t gates = kind == RECURRENCE_LSTM ? 4 : kind == RECURRENCE_GRU ? 3 : 1;
    shape in = shape_of(x);
    const int64_t directions = 1 + below(2), hidden = in.rank == 3 ? in.size[2] / gates / directions : 0;
    if (tensors[x].dtype != VME_FLOAT32 || is_image[x] || hidden < 1 || in.size[2] != hidden * gates * directions
        || in.open[0] != 0 || in.open[2] != 0)
        return;
    const int64_t slivers =
        kind == RECURRENCE_GRU ? (2 * hidden + 63) / 64 + (hidden + 63) / 64 : (gates * hidden + 63) / 64;
    shape packed = {.rank = 4, .size = {directions, slivers, hidden, 64}},
          bias = {.rank = 2, .size = {directions, hidden}}, peepholes = {.rank = 2, .size = {directions, 3 * hidden}};
    shape initial = {.rank = 3, .size = {directions, in.size[1], hidden}}, lengths = {.rank = 1, .size = {in.size[1]}};
    shape out = {.rank = 4,
                 .size = {in.size[0] + (kind == RECURRENCE_LSTM ? 2 : 1), directions, in.size[1], hidden},
                 .open = {0, 0, in.open[1], 0}};
    if (elements(packed.size, 4) > LARGEST || elements(out.size, 4) > LARGEST)
        return;
    const bool after = kind == RECURRENCE_GRU && one_in(2), fixed = in.open[1] == 0;
    uint32_t list[7] = {x, constant_like(VME_FLOAT32, &packed, 9)};
    for (int i = 2; i < 7; i++)
        list[i] = MODEL_ABSENT;
    if (after)
        list[2] = constant_like(VME_FLOAT32, &bias, 9);
    if (kind == RECURRENCE_LSTM && one_in(2))
        list[3] = constant_like(VME_FLOAT32, &peepholes, 9);
    if (fixed && one_in(2))
        list[4] = constant_like(VME_FLOAT32, &initial, 9);
    if (fixed && kind == RECURRENCE_LSTM && one_in(2))
        list[5] = constant_like(VME_FLOAT32, &initial, 9);
    if (fixed && one_in(2))
        list[6] = constant_like(VME_INT64, &lengths, in.size[0] + 1);
    is_viewed[x] = true;
    const uint32_t states = computed(VME_FLOAT32, &out);
    is_viewed[states] = true;
    int32_t *p = add(MODEL_RECURRENCE, 7, list, states)->parameters;
    p[RECURRENCE_KIND] = (int32_t)kind;
    p[RECURRENCE_FLAGS] = (one_in(2) ? RECURRENCE_REVERSE : 0) | (after ? RECURRENCE_RESET_AFTER : 0)
                          | (one_in(4) ? RECURRENCE_INPUT_FORGET : 0);
    memcpy(&p[RECURRENCE_CLIP], &(float){one_in(4) ? 1 : __builtin_inff()}, 4);
    for (int i = 0; i < 6; i++) {
        int32_t *function = p + RECURRENCE_FUNCTIONS + i * RECURRENCE_FUNCTION;
        function[0] = one_in(3)                              ? below(FUNCTIONS)
                      : i % 3 == 0 && kind != RECURRENCE_RNN ? FUNCTION_SIGMOID
                                                             : FUNCTION_TANH;
        memcpy(function + 1, (float[2]){0.5f, 0.25f}, 8);
    }
}

static bool is_byte(uint32_t x) { return tensors[x].dtype == VME_UINT8 || tensors[x].dtype == VME_INT8; }

/* Quantized operators on each number. */
static void bytes_node(uint32_t x)
{
    const bool made = tensors[x].dtype == VME_FLOAT32;
    if ((!made && !is_byte(x)) || tensors[x].kind == MODEL_VIEW || is_image[x])
        return;
    shape in = shape_of(x);
    const int dtype = made || one_in(3) ? one_in(2) ? VME_UINT8 : VME_INT8 : (int)tensors[x].dtype;
    const uint32_t op = made ? MODEL_QUANTIZE : MODEL_DEQUANTIZE + (uint32_t)below(4);
    uint32_t list[2] = {x, x}, inputs = op == MODEL_QUANTIZE || op == MODEL_DEQUANTIZE ? 1 : 2;
    if (op == MODEL_LOOK_UP)
        list[1] = constant_like(VME_UINT8, &(shape){.rank = 1, .size = {256}}, 200);
    is_viewed[x] = true;
    const uint32_t out = computed(op == MODEL_DEQUANTIZE ? VME_FLOAT32 : dtype, &in);
    is_viewed[out] = true;
    int32_t *p = add(op, inputs, list, out)->parameters;
    const int32_t lowest = dtype == VME_INT8 ? -128 : 0;
    if (op == MODEL_LOOK_UP)
        return;
    p[QUANTIZED_ZERO] = lowest + below(256);
    p[QUANTIZED_LOW] = lowest + below(100);
    p[QUANTIZED_HIGH] = p[QUANTIZED_LOW] + below(100);
    p[QUANTIZED_ZERO_A] = p[QUANTIZED_ZERO_B] = (tensors[x].dtype == VME_INT8 ? -128 : 0) + below(256);
    memcpy(&p[QUANTIZED_SCALE_A], &(float){one_in(4) ? __builtin_nanf("") : 0.25f}, 4);
    memcpy(&p[QUANTIZED_SCALE_B], &(float){0.5f}, 4);
}

/* A convolution of bytes, whose last dimension has channels. */
static void integer_product_node(uint32_t x)
{
    shape in = shape_of(x), out = in;
    if (!is_byte(x) || in.rank != 4 || tensors[x].kind == MODEL_VIEW || in.open[1] + in.open[2] + in.open[3] != 0)
        return;
    model_node_record window = {0};
    int32_t *p = window.parameters;
    for (int d = 0; d < 2; d++) {
        p[KERNEL_H + d] = 1 + below(3);
        p[STRIDE_H + d] = 1 + below(2);
        p[DILATION_H + d] = 1 + below(2);
        p[PAD_TOP + d] = below(3);
        p[PAD_BOTTOM + d] = below(3);
        int64_t left =
            in.size[1 + d] + p[PAD_TOP + d] + p[PAD_BOTTOM + d] - (p[DILATION_H + d] * (p[KERNEL_H + d] - 1) + 1);
        if (left < 0)
            return;
        out.size[1 + d] = left / p[STRIDE_H + d] + 1;
    }
    const int64_t channels = in.size[3];
    if (one_in(4)) { /* or the largest bytes of the windows */
        p[GROUPS] = 1;
        if (elements(out.size, 4) > LARGEST)
            return;
        is_viewed[x] = true;
        const uint32_t most = computed((int)tensors[x].dtype, &out);
        is_viewed[most] = true;
        memcpy(add(MODEL_BYTE_MAX_POOL, 1, &x, most)->parameters, p, sizeof window.parameters);
        return;
    }
    p[GROUPS] = one_in(2) ? (int32_t)channels : 1;
    const bool single = p[GROUPS] > 1 && one_in(2), zeros = !single && one_in(2);
    p[INTEGER_DEPTHWISE] = single ? 1 + below(2) : 0;
    out.size[3] = single ? channels : p[GROUPS] * (1 + below(40));
    const int64_t own = out.size[3] / p[GROUPS] + zeros, taps = p[KERNEL_H] * p[KERNEL_W],
                  k = taps * channels / p[GROUPS];
    shape packed = {.rank = 5, .size = {p[GROUPS], (own + 31) / 32, (k + 3) / 4, 32, 4}},
          plain = {.rank = 5, .size = {1, 1, taps * p[INTEGER_DEPTHWISE], channels, 1}};
    shape each = {.rank = 1, .size = {out.size[3]}}, one = {.rank = 1, .size = {1}};
    if (elements(packed.size, 5) > LARGEST || elements(out.size, 4) > LARGEST)
        return;
    const int kinds[] = {VME_UINT8, VME_INT8, VME_INT32, VME_FLOAT32}, dtype = kinds[below(4)];
    uint32_t list[7] = {x,
                        constant_like(VME_INT8, single ? &plain : &packed, 100),
                        constant_like(VME_INT32, &each, 9),
                        MODEL_ABSENT,
                        MODEL_ABSENT,
                        MODEL_ABSENT,
                        MODEL_ABSENT};
    if (one_in(2))
        list[3] = constant_like(VME_INT32, &each, 9);
    if (dtype != VME_INT32)
        list[4] = constant_like(VME_FLOAT32, &each, 9);
    if (zeros)
        list[5] = constant_like(VME_INT32, &each, 9);
    if (one_in(2))
        list[6] = constant_like((int)tensors[x].dtype, &one, 9);
    is_viewed[x] = true;
    const uint32_t result = computed(dtype, &out);
    is_viewed[result] = true;
    int32_t *q = add(MODEL_INTEGER_PRODUCT, 7, list, result)->parameters;
    memcpy(q, p, sizeof window.parameters);
    q[INTEGER_ZERO] = (dtype == VME_INT8 ? -128 : 0) + below(256);
    q[INTEGER_LOW] = dtype == VME_INT8 ? -128 : 0;
    q[INTEGER_HIGH] = q[INTEGER_LOW] + below(256);
}

/* A product of rows with narrow weights. */
static void narrow_node(uint32_t x)
{
    const shape in = shape_of(x);
    const int dtype = (int)tensors[x].dtype;
    if ((dtype != VME_FLOAT32 && dtype != VME_FLOAT16) || in.rank != 2 || tensors[x].kind == MODEL_VIEW
        || in.open[1] != 0)
        return;
    const int kind = in.size[1] % 2 == 0 ? below(3) : 0;
    const bool integers = kind != 0;
    const int64_t k = in.size[1], block = k % 4 == 0 && one_in(2) ? k / 2 : k;
    shape out = in, bias = {.rank = 1, .size = {1 + below(70)}};
    out.size[1] = bias.size[0];
    const int64_t slivers = (bias.size[0] + 31) / 32;
    shape packed = {.rank = 3, .size = {slivers, kind == 2 ? k / 2 : k, 32}},
          scales = {.rank = 3, .size = {slivers, k / block, 32}};
    if (elements(packed.size, 3) > LARGEST || elements(out.size, 2) > LARGEST)
        return;
    uint32_t list[5] = {x, constant_like(integers ? VME_UINT8 : VME_FLOAT16, &packed, 9), MODEL_ABSENT, MODEL_ABSENT,
                        MODEL_ABSENT};
    for (int i = 2; i < 4 && integers; i++)
        list[i] = constant_like(VME_FLOAT32, &scales, 9);
    if (one_in(2))
        list[4] = constant_like(VME_FLOAT32, &bias, 9);
    is_viewed[x] = true;
    const uint32_t result = computed(dtype, &out);
    is_viewed[result] = true;
    int32_t *p = add(MODEL_NARROW_PRODUCT, 5, list, result)->parameters;
    p[NARROW_KIND] = kind;
    p[NARROW_BLOCK] = integers ? (int32_t)block : 0;
}

/* Interpolation along a dimension, at places within it. */
static void blend_node(uint32_t x, int axis)
{
    const shape in = shape_of(x);
    if (tensors[x].dtype != VME_FLOAT32 || in.rank == 0 || tensors[x].kind == MODEL_VIEW || is_image[x]
        || in.open[axis] != 0)
        return;
    shape out = in, places = {.rank = 2, .size = {1 + below(4), 1 + below(12)}};
    out.size[axis] = places.size[1];
    if (elements(out.size, out.rank) > LARGEST)
        return;
    const uint32_t list[3] = {x, constant_like(VME_INT32, &places, 9), constant_like(VME_FLOAT32, &places, 9)};
    int32_t *place = (int32_t *)(void *)(weights + tensors[list[1]].data_at);
    for (int64_t i = 0; i < places.size[0] * places.size[1]; i++)
        place[i] = below((int)in.size[axis]);
    is_viewed[x] = true;
    const uint32_t result = computed(VME_FLOAT32, &out);
    is_viewed[result] = true;
    add(MODEL_BLEND, 3, list, result)->parameters[BLEND_AXIS] = axis;
}

/* Reads an image at random places, or random regions of it. */
static void sampling_node(uint32_t x)
{
    const shape in = shape_of(x);
    const int dtype = (int)tensors[x].dtype;
    if ((dtype != VME_FLOAT32 && dtype != VME_FLOAT64) || in.rank < 4 || in.rank > 5 || tensors[x].kind == MODEL_VIEW
        || is_image[x] || in.open[0] != 0 || in.open[2] != 0 || in.open[3] != 0 || in.open[4] != 0)
        return;
    const bool regions = in.rank == 4 && one_in(2);
    shape out = in, places = in, images = {.rank = 1, .size = {1 + below(4)}};
    for (int d = regions ? 0 : 2; d < in.rank; d++)
        if (d != 1)
            out.size[d] = 1 + below(5);
    for (int d = 1; d < in.rank - 1; d++)
        places.size[d] = out.size[d + 1];
    places.size[in.rank - 1] = in.rank - 2;
    places.open[1] = 0;
    if (regions) {
        out.size[0] = images.size[0];
        places = (shape){.rank = 2, .size = {images.size[0], 4}};
    }
    if (elements(out.size, out.rank) > LARGEST || elements(places.size, places.rank) > LARGEST)
        return;
    uint32_t list[3] = {x, constant_like(dtype, &places, 9), MODEL_ABSENT};
    if (regions) {
        list[2] = constant_like(VME_INT64, &images, 9);
        int64_t *image = (int64_t *)(void *)(weights + tensors[list[2]].data_at);
        for (int64_t i = 0; i < images.size[0]; i++)
            image[i] = below((int)in.size[0]);
    }
    is_viewed[x] = true;
    const uint32_t result = computed(dtype, &out);
    is_viewed[result] = true;
    int32_t *p = add(regions ? MODEL_REGIONS : MODEL_SAMPLE, regions ? 3 : 2, list, result)->parameters;
    if (regions) {
        p[REGION_MODE] = below(REGION_MODES);
        p[REGION_RATIO] = below(4);
        memcpy(&p[REGION_SCALE], &(float){0.5f}, 4);
        p[REGION_HALF_PIXEL] = below(2);
    } else {
        p[SAMPLE_MODE] = below(SAMPLE_MODES);
        p[SAMPLE_PADDING] = below(SAMPLE_BORDERS);
        p[SAMPLE_COORDINATES] = below(SAMPLE_COORDINATE_KINDS);
    }
}

/* Fourier transforms of rows, or random numbers. */
static void signal_node(uint32_t x)
{
    const shape in = shape_of(x);
    const int dtype = (int)tensors[x].dtype;
    if ((dtype != VME_FLOAT32 && dtype != VME_FLOAT64) || in.rank < 1 || in.rank >= MODEL_RANK
        || tensors[x].kind == MODEL_VIEW || is_image[x])
        return;
    const uint32_t list[1] = {x};
    if (in.rank < 2 || in.open[in.rank - 1] != 0 || in.size[in.rank - 1] > 2 || in.open[in.rank - 2] != 0) {
        const uint32_t drawn = computed(dtype, &in);
        is_viewed[drawn] = true;
        int32_t *p = add(MODEL_CHANCE, 1, list, drawn)->parameters;
        p[CHANCE_KIND] = below(CHANCE_KINDS);
        memcpy(&p[CHANCE_SECOND], &(float){1}, 4);
        p[CHANCE_SEEDED] = 1;
        return;
    }
    shape out = in;
    const bool real = in.size[in.rank - 1] == 1;
    const int64_t n = in.size[in.rank - 2];
    const int kind = real ? 2 : n > 1 && one_in(2) ? 3 : below(2);
    out.size[in.rank - 1] = kind == 3 ? 1 : 2;
    out.size[in.rank - 2] = kind == 2 ? n / 2 + 1 : kind == 3 ? 2 * (n - 1) + below(2) : n;
    if (elements(out.size, out.rank) > LARGEST)
        return;
    is_viewed[x] = true;
    const uint32_t result = computed(dtype, &out);
    is_viewed[result] = true;
    add(MODEL_FOURIER, 1, list, result)->parameters[FOURIER_KIND] = kind;
}

/* Boxes that are chosen by scores. */
static void suppression_node(uint32_t x)
{
    const shape in = shape_of(x);
    if (tensors[x].dtype != VME_FLOAT32 || in.rank != 3 || tensors[x].kind == MODEL_VIEW || in.open[0] != 0
        || in.open[1] != 0 || in.open[2] != 0)
        return;
    const shape boxes = {.rank = 3, .size = {in.size[0], in.size[2], 4}}, one = {.rank = 1, .size = {1}};
    const shape out = {.rank = 2, .size = {1 + in.size[0] * in.size[1] * (1 + below(4)), 3}};
    if (elements(boxes.size, 3) > LARGEST || elements(out.size, 2) > LARGEST)
        return;
    uint32_t list[5] = {constant_like(VME_FLOAT32, &boxes, 9), x, constant_like(VME_INT64, &one, 9),
                        constant_like(VME_FLOAT32, &one, 9), MODEL_ABSENT};
    if (one_in(2))
        list[4] = constant_like(VME_FLOAT32, &one, 9);
    is_viewed[x] = true;
    const uint32_t result = computed(VME_INT64, &out);
    is_viewed[result] = true;
    add(MODEL_SUPPRESS, 5, list, result)->parameters[SUPPRESS_CENTERS] = below(2);
}

/* Means, norms and logarithms of rows of integers. */
static void integer_mean_node(uint32_t x)
{
    const shape in = shape_of(x);
    shape out = in;
    if (tensors[x].dtype == VME_BOOL || tensors[x].dtype > VME_UINT64 || in.rank == 0 || tensors[x].kind == MODEL_VIEW)
        return;
    out.size[in.rank - 1] = 1;
    out.open[in.rank - 1] = 0;
    is_viewed[x] = true;
    const uint32_t result = computed((int)tensors[x].dtype, &out);
    is_viewed[result] = true;
    add(MODEL_INTEGER_MEAN, 1, &x, result)->parameters[INTEGER_KIND] = below(INTEGER_KINDS);
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
    model_node_record *created;
    switch (below(23)) {
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
        created = add(MODEL_UNARY, 1, list, computed((int)result, &in));
        created->parameters[0] = op;
        created->parameters[1] = (int32_t)loop;
        return;
    }
    case 2:
    case 3: {
        const int op = below(VME_BINARY_COUNT);
        list[1] = y = pick(one_in(4) ? -1 : dtype, -1, false);
        if (y == MODEL_ABSENT || !broadcast(x, y, &out)
            || vme_binary_types((vme_binary_op)op, (vme_dtype)dtype, (vme_dtype)tensors[y].dtype, &loop, &result)
                   != VME_OK)
            return;
        created = add(MODEL_BINARY, 2, list, computed((int)result, &out));
        created->parameters[0] = op;
        created->parameters[1] = (int32_t)loop;
        return;
    }
    case 4: {
        uint32_t condition = pick(VME_BOOL, -1, false);
        list[0] = condition == MODEL_ABSENT ? constant_like(VME_BOOL, &(shape){.rank = 1, .size = {1}}, 2) : condition;
        list[1] = x;
        list[2] = y = pick(-1, -1, false);
        if (y == MODEL_ABSENT || !broadcast(list[0], x, &out))
            return;
        uint32_t between = computed(dtype, &out); /* which nothing makes where the rest does not fit */
        if (!broadcast(between, y, &out))
            return;
        add(MODEL_WHERE, 3, list, computed(dtype, &out));
        return;
    }
    case 5: {
        const int op = below(VME_REDUCE_COUNT);
        int axes = op == VME_ARGMAX || op == VME_ARGMIN ? 1 << axis : below(1 << in.rank);
        if (vme_reduce_types((vme_reduce_op)op, (vme_dtype)dtype, &loop, &result) != VME_OK
            || (in.rank == 0 && axes != 0))
            return;
        for (int d = 0; d < in.rank; d++)
            if (axes >> d & 1)
                in.size[d] = 1, in.open[d] = 0;
        created = add(MODEL_REDUCE, 1, list, computed((int)result, &in));
        memcpy(created->parameters, (int32_t[3]){op, (int32_t)loop, axes}, 12);
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
        shape indices = {.rank = below(3), .size = {1 + below(4), 1 + below(3)}};
        if (in.rank == 0 || in.rank + indices.rank > 6 || in.open[axis] != 0)
            return;
        list[1] = constant_like(VME_INT64, &indices, in.size[axis]);
        out = in;
        out.rank = in.rank - 1 + indices.rank;
        for (int d = axis; d < out.rank; d++) {
            bool tail = d >= axis + indices.rank;
            out.size[d] = tail ? in.size[d - indices.rank + 1] : indices.size[d - axis];
            out.open[d] = tail ? in.open[d - indices.rank + 1] : 0;
        }
        if (elements(out.size, out.rank) <= LARGEST)
            add(MODEL_GATHER, 2, list, computed(dtype, &out))->parameters[0] = axis;
        return;
    }
    case 8: {
        shape indices = {.rank = 1, .size = {1 + below(4)}}, values = in;
        if (in.rank == 0 || !flat || elements(in.size, in.rank) > LARGEST / 4)
            return;
        values.size[axis] = indices.size[0];
        list[1] = constant_like(dtype, &values, 9);
        list[2] = constant_like(VME_INT64, &indices, in.size[axis]);
        const int ops[] = {-1, VME_ADD, VME_MULTIPLY, VME_MAXIMUM, VME_MINIMUM};
        created = add(MODEL_SCATTER, 3, list, computed(dtype, &in));
        created->parameters[0] = axis;
        created->parameters[1] = ops[below(5)];
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
        uint32_t result_tensor = computed(VME_FLOAT32, &in);
        is_viewed[result_tensor] = true;
        created = add(soft ? MODEL_SOFTMAX : MODEL_NORMALIZE, inputs, list, result_tensor);
        created->parameters[0] = soft ? below(2) : 0;
        memcpy(&created->parameters[soft], &(float){one_in(4) ? __builtin_nanf("") : 0.5f}, 4);
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
            created = add(MODEL_ARGSORT, 1, list, computed(VME_INT64, &in));
            memcpy(created->parameters, (int32_t[2]){axis, below(2)}, 8);
        } else {
            const int op = below(VME_SCAN_COUNT);
            if (vme_scan_types((vme_scan_op)op, (vme_dtype)dtype, &loop, &result) != VME_OK)
                return;
            created = add(MODEL_SCAN, 1, list, computed((int)result, &in));
            memcpy(created->parameters, (int32_t[3]){op, (int32_t)loop, axis}, 12);
        }
        return;
    case 12: {
        if (dtype != VME_FLOAT32 || is_image[x] || in.rank < 2 || in.open[in.rank - 1] != 0)
            return;
        const int64_t depth = in.size[in.rank - 1];
        if (tensors[x].kind != MODEL_VIEW && one_in(2)) { /* attention of rows to each other */
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
        created = add(MODEL_ATTENTION, list[2] == x || one_in(2) ? 3 : 4, list, attended);
        memcpy(&created->parameters[0], &(float){one_in(4) ? __builtin_nanf("") : 0.5f}, 4);
        return;
    }
    case 13: recurrence_node(x); return;
    case 14: bytes_node(x); return;
    case 15: integer_product_node(x); return;
    case 16: narrow_node(x); return;
    case 17: blend_node(x, axis); return;
    case 18: sampling_node(x); return;
    case 19: signal_node(x); return;
    case 20: suppression_node(x); return;
    case 21: integer_mean_node(x); return;
    default: copy_to_halves(x);
    }
}

static void build(void)
{
    model_file_begin();
    memset(names, 'n', sizeof names - 1);
    distinct = open_count = one_in(2) ? 0 : 1 + (uint32_t)below(3);
    for (uint32_t i = 0; i < distinct; i++)
        open_size[i] = 2 + (int64_t)i;
    if (distinct > 0 && seed_now % 4 == 0)
        open_count = MODEL_OPEN_MAX - (uint32_t)(seed_now % 3);
    input_count = distinct + 1 + (uint32_t)below(2);
    for (uint32_t i = 0; i < input_count; i++) {
        const bool picture = i == 0 || one_in(4);
        shape of = {.rank = picture ? 4 : below(RANK + 1)};
        for (int d = 0; d < of.rank; d++)
            of.size[d] = picture && d > 0 ? 1 + below(d == 1 ? 20 : 10) : 1 + below(5);
        if (i < distinct) {
            const int d = picture || of.rank == 0 ? 0 : below(of.rank);
            of.rank += of.rank == 0;
            of.size[d] = open_size[i];
            of.open[d] = (int8_t)(i + 1);
            opens[i] = (model_open_record){.name_size = 1, .input = i, .dimension = (uint32_t)d};
        }
        ports[i] = computed(picture ? VME_FLOAT32 : any_dtype(), &of);
        readable[ports[i]] = true;
    }
    for (uint32_t i = distinct; i < open_count; i++)
        opens[i] = opens[i % distinct];
    for (int tries = 1 + below(24);
         tries > 0 && node_count + 4 < FILE_NODES && operand_count + 12 < FILE_OPERANDS && room(8); tries--) {
        const uint32_t image = one_in(2) ? pick_image() : MODEL_ABSENT,
                       matrix = one_in(3) ? pick(VME_FLOAT32, 2, false) : MODEL_ABSENT;
        static const uint32_t ops[] = {MODEL_CONV,         MODEL_CONV,   MODEL_MAX_POOL, MODEL_GLOBAL_AVERAGE_POOL,
                                       MODEL_ADD,          MODEL_RELU,   MODEL_FLATTEN,  MODEL_CLIP,
                                       MODEL_AVERAGE_POOL, MODEL_CONCAT, MODEL_SLICE,    MODEL_SHUFFLE,
                                       MODEL_INTERLEAVE};
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

#endif
