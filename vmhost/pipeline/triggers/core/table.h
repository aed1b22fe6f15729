/* Hash tables over the records of a pool that grow by one bucket at a time (linear hashing: Litwin, 1980), so that no
 * insertion waits for a rehash. Heads are in segments that double and never move. If memory for a segment is missing,
 * the table becomes slower, not wrong. No Python in here. */
#ifndef VMT_TABLE_H
#define VMT_TABLE_H

#include "core/memory.h"

enum { VMT_FIRST_BITS = 6, VMT_SEGMENTS = 26 };

/* The first fields of each record in a table. */
typedef struct {
    uint32_t next, hash;
} vmt_linked;

typedef struct {
    uint32_t *segments[VMT_SEGMENTS];
    uint32_t buckets; /* in use; at most twice `level` */
    uint32_t level;   /* a power of two */
    uint32_t count;
    uint32_t per_record; /* buckets per record: the more, the fewer collisions */
    vmt_kind kind;
} vmt_table;

static inline uint32_t *vmt_table_bucket(const vmt_table *table, uint32_t bucket)
{
    unsigned bits = 31 - (unsigned)__builtin_clz(bucket | ((1u << VMT_FIRST_BITS) - 1));
    if (bits < VMT_FIRST_BITS)
        return &table->segments[0][bucket];
    return &table->segments[bits - VMT_FIRST_BITS + 1][bucket - (1u << bits)];
}

/* The first record that may have this hash; follow `next` for the others. */
static inline uint32_t vmt_table_first(const vmt_table *table, uint32_t hash)
{
    uint32_t bucket = hash & (2 * table->level - 1);
    if (bucket >= table->buckets)
        bucket &= table->level - 1;
    return *vmt_table_bucket(table, bucket);
}

bool vmt_table_begin(vmt_table *table, vmt_memory *memory, vmt_kind kind, uint32_t per_record);
/* The record's hash must be set. */
void vmt_table_put(vmt_table *table, vmt_pool *pool, vmt_memory *memory, uint32_t number);
void vmt_table_take(vmt_table *table, vmt_pool *pool, uint32_t number);
void vmt_table_end(vmt_table *table, vmt_memory *memory);

#endif
