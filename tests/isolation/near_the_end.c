/* Calls an allocator near the end of a VM's stack, as libraries do with a lock of the process held: once for each
 * connection that is opened (sqlite3_auto_extension), one function after the other, each time 16 bytes further from
 * what is closed of the stack. Driven through ctypes by test_near_the_end.py, for SQLite's own allocator and for what
 * OpenSSL calls as malloc, realloc and free. */
#define _GNU_SOURCE 1
#include <alloca.h>
#include <stdint.h>
#include <stdio.h>

struct {
    void *(*allocate)(int);
    void (*release)(void *);
    void *(*resize)(void *, int);
    int (*size)(void *);
    int (*round_up)(int);
    int (*start)(void *);
    void (*stop)(void *);
    void *context;
} near_methods; /* as in sqlite3.h */
enum { ALLOCATE, RELEASE, RESIZE, SIZE, ROUND_UP, FUNCTIONS };
long near_number = -1, near_most = 64 * FUNCTIONS; /* < 0: not now */

struct {
    void *(*allocate)(size_t, const char *, int);
    void (*release)(void *, const char *, int);
    void *(*resize)(void *, size_t, const char *, int);
} near_openssl; /* CRYPTO_malloc, CRYPTO_free, CRYPTO_realloc */
static void *openssl_allocate(int size) { return near_openssl.allocate((size_t)size, "", 0); }
static void openssl_release(void *memory) { near_openssl.release(memory, "", 0); }
static void *openssl_resize(void *memory, int size) { return near_openssl.resize(memory, (size_t)size, "", 0); }
static int nothing(int size) { return size; }
static int nothing_of(void *memory) { return memory == NULL; }

void near_use_openssl(void)
{
    near_methods.allocate = openssl_allocate;
    near_methods.release = openssl_release;
    near_methods.resize = openssl_resize;
    near_methods.size = nothing_of;
    near_methods.round_up = nothing;
}

/* The end of this thread's stack: nothing below it may be touched. */
static uintptr_t lowest(void)
{
    uintptr_t here = (uintptr_t)__builtin_frame_address(0), found = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long low, high;
        if (sscanf(line, "%lx-%lx", &low, &high) == 2 && here >= low && here < high)
            found = low;
    }
    if (maps != NULL)
        fclose(maps);
    return found;
}

int near_the_end(void *connection, char **error, const void *api)
{
    (void)connection, (void)error, (void)api;
    const uintptr_t low = near_number < 0 ? 0 : lowest(), here = (uintptr_t)alloca(16);
    if (low == 0 || near_number >= near_most)
        return 0;
    void *memory = near_methods.allocate(100);
    const size_t down = here - low - (size_t)(near_number / FUNCTIONS * 16);
    volatile char *room = alloca(down);
    switch (near_number % FUNCTIONS) {
    case ALLOCATE: near_methods.release(near_methods.allocate(8)); break;
    case RELEASE: near_methods.release(memory); break;
    case RESIZE: memory = near_methods.resize(memory, 1000); break;
    case SIZE: near_methods.size(memory); break;
    default: near_methods.round_up(9);
    }
    if (near_number++ % FUNCTIONS != RELEASE)
        near_methods.release(memory);
    room[down - 1] = 0;
    return 0;
}
