/* The allocator hooks: what a VM gets shows nothing of who had it before; hooks that somebody removed are put back; a
 * boot waits for memory, and arenas of malloc leave addresses to others. */
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "memory/holders.h"
#include "memory/memory.h"
#include "memory/overflow.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- CPython's allocators, as far as the hooks use them */
static int refusals; /* so many requests for blocks are refused from now on */
static bool refuse(void) { return refusals > 0 && refusals-- > 0; }
static void *plain_malloc(void *ctx, size_t size) { return refuse() ? NULL : malloc(size); }
static void *plain_calloc(void *ctx, size_t count, size_t size) { return refuse() ? NULL : calloc(count, size); }
static void *plain_realloc(void *ctx, void *block, size_t size) { return refuse() ? NULL : realloc(block, size); }
static void plain_free(void *ctx, void *block) { free(block); }
static void *object_malloc(void *ctx, size_t size) { return malloc(size); }
static void *arena_new(void *ctx, size_t size) { return malloc(size); }
static void arena_free(void *ctx, void *arena, size_t size) { free(arena); }

static const PyMemAllocatorEx plain = {NULL, plain_malloc, plain_calloc, plain_realloc, plain_free};
static const PyObjectArenaAllocator plain_arena = {NULL, arena_new, arena_free};
static PyMemAllocatorEx now[3];
static PyObjectArenaAllocator arena;
static bool mimalloc;

void PyMem_GetAllocator(PyMemAllocatorDomain domain, PyMemAllocatorEx *found) { *found = now[domain]; }
PyMemAllocatorEx vmh_compat_allocator(PyMemAllocatorDomain domain) { return now[domain]; }
void vmh_compat_allocator_set(PyMemAllocatorDomain domain, const PyMemAllocatorEx *set) { now[domain] = *set; }
void PyObject_GetArenaAllocator(PyObjectArenaAllocator *found) { *found = arena; }
void PyObject_SetArenaAllocator(PyObjectArenaAllocator *set) { arena = *set; }
void *PyMem_RawMalloc(size_t size) { return now[PYMEM_DOMAIN_RAW].malloc(now[PYMEM_DOMAIN_RAW].ctx, size); }
void PyMem_RawFree(void *block) { now[PYMEM_DOMAIN_RAW].free(now[PYMEM_DOMAIN_RAW].ctx, block); }
const char *_PyMem_GetCurrentAllocatorName(void) { return "pymalloc"; }
bool vmh_compat_uses_mimalloc(void) { return mimalloc; }

_Thread_local volatile bool vmh_overflow_seen __attribute__((tls_model("initial-exec")));
void vmh_overflow_land(void) {}
bool vmh_holders_are(const PyMemAllocatorEx *found, const PyMemAllocatorEx *before) { return false; }
void vmh_holders_note(vmh_meter *meter, const void *address, size_t bytes) {}
void vmh_holders_forget(vmh_meter *meter, const void *address) {}

/* ---- tests */
enum { MARK = 0x5a, ARENA = 1 << 20 };
static const size_t sizes[] = {1, 24, 100, 513, 1000, 4096, 20000, 100000, 1 << 20};
enum { SIZES = sizeof sizes / sizeof *sizes, EACH = 20 };

static bool is_zero(const char *block, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (block[i] != 0)
            return false;
    return true;
}

/* Fills and frees blocks on this thread, as its meter's or the host's. */
static void leave_marks(void)
{
    const PyMemAllocatorEx *raw = &now[PYMEM_DOMAIN_RAW];
    void *blocks[SIZES][EACH];
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < EACH; j++) {
            CHECK((blocks[i][j] = raw->malloc(NULL, sizes[i])) != NULL);
            memset(blocks[i][j], MARK, sizes[i]);
        }
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < EACH; j++)
            raw->free(NULL, blocks[i][j]);
}

static void looks_in_blocks(void)
{
    const PyMemAllocatorEx *raw = &now[PYMEM_DOMAIN_RAW];
    char *blocks[SIZES][EACH];
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < EACH; j++) {
            char *block = blocks[i][j] = raw->malloc(NULL, sizes[i]);
            CHECK(block != NULL && is_zero(block, 0, malloc_usable_size(block)));
            memset(block, 1, sizes[i]);
        }
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < EACH; j++) {
            char *block = blocks[i][j] = raw->realloc(NULL, blocks[i][j], sizes[i] * 3 / 2);
            CHECK(block != NULL && block[0] == 1 && block[sizes[i] - 1] == 1);
            CHECK(is_zero(block, sizes[i], malloc_usable_size(block)));
        }
    for (int i = 0; i < SIZES; i++)
        for (int j = 0; j < EACH; j++)
            raw->free(NULL, blocks[i][j]);
}

static void blocks(vmh_meter *one, vmh_meter *other)
{
    leave_marks();
    vmh_memory_bind(one);
    looks_in_blocks();
    leave_marks();
    vmh_memory_bind(other);
    looks_in_blocks();
    vmh_memory_bind(NULL);
    CHECK(atomic_load(&one->live) == 0 && atomic_load(&other->live) == 0);
}

