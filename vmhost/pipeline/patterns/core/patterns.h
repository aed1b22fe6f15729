/* The pattern matcher: which runs of events match rules? No Python in here.
 *
 * A rule is an automaton (automaton.py makes it) whose edges have conditions over an event and over what a match has
 * taken before. Events come with a key of each space (whose event it is, which visit); a rule looks at the events of
 * one key apart from those of others. docs/patterns.md has the meaning, docs/decisions/patterns.md the way.
 *
 * An engine belongs to one thread at a time. Evaluating conditions allocates nothing. */
#ifndef VMP_PATTERNS_H
#define VMP_PATTERNS_H

#include "core/triggers.h"

typedef struct vmp_engine vmp_engine;

typedef enum {
    VMP_OK,
    VMP_NO_MEMORY,
    VMP_FULL,    /* rules would take more than their share of max_bytes */
    VMP_KNOWN,   /* there is a rule with this key */
    VMP_UNKNOWN, /* there is none */
    VMP_BAD,     /* a description that contradicts itself, or a snapshot that is damaged */
    VMP_MISSED,  /* a match without the step that `skip` names, or that would skip to its own first event */
} vmp_status;

/* Texts are UTF-8; the matcher hashes them itself, and looks at size and data alone. */

/* ---- values */

/* NONE: missing. FAILED: what an expression gives that cannot be evaluated. */
typedef enum {
    VMP_NONE,
    VMP_FAILED,
    VMP_NULL,
    VMP_BOOL,
    VMP_INT,
    VMP_UINT,
    VMP_DOUBLE,
    VMP_TEXT,
    VMP_BYTES,
    VMP_OTHER
} vmp_kind;

typedef struct {
    uint8_t kind;
    uint32_t size; /* of texts (UTF-8) and bytes */
    union {
        bool truth;
        int64_t whole;
        uint64_t natural;
        double real;
        const char *text; /* not zero-terminated; the giver's */
    };
} vmp_value;

/* ---- programs: postfix, over a stack of VMP_STACK values */

#define VMP_OPERATIONS(ROW) \
    ROW(CONSTANT) /* pushes constant a */ \
    ROW(FIELD)    /* pushes field a of the event; NONE where it is missing */ \
    ROW(HAS)      /* pushes whether the event has field a */ \
    ROW(GATHER)   /* pushes what the match has taken at step b, gathered by kind c, of field a (NO_FIELD: none) */ \
    ROW(COMPARE)  /* simple: compares by a (order of conditions.OPERATORS); a missing value never compares */ \
    ROW(PLUS)     /* simple: the sum of two numbers; NONE otherwise */ \
    ROW(EQ)       /* CEL's from here on */ \
    ROW(NE) \
    ROW(LT) \
    ROW(LE) \
    ROW(GT) \
    ROW(GE) \
    ROW(ADD) \
    ROW(SUBTRACT) \
    ROW(MULTIPLY) \
    ROW(DIVIDE) \
    ROW(MODULO) \
    ROW(NEGATE) \
    ROW(NOT) \
    ROW(AND) \
    ROW(OR) \
    ROW(CHOOSE) \
    ROW(IN) /* the value below a values is one of them */ \
    ROW(SIZE) \
    ROW(CONTAINS) \
    ROW(STARTS_WITH) \
    ROW(ENDS_WITH) \
    ROW(TO_INT) \
    ROW(TO_UINT) \
    ROW(TO_DOUBLE) \
    ROW(TO_DYN) \
    ROW(KIND_IS) /* whether the value is of vmp_kind a; FAILED stays */

#define VMP_ENUM_ROW(name) VMP_##name,
typedef enum { VMP_OPERATIONS(VMP_ENUM_ROW) VMP_OPERATION_COUNT } vmp_operation;

enum { VMP_SUM, VMP_COUNT, VMP_MIN, VMP_MAX, VMP_MEAN, VMP_FIRST, VMP_LAST, VMP_GATHERS };
enum { VMP_STACK = 64, VMP_NO_FIELD = 0xffff };

typedef struct {
    uint8_t operation, c;
    uint16_t b;
    uint32_t a;
} vmp_op;

/* ---- rules */

enum { VMP_NORMAL, VMP_FINAL, VMP_STOP, VMP_PENDING };
enum { VMP_TAKE, VMP_IGNORE, VMP_PROCEED };
enum { VMP_NO_SKIP, VMP_TO_NEXT, VMP_PAST_LAST, VMP_TO_FIRST, VMP_TO_LAST };
/* Conditions of edges: predicates from 0 on, and these, postfix. An edge without any always holds. */
enum { VMP_TRUE = -1, VMP_NEGATE_IT = -2, VMP_BOTH = -3, VMP_EITHER = -4 };

typedef struct {
    uint8_t kind;
    uint16_t step, edges; /* how many follow those of the state before */
    int64_t window_ms;    /* from the event before; 0: none */
} vmp_state;

typedef struct {
    uint8_t action;
    uint16_t target, codes; /* how many follow those of the edge before */
} vmp_edge;

/* A named one holds for events of this name, another one where its program gives true. */
typedef struct {
    bool named;
    bool gathers; /* looks at what the match has taken */
    vmt_text name;
    uint32_t first, count; /* operations */
} vmp_predicate;

