/* Loop nests: random shapes and strides, every element visited once, in the right place of every operand. */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "operators/nest.h"

static uint64_t seed = 20261121;

static int random_below(int max)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (int)((seed >> 33) % (unsigned)max);
}

enum { RANK = 6, SPACE = 1 << 20 };

/* The offsets that the walk gives, in pieces of random lengths, against plain counting. */
static void check_one(int flags)
{
    int rank = random_below(RANK + 1), operands = 1 + random_below(VME_NEST_OPERANDS);
    int64_t shape[RANK], strides[VME_NEST_OPERANDS][RANK], elements = 1;
    const int64_t *stride_rows[VME_NEST_OPERANDS];
    static char space[2 * SPACE + 1];
    char *data[VME_NEST_OPERANDS];
    bool contiguous = random_below(3) == 0;
    for (int i = 0; i < rank; i++) {
        shape[i] = random_below(20) == 0 ? 0 : 1 + random_below(4);
        elements *= shape[i];
    }
    for (int o = 0; o < operands; o++) {
        int64_t step = 4;
        for (int i = rank - 1; i >= 0; i--) {
            strides[o][i] = contiguous ? step : 4 * (random_below(41) - 20);
            step *= shape[i];
        }
        stride_rows[o] = strides[o];
        data[o] = space + SPACE;
    }
    vme_nest nest;
    vme_nest_make(&nest, flags, rank, shape, operands, stride_rows, data);
    CHECK(nest.elements == elements);
    CHECK(nest.rank >= 1 && (!contiguous || nest.rank == 1));

    int64_t visited = 0, n;
    uint64_t sum = 0, expected_sum = 0; /* of a mix of all operands' offsets: the order is free */
    vme_cursor at;
    int64_t begin = elements == 0 ? 0 : random_below((int)elements), count = elements;
    for (int part = 0; part < 2; part++) { /* the tail first, then the head: as two threads would */
        int64_t left = part == 0 ? count - begin : begin;
        if (left == 0)
            continue;
        for (vme_nest_seek(&nest, part == 0 ? begin : 0, &at); left > 0; left -= n, vme_nest_advance(&nest, &at, n)) {
            n = vme_nest_run(&nest, &at, left);
            if (n > 1 && random_below(2))
                n = 1 + random_below((int)n);
            for (int64_t k = 0; k < n; k++) {
                uint64_t mix = 0;
                for (int o = 0; o < operands; o++)
                    mix = mix * 1000003 + (uint64_t)(at.data[o] + k * nest.loops[0].step[o] - space);
                sum += mix * mix;
                visited++;
            }
        }
    }
    CHECK(visited == elements);
    for (int64_t e = 0; e < elements; e++) {
        uint64_t mix = 0;
        for (int o = 0; o < operands; o++) {
            int64_t rest = e, offset = 0;
            for (int i = rank - 1; i >= 0; i--) {
                offset += rest % shape[i] * strides[o][i];
                rest /= shape[i];
            }
            mix = mix * 1000003 + (uint64_t)(SPACE + offset);
        }
        expected_sum += mix * mix;
    }
    CHECK(sum == expected_sum);
}

/* Orders that matter: the output's shortest steps go inside; C order stays where it is asked for. */
static void check_order(void)
{
    static char space[4096];
    int64_t shape[2] = {8, 16}, rows[2] = {64, 4}, columns[2] = {4, 32}, back[2] = {-64, -4};
    char *data[2] = {space, space};
    vme_nest nest;
    vme_nest_make(&nest, VME_NEST_ANY, 2, shape, 2, (const int64_t *const[]){rows, columns}, data);
    CHECK(nest.rank == 2 && nest.loops[0].size == 16 && nest.loops[0].step[0] == 4 && nest.loops[0].step[1] == 32);
    vme_nest_make(&nest, VME_NEST_ANY, 2, shape, 2, (const int64_t *const[]){columns, columns}, data);
    CHECK(nest.rank == 1 && nest.loops[0].size == 128 && nest.loops[0].step[0] == 4);
    vme_nest_make(&nest, VME_NEST_ORDERED, 2, shape, 2, (const int64_t *const[]){columns, columns}, data);
    CHECK(nest.rank == 2 && nest.loops[0].size == 16);
    data[0] = data[1] = space + 4092;
    vme_nest_make(&nest, VME_NEST_ANY, 2, shape, 2, (const int64_t *const[]){back, back}, data);
    CHECK(nest.rank == 1 && nest.loops[0].step[0] == 4 && nest.data[0] == space + 4092 - 127 * 4);
    vme_nest_make(&nest, VME_NEST_ORDERED, 2, shape, 2, (const int64_t *const[]){back, back}, data);
    CHECK(nest.rank == 1 && nest.loops[0].step[0] == -4 && nest.data[0] == space + 4092);
}

int main(void)
{
    check_order();
    for (int i = 0; i < 20000; i++)
        check_one(i % 2 == 0 ? VME_NEST_ANY : VME_NEST_ORDERED);
    puts("nest: ok");
    return 0;
}