static void arenas(vmh_meter *one, vmh_meter *other)
{
    vmh_memory_bind(one);
    char *first = arena.alloc(NULL, ARENA);
    CHECK(first != NULL);
    memset(first, MARK, ARENA);
    arena.free(NULL, first, ARENA);
    vmh_memory_bind(other);
    char *second = arena.alloc(NULL, ARENA);
    CHECK(second == first && is_zero(second, 0, ARENA)); /* it was kept */
    arena.free(NULL, second, ARENA);
    vmh_memory_bind(NULL);
}

static void hooks(vmh_meter *meter)
{
    PyMemAllocatorEx ours = now[PYMEM_DOMAIN_RAW];
    PyObjectArenaAllocator our_arena = arena;
    vmh_memory_bind(meter);
    CHECK(vmh_memory_check());
    now[PYMEM_DOMAIN_RAW] = plain; /* as tracemalloc did when it stopped */
    CHECK(vmh_memory_check() && now[PYMEM_DOMAIN_RAW].malloc == ours.malloc);
    arena = plain_arena;
    CHECK(vmh_memory_check() && arena.alloc == our_arena.alloc);
    now[PYMEM_DOMAIN_RAW] = now[PYMEM_DOMAIN_OBJ]; /* unknown, and does not call ours */
    CHECK(!vmh_memory_check());
    now[PYMEM_DOMAIN_RAW] = ours;
    CHECK(vmh_memory_check() && atomic_load(&meter->live) == 0);
    vmh_memory_bind(NULL);
    /* with PYTHONMALLOC=malloc, objects are raw blocks */
    CHECK(now[PYMEM_DOMAIN_MEM].malloc == ours.malloc && now[PYMEM_DOMAIN_OBJ].malloc == object_malloc);
    CHECK(vmh_memory_refusal() == NULL);
    mimalloc = true;
    CHECK(vmh_memory_refusal() != NULL);
}

/* What is refused a few times is there for a thread that waits, and at once not there for another one. */
static void waits(vmh_meter *meter)
{
    const PyMemAllocatorEx *raw = &now[PYMEM_DOMAIN_RAW];
    vmh_memory_bind(meter);
    for (int wait = 0; wait < 2; wait++) {
        vmh_memory_wait(wait != 0);
        void *blocks[] = {NULL, NULL, raw->malloc(NULL, 1000)};
        refusals = 3;
        CHECK(((blocks[0] = raw->malloc(NULL, 1000)) != NULL) == wait && refusals == (wait ? 0 : 2));
        refusals = 3;
        CHECK(((blocks[1] = raw->calloc(NULL, 10, 1000)) != NULL) == wait && refusals == (wait ? 0 : 2));
        refusals = 3;
        void *moved = raw->realloc(NULL, blocks[2], 5000);
        CHECK((moved != NULL) == wait && refusals == (wait ? 0 : 2));
        refusals = 1000; /* for good: the wait has an end */
        CHECK(raw->malloc(NULL, 1000) == NULL && refusals > 0);
        refusals = 0;
        raw->free(NULL, blocks[0]);
        raw->free(NULL, blocks[1]);
        raw->free(NULL, moved != NULL ? moved : blocks[2]);
        CHECK(atomic_load(&meter->live) == 0);
    }
    vmh_memory_wait(false);
    vmh_memory_bind(NULL);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* these have allocators of their own */
enum { THREADS = 8, ARENAS = 1 + 4 /* 64 MiB each: a quarter of 1 GiB, and the first */ };
static pthread_barrier_t all;

static void *allocate(void *unused)
{
    pthread_barrier_wait(&all);
    void *block = malloc(1000);
    CHECK(block != NULL);
    pthread_barrier_wait(&all); /* an arena without a thread would be used again */
    free(block);
    return NULL;
}

/* Threads share the arenas that there may be. */
static void arenas_are_few(void)
{
    pthread_t threads[THREADS];
    CHECK(pthread_barrier_init(&all, NULL, THREADS) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, allocate, NULL) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
    char *text = NULL;
    size_t size;
    FILE *file = open_memstream(&text, &size);
    CHECK(file != NULL && malloc_info(0, file) == 0 && fclose(file) == 0);
    int count = 0;
    for (const char *at = text; (at = strstr(at, "<heap nr=")) != NULL; at++)
        count++;
    CHECK(count >= 2 && count <= ARENAS);
    free(text);
}
#endif

static int install(void)
{
    struct rlimit before, addresses;
    CHECK(getrlimit(RLIMIT_AS, &before) == 0);
    addresses = (struct rlimit){1 << 30, before.rlim_max};
    CHECK(setrlimit(RLIMIT_AS, &addresses) == 0);
    const int rc = vmh_memory_install();
    CHECK(setrlimit(RLIMIT_AS, &before) == 0);
    return rc;
}

int main(void)
{
    vmh_meter *one = vmh_meter_new(), *other = vmh_meter_new();
    CHECK(one != NULL && other != NULL);
    now[PYMEM_DOMAIN_RAW] = now[PYMEM_DOMAIN_MEM] = plain;
    now[PYMEM_DOMAIN_OBJ] = plain;
    now[PYMEM_DOMAIN_OBJ].malloc = object_malloc;
    arena = plain_arena;
    CHECK(install() == 0);
    blocks(one, other);
    arenas(one, other);
    hooks(one);
    waits(one);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    arenas_are_few();
#endif
    vmh_meter_unref(one);
    vmh_meter_unref(other);
    return 0;
}
