/* A model file made in memory, for tests: tensors and nodes are added in order, model_file_end() makes bytes of them. One at a time:
 * model_file_begin() forgets the one before. Names are empty; weights are small whole numbers. */
#ifndef TEST_MODEL_FILES_H
#define TEST_MODEL_FILES_H

#include <string.h>

#include "../check.h"
#include "model.h"

enum { FILE_MOST = 1 << 20, FILE_TENSORS = 16, FILE_NODES = 14, FILE_OPERANDS = 64 };

static _Alignas(8) unsigned char file[FILE_MOST];
static size_t file_size;
static uint64_t weights_size;
static model_tensor_record tensors[FILE_TENSORS];
static model_node_record nodes[FILE_NODES];
static uint32_t operands[FILE_OPERANDS], operand_count, node_count, tensor_count;
static _Alignas(8) unsigned char weights[FILE_MOST];

static void model_file_begin(void) { tensor_count = node_count = operand_count = 0, weights_size = 0; }

static uint32_t tensor_add(model_tensor_record made, int rank, const int64_t *sizes)
{
    CHECK(tensor_count < FILE_TENSORS);
    made.rank = (uint32_t)rank;
    memcpy(made.shape, sizes, sizeof sizes[0] * (size_t)rank);
    tensors[tensor_count] = made;
    return tensor_count++;
}

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
    model_tensor_record made = {.dtype = VME_FLOAT32, .kind = MODEL_CONSTANT, .data_at = weights_size, .data_size = count * 4};
    weights_size = (weights_size + count * 4 + 63) / 64 * 64;
    return tensor_add(made, rank, sizes);
}

/* `numbers`: of the inputs, and then of the output. */
static model_node_record *node(uint32_t op, uint32_t inputs, const uint32_t *numbers)
{
    CHECK(operand_count + inputs < FILE_OPERANDS && node_count < FILE_NODES);
    nodes[node_count] = (model_node_record){.op = op, .first_operand = operand_count, .inputs = inputs, .outputs = 1};
    memcpy(operands + operand_count, numbers, (inputs + 1) * sizeof *numbers);
    operand_count += inputs + 1;
    return &nodes[node_count++];
}

/* The parameters of a node with a square window. */
static void window(model_node_record *made, int size, int pad)
{
    for (int i = KERNEL_H; i <= GROUPS; i++)
        made->parameters[i] = i < STRIDE_H ? size : i >= PAD_TOP && i <= PAD_RIGHT ? pad : 1;
}

/* The file's bytes, with one input and one output, in `file`. `open`: calls choose the first size of all that is computed. */
static void model_file_end(uint32_t input, uint32_t output, bool open)
{
    const uint32_t lists[2] = {input, output};
    model_varying_record varyings[FILE_TENSORS];
    const model_open_record number_of_images = {0};
    const model_term_record once = {1, {1}};
    uint32_t varying_count = 0;
    for (uint32_t i = 0; open && i < tensor_count; i++)
        if (tensors[i].kind == MODEL_COMPUTED)
            varyings[varying_count++] = (model_varying_record){.tensor = i, .terms = 1};
    uint64_t middle = MODEL_HEADER + tensor_count * sizeof *tensors + node_count * sizeof *nodes + 8 + operand_count * 4ull, at = MODEL_HEADER;
    if (open)
        middle += sizeof number_of_images + varying_count * sizeof *varyings + sizeof once;
    uint64_t start = (middle + 63) / 64 * 64, size = start + weights_size;
    CHECK(size <= FILE_MOST);
    file_size = (size_t)size;
    memset(file, 0, (size_t)start);
    memcpy(file, "VMEMODEL", 8);
    memcpy(file + 8, (uint32_t[2]){MODEL_VERSION, open ? MODEL_FLAG_OPEN : 0}, 8);
    memcpy(file + 16, &size, 8);
    memcpy(file + 24, (uint32_t[6]){tensor_count, node_count, 1, 1, operand_count, open}, 24);
    memcpy(file + 48, (uint64_t[2]){0, weights_size}, 16);
    memcpy(file + 64, (uint32_t[2]){varying_count, open}, 8);
    memcpy(file + at, tensors, tensor_count * sizeof *tensors);
    at += tensor_count * sizeof *tensors;
    memcpy(file + at, nodes, node_count * sizeof *nodes);
    at += node_count * sizeof *nodes;
    memcpy(file + at, lists, 8);
    memcpy(file + at + 8, operands, operand_count * 4);
    at += 8 + operand_count * 4ull;
    if (open) {
        memcpy(file + at, &number_of_images, sizeof number_of_images);
        memcpy(file + at + sizeof number_of_images, varyings, varying_count * sizeof *varyings);
        memcpy(file + at + sizeof number_of_images + varying_count * sizeof *varyings, &once, sizeof once);
    }
    memcpy(file + start, weights, (size_t)weights_size);
}

#endif
