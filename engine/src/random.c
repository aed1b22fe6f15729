/* Random words: Philox 4x64 of 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC '11, section 3.3),
 * the stream of numpy.random.Philox(key=key, counter=counter). A block of four words is a function of its number alone, so that
 * threads divide the stream at will. */
#include "random.h"

#include <string.h>

enum { ROUNDS = 10, BLOCKS_AT_ONCE = VME_PHILOX_WORDS / 4, PIECE = 16384 };

typedef struct stream {
    uint64_t key[ROUNDS][2];
    uint64_t counter[4];        /* before the first block: NumPy counts up before it makes one */
    uint64_t first;             /* number of the word that comes first */
    uint64_t *out;
} stream;

static void add_to_counter(const uint64_t counter[4], uint64_t number, uint64_t sum[4])
{
    sum[0] = counter[0] + number;
    bool carry = sum[0] < number;
    for (int i = 1; i < 4; i++) {
        sum[i] = counter[i] + carry;
        carry = carry && sum[i] == 0;
    }
}

/* Blocks `number` .. `number` + BLOCKS_AT_ONCE - 1, side by side, so that their multiplications overlap. */
static void make_blocks(const stream *s, uint64_t number, uint64_t out[BLOCKS_AT_ONCE][4])
{
    uint64_t x[4][BLOCKS_AT_ONCE];
    for (int b = 0; b < BLOCKS_AT_ONCE; b++) {
        uint64_t counter[4];
        add_to_counter(s->counter, number + (uint64_t)b + 1, counter);
        for (int i = 0; i < 4; i++)
            x[i][b] = counter[i];
    }
    for (int round = 0; round < ROUNDS; round++)
        for (int b = 0; b < BLOCKS_AT_ONCE; b++) {
            unsigned __int128 low = (unsigned __int128)x[0][b] * UINT64_C(0xD2E7470EE14C6C93);
            unsigned __int128 high = (unsigned __int128)x[2][b] * UINT64_C(0xCA5A826395121157);
            x[0][b] = (uint64_t)(high >> 64) ^ x[1][b] ^ s->key[round][0];
            x[2][b] = (uint64_t)(low >> 64) ^ x[3][b] ^ s->key[round][1];
            x[1][b] = (uint64_t)high;
            x[3][b] = (uint64_t)low;
        }
    for (int b = 0; b < BLOCKS_AT_ONCE; b++)
        for (int i = 0; i < 4; i++)
            out[b][i] = x[i][b];
}

static void schedule_keys(const uint64_t key[2], uint64_t keys[ROUNDS][2])
{
    for (int round = 0; round < ROUNDS; round++) {
        keys[round][0] = key[0] + (uint64_t)round * UINT64_C(0x9E3779B97F4A7C15);
        keys[round][1] = key[1] + (uint64_t)round * UINT64_C(0xBB67AE8584CAA73B);
    }
}

void vme_philox_blocks(const uint64_t key[2], const uint64_t counter[4], uint64_t words[VME_PHILOX_WORDS])
{
    stream s = {.counter = {counter[0], counter[1], counter[2], counter[3]}};
    uint64_t blocks[BLOCKS_AT_ONCE][4];
    schedule_keys(key, s.key);
    make_blocks(&s, 0, blocks);
    memcpy(words, blocks, sizeof blocks);
}

void vme_philox_advance(uint64_t counter[4], uint64_t blocks)
{
    uint64_t sum[4];
    add_to_counter(counter, blocks, sum);
    memcpy(counter, sum, sizeof sum);
}

static vme_status fill(void *argument, int64_t begin, int64_t end)
{
    const stream *s = argument;
    uint64_t blocks[BLOCKS_AT_ONCE][4];
    for (int64_t i = begin, n; i < end; i += n) {
        uint64_t word = s->first + (uint64_t)i, skipped = word % 4;
        make_blocks(s, word / 4, blocks);
        n = 4 * BLOCKS_AT_ONCE - (int64_t)skipped;
        if (n > end - i)
            n = end - i;
        memcpy(s->out + i, (const uint64_t *)blocks + skipped, (size_t)n * sizeof(uint64_t));
    }
    return VME_OK;
}

vme_status vme_philox(vme_context *context, const uint64_t key[2], const uint64_t counter[4], uint64_t first,
                      const vme_tensor *out)
{
    vme_status status = vme_check_output(out);
    if (status != VME_OK)
        return status;
    if (out->dtype != VME_UINT64 || !vme_is_contiguous(out))
        return vme_fail(VME_BAD_VALUE, "random words need a contiguous uint64 array");
    atomic_fetch_add_explicit(&context->operators, 1, memory_order_relaxed);
    stream s = {.counter = {counter[0], counter[1], counter[2], counter[3]}, .first = first, .out = (uint64_t *)out->data};
    schedule_keys(key, s.key);
    return vme_parallel(context, vme_elements(out), PIECE, fill, &s);
}
