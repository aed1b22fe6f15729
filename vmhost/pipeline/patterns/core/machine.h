/* Internals of the matcher: rules and an index of names (rules.c), conditions (conditions.c), the shared buffer of
 * events (buffer.c), matches under way (matching.c), snapshots (snapshot.c). No Python in here.
 *
 *     event 71 "cart" of key "ann" --index--> rule 3 --(key, rule)--> instance: matches under way, a heap by begin
 *     match: state, last node --previous--> node --previous--> node of its first event; nodes --> events
 *
 * A match's history is its last node: nodes never change, and matches that branch share their common part. This
 * replaces Flink's versions of edges. Nodes and events are reference-counted. */
#ifndef VMP_MACHINE_H
#define VMP_MACHINE_H

#include "core/memory.h"
#include "core/patterns.h"
#include "core/table.h"

#define VMP_NEVER    INT64_MAX
#define VMP_NO_ORDER UINT64_MAX /* order of the match that has not begun: after all others */

/* The name of an event, kept while a rule uses it. */
typedef struct {
    vmt_linked linked;
    vmt_text text; /* owned */
    uint32_t uses;
    uint32_t begin_count, begin_capacity;
    uint32_t *begins; /* numbers of the rules that it may begin */
} vmp_name;

/* A predicate of a rule, with its result for the event numbered `seen`. */
typedef struct {
    bool named, gathers, truth;
    uint32_t name, first, count;
    uint64_t seen;
} vmp_test;

/* A rule; its arrays are in one block of memory. */
typedef struct {
    vmt_linked linked;
    vmt_text key;
    uint64_t fingerprint, shape, mask, stamp, block_size;
    void *token;
    char *block;
    uint8_t space, skip;
    bool loud, quiet, goes_on, begins_any, listens_any;
    uint16_t skip_step, start;
    uint32_t state_count, test_count, name_count, keep_count;
    uint32_t instances;
    int64_t within_ms;
    vmp_state *states;
    uint32_t *first_edge; /* of each state; one more entry ends the last */
    vmp_edge *edges;
    uint16_t *takes; /* step of each edge's state */
    uint32_t *first_code;
    int16_t *codes;
    vmp_test *tests;
    vmp_op *operations;
    vmp_value *constants;
    uint32_t *names; /* used by it, those of `begins` first */
    uint32_t begin_count;
    uint32_t *keeps;
} vmp_rule;

typedef struct {
    uint32_t field;
    vmp_value value;
} vmp_kept;

/* An event taken by matches, with the fields that conditions look back at. */
typedef struct {
    uint32_t references;
    uint32_t kept_count, kept_size;
    vmp_kept *kept; /* followed by their texts, in one block */
    int64_t id, time_ms;
    uint64_t order;
} vmp_taken;

typedef struct {
    uint32_t references, previous, event;
    uint16_t step;
    uint32_t depth;
} vmp_node;

/* A match under way. */
typedef struct {
    uint32_t node; /* 0: not begun */
    uint16_t state;
    int64_t start_ms, previous_ms;
    uint64_t order; /* that of its first event */
} vmp_match;

typedef struct {
    vmp_match *matches;
    uint32_t count, capacity;
} vmp_heap;

/* The matches of one rule and key; freed when none is under way. */
typedef struct {
    uint32_t free;      /* used by the pool */
    uint32_t rule;      /* 0: freed */
    uint32_t key, slot; /* slot: index in the key's `open` */
    uint32_t timer;     /* index in the timers, from 1; 0: none */
    int64_t deadline;
    vmp_heap under_way, complete;
} vmp_instance;

/* An instance's deadline, copied so that finding the next one does not touch instances. */
typedef struct {
    int64_t deadline;
    uint32_t instance;
} vmp_timer;

typedef struct {
    uint64_t mask; /* bits of the names that the rule listens to */
    uint32_t instance, rule;
} vmp_open;

typedef struct {
    vmt_linked linked;
    vmt_text text; /* owned */
    uint8_t space;
    uint32_t older, newer; /* list of keys in order of their last event */
    uint32_t open_count, open_capacity;
    vmp_open *open;
} vmp_key;

struct vmp_engine {
    vmt_memory memory;
    vmp_settings settings;
    vmt_pool names, rules, keys, instances, nodes, events;
    vmt_table names_by_text, rules_by_key, keys_by_text;
    uint32_t space_rules[VMP_SPACES];
    uint32_t *any_begins; /* rules that any event may begin */
    uint32_t any_count, any_capacity;
    uint32_t any_listens;    /* number of rules that listen to all names */
    uint32_t oldest, newest; /* keys */
    vmp_timer *timers;       /* a heap by deadline */
    uint32_t timer_count, timer_capacity;
    uint32_t kept_fields[64]; /* fields kept by some rule */
    uint32_t kept_uses[64];
    uint32_t kept_count;
    uint64_t order; /* that of the last event */
    /* the current event */
    const vmp_event *event;
    uint32_t taken; /* its record; 0: not taken yet */
    uint32_t name;  /* 0: no rule uses it */
    uint32_t busy;  /* the key being processed, which must not be given up */
    bool started;
    vmp_value *fields;
    uint64_t *field_seen;
    uint32_t field_capacity;
    /* scratch; it grows when rules are added, or before conditions are evaluated */
    vmp_heap next, found, complete;
    vmp_match *outcomes;
    uint32_t outcome_count, outcome_capacity;
    uint32_t *ways; /* edges that an event may follow, and states still to be visited */
    uint32_t way_capacity;
    uint16_t *looks;
    uint32_t look_capacity;
    uint32_t *path; /* nodes of one match */
    uint32_t path_capacity;
    vmp_result *results;
    vmp_item *items;
    uint32_t result_count, result_capacity, item_count, item_capacity;
    vmp_statistics totals;
};

