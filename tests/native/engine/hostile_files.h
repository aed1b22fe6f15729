/* Hostile changes to model files, for test_model_fuzz.c. */
#ifndef TEST_HOSTILE_FILES_H
#define TEST_HOSTILE_FILES_H

#include "random_tensors.h"

static uint64_t hostile(void)
{
    static const int64_t numbers[] = {
        0,
        1,
        2,
        3,
        5,
        -1,
        -2,
        INT32_MAX,
        INT32_MIN,
        INT64_MAX,
        INT64_MIN,
        INT64_MIN + 1,
        1 << 15,
        1 << 16,
        1 << 20,
        1 << 30,
        (int64_t)1 << 32,
        (int64_t)1 << 40,
        ((int64_t)1 << 40) + 1,
        (int64_t)1 << 44,
        (int64_t)1 << 62,
        -((int64_t)1 << 40),
        0x7fc00000,
        0x7f800000,
        0xff800000,
        0x80000000,
        64,
        255,
    };
    return one_in(3) ? (uint64_t)below(64) : (uint64_t)numbers[below((int)(sizeof numbers / sizeof *numbers))];
}

/* One change to the added parts, before they are written. */
static void hurt(void)
{
    model_tensor_record *tensor = &tensors[below((int)tensor_count)];
    model_node_record *result = node_count == 0 ? NULL : &nodes[below((int)node_count)];
    switch (below(13)) {
    case 0: tensor->shape[below(MODEL_RANK)] = (int64_t)hostile(); break;
    case 1: tensor->strides[below(MODEL_RANK)] = (int64_t)hostile(); break;
    case 2: tensor->offset = (int64_t)hostile(); break;
    case 3: tensor->rank = (uint32_t)hostile(); break;
    case 4: tensor->dtype = (uint32_t)hostile(); break;
    case 5: tensor->kind = (uint32_t)below(3), tensor->base = (uint32_t)below((int)tensor_count); break;
    case 6: *tensor = tensors[below((int)tensor_count)]; break;
    case 7:
        if (operand_count > 0)
            operands[below((int)operand_count)] = one_in(6) ? (uint32_t)hostile() : (uint32_t)below((int)tensor_count);
        break;
    case 8:
    case 9:
        if (result != NULL)
            result->parameters[below(PARAMETERS_USED)] = (int32_t)hostile();
        break;
    case 10:
        if (result != NULL)
            *(one_in(2)   ? &result->op
              : one_in(2) ? &result->inputs
                          : &result->first_operand) = one_in(2) ? (uint32_t)below(MODEL_OPS) : (uint32_t)hostile();
        break;
    case 11:
        if (result != NULL) {
            model_node_record *other = &nodes[below((int)node_count)], kept = *result;
            *result = *other;
            *other = kept;
        }
        break;
    default:
        if (term_count > 0 && one_in(2))
            terms[below((int)term_count)] =
                (model_term_record){.factor = (int64_t)hostile(), .variables = {(uint8_t)below(6), (uint8_t)below(3)}};
        else if (quotient_count > 0 && one_in(2))
            ((uint32_t *)&quotients[below((int)quotient_count)])[below(4)] =
                one_in(2) ? (uint32_t)below(20) : (uint32_t)hostile();
        else if (varying_count > 0)
            ((uint32_t *)&varyings[below((int)varying_count)])[below(6)] =
                one_in(2) ? (uint32_t)below(20) : (uint32_t)hostile();
        else
            ports[below((int)(input_count + output_count))] = (uint32_t)below((int)tensor_count);
    }
}

#endif