enum { VMP_SPACES = 4 }; /* all events together, by key, by visit, by page */

typedef struct {
    vmt_text key;
    uint64_t fingerprint; /* of all that the rule says: matches in a snapshot belong to it */
    uint64_t shape;       /* of its states and edges alone */
    bool goes_on;         /* it takes matches of a rule of the same key and shape that said something else */
    void *token;          /* the caller's: given back with matches, and when the rule goes */
    uint8_t space;
    uint8_t skip;
    bool loud;
    bool quiet; /* time-outs are nothing to tell */
    uint16_t skip_step, start, steps;
    int64_t within_ms; /* 0: none */
    const vmp_state *states;
    const vmp_edge *edges;
    const int16_t *codes;
    const vmp_predicate *predicates;
    const vmp_op *operations;
    const vmp_value *constants;
    size_t state_count, edge_count, code_count, predicate_count, operation_count, constant_count;
    const vmt_text *begins; /* names of events that may begin a match; */
    size_t begin_count;
    bool begins_any;         /* or all */
    const vmt_text *listens; /* names of events that may change a match under way; */
    size_t listen_count;
    bool listens_any;      /* or all */
    const uint32_t *keeps; /* fields that later conditions look at */
    size_t keep_count;
} vmp_rule_description;

/* ---- events and what comes of them */

typedef struct {
    vmt_text name, keys[VMP_SPACES]; /* outside of visits and pages an empty one: no rule of that space sees it */
    int64_t time_ms, id;
    bool still;                                        /* time was moved already: nothing times out by this event */
    vmp_value (*field)(void *context, uint32_t field); /* asked once for each field */
    void *context;
} vmp_event;

typedef struct {
    uint16_t step;
    int64_t id;
} vmp_item;

/* A match, or one that timed out: its events from the first to the last. */
typedef struct {
    void *token;
    bool timed_out;
    int64_t at_ms; /* when it timed out */
    uint32_t first, count;
} vmp_result;

typedef struct {
    const vmp_result *results;
    const vmp_item *items;
    size_t count;
    bool started; /* a match has begun; Flink's timers hang on it */
} vmp_results;

typedef struct {
    size_t max_matches; /* matches under way of one rule and key */
    size_t max_bytes;   /* three quarters for rules, one for matches */
    uint64_t seed;      /* of hashes: a number that nobody can guess */
    vmt_allocate allocate;
    void *context;
} vmp_settings;

typedef struct {
    uint64_t rules, names, keys, matches, waiting, events, nodes; /* now; waiting: complete, held by `skip` */
    uint64_t rule_bytes, match_bytes, bytes;
    uint64_t fed, looked_at; /* events; (rule, key) that an event was held against */
    uint64_t matched, timed_out, dropped, ended, missed;
} vmp_statistics;

vmp_engine *vmp_engine_new(const vmp_settings *settings);
void vmp_engine_free(vmp_engine *engine, void (*release)(void *token));
vmp_status vmp_add(vmp_engine *engine, const vmp_rule_description *rule);
/* Its matches under way end. */
vmp_status vmp_remove(vmp_engine *engine, vmt_text key, void **token);
/* `results` stay good until the next call. VMP_MISSED: matches of that rule and key were given up; all else was done.
 */
vmp_status vmp_feed(vmp_engine *engine, const vmp_event *event, vmp_results *results);
/* Whether an event of this name may change anything; where not, feeding it is counting it. */
bool vmp_concerns(const vmp_engine *engine, vmt_text name);
void vmp_pass_over(vmp_engine *engine);
/* Time goes on for all keys. */
vmp_status vmp_advance(vmp_engine *engine, int64_t time_ms, vmp_results *results);
/* Time goes on for the key of this space alone, also where no limit has come. */
vmp_status vmp_advance_key(vmp_engine *engine, unsigned space, vmt_text key, int64_t time_ms, vmp_results *results);
/* Matches under way of the key end. */
void vmp_forget(vmp_engine *engine, unsigned space, vmt_text key);
/* The earliest time at which something times out; INT64_MAX: never. */
int64_t vmp_next_ms(const vmp_engine *engine);
vmp_statistics vmp_engine_statistics(const vmp_engine *engine);

/* How far matches of a rule have come, by its states: `tell` for each match under way. */
typedef void vmp_tell_match(void *context, uint16_t state, vmt_text key, uint32_t events, int64_t started_ms);
vmp_status vmp_matches(const vmp_engine *engine, vmt_text rule, vmp_tell_match *tell, void *context);

/* What a predicate of a rule gives for an event and a match that has taken nothing; VMP_NONE for one that is not there.
 * Texts lie in the event or the rule. */
vmp_value vmp_evaluate(vmp_engine *engine, vmt_text rule, uint32_t predicate, const vmp_event *event);

/* ---- snapshots: all matches under way as bytes. `write` returns false where it could not. */

typedef bool vmp_write(void *context, const void *data, size_t size);
vmp_status vmp_save(const vmp_engine *engine, vmp_write *write, void *context);
/* Into an engine without matches. Those of rules that are not there, or say something else now, are left out and
 * counted as ended. VMP_BAD: damaged; the engine has no matches then. */
vmp_status vmp_load(vmp_engine *engine, const void *data, size_t size);

#endif
