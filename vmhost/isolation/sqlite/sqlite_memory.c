/* SQLite's allocator: blocks record the meter that was charged, so that freeing one on any thread credits that VM.
 *
 * SQLite may hold a process-wide lock when it calls, so all of this is a critical section. These functions also have
 * their own section of the object file, because a function's first instructions run before it can enter the critical
 * section (overflow.h). */
#include "sqlite/sqlite_memory.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "lanes/critical.h"
#include "memory/fresh.h"
#include "memory/memory.h"
#include "memory/overflow.h"
#include "sqlite/sqlite_rules.h"

/* As in sqlite3.h, which is not needed to build. */
enum { SQLITE_OK_ = 0, SQLITE_CONFIG_MALLOC_ = 4 };

typedef struct {
    void *(*allocate)(int);
    void (*release)(void *);
    void *(*resize)(void *, int);
    int (*size)(void *);
    int (*round_up)(int);
    int (*start)(void *);
    void (*stop)(void *);
    void *context;
} mem_methods;

typedef struct {
    vmh_meter *meter; /* one reference; NULL: the host's */
    size_t bytes;     /* including this header */
} block;

static void *take(int size)
{
    size_t bytes = sizeof(block) + (size_t)size;
    vmh_meter *meter = vmh_memory_payer();
    if (meter != NULL && !vmh_meter_charge(meter, bytes))
        return NULL;
    block *header = meter == NULL ? malloc(bytes) : vmh_fresh_new(bytes);
    if (header == NULL) {
        if (meter != NULL)
            vmh_meter_release(meter, bytes);
        return NULL;
    }
    *header = (block){meter == NULL ? NULL : vmh_meter_ref(meter), bytes};
    return header + 1;
}

static void give(void *memory)
{
    if (memory == NULL)
        return;
    block *old = (block *)memory - 1;
    if (old->meter != NULL) {
        vmh_meter_release(old->meter, old->bytes);
        vmh_meter_unref(old->meter);
    }
    free(old);
}

static void *change(void *memory, int size)
{
    block *old = (block *)memory - 1;
    vmh_meter *meter = old->meter;
    size_t before = old->bytes, bytes = sizeof(block) + (size_t)size;
    if (meter != NULL && bytes > before && !vmh_meter_charge(meter, bytes - before))
        return NULL;
    size_t usable = malloc_usable_size(old);
    block *moved = realloc(old, bytes);
    if (moved == NULL) {
        if (meter != NULL && bytes > before)
            vmh_meter_release(meter, bytes - before);
        return NULL;
    }
    if (meter != NULL)
        vmh_fresh_grown(moved, usable);
    if (meter != NULL && bytes < before)
        vmh_meter_release(meter, before - bytes);
    moved->bytes = bytes;
    return moved + 1;
}

#define CALLED_BY_SQLITE __attribute__((section("vmh_called_by_sqlite")))
extern __attribute__((visibility("hidden"))) const char __start_vmh_called_by_sqlite[],
    __stop_vmh_called_by_sqlite[]; /* defined by the linker */

CALLED_BY_SQLITE static void *allocate(int size)
{
    vmh_critical_enter();
    void *memory = vmh_overflow_left() < VMH_SQLITE_STACK_END ? NULL : take(size);
    vmh_critical_leave();
    return memory;
}

CALLED_BY_SQLITE static void release(void *memory)
{
    vmh_critical_enter();
    give(memory);
    vmh_critical_leave();
}

CALLED_BY_SQLITE static void *resize(void *memory, int size)
{
    vmh_critical_enter();
    void *moved = change(memory, size);
    vmh_critical_leave();
    return moved;
}

CALLED_BY_SQLITE static int size_of(void *memory)
{
    return memory == NULL ? 0 : (int)(((block *)memory - 1)->bytes - sizeof(block));
}
CALLED_BY_SQLITE static int round_up(int size) { return (size + 7) & ~7; }
static int start(void *context) { return SQLITE_OK_; }
static void stop(void *context) {}

static const mem_methods ours = {allocate, release, resize, size_of, round_up, start, stop, NULL};

typedef struct {
    int (*config)(int, ...);
    int (*initialize)(void);
    int (*shutdown)(void);
    long long (*memory_used)(void);
    void *(*malloc)(int);
    void (*free)(void *);
} sqlite;

static bool find(void *library, sqlite *found)
{
    if (library == NULL)
        return false;
    *(void **)&found->config = dlsym(library, "sqlite3_config");
    *(void **)&found->initialize = dlsym(library, "sqlite3_initialize");
    *(void **)&found->shutdown = dlsym(library, "sqlite3_shutdown");
    *(void **)&found->memory_used = dlsym(library, "sqlite3_memory_used");
    *(void **)&found->malloc = dlsym(library, "sqlite3_malloc");
    *(void **)&found->free = dlsym(library, "sqlite3_free");
    return found->config != NULL && found->initialize != NULL && found->shutdown != NULL && found->memory_used != NULL
           && found->malloc != NULL && found->free != NULL;
}

/* Importing sqlite3 already initialises SQLite, which then accepts no allocator. While nothing is allocated there is no
 * connection and no statement, so it can be shut down and initialised again. A build without statistics would always
 * report 0: one test block shows this. */
static bool is_unused(const sqlite *library)
{
    if (library->memory_used() != 0)
        return false;
    void *memory = library->malloc(64);
    bool counts = memory != NULL && library->memory_used() >= 64;
    library->free(memory);
    return counts && library->memory_used() == 0;
}

static atomic_bool counted;

bool vmh_sqlite_memory_counted(void) { return atomic_load(&counted); }

void vmh_sqlite_memory_install(const char *path)
{
    sqlite library;
    /* Kept open: the allocator is in use. */
    if (atomic_load(&counted) || !find(dlopen(path, RTLD_NOW | RTLD_LOCAL), &library))
        return;
    int status = library.config(SQLITE_CONFIG_MALLOC_, &ours);
    if (status != SQLITE_OK_ && is_unused(&library) && library.shutdown() == SQLITE_OK_)
        status = library.config(SQLITE_CONFIG_MALLOC_, &ours);
    /* Memory that SQLite keeps for the whole process is charged to no VM. */
    vmh_meter *payer = vmh_memory_payer();
    vmh_memory_bind(NULL);
    library.initialize();
    vmh_memory_bind(payer);
    vmh_overflow_leave_out(__start_vmh_called_by_sqlite, __stop_vmh_called_by_sqlite);
    atomic_store(&counted, status == SQLITE_OK_);
}
