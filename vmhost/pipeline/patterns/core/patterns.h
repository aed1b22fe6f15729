/* The pattern matcher: finds sequences of events that match rules. No Python in here.
 *
 * A rule is an automaton (made by automaton.py). Conditions of its edges are over the current event and the events that
 * the match has taken. An event has a key in each space (such as its person or visit); a rule looks at the events of
 * one key at a time. docs/patterns.md describes the semantics, docs/decisions/patterns.md the implementation.
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
    VMP_BAD,     /* an inconsistent description, or a damaged snapshot */
    VMP_MISSED,  /* a match without the step that `skip` names, or whose first event that step took */
} vmp_status;

/* Texts are UTF-8; the matcher hashes them itself, and uses size and data only. */

/* ---- values */

/* NONE: missing. FAILED: the result of an expression that cannot be evaluated. */
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
    uint32_t size; /* bytes, for texts (UTF-8) and bytes */
    union {
        bool truth;
        int64_t whole;
        uint64_t natural;
        double real;
        const char *text; /* not zero-terminated; not owned */
    };
} vmp_value;

/* ---- programs: postfix, over a stack of VMP_STACK values */

#define VMP_OPERATIONS(ROW) \
    ROW(CONSTANT) /* pushes constant a */ \
    ROW(FIELD)    /* pushes field a of the event; NONE where it is missing */ \
    ROW(HAS)      /* pushes whether the event has field a */ \
    ROW(GATHER)   /* pushes aggregate c of field a (NO_FIELD: none) over the events taken at step b */ \
    ROW(COMPARE)  /* simple: compares by operator a (as in conditions.OPERATORS); a missing value never compares */ \
    ROW(PLUS)     /* simple: the sum of two numbers; NONE otherwise */ \
    ROW(EQ)       /* from here on as in CEL */ \
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
    ROW(IN) /* whether the value below `a` values is one of them */ \
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
/* Codes of edges' conditions, postfix: numbers of predicates from 0 on, and these. No codes: always true. */
enum { VMP_TRUE = -1, VMP_NEGATE_IT = -2, VMP_BOTH = -3, VMP_EITHER = -4 };

typedef struct {
    uint8_t kind;
    uint16_t step, edges; /* number of its edges, which follow those of the state before */
    int64_t window_ms;    /* limit since the event before; 0: none */
} vmp_state;

typedef struct {
    uint8_t action;
    uint16_t target, codes; /* number of its codes, which follow those of the edge before */
} vmp_edge;

/* `named`: holds for events of this name; others hold where their program yields true. */
typedef struct {
    bool named;
    bool gathers; /* uses the events that the match has taken */
    vmt_text name;
    uint32_t first, count; /* operations */
} vmp_predicate;

enum { VMP_SPACES = 4 }; /* all events, by key, by visit, by page */

typedef struct {
    vmt_text key;
    uint64_t fingerprint; /* of the whole rule; a match in a snapshot belongs to a rule with this fingerprint */
    uint64_t shape;       /* fingerprint of its states and edges alone */
    bool goes_on;         /* takes over matches of a rule of the same key and shape, but another fingerprint */
    void *token;          /* the caller's: returned with matches, and when the rule is removed */
    uint8_t space;
    uint8_t skip;
    bool loud;
    bool quiet; /* time-outs are not reported */
    uint16_t skip_step, start, steps;
    int64_t within_ms; /* 0: none */
    const vmp_state *states;
    const vmp_edge *edges;
    const int16_t *codes;
    const vmp_predicate *predicates;
    const vmp_op *operations;
    const vmp_value *constants;
    size_t state_count, edge_count, code_count, predicate_count, operation_count, constant_count;
    const vmt_text *begins; /* names of events that may begin a match */
    size_t begin_count;
    bool begins_any;         /* any event may */
    const vmt_text *listens; /* names of events that may change a match under way */
    size_t listen_count;
    bool listens_any;      /* any event may */
    const uint32_t *keeps; /* fields of taken events that later conditions use */
    size_t keep_count;
} vmp_rule_description;

