/* Internals of an engine: a trie of conditions (trie.c), the matches under way in it (matches.c), and the processing of
 * an event (feed.c). No Python in here.
 *
 *     symbol "page:item" --root--> node 1 --gap, symbol "page_exit"--> node 2 : output of condition "ipv"
 *     visit "v17": [ match at node 1, begun at position 4711 ]
 *
 * The static pending list is the root's children: each symbol has its own. The dynamic one is the matches of a visit;
 * each has a mask of the symbols that it waits for. */
#ifndef VMT_ENGINE_H
#define VMT_ENGINE_H

#include "core/memory.h"
#include "core/table.h"

enum { VMT_LEVELS = 2 };
#define VMT_NO_LIMIT UINT32_MAX

/* The name of an event or the id of a page, kept while a condition uses it. */
typedef struct {
    vmt_linked linked;
    uint64_t hash;
    char *text;
    uint32_t size;
    uint16_t form;
    bool page;
    uint32_t uses;                  /* number of nodes */
    uint32_t root[VMT_LEVELS];      /* the root's child; 0: none */
    uint32_t gap_nodes[VMT_LEVELS]; /* list of nodes that it leads to over a gap */
    uint32_t gap_node_count[VMT_LEVELS];
} vmt_symbol;

/* A node of the trie: what was matched on the way from the root. A match may still refer to a freed node, and then to
 * the next use of the record. That is harmless: every condition there is younger than the match. */
typedef struct {
    vmt_linked linked;
    uint32_t parent; /* 0: the root */
    uint32_t symbol; /* 0: freed */
    uint32_t outputs;
    uint32_t strict_children, gap_children;
    uint32_t strict_mask, gap_mask; /* of the children's symbols; a clear bit means: not a child */
    uint32_t within_ms;             /* the largest limit of conditions from here on; VMT_NO_LIMIT: one has none */
    uint32_t gap_next, gap_previous;
    bool gap;
    uint8_t level;
    uint32_t waiting; /* scratch of vmt_explain */
    uint32_t spare;   /* pads a node to a cache line */
} vmt_node;

/* The end of one sequence. */
typedef struct {
    vmt_linked linked; /* next: the next output of the node */
    uint32_t previous; /* the output of the node before; 0: this is the first */
    uint32_t node, condition;
    uint32_t of_condition; /* next output of its condition */
} vmt_output;

typedef struct {
    vmt_linked linked;
    uint64_t hash, within_ms; /* 0: no limit */
    int64_t since;            /* only matches that began after this position count */
    uint64_t fired, last_event;
    void *token;
    char *key;
    uint32_t size;
    uint16_t form;
    uint8_t level;
    uint32_t outputs, output_count;
    uint32_t place; /* index in `fired`, if last_event is the current event */
} vmt_record;

/* A match under way. */
typedef struct {
    uint32_t node;
    uint32_t mask;  /* the node's when the match got there; children added later are younger than the match */
    int64_t start;  /* position */
    uint64_t begun; /* by the engine's clock */
} vmt_match;

/* Matches of one visit, or of the time level. `matches` has `capacity` entries: matches that wait over a gap are at its
 * begin, those that wait for the next event at its end. A visit without matches is freed. */
typedef struct {
    vmt_linked linked;
    uint64_t first, second; /* fingerprint of the visit's id */
    uint32_t older, newer;  /* list of visits in order of their last event */
    uint32_t gap_count, strict_count;
    uint32_t capacity; /* 0: freed */
    uint32_t level;
    union {
        vmt_match own; /* capacity 1 */
        struct {
            vmt_match *matches;
            uint32_t *index; /* from VMT_INDEXED on: gap matches by node; indices from 1; twice the capacity */
        } many;
    };
} vmt_visit;

/* At most 65,536 matches are copied when a visit's memory grows: a fraction of a millisecond. */
enum { VMT_INDEXED = 128, VMT_VISIT_MATCHES = 131072 };

typedef struct {
    uint32_t node;
    int64_t start;
    uint64_t begun;
} vmt_reached;

