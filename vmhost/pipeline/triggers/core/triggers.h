/* The trigger engine: finds the conditions that an event completes. No Python in here.
 *
 * A condition is a key with one or more sequences of ids. An id is the name of an event or the id of a page, and
 * matches right after the one before it, or anywhere after it (`gap`). Sequences of the page level are matched in the
 * events of one visit, those of the time level in all events. docs/decisions/triggers.md has the rules.
 *
 * An engine belongs to one thread at a time. Functions keep none of their arguments, except a condition's token. */
#ifndef VMT_TRIGGERS_H
#define VMT_TRIGGERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmt_engine vmt_engine;

/* As Lua's: returns memory of `new_size` bytes with the contents of `old`; NULL: no memory. `new_size` 0 frees `old`.
 * */
typedef void *(*vmt_allocate)(void *context, void *old, size_t old_size, size_t new_size);

/* A text. Two are equal if form, size and bytes are; equal texts must have equal hashes. */
typedef struct {
    uint64_t hash;
    const void *data;
    size_t size;
    unsigned form;
} vmt_text;

typedef enum {
    VMT_OK,
    VMT_NO_MEMORY,
    VMT_FULL,     /* conditions would take more than their share of max_bytes */
    VMT_KNOWN,    /* there is a condition with this key */
    VMT_UNKNOWN,  /* there is none */
    VMT_BAD,      /* no sequence, one without an id, or with more than VMT_MAX_IDS; a text of 4 GiB */
    VMT_POSITION, /* not above that of the last event */
} vmt_status;

typedef enum { VMT_PAGE, VMT_TIME } vmt_level;

enum { VMT_MAX_IDS = 1000 };

typedef struct {
    size_t max_matches;  /* matches under way, all visits together */
    size_t max_bytes;    /* three quarters for conditions, one for matches */
    int64_t max_back_ms; /* an event further back means that the clock was set */
    uint64_t seed;       /* for the fingerprints of visits; must be unpredictable */
    vmt_allocate allocate;
    void *context;
} vmt_settings;

typedef struct {
    vmt_text text;
    bool page; /* must equal the event's page; otherwise its name */
    bool gap;  /* any run of events may precede it */
} vmt_id;

typedef struct {
    const vmt_id *ids;
    size_t count;
} vmt_sequence;

typedef struct {
    vmt_text key;
    const vmt_sequence *sequences;
    size_t count;
    vmt_level level;
    uint64_t within_ms; /* 0: no limit */
    void *token;        /* the caller's: returned when the condition fires, and when it is removed */
} vmt_condition;

typedef struct {
    vmt_text name, page, visit; /* page and visit may be empty */
    int64_t time_ms, position;
} vmt_event;

typedef struct {
    void *token;
    int64_t start; /* position of the match's first event; the latest where there are several matches */
} vmt_fired;

typedef struct {
    uint64_t conditions, sequences, nodes, symbols; /* current numbers */
    uint64_t visits, matches;                       /* visits with matches under way; these matches */
    uint64_t condition_bytes, match_bytes, bytes;   /* allocated; `bytes` is the total */
    uint64_t events, outside;                       /* fed; of these without a visit */
    uint64_t fired;                                 /* conditions, once for each event that completes them */
    uint64_t expired, ended, withdrawn;             /* matches: by `within`, with their visit, with their conditions */
    uint64_t dropped;                               /* matches given up because a bound was met */
    uint64_t clock_sets;                            /* times that the clock jumped back by more than max_back_ms */
    int64_t position;                               /* the last event's */
} vmt_statistics;

/* NULL if out of memory. */
vmt_engine *vmt_engine_new(const vmt_settings *settings);
/* Calls `release` with each condition's token. */
void vmt_engine_free(vmt_engine *engine, void (*release)(void *token));

/* A condition sees events from the next one on. If a call fails, nothing has changed. */
vmt_status vmt_add(vmt_engine *engine, const vmt_condition *condition);
vmt_status vmt_change(vmt_engine *engine, const vmt_condition *condition, void **old_token);
vmt_status vmt_remove(vmt_engine *engine, vmt_text key, void **token);

/* The conditions that the event completes, each once; valid until the next call. Fails only with VMT_POSITION: without
 * memory, matches under way are given up and counted as dropped. */
vmt_status vmt_feed(vmt_engine *engine, const vmt_event *event, const vmt_fired **fired, size_t *count);
/* Gives up the visit's matches under way. */
void vmt_end_visit(vmt_engine *engine, vmt_text visit);
/* Moves the clock on, and removes matches that are too old from a part of the visits; over several calls from all of
 * them. */
void vmt_advance(vmt_engine *engine, int64_t time_ms);

vmt_statistics vmt_engine_statistics(const vmt_engine *engine);

typedef struct {
    size_t sequence, number; /* which sequence of the condition, and which of its ids */
    vmt_text text;           /* without its hash */
    bool page, gap;
    uint64_t waiting;    /* matches under way that reached this id and wait for more */
    uint64_t conditions; /* sequences that end here */
    uint64_t next;       /* ids that may come next, over all conditions */
} vmt_step;

typedef struct {
    vmt_level level;
    uint64_t within_ms, fired;
    int64_t since; /* only events after this position count */
    size_t sequences;
} vmt_about;

/* Calls `callback` for each id of the condition, sequence by sequence, until it returns non-zero. Visits all matches.
 */
vmt_status vmt_explain(vmt_engine *engine, vmt_text key, vmt_about *about,
                       int (*callback)(void *context, const vmt_step *), void *context);

#endif
