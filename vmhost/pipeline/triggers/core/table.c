#include "core/table.h"

#include <string.h>

static size_t segment_bytes(unsigned segment)
{
    unsigned bits = segment == 0 ? VMT_FIRST_BITS : segment - 1 + VMT_FIRST_BITS;
    return sizeof(uint32_t) << bits;
}

bool vmt_table_begin(vmt_table *table, vmt_memory *memory, vmt_kind kind, uint32_t per_record)
{
    *table = (vmt_table){
        .kind = kind, .per_record = per_record, .buckets = 1u << VMT_FIRST_BITS, .level = 1u << VMT_FIRST_BITS};
    table->segments[0] = vmt_resize(memory, kind, NULL, 0, segment_bytes(0));
    if (table->segments[0] == NULL)
        return false;
    memset(table->segments[0], 0, segment_bytes(0));
    return true;
}

/* Splits one bucket in two. */
static bool split(vmt_table *table, vmt_pool *pool, vmt_memory *memory)
{
    uint32_t fresh = table->buckets;
    unsigned segment = 31 - (unsigned)__builtin_clz(fresh) - VMT_FIRST_BITS + 1;
    if (segment >= VMT_SEGMENTS)
        return false;
    if (table->segments[segment] == NULL) {
        table->segments[segment] = vmt_resize(memory, table->kind, NULL, 0, segment_bytes(segment));
        if (table->segments[segment] == NULL)
            return false;
    }
    uint32_t *low = vmt_table_bucket(table, fresh - table->level), *high = vmt_table_bucket(table, fresh);
    uint32_t number = *low;
    *low = *high = 0;
    while (number != 0) {
        vmt_linked *record = vmt_pool_at(pool, number);
        uint32_t next = record->next, *to = record->hash & table->level ? high : low;
        record->next = *to;
        *to = number;
        number = next;
    }
    if (++table->buckets == 2 * table->level)
        table->level *= 2;
    return true;
}

void vmt_table_put(vmt_table *table, vmt_pool *pool, vmt_memory *memory, uint32_t number)
{
    table->count++;
    uint32_t wanted = table->count <= UINT32_MAX / table->per_record ? table->count * table->per_record : UINT32_MAX;
    for (uint32_t i = 0; i <= table->per_record && table->buckets < wanted && split(table, pool, memory); i++)
        ;
    vmt_linked *record = vmt_pool_at(pool, number);
    uint32_t bucket = record->hash & (2 * table->level - 1);
    if (bucket >= table->buckets)
        bucket &= table->level - 1;
    uint32_t *head = vmt_table_bucket(table, bucket);
    record->next = *head;
    *head = number;
}

void vmt_table_take(vmt_table *table, vmt_pool *pool, uint32_t number)
{
    vmt_linked *record = vmt_pool_at(pool, number);
    uint32_t bucket = record->hash & (2 * table->level - 1);
    if (bucket >= table->buckets)
        bucket &= table->level - 1;
    uint32_t *link = vmt_table_bucket(table, bucket);
    while (*link != number)
        link = &((vmt_linked *)vmt_pool_at(pool, *link))->next;
    *link = record->next;
    table->count--;
}

void vmt_table_end(vmt_table *table, vmt_memory *memory)
{
    for (unsigned i = 0; i < VMT_SEGMENTS; i++)
        if (table->segments[i] != NULL)
            vmt_resize(memory, table->kind, table->segments[i], segment_bytes(i), 0);
}