struct vmt_engine {
    vmt_memory memory;
    vmt_settings settings;
    vmt_pool symbols, nodes, outputs, conditions, visits;
    vmt_table symbols_by_text, nodes_by_edge, conditions_by_key, visits_by_id;
    vmt_visit all; /* the time level */
    uint32_t level_conditions[VMT_LEVELS];
    uint32_t oldest, newest; /* visits */
    uint32_t visit_limit;    /* visits may take half of the matches' memory, so that large ones can grow */
    uint32_t hand;           /* where vmt_advance continues */
    uint64_t matches;
    uint64_t clock, ahead; /* clock: the latest time plus all that the device's clock was set back (`ahead`) */
    vmt_fired *fired;      /* room for all conditions */
    uint32_t fired_capacity;
    uint32_t fired_count;
    vmt_reached *reached; /* nodes that the current event led to, where a match waits */
    uint32_t reached_capacity, reached_count;
    vmt_statistics totals;
};

static inline vmt_symbol *vmt_symbol_at(const vmt_engine *engine, uint32_t number)
{
    return VMT_AT(vmt_symbol, &engine->symbols, number);
}

static inline vmt_node *vmt_node_at(const vmt_engine *engine, uint32_t number)
{
    return VMT_AT(vmt_node, &engine->nodes, number);
}

static inline vmt_output *vmt_output_at(const vmt_engine *engine, uint32_t number)
{
    return VMT_AT(vmt_output, &engine->outputs, number);
}

static inline vmt_record *vmt_record_at(const vmt_engine *engine, uint32_t number)
{
    return VMT_AT(vmt_record, &engine->conditions, number);
}

static inline vmt_visit *vmt_visit_at(const vmt_engine *engine, uint32_t number)
{
    return VMT_AT(vmt_visit, &engine->visits, number);
}

static inline uint32_t vmt_fold(uint64_t hash) { return (uint32_t)(hash ^ hash >> 32); }

static inline uint32_t vmt_bit(uint32_t symbol) { return 1u << (symbol & 31); }

static inline bool vmt_too_old(const vmt_engine *engine, uint64_t begun, uint64_t within_ms)
{
    return engine->clock - begun >= within_ms;
}

/* ---- trie.c */

uint32_t vmt_symbol_find(const vmt_engine *engine, const vmt_text *text, bool page);

/* Children of one node hash to neighbouring buckets, so that those of the busiest nodes share cache lines. */
static inline uint32_t vmt_edge_hash(uint32_t parent, uint32_t symbol, bool gap)
{
    uint64_t mixed = ((uint64_t)parent << 1 | gap) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(mixed >> 32) + symbol;
}

/* The child under this symbol; 0: none. */
static inline uint32_t vmt_child(const vmt_engine *engine, uint32_t parent, uint32_t symbol, bool gap)
{
    uint32_t number = vmt_table_first(&engine->nodes_by_edge, vmt_edge_hash(parent, symbol, gap));
    while (number != 0) {
        const vmt_node *node = vmt_node_at(engine, number);
        if (node->parent == parent && node->symbol == symbol && node->gap == gap)
            return number;
        number = node->linked.next;
    }
    return 0;
}

uint32_t vmt_condition_find(const vmt_engine *engine, const vmt_text *key);

/* ---- matches.c */

static inline vmt_match *vmt_matches(vmt_visit *visit)
{
    return visit->capacity == 1 ? &visit->own : visit->many.matches;
}

typedef struct {
    uint64_t first, second;
} vmt_fingerprint;

vmt_fingerprint vmt_fingerprint_of(const vmt_engine *engine, const vmt_text *visit);
uint32_t vmt_visit_find(const vmt_engine *engine, vmt_fingerprint id);
/* 0 if it does not fit even after older visits were given up. */
uint32_t vmt_visit_new(vmt_engine *engine, vmt_fingerprint id);
/* The caller counts its matches. */
void vmt_visit_drop(vmt_engine *engine, uint32_t number);
/* Makes the visit the newest. */
void vmt_visit_touch(vmt_engine *engine, uint32_t number);
/* The index of the gap match at the node; UINT32_MAX: none. */
uint32_t vmt_match_find(vmt_visit *visit, uint32_t node);
/* Removes the matches that wait for the next event, and adds those that were reached. Those that do not fit are counted
 * as dropped. `number`: the visit's; 0 for the time level. */
void vmt_visit_settle(vmt_engine *engine, vmt_visit *visit, uint32_t number);
/* Removes gap matches that are too old or whose conditions are gone. */
void vmt_visit_sweep(vmt_engine *engine, vmt_visit *visit);
void vmt_visit_free(vmt_engine *engine, vmt_visit *visit);

#endif
