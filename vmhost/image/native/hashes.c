/* The hash functions behind CPython's own modules _md5, _sha1, _sha2, _sha3 and _blake2, from LibTomCrypt.
 *
 * CPython ships these functions as HACL*, whose objects are missing in Debian's libpython3.14.a. Here they have HACL*'s
 * names and signatures as CPython 3.14 calls them (Modules/_hacl), implemented by LibTomCrypt. A state is copied before
 * its digest is taken, so that more data can follow. "No memory" is the only possible error: the modules check lengths.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <tomcrypt.h>

/* The prototypes are in CPython headers that are not installed. */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"

#define HACL(NAME) _Py_LibHacl_Hacl_Hash_##NAME

typedef struct {
    hash_state tom;
    uint8_t kind; /* for SHA-3: see below */
    uint8_t key_bytes, digest_bytes;
    bool last_node;
} state;

static state *state_new(void) { return calloc(1, sizeof(state)); }

static state *state_copy(const state *from)
{
    state *copy = state_new();
    if (copy != NULL)
        *copy = *from;
    return copy;
}

#define COMMON(NAME, SUFFIX, PROCESS) \
    void HACL(NAME##_free##SUFFIX)(state * self) { free(self); } \
    state *HACL(NAME##_copy##SUFFIX)(const state *self) { return state_copy(self); } \
    uint8_t HACL(NAME##_update##SUFFIX)(state * self, const uint8_t *data, uint32_t size) \
    { \
        return size != 0 && PROCESS(&self->tom, data, size) != CRYPT_OK; \
    }
#define MAKE(NAME, INIT) \
    state *HACL(NAME)(void) \
    { \
        state *self = state_new(); \
        if (self != NULL) \
            INIT(&self->tom); \
        return self; \
    }
#define DIGEST(NAME, DONE) \
    void HACL(NAME)(const state *self, uint8_t *digest) \
    { \
        state last = *self; \
        DONE(&last.tom, digest); \
    }

COMMON(MD5, , md5_process)
MAKE(MD5_malloc, md5_init)
DIGEST(MD5_digest, md5_done)
COMMON(SHA1, , sha1_process)
MAKE(SHA1_malloc, sha1_init)
DIGEST(SHA1_digest, sha1_done)
/* SHA-224 and SHA-384 use the functions of SHA-256 and SHA-512; the caller takes the first bytes */
COMMON(SHA2, _256, sha256_process)
MAKE(SHA2_malloc_224, sha224_init)
MAKE(SHA2_malloc_256, sha256_init)
DIGEST(SHA2_digest_256, sha256_done)
COMMON(SHA2, _512, sha512_process)
MAKE(SHA2_malloc_384, sha384_init)
MAKE(SHA2_malloc_512, sha512_init)
DIGEST(SHA2_digest_512, sha512_done)

/* ---- SHA-3 ---- */

/* HACL*'s numbers of the algorithms. */
enum { SHA3_256 = 8, SHA3_224, SHA3_384, SHA3_512, SHAKE128, SHAKE256 };

COMMON(SHA3, , sha3_process)

state *HACL(SHA3_malloc)(uint8_t kind)
{
    state *self = state_new();
    if (self == NULL)
        return NULL;
    self->kind = kind;
    switch (kind) {
    case SHA3_224: sha3_224_init(&self->tom); break;
    case SHA3_256: sha3_256_init(&self->tom); break;
    case SHA3_384: sha3_384_init(&self->tom); break;
    case SHA3_512: sha3_512_init(&self->tom); break;
    default: sha3_shake_init(&self->tom, kind == SHAKE128 ? 128 : 256); break;
    }
    return self;
}

bool HACL(SHA3_is_shake)(const state *self) { return self->kind >= SHAKE128; }

uint32_t HACL(SHA3_hash_len)(const state *self)
{
    static const uint8_t bytes[] = {32, 28, 48, 64, 0, 0};
    return bytes[self->kind - SHA3_256];
}

uint32_t HACL(SHA3_block_len)(const state *self)
{
    static const uint8_t bytes[] = {136, 144, 104, 72, 168, 136};
    return bytes[self->kind - SHA3_256];
}

DIGEST(SHA3_digest, sha3_done)

uint8_t HACL(SHA3_squeeze)(const state *self, uint8_t *to, uint32_t size)
{
    state last = *self;
    return sha3_shake_done(&last.tom, to, size) != CRYPT_OK;
}

/* ---- BLAKE2 ---- */

typedef struct {
    uint8_t digest_length, key_length, fanout, depth;
    uint32_t leaf_length;
    uint64_t node_offset;
    uint8_t node_depth, inner_length;
    const uint8_t *salt, *personal;
} parameters;

typedef struct {
    uint8_t key_length, digest_length;
    bool last_node;
} blake2_index;

static void put(uint8_t *to, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        to[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t word(const uint8_t *from, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)from[i] << 8 * i;
    return value;
}

/* The parameter block (RFC 7693, section 2.5; BLAKE2, section 2.8): eight words of `bytes` each. */
static void block_of(const parameters *wanted, int bytes, uint8_t *block)
{
    memset(block, 0, (size_t)(8 * bytes));
    block[0] = wanted->digest_length;
    block[1] = wanted->key_length;
    block[2] = wanted->fanout;
    block[3] = wanted->depth;
    put(block + 4, wanted->leaf_length, 4);
    put(block + 8, wanted->node_offset, bytes == 8 ? 8 : 6);
    block[bytes == 8 ? 16 : 14] = wanted->node_depth;
    block[bytes == 8 ? 17 : 15] = wanted->inner_length;
    if (wanted->salt != NULL)
        memcpy(block + 4 * bytes, wanted->salt, (size_t)(2 * bytes));
    if (wanted->personal != NULL)
        memcpy(block + 6 * bytes, wanted->personal, (size_t)(2 * bytes));
}

/* LibTomCrypt starts with the plain parameters, which are replaced by the requested ones. */
#define BLAKE2(NAME, FUNCTIONS, FIELD, WORD_BYTES, BLOCK_BYTES) \
    COMMON(NAME, , FUNCTIONS##_process) \
    state *HACL(NAME##_malloc_with_params_and_key)(const parameters *wanted, bool last_node, const uint8_t *key) \
    { \
        uint8_t block[64], plain[64], padded[BLOCK_BYTES] = {0}; \
        state *self = state_new(); \
        if (self == NULL || FUNCTIONS##_init(&self->tom, wanted->digest_length, NULL, 0) != CRYPT_OK) { \
            free(self); \
            return NULL; \
        } \
        block_of(wanted, WORD_BYTES, block); \
        block_of(&(parameters){.digest_length = wanted->digest_length, .fanout = 1, .depth = 1}, WORD_BYTES, plain); \
        for (int i = 0; i < 8; i++) \
            self->tom.FIELD.h[i] ^= \
                word(block + i * WORD_BYTES, WORD_BYTES) ^ word(plain + i * WORD_BYTES, WORD_BYTES); \
        self->tom.FIELD.last_node = last_node; \
        self->key_bytes = wanted->key_length; \
        self->digest_bytes = wanted->digest_length; \
        self->last_node = last_node; \
        if (wanted->key_length != 0) { \
            memcpy(padded, key, wanted->key_length); \
            FUNCTIONS##_process(&self->tom, padded, BLOCK_BYTES); \
        } \
        return self; \
    } \
    uint8_t HACL(NAME##_digest)(const state *self, uint8_t *digest) \
    { \
        state last = *self; \
        FUNCTIONS##_done(&last.tom, digest); \
        return self->digest_bytes; \
    } \
    blake2_index HACL(NAME##_info)(const state *self) \
    { \
        return (blake2_index){self->key_bytes, self->digest_bytes, self->last_node}; \
    }

BLAKE2(Blake2b, blake2b, blake2b, 8, 128)
BLAKE2(Blake2s, blake2s, blake2s, 4, 64)
/* CPython calls these on CPUs with wide registers; the results are the same */
BLAKE2(Blake2b_Simd256, blake2b, blake2b, 8, 128)
BLAKE2(Blake2s_Simd128, blake2s, blake2s, 4, 64)