static inline vmp_name *vmp_name_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_name, &engine->names, number);
}

static inline vmp_rule *vmp_rule_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_rule, &engine->rules, number);
}

static inline vmp_key *vmp_key_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_key, &engine->keys, number);
}

static inline vmp_instance *vmp_instance_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_instance, &engine->instances, number);
}

static inline vmp_node *vmp_node_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_node, &engine->nodes, number);
}

static inline vmp_taken *vmp_taken_at(const vmp_engine *engine, uint32_t number)
{
    return VMT_AT(vmp_taken, &engine->events, number);
}

static inline uint32_t vmp_text_hash(const vmt_text *text) { return (uint32_t)(text->hash ^ text->hash >> 32); }

static inline uint64_t vmp_bit(uint32_t name) { return UINT64_C(1) << (name & 63); }

/* Whether `a` began first; at equal times, the order of the events' arrival decides. */
static inline bool vmp_earlier(const vmp_match *a, const vmp_match *b)
{
    return a->start_ms != b->start_ms ? a->start_ms < b->start_ms : a->order < b->order;
}

/* A field of the current event. */
static inline vmp_value vmp_field(vmp_engine *engine, uint32_t number)
{
    if (engine->field_seen[number] != engine->order) {
        engine->fields[number] = engine->event->field(engine->event->context, number);
        engine->field_seen[number] = engine->order;
    }
    return engine->fields[number];
}

/* ---- rules.c */

uint32_t vmp_name_find(const vmp_engine *engine, const vmt_text *text);
uint32_t vmp_rule_find(const vmp_engine *engine, const vmt_text *key);
/* Sets the text's hash; `form` is ignored. */
void vmp_text_rehash(const vmp_engine *engine, vmt_text *text);
bool vmp_text_equal(const vmt_text *a, const vmt_text *b);
/* Copies the bytes; the owner frees them with `vmp_text_free`. */
bool vmp_text_copy(vmp_engine *engine, vmt_kind kind, vmt_text *to, const vmt_text *from);
void vmp_text_free(vmp_engine *engine, vmt_kind kind, vmt_text *text);
/* Makes room for `wanted` items of `size` bytes; false if out of memory. */
bool vmp_reserve(vmp_engine *engine, vmt_kind kind, void *items, uint32_t *capacity, uint32_t wanted, size_t size);

/* ---- buffer.c */

/* A node after `previous` (0: none) for the current event; the caller owns one reference. 0: no memory. */
uint32_t vmp_node_new(vmp_engine *engine, uint32_t previous, uint16_t step);
void vmp_node_keep(vmp_engine *engine, uint32_t node);
void vmp_node_release(vmp_engine *engine, uint32_t node);
void vmp_event_release(vmp_engine *engine, uint32_t event);
/* Memory for matches. Where its bound is reached, the key without an event for longest gives up its matches. */
void *vmp_match_memory(vmp_engine *engine, void *old, size_t old_size, size_t new_size);
uint32_t vmp_match_record(vmp_engine *engine, vmt_pool *pool);

/* ---- conditions.c */

/* Whether the codes hold for the current event and a match whose last node is `node`. */
bool vmp_holds(vmp_engine *engine, vmp_rule *rule, const int16_t *codes, uint32_t count, uint32_t node);
vmp_value vmp_run(vmp_engine *engine, const vmp_rule *rule, const vmp_test *test, uint32_t node);

/* ---- matching.c */

bool vmp_heap_push(vmp_engine *engine, vmp_heap *heap, const vmp_match *match);
uint32_t vmp_key_find(const vmp_engine *engine, unsigned space, const vmt_text *text);
/* Finds or makes the key; 0: no memory. */
uint32_t vmp_key_take(vmp_engine *engine, unsigned space, const vmt_text *text);
void vmp_key_drop(vmp_engine *engine, uint32_t key, uint64_t *counter);
void vmp_key_free_if_empty(vmp_engine *engine, uint32_t key);
/* An instance without matches; 0: no memory. */
uint32_t vmp_instance_new(vmp_engine *engine, uint32_t rule, uint32_t key);
void vmp_instance_drop(vmp_engine *engine, uint32_t instance, uint64_t *counter);
void vmp_instance_schedule(vmp_engine *engine, uint32_t instance);

#endif
