/* A model file laid out in memory, for tests: tensors, nodes, lists and weights are added in order, model_file_write()
 * makes bytes of them. One at a time: model_file_begin() forgets the one before. */
#ifndef TEST_MODEL_LAYOUT_H
#define TEST_MODEL_LAYOUT_H

#include <string.h>

#include "../check.h"
#include "models/file.h"

enum {
    FILE_MAX = 1 << 20,
    FILE_TENSORS = 96,
    FILE_NODES = 32,
    FILE_OPERANDS = 160,
    FILE_PORTS = 8,
    FILE_VARYINGS = 512
};

static _Alignas(8) unsigned char file[FILE_MAX];
static size_t file_size;
static uint64_t weights_size;
static model_tensor_record tensors[FILE_TENSORS];
static model_node_record nodes[FILE_NODES];
static uint32_t operands[FILE_OPERANDS], operand_count, node_count, tensor_count;
static uint32_t ports[FILE_PORTS], input_count, output_count; /* inputs, then outputs */
static model_open_record opens[MODEL_OPEN_MAX];
static model_varying_record varyings[FILE_VARYINGS];
static model_term_record terms[3 * FILE_VARYINGS];
static model_quotient_record quotients[MODEL_QUOTIENTS_MAX];
static uint32_t open_count, varying_count, term_count, quotient_count;
static char names[64];
static _Alignas(8) unsigned char weights[FILE_MAX];

static void model_file_begin(void)
{
    tensor_count = node_count = operand_count = input_count = output_count = open_count = varying_count = term_count =
        quotient_count = 0;
    weights_size = 0;
    names[0] = 0;
}

static uint32_t tensor_add(model_tensor_record result, int rank, const int64_t *sizes)
{
    CHECK(tensor_count < FILE_TENSORS);
    result.rank = (uint32_t)rank;
    memcpy(result.shape, sizes, sizeof sizes[0] * (size_t)rank);
    tensors[tensor_count] = result;
    return tensor_count++;
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

/* One section of the file after the other. */
static void section(uint64_t *at, const void *bytes, uint64_t size)
{
    CHECK(*at + size <= FILE_MAX);
    memcpy(file + *at, bytes, (size_t)size);
    *at += size;
}

/* The bytes of what was added, in `file`. */
static void model_file_write(void)
{
    const uint64_t names_size = strlen(names);
    uint64_t at = MODEL_HEADER, size;
    section(&at, tensors, tensor_count * sizeof *tensors);
    section(&at, nodes, node_count * sizeof *nodes);
    section(&at, ports, (input_count + output_count) * sizeof *ports);
    section(&at, operands, operand_count * sizeof *operands);
    section(&at, opens, open_count * sizeof *opens);
    section(&at, varyings, varying_count * sizeof *varyings);
    section(&at, terms, term_count * sizeof *terms);
    section(&at, quotients, quotient_count * sizeof *quotients);
    section(&at, names, names_size);
    section(&at, (char[64]){0}, (64 - at % 64) % 64);
    section(&at, weights, weights_size);
    size = at;
    at = 0;
    section(&at, "VMEMODEL", 8);
    section(&at, (uint32_t[2]){MODEL_VERSION, open_count > 0 ? MODEL_FLAG_OPEN : 0}, 8);
    section(&at, &size, 8);
    section(&at, (uint32_t[6]){tensor_count, node_count, input_count, output_count, operand_count, open_count}, 24);
    section(&at, (uint64_t[2]){names_size, weights_size}, 16);
    section(&at, (uint32_t[16]){varying_count, term_count, 0, 0, quotient_count}, 64);
    file_size = (size_t)size;
}

#endif
