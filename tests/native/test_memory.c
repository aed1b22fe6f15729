/* The allocator hooks: what a VM gets shows nothing of who had it before; hooks that somebody removed are put back. */
#include <malloc.h>
#include <string.h>

#include "check.h"
#include "memory/holders.h"
#include "memory/memory.h"
#include "memory/overflow.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

/* ---- CPython's allocators, as far as the hooks use them */
static void *plain_malloc(void *ctx, size_t size) { return malloc(size); }
static void *plain_calloc(void *ctx, size_t count, size_t size) { return calloc(count, size); }
static void *plain_realloc(void *ctx, void *block, size_t size) { return realloc(block, size); }
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

int main(void)
{
    vmh_meter *one = vmh_meter_new(), *other = vmh_meter_new();
    CHECK(one != NULL && other != NULL);
    now[PYMEM_DOMAIN_RAW] = now[PYMEM_DOMAIN_MEM] = plain;
    now[PYMEM_DOMAIN_OBJ] = plain;
    now[PYMEM_DOMAIN_OBJ].malloc = object_malloc;
    arena = plain_arena;
    CHECK(vmh_memory_install() == 0);
    blocks(one, other);
    arenas(one, other);
    hooks(one);
    vmh_meter_unref(one);
    vmh_meter_unref(other);
    return 0;
}
