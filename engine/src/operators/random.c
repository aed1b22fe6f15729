/* Random words: Philox 4x64 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3, SC
 * '11, section 3.3), the stream of numpy.random.Philox(key=key, counter=counter). A block of four words depends only on
 * the key and the counter, so threads can divide the stream freely. */
#include "operators/random.h"

#include <string.h>

enum { ROUNDS = 10, BLOCKS_AT_ONCE = VME_PHILOX_WORDS / 4, PIECE = 16384 };

typedef struct stream {
    uint64_t key[2];
    uint64_t counter[4]; /* before the first block: NumPy increments the counter before it generates a block */
    uint64_t first;      /* number of the first word */
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

/* Two blocks at once: the multiplications of one overlap those of the other, and both fit in registers. */
static void generate_two_blocks(const uint64_t key[2], const uint64_t first[4], const uint64_t second[4],
                                uint64_t out[8])
{
    uint64_t a0 = first[0], a1 = first[1], a2 = first[2], a3 = first[3], b0 = second[0], b1 = second[1], b2 = second[2],
             b3 = second[3];
    uint64_t key0 = key[0], key1 = key[1];
    for (int round = 0; round < ROUNDS; round++) {
        unsigned __int128 low_a = (unsigned __int128)a0 * UINT64_C(0xD2E7470EE14C6C93),
                          high_a = (unsigned __int128)a2 * UINT64_C(0xCA5A826395121157);
        unsigned __int128 low_b = (unsigned __int128)b0 * UINT64_C(0xD2E7470EE14C6C93),
                          high_b = (unsigned __int128)b2 * UINT64_C(0xCA5A826395121157);
        a0 = (uint64_t)(high_a >> 64) ^ a1 ^ key0;
        a2 = (uint64_t)(low_a >> 64) ^ a3 ^ key1;
        b0 = (uint64_t)(high_b >> 64) ^ b1 ^ key0;
        b2 = (uint64_t)(low_b >> 64) ^ b3 ^ key1;
        a1 = (uint64_t)high_a;
        a3 = (uint64_t)low_a;
        b1 = (uint64_t)high_b;
        b3 = (uint64_t)low_b;
        key0 += UINT64_C(0x9E3779B97F4A7C15);
        key1 += UINT64_C(0xBB67AE8584CAA73B);
    }
    memcpy(out, (uint64_t[]){a0, a1, a2, a3, b0, b1, b2, b3}, 8 * sizeof *out);
}

void vme_philox_blocks(const uint64_t key[2], const uint64_t counter[4], uint64_t words[VME_PHILOX_WORDS])
{
    void (*blocks)(const uint64_t *, const uint64_t *, uint64_t *) = vme_kernels_current()->random.blocks;
    if (blocks != NULL && counter[0] < UINT64_MAX - BLOCKS_AT_ONCE) {
        blocks(key, counter, words);
        return;
    }
    for (uint64_t b = 0; b < BLOCKS_AT_ONCE; b += 2) {
        uint64_t first[4], second[4];
        add_to_counter(counter, b + 1, first);
        add_to_counter(counter, b + 2, second);
        generate_two_blocks(key, first, second, words + 4 * b);
    }
}

void vme_philox_advance(uint64_t counter[4], uint64_t blocks)
{
    uint64_t sum[4];
    add_to_counter(counter, blocks, sum);
    memcpy(counter, sum, sizeof sum);
}

static vme_status fill_words(void *argument, int64_t begin, int64_t end)
{
    const stream *s = argument;
    uint64_t words[VME_PHILOX_WORDS], counter[4];
    for (int64_t i = begin, n; i < end; i += n) {
        uint64_t word = s->first + (uint64_t)i, skipped = word % 4;
        add_to_counter(s->counter, word / 4, counter);
        n = VME_PHILOX_WORDS - (int64_t)skipped;
        if (n <= end - i && skipped == 0) {
            vme_philox_blocks(s->key, counter, s->out + i);
            continue;
        }
        if (n > end - i)
            n = end - i;
        vme_philox_blocks(s->key, counter, words);
        memcpy(s->out + i, words + skipped, (size_t)n * sizeof(uint64_t));
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
    stream s = {.key = {key[0], key[1]},
                .counter = {counter[0], counter[1], counter[2], counter[3]},
                .first = first,
                .out = (uint64_t *)out->data};
    return vme_parallel(context, vme_elements(out), PIECE, fill_words, &s);
}
