#include "core/memory.h"

#include <string.h>

void *vmt_resize(vmt_memory *memory, vmt_kind kind, void *old, size_t old_size, size_t new_size)
{
    if (new_size > old_size && new_size - old_size > memory->bounds[kind] - memory->bytes[kind]) {
        memory->bound_met = true;
        return NULL;
    }
    if (old == NULL && new_size == 0)
        return NULL;
    void *given = memory->allocate(memory->context, old, old_size, new_size);
    if (given == NULL && new_size != 0) {
        memory->bound_met = false;
        return NULL;
    }
    memory->bytes[kind] += new_size - old_size;
    return given;
}

void vmt_pool_begin(vmt_pool *pool, uint32_t size, vmt_kind kind)
{
    *pool = (vmt_pool){.size = size, .begun = 1, .kind = kind};
}

/* A chunk is aligned to a cache line; the address of its allocation is stored before it where these differ. */
static size_t chunk_bytes(const vmt_pool *pool) { return (size_t)pool->size * VMT_CHUNK + VMT_LINE; }

static bool chunk_add(vmt_pool *pool, vmt_memory *memory)
{
    if (pool->chunk_count == pool->chunk_capacity) {
        uint32_t capacity = pool->chunk_capacity == 0 ? 4 : pool->chunk_capacity * 2;
        char **chunks = vmt_resize(memory, pool->kind, pool->chunks, pool->chunk_capacity * sizeof *chunks,
                                   capacity * sizeof *chunks);
        if (chunks == NULL)
            return false;
        pool->chunks = chunks;
        pool->chunk_capacity = capacity;
    }
    char *given = vmt_resize(memory, pool->kind, NULL, 0, chunk_bytes(pool));
    if (given == NULL)
        return false;
    uintptr_t past = (uintptr_t)given % VMT_LINE;
    char *chunk = given + (VMT_LINE - past);
    memcpy(chunk - sizeof given, &given, sizeof given);
    memset(chunk, 0, (size_t)pool->size * VMT_CHUNK);
    pool->chunks[pool->chunk_count++] = chunk;
    return true;
}

uint32_t vmt_pool_take(vmt_pool *pool, vmt_memory *memory)
{
    uint32_t number = pool->free;
    if (number != 0) {
        memcpy(&pool->free, vmt_pool_at(pool, number), sizeof pool->free);
    } else {
        if (pool->begun >> VMT_CHUNK_BITS >= pool->chunk_count
            && (pool->begun == UINT32_MAX || !chunk_add(pool, memory)))
            return 0;
        number = pool->begun++;
    }
    pool->live++;
    return number;
}

void vmt_pool_give(vmt_pool *pool, uint32_t number)
{
    memcpy(vmt_pool_at(pool, number), &pool->free, sizeof pool->free);
    pool->free = number;
    pool->live--;
}

void vmt_pool_end(vmt_pool *pool, vmt_memory *memory)
{
    for (uint32_t i = 0; i < pool->chunk_count; i++) {
        char *given;
        memcpy(&given, pool->chunks[i] - sizeof given, sizeof given);
        vmt_resize(memory, pool->kind, given, chunk_bytes(pool), 0);
    }
    vmt_resize(memory, pool->kind, pool->chunks, pool->chunk_capacity * sizeof *pool->chunks, 0);
}
