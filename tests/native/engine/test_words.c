/* Bits packed and unpacked in rows of every length, and Philox's words, by each backend's kernels: against plain loops.
 */
#include <stdlib.h>
#include <string.h>

#include "../check.h"
#include "operators/random.h"
#include "vme_bits.h"

static uint64_t seed = 20261121;

static unsigned drawn(void)
{
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(seed >> 33);
}

static vme_tensor rows(vme_dtype dtype, const int64_t *shape, int64_t *strides, uint8_t *data)
{
    strides[1] = 1;
    strides[0] = shape[1];
    return (vme_tensor){.data = (char *)data, .shape = shape, .strides = strides, .rank = 2, .dtype = dtype};
}

static void check_bits(vme_context *context, int64_t truths, int64_t wanted, bool big)
{
    enum { ROWS = 3 };
    int64_t bytes = (truths + 7) / 8, strides[3][2];
    uint8_t *in = malloc((size_t)(ROWS * truths) + 1), *packed = malloc((size_t)(ROWS * bytes) + 1),
            *out = malloc((size_t)(ROWS * wanted) + 1);
    CHECK(in != NULL && packed != NULL && out != NULL);
    for (int64_t i = 0; i < ROWS * truths; i++)
        in[i] = drawn() % 2 ? (uint8_t)drawn() : 0;
    vme_tensor from = rows(VME_BOOL, (const int64_t[]){ROWS, truths}, strides[0], in);
    vme_tensor middle = rows(VME_UINT8, (const int64_t[]){ROWS, bytes}, strides[1], packed);
    vme_tensor to = rows(VME_UINT8, (const int64_t[]){ROWS, wanted}, strides[2], out);
    CHECK(vme_bits_pack(context, big, &from, &middle) == VME_OK);
    CHECK(vme_bits_unpack(context, big, &middle, &to) == VME_OK);
    for (int64_t row = 0; row < ROWS; row++) {
        for (int64_t i = 0; i < 8 * bytes; i++) {
            int bit = packed[row * bytes + i / 8] >> (big ? 7 - i % 8 : i % 8) & 1;
            CHECK(bit == (i < truths && in[row * truths + i] != 0));
        }
        for (int64_t i = 0; i < wanted; i++)
            CHECK(out[row * wanted + i] == (i < truths && in[row * truths + i] != 0));
    }
    free(in);
    free(packed);
    free(out);
}

/* A block as in the paper, one multiplication after the other. */
static void plain_block(const uint64_t key[2], const uint64_t counter[4], uint64_t words[4])
{
    uint64_t k0 = key[0], k1 = key[1], x[4];
    memcpy(x, counter, sizeof x);
    for (int round = 0; round < 10; round++, k0 += UINT64_C(0x9E3779B97F4A7C15), k1 += UINT64_C(0xBB67AE8584CAA73B)) {
        unsigned __int128 low = (unsigned __int128)x[0] * UINT64_C(0xD2E7470EE14C6C93),
                          high = (unsigned __int128)x[2] * UINT64_C(0xCA5A826395121157);
        uint64_t next[4] = {(uint64_t)(high >> 64) ^ x[1] ^ k0, (uint64_t)high, (uint64_t)(low >> 64) ^ x[3] ^ k1,
                            (uint64_t)low};
        memcpy(x, next, sizeof x);
    }
    memcpy(words, x, sizeof x);
}

static void check_words(const uint64_t counter[4])
{
    uint64_t key[2] = {(uint64_t)drawn() << 33 ^ drawn(), (uint64_t)drawn() << 33 ^ drawn()}, words[VME_PHILOX_WORDS],
             next[4], block[4];
    vme_philox_blocks(key, counter, words);
    memcpy(next, counter, sizeof next);
    for (int i = 0; i < VME_PHILOX_WORDS / 4; i++) {
        vme_philox_advance(next, 1);
        plain_block(key, next, block);
        CHECK(memcmp(words + 4 * i, block, sizeof block) == 0);
    }
}

int main(void)
{
    vme_context *context;
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    for (int backend = 0; backend < vme_backend_count(); backend++) {
        if (!vme_backend_available(backend))
            continue;
        CHECK(vme_backend_force(backend) == VME_OK);
        for (int64_t truths = 0; truths < 200; truths++)
            for (int big = 0; big < 2; big++)
                check_bits(context, truths, drawn() % 2 ? truths : (int64_t)(drawn() % 250), big);
        for (uint64_t from = 0; from < 40; from++) { /* over the end of the counter's words as well */
            check_words((const uint64_t[4]){from, 1, 2, 3});
            check_words((const uint64_t[4]){UINT64_MAX - from, UINT64_MAX, from, UINT64_MAX});
            check_words((const uint64_t[4]){UINT64_MAX - from, UINT64_MAX, UINT64_MAX, UINT64_MAX});
        }
    }
    vme_context_unref(context);
    return 0;
}
