/* What an engine is made of: a trie of conditions (trie.c), the matches under way in it (matches.c), and an event's way
 * through both (feed.c). No Python in here.
 *
 *     symbol "page:item" --root--> node 1 --gap, symbol "page_exit"--> node 2 : output of condition "ipv"
 *     visit "v17": [ match at node 1, begun at position 4711 ]
 *
 * The static pending list are the root's children: each symbol knows its own. The dynamic one are the matches of a
 * visit; each has a mask of the symbols that it waits for. */
#ifndef VMT_ENGINE_H
#define VMT_ENGINE_H

#include "core/memory.h"
#include "core/table.h"

enum { VMT_LEVELS = 2 };
#define VMT_NO_LIMIT UINT32_MAX

/* The name of an event or the id of a page, while a condition uses it. */
typedef struct {
    vmt_linked linked;
    uint64_t hash;
    char *text;
    uint32_t size;
    uint16_t form;
    bool page;
    uint32_t uses;                  /* nodes */
    uint32_t root[VMT_LEVELS];      /* the root's child, 0: none */
    uint32_t gap_nodes[VMT_LEVELS]; /* nodes that are reached by it over a gap: a list */
    uint32_t gap_node_count[VMT_LEVELS];
} vmt_symbol;

/* A node of the trie: what has been matched on the way from the root. A match may still stand at a node that was freed,
 * and is then at whatever the record is used for next. That is harmless: every condition there is younger than the
 * match. */
typedef struct {
    vmt_linked linked;
    uint32_t parent; /* 0: the root */
    uint32_t symbol; /* 0: freed */
    uint32_t outputs;
    uint32_t strict_children, gap_children;
    uint32_t strict_mask, gap_mask; /* of the children's symbols: a bit that is not set is not one of them */
    uint32_t within_ms;             /* no condition from here on allows more; VMT_NO_LIMIT: one has no limit */
    uint32_t gap_next, gap_previous;
    bool gap;
    uint8_t level;
    uint32_t waiting; /* explain's */
    uint32_t spare;   /* a node fills a line of the cache */
} vmt_node;

/* The end of one sequence. */
typedef struct {
    vmt_linked linked; /* next: at the same node */
    uint32_t previous; /* at the same node; 0: the first */
    uint32_t node, condition;
    uint32_t of_condition; /* the next of its condition */
} vmt_output;

typedef struct {
    vmt_linked linked;
    uint64_t hash, within_ms; /* 0: no limit */
    int64_t since;            /* matches that began after this position count */
    uint64_t fired, last_event;
    void *token;
    char *key;
    uint32_t size;
    uint16_t form;
    uint8_t level;
    uint32_t outputs, output_count;
    uint32_t place; /* among what the last event fired, where last_event is it */
} vmt_record;

/* A match under way. */
typedef struct {
    uint32_t node;
    uint32_t mask;  /* the node's, when the match came there: children that came later are younger than the match */
    int64_t start;  /* position */
    uint64_t begun; /* the engine's clock */
} vmt_match;

/* Matches of one visit, or of the time level. `matches` has room for `capacity`: those that wait over a gap are at its
 * begin, those that wait for the next event at its end. A visit without any is freed. */
typedef struct {
    vmt_linked linked;
    uint64_t first, second; /* fingerprint of the visit's id */
    uint32_t older, newer;  /* in order of their last event */
    uint32_t gap_count, strict_count;
    uint32_t capacity; /* 0: freed */
    uint32_t level;
    union {
        vmt_match own; /* capacity 1 */
        struct {
            vmt_match *matches;
            uint32_t *index; /* from VMT_INDEXED on: places of matches over a gap by node, from 1, twice the capacity */
        } many;
    };
} vmt_visit;

/* Up to 65,536 matches are copied at once where a visit's memory grows: a fraction of a millisecond. */
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
    uint32_t visit_limit;    /* they take half of what matches may take, so that large ones can grow */
    uint32_t hand;           /* of vmt_advance */
    uint64_t matches;
    uint64_t clock, ahead; /* clock = the latest time, plus what the clock of the device has been set back */
    vmt_fired *fired;      /* room for all conditions */
    uint32_t fired_capacity;
    uint32_t fired_count;
    vmt_reached *reached; /* nodes that the event has led to and where a match waits */
    uint32_t reached_capacity, reached_count;
    vmt_statistics told;
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

/* Children of one node are neighbours in the table: those of the few nodes where most matches are share lines. */
static inline uint32_t vmt_edge_hash(uint32_t parent, uint32_t symbol, bool gap)
{
    uint64_t mixed = ((uint64_t)parent << 1 | gap) * UINT64_C(0x9E3779B97F4A7C15);
    return (uint32_t)(mixed >> 32) + symbol;
}

/* The child that the symbol leads to; 0: none. */
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
/* 0 where it does not fit, older visits given up. */
uint32_t vmt_visit_new(vmt_engine *engine, vmt_fingerprint id);
/* Its matches are the caller's to count. */
void vmt_visit_drop(vmt_engine *engine, uint32_t number);
/* It has had an event. */
void vmt_visit_touch(vmt_engine *engine, uint32_t number);
/* The place of the match over a gap at the node; UINT32_MAX: none. */
uint32_t vmt_match_find(vmt_visit *visit, uint32_t node);
/* Takes the matches that wait for the next event away, and puts in those that were reached. Those that do not fit are
 * counted as dropped. `number`: the visit's, 0 for the time level. */
void vmt_visit_settle(vmt_engine *engine, vmt_visit *visit, uint32_t number);
/* Takes matches over a gap away that are too old or whose conditions are gone. */
void vmt_visit_sweep(vmt_engine *engine, vmt_visit *visit);
void vmt_visit_free(vmt_engine *engine, vmt_visit *visit);

#endif
