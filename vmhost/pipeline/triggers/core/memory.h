/* Memory of an engine, counted by kind and refused above the kind's bound. Pools of records that never move: their
 * numbers stay valid while the engine lives. No Python in here. */
#ifndef VMT_MEMORY_H
#define VMT_MEMORY_H

#include "core/triggers.h"

typedef enum { VMT_OF_CONDITIONS, VMT_OF_MATCHES, VMT_OF_ENGINE, VMT_KINDS } vmt_kind;

typedef struct {
    vmt_allocate allocate;
    void *context;
    uint64_t bytes[VMT_KINDS], bounds[VMT_KINDS];
    bool bound_met; /* whether the last failed request hit the bound; otherwise the allocator failed */
} vmt_memory;

/* NULL if the allocator fails or the kind's bound is reached; `old` is then unchanged. Freeing never fails. */
void *vmt_resize(vmt_memory *memory, vmt_kind kind, void *old, size_t old_size, size_t new_size);

enum { VMT_CHUNK_BITS = 8, VMT_CHUNK = 1 << VMT_CHUNK_BITS, VMT_LINE = 64 };

/* Records of one size, in chunks. A record's first two numbers belong to the pool while it is free, and to a table
 * (table.h) while it is in use. Number 0 is none. Freed records are reused; memory is freed with the pool. */
typedef struct {
    char **chunks;
    uint32_t chunk_count, chunk_capacity;
    uint32_t size;  /* of a record */
    uint32_t begun; /* numbers below were given out at least once */
    uint32_t free;  /* list of freed records, linked by their first number */
    uint32_t live;
    vmt_kind kind;
} vmt_pool;

#define VMT_AT(type, pool, number) (&((type *)(pool)->chunks[(number) >> VMT_CHUNK_BITS])[(number) & (VMT_CHUNK - 1)])

void vmt_pool_begin(vmt_pool *pool, uint32_t size, vmt_kind kind);
/* 0 if out of memory. The record's contents are undefined. */
uint32_t vmt_pool_take(vmt_pool *pool, vmt_memory *memory);
void vmt_pool_give(vmt_pool *pool, uint32_t number);
void vmt_pool_end(vmt_pool *pool, vmt_memory *memory);

static inline void *vmt_pool_at(const vmt_pool *pool, uint32_t number)
{
    return pool->chunks[number >> VMT_CHUNK_BITS] + (size_t)(number & (VMT_CHUNK - 1)) * pool->size;
}

#endif
