/* The trigger engine: which conditions does an event complete? No Python in here.
 *
 * A condition is a key with one or more sequences of ids. Each id is the name of an event or the id of a page, and
 * stands right behind the one before it, or anywhere behind it (`gap`). Sequences of the page level are looked for in
 * the events of one visit, those of the time level in all events. docs/decisions/triggers.md has the rules.
 *
 * An engine belongs to one thread at a time. No function keeps what it is given, but a condition's token. */
#ifndef VMT_TRIGGERS_H
#define VMT_TRIGGERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmt_engine vmt_engine;

/* As Lua's: memory of `new_size` bytes with what `old` had, NULL where there is none; `new_size` 0 frees `old`. */
typedef void *(*vmt_allocate)(void *context, void *old, size_t old_size, size_t new_size);

/* A text. Two are equal where form, size and bytes are; `hash` is the same for equal ones. */
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
    VMT_POSITION, /* not above the last event's */
} vmt_status;

typedef enum { VMT_PAGE, VMT_TIME } vmt_level;

enum { VMT_MAX_IDS = 1000 };

typedef struct {
    size_t max_matches;  /* matches under way, all visits together */
    size_t max_bytes;    /* three quarters for conditions, one for matches */
    int64_t max_back_ms; /* an event further back than this means that the clock was set */
    uint64_t seed;       /* of the fingerprints of visits: a number that nobody can guess */
    vmt_allocate allocate;
    void *context;
} vmt_settings;

typedef struct {
    vmt_text text;
    bool page; /* equals the event's page, otherwise its name */
    bool gap;  /* any run of events may stand before it */
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
    void *token;        /* the caller's: given back when the condition fires, and when it goes */
} vmt_condition;

typedef struct {
    vmt_text name, page, visit; /* page and visit may be empty */
    int64_t time_ms, position;
} vmt_event;

typedef struct {
    void *token;
    int64_t start; /* position of the event that began the match, the latest where there are several */
} vmt_fired;

typedef struct {
    uint64_t conditions, sequences, nodes, symbols; /* now */
    uint64_t visits, matches;                       /* visits with matches under way, and these */
    uint64_t condition_bytes, match_bytes, bytes;   /* asked of the allocator; bytes has the rest too */
    uint64_t events, outside;                       /* fed; of these without a visit */
    uint64_t fired;                                 /* conditions, each once for each event that completes it */
    uint64_t expired, ended, withdrawn;             /* matches: by `within`, with their visit, with their conditions */
    uint64_t dropped;                               /* matches given up because a bound was met */
    uint64_t clock_sets;                            /* how often time jumped back by more than max_back_ms */
    int64_t position;                               /* the last event's */
} vmt_statistics;

/* NULL where there is no memory. */
vmt_engine *vmt_engine_new(const vmt_settings *settings);
/* Calls `release` with each condition's token. */
void vmt_engine_free(vmt_engine *engine, void (*release)(void *token));

/* Conditions count events from the next one on. Where one of these fails, all is as before. */
vmt_status vmt_add(vmt_engine *engine, const vmt_condition *condition);
vmt_status vmt_change(vmt_engine *engine, const vmt_condition *condition, void **old_token);
vmt_status vmt_remove(vmt_engine *engine, vmt_text key, void **token);

/* The conditions that the event completes, each once; they stay until the next call. Only VMT_POSITION can go wrong:
 * where memory lacks, matches under way are given up, and counted as dropped. */
vmt_status vmt_feed(vmt_engine *engine, const vmt_event *event, const vmt_fired **fired, size_t *count);
/* Gives up the visit's matches under way. */
void vmt_end_visit(vmt_engine *engine, vmt_text visit);
/* Moves the clock on, and looks through a part of the visits for matches that are too old: all of them in turn, over
 * several calls where they are many. */
void vmt_advance(vmt_engine *engine, int64_t time_ms);

vmt_statistics vmt_engine_statistics(const vmt_engine *engine);

typedef struct {
    size_t sequence, number; /* which sequence of the condition, and which of its ids */
    vmt_text text;           /* its hash is not set */
    bool page, gap;
    uint64_t waiting;    /* matches under way that have come to here and wait for more */
    uint64_t conditions; /* sequences that end here */
    uint64_t next;       /* ids that may come next, of all conditions */
} vmt_step;

typedef struct {
    vmt_level level;
    uint64_t within_ms, fired;
    int64_t since; /* events after this position count */
    size_t sequences;
} vmt_about;

/* Calls `tell` for each id of the condition, sequence by sequence, until it gives non-zero. Goes through all matches.
 */
vmt_status vmt_explain(vmt_engine *engine, vmt_text key, vmt_about *about, int (*tell)(void *context, const vmt_step *),
                       void *context);

#endif