/* ---- events and results */

typedef struct {
    vmt_text name, keys[VMP_SPACES]; /* empty outside of visits and pages: no rule of that space sees it */
    int64_t time_ms, id;
    bool still;                                        /* time was already moved: this event times out nothing */
    vmp_value (*field)(void *context, uint32_t field); /* called at most once per field */
    void *context;
} vmp_event;

typedef struct {
    uint16_t step;
    int64_t id;
} vmp_item;

/* A match or a time-out, with its events from first to last. */
typedef struct {
    void *token;
    bool timed_out;
    int64_t at_ms; /* the window's end, of a time-out and of a match that ends with an absence; 0: others */
    uint32_t first, count;
} vmp_result;

typedef struct {
    const vmp_result *results;
    const vmp_item *items;
    size_t count;
    bool started; /* a match has begun; Flink's timers depend on it */
} vmp_results;

typedef struct {
    size_t max_matches; /* matches under way of one rule and key */
    size_t max_bytes;   /* three quarters for rules, one for matches */
    uint64_t seed;      /* for hashes; must be unpredictable */
    vmt_allocate allocate;
    void *context;
} vmp_settings;

typedef struct {
    uint64_t rules, names, keys, matches, waiting, events, nodes; /* now; waiting: complete, held back by `skip` */
    uint64_t rule_bytes, match_bytes, bytes;
    uint64_t fed, looked_at; /* events; (rule, key) pairs that an event was tested against */
    uint64_t matched, timed_out, dropped, ended, missed;
} vmp_statistics;

vmp_engine *vmp_engine_new(const vmp_settings *settings);
void vmp_engine_free(vmp_engine *engine, void (*release)(void *token));
vmp_status vmp_add(vmp_engine *engine, const vmp_rule_description *rule);
/* Ends the rule's matches under way. */
vmp_status vmp_remove(vmp_engine *engine, vmt_text key, void **token);
/* `results` are valid until the next call. VMP_MISSED: matches of that rule and key were given up; all else was done.
 */
vmp_status vmp_feed(vmp_engine *engine, const vmp_event *event, vmp_results *results);
/* Whether an event of this name may change anything. If not, `vmp_pass_over` is enough, which only counts it. */
bool vmp_concerns(const vmp_engine *engine, vmt_text name);
void vmp_pass_over(vmp_engine *engine);
/* Moves time on for all keys. */
vmp_status vmp_advance(vmp_engine *engine, int64_t time_ms, vmp_results *results);
/* Moves time on for one key of a space, even without a due time limit. */
vmp_status vmp_advance_key(vmp_engine *engine, unsigned space, vmt_text key, int64_t time_ms, vmp_results *results);
/* Ends the key's matches under way. */
void vmp_forget(vmp_engine *engine, unsigned space, vmt_text key);
/* The earliest time-out that is due; INT64_MAX: none. */
int64_t vmp_next_ms(const vmp_engine *engine);
vmp_statistics vmp_engine_statistics(const vmp_engine *engine);

/* Calls `callback` for each match under way of a rule, with its state. */
typedef void vmp_match_callback(void *context, uint16_t state, vmt_text key, uint32_t events, int64_t started_ms);
vmp_status vmp_matches(const vmp_engine *engine, vmt_text rule, vmp_match_callback *callback, void *context);

/* The value of a rule's predicate for an event and an empty match; VMP_NONE if there is no such predicate. Texts are
 * owned by the event or the rule. */
vmp_value vmp_evaluate(vmp_engine *engine, vmt_text rule, uint32_t predicate, const vmp_event *event);

/* ---- snapshots: all matches under way as bytes. `write` returns false on failure. */

typedef bool vmp_write(void *context, const void *data, size_t size);
vmp_status vmp_save(const vmp_engine *engine, vmp_write *write, void *context);
/* Loads into an engine without matches. Matches of rules that are gone or have changed are left out and counted as
 * ended. VMP_BAD: damaged; the engine then has no matches. */
vmp_status vmp_load(vmp_engine *engine, const void *data, size_t size);

#endif
