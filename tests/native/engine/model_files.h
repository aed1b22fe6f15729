/* Model files of tensors of float32, with one input and one output, for tests: model_layout.h lays them out. Names are
 * empty; weights are small whole numbers. */
#ifndef TEST_MODEL_FILES_H
#define TEST_MODEL_FILES_H

#include "model_layout.h"

/* Of float32; sizes beyond the rank are not looked at. */
static uint32_t value(int rank, int64_t n, int64_t c, int64_t h, int64_t w)
{
    return tensor_add((model_tensor_record){.dtype = VME_FLOAT32}, rank, (const int64_t[]){n, c, h, w});
}

static uint32_t constant(int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    const int64_t sizes[4] = {a, b, c, d};
    uint64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= (uint64_t)sizes[i];
    CHECK(weights_size + count * 4 + 64 <= sizeof weights);
    for (uint64_t i = 0; i < count; i++)
        memcpy(weights + weights_size + i * 4, &(float){(float)(i % 7) - 3}, 4);
    model_tensor_record result = {
        .dtype = VME_FLOAT32, .kind = MODEL_CONSTANT, .data_at = weights_size, .data_size = count * 4};
    weights_size = (weights_size + count * 4 + 63) / 64 * 64;
    return tensor_add(result, rank, sizes);
}

/* The parameters of a node with a square window. */
static void window(model_node_record *result, int size, int pad)
{
    for (int i = KERNEL_H; i <= GROUPS; i++)
        result->parameters[i] = i < STRIDE_H ? size : i >= PAD_TOP && i <= PAD_RIGHT ? pad : 1;
}

/* The file with one input and one output. `open`: calls choose the first size of all that is computed. */
static void model_file_end(uint32_t input, uint32_t output, bool open)
{
    memcpy(ports, (uint32_t[2]){input, output}, 8);
    input_count = output_count = 1;
    for (uint32_t i = 0; open && i < tensor_count; i++)
        if (tensors[i].kind == MODEL_COMPUTED)
            varyings[varying_count++] = (model_varying_record){.tensor = i, .terms = 1};
    if (open) {
        opens[open_count++] = (model_open_record){0};
        terms[term_count++] = (model_term_record){1, {1}};
    }
    model_file_write();
}

#endif
