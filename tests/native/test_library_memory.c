/* A library's calls of malloc are charged to who has the thread, credited to who paid, and leave alone what is not
 * theirs. */
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "check.h"
#include "greedy_library.h"
#include "memory/library_memory.h"
#include "memory/memory.h"

static _Thread_local vmh_meter *paying;
void vmh_memory_bind(vmh_meter *meter) { paying = meter; }
vmh_meter *vmh_memory_payer(void) { return paying; }

enum { MIB = 1 << 20 };

static long long live(vmh_meter *meter)
{
    CHECK(atomic_load(&meter->live) == atomic_load(&meter->libraries));
    return atomic_load(&meter->live);
}

/* Like malloc's blocks: aligned, and at least of the requested size. */
static bool is_good(void *memory, size_t size)
{
    memset(memory, 0x5a, size);
    return ((uintptr_t)memory & 15) == 0;
}

static void not_led_yet(vmh_meter *meter)
{
    vmh_memory_bind(meter);
    void *before = greedy_malloc(1000);
    CHECK(live(meter) == 0);
    CHECK(!vmh_library_memory_interpose(NULL) && !vmh_library_memory_interpose(&before));
    CHECK(vmh_library_memory_interpose((void *)greedy_free));
    CHECK(vmh_library_memory_interpose((void *)greedy_free)); /* again: as it is */
    before = greedy_realloc(before, 3000);
    CHECK(before != NULL && live(meter) == 0);
    greedy_free(before);
    CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1);
    vmh_memory_bind(NULL);
}

static void charged_and_credited(vmh_meter *meter)
{
    vmh_memory_bind(meter);
    void *first = greedy_malloc(1000);
    CHECK(is_good(first, 1000) && live(meter) >= 1000 && live(meter) < 1100 && atomic_load(&meter->refs) == 2);
    char *second = greedy_calloc(100, 10);
    for (int i = 0; i < 1000; i++)
        CHECK(second[i] == 0);
    CHECK(is_good(second, 1000) && live(meter) >= 2000);
    second = greedy_realloc(second, 100000);
    CHECK(second[999] == 0x5a && is_good(second, 100000) && live(meter) >= 101000 && live(meter) < 101200);
    second = greedy_realloc(second, 10);
    CHECK(second[9] == 0x5a && live(meter) < 100000);
    CHECK(greedy_realloc(second, 0) == NULL);
    void *third = greedy_realloc(NULL, 500);
    CHECK(is_good(third, 500));
    void *none = greedy_malloc(0);
    CHECK(none != NULL);
    greedy_free(NULL);
    greedy_free(none);
    greedy_free(third);
    greedy_free(first);
    CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1 && atomic_load(&meter->peak) >= 100000);
    CHECK(greedy_malloc(SIZE_MAX - 8) == NULL && greedy_malloc(PTRDIFF_MAX) == NULL
          && greedy_calloc(SIZE_MAX / 2, 3) == NULL);
    CHECK(live(meter) == 0);
    vmh_memory_bind(NULL);
}

/* Many sizes, so that blocks begin everywhere in a page, growing and shrinking in place and not. */
static void everywhere(vmh_meter *meter)
{
    enum { COUNT = 3000 };
    static unsigned char *blocks[COUNT];
    unsigned long random = 1;
    vmh_memory_bind(meter);
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < COUNT; i++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            size_t size = 32 + (random >> 33) % (i % 50 == 0 ? 300000 : 700);
            blocks[i] = greedy_realloc(blocks[i], size);
            CHECK(blocks[i] != NULL && ((uintptr_t)blocks[i] & 4095) != 0 && ((uintptr_t)blocks[i] & 15) == 0);
            for (int j = 0; round > 0 && j < 32; j++)
                CHECK(blocks[i][j] == (unsigned char)i);
            memset(blocks[i], i, size);
        }
    CHECK(atomic_load(&meter->refs) == COUNT + 1);
    for (int i = 0; i < COUNT; i++) {
        greedy_free(blocks[i]);
        blocks[i] = NULL;
    }
    CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1);
    vmh_memory_bind(NULL);
}

/* What the host or another VM freed is not seen. */
static void zeroed(vmh_meter *meter, vmh_meter *other)
{
    static const size_t sizes[] = {40, 1000, 30000, 200000};
    for (int payer = 0; payer < 2; payer++)
        for (int i = 0; i < 4; i++) {
            vmh_memory_bind(payer == 0 ? NULL : other);
            void *marked = greedy_malloc(sizes[i]), *more = greedy_malloc(2 * sizes[i]);
            CHECK(is_good(marked, sizes[i]) && is_good(more, 2 * sizes[i]));
            greedy_free(marked);
            greedy_free(more);
            vmh_memory_bind(meter);
            char *got = greedy_malloc(sizes[i]);
            for (size_t at = 0; at < sizes[i]; at++)
                CHECK(got[at] == 0);
            got = greedy_realloc(got, 2 * sizes[i]);
            for (size_t at = 0; at < 2 * sizes[i]; at++)
                CHECK(got[at] == 0);
            greedy_free(got);
        }
    vmh_memory_bind(NULL);
}

static void blocks_of_others(vmh_meter *meter)
{
    void *hosts = greedy_malloc(200);
    vmh_memory_bind(meter);
    char *copy = greedy_copy("text");
    void *aligned = greedy_aligned(4096, 8192), *also = greedy_aligned(64, 100);
    CHECK(live(meter) == 0 && strcmp(copy, "text") == 0);
    hosts = greedy_realloc(hosts, 5000);
    CHECK(live(meter) == 0);
    greedy_free(hosts);
    greedy_free(copy);
    greedy_free(aligned);
    greedy_free(also);
    CHECK(live(meter) == 0);
    vmh_memory_bind(NULL);
}

static void the_payer_gets_it_back(vmh_meter *meter, vmh_meter *other)
{
    vmh_memory_bind(meter);
    void *block = greedy_malloc(10000), *kept = greedy_malloc(500);
    vmh_memory_bind(other);
    block = greedy_realloc(block, 50000);
    CHECK(live(meter) >= 50000 && live(other) == 0);
    vmh_memory_bind(NULL);
    block = greedy_realloc(block, 90000);
    CHECK(live(meter) >= 90000 && live(other) == 0);
    vmh_memory_bind(other);
    greedy_free(block);
    CHECK(live(meter) >= 500 && live(meter) < 700 && live(other) == 0);
    vmh_memory_bind(NULL);
    CHECK(vmh_meter_live(meter) == live(meter));
    atomic_store(&meter->ended, true); /* its VM ends; what is left is the process's */
    CHECK(vmh_meter_live(meter) == 0);
    greedy_free(kept);
    CHECK(vmh_meter_live(meter) == 0 && live(meter) == 0);
    atomic_store(&meter->ended, false);
}

static void outlives(void)
{
    vmh_meter *meter = vmh_meter_new();
    vmh_memory_bind(meter);
    void *block = greedy_malloc(10000);
    vmh_memory_bind(NULL);
    vmh_meter_unref(meter);
    greedy_free(block); /* and the meter with it */
}

static int stops;
static void on_soft(void *context) { stops += context != NULL; }

static void refused(void)
{
    vmh_meter *meter = vmh_meter_new();
    meter->on_soft = on_soft;
    meter->context = meter;
    atomic_store(&meter->soft, 8 * MIB);
    atomic_store(&meter->hard, 10 * MIB);
    vmh_memory_bind(meter);
    void *first = greedy_malloc(7 * MIB);
    CHECK(first != NULL && stops == 0);
    CHECK(greedy_malloc(20 * MIB) == NULL && stops == 0 && atomic_load(&meter->denied));
    CHECK(greedy_malloc(4 * MIB) == NULL && greedy_calloc(4, MIB) == NULL && stops == 1);
    vmh_meter_rearm(meter);
    CHECK(!atomic_load(&meter->denied));
    long long before = live(meter);
    CHECK(greedy_realloc(first, 12 * MIB) == NULL && live(meter) == before && atomic_load(&meter->denied));
    memset(first, 1, 7 * MIB);
    vmh_meter_rearm(meter);
    void *small[100];
    for (int i = 0; i < 100; i++) /* never refused, but the call is stopped */
        CHECK((small[i] = greedy_malloc(MIB / 2)) != NULL);
    CHECK(stops == 3 && live(meter) > 50 * MIB && !atomic_load(&meter->denied));
    for (int i = 0; i < 100; i++)
        greedy_free(small[i]);
    first = greedy_realloc(first, MIB);
    CHECK(first != NULL && live(meter) < 2 * MIB);
    greedy_free(first);
    CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1);
    vmh_memory_bind(NULL);
    vmh_meter_unref(meter);
}

static void on_its_own_threads(vmh_meter *meter)
{
    vmh_memory_bind(meter);
    void *block = greedy_on_a_thread();
    CHECK(live(meter) >= 5000 && vmh_memory_payer() == meter);
    vmh_memory_bind(NULL);
    greedy_free(block);
    block = greedy_on_a_thread();
    CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1);
    greedy_free(block);
}

/* Threads of two VMs and of the host, which free each other's blocks. */
enum { THREADS = 6, ROUNDS = 20000, SHARED = 64 };
static _Atomic(void *) shared[SHARED];

static void *trade(void *meter)
{
    unsigned random = (unsigned)(uintptr_t)&random;
    vmh_memory_bind(meter);
    for (int i = 0; i < ROUNDS; i++) {
        random = random * 1664525 + 1013904223;
        void *mine = i % 3 == 0 ? greedy_calloc(1, 1 + (random >> 22)) : greedy_malloc(1 + (random >> 22));
        CHECK(mine != NULL);
        void *theirs = atomic_exchange(&shared[(random >> 8) % SHARED], mine);
        if (i % 5 == 0 && theirs != NULL)
            theirs = greedy_realloc(theirs, 1 + (random >> 20));
        greedy_free(theirs);
    }
    vmh_memory_bind(NULL);
    return NULL;
}

static void threads(vmh_meter *meter, vmh_meter *other)
{
    pthread_t workers[THREADS];
    vmh_meter *const payers[3] = {meter, other, NULL};
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&workers[i], NULL, trade, payers[i % 3]) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(workers[i], NULL);
    for (int i = 0; i < SHARED; i++)
        greedy_free(atomic_exchange(&shared[i], NULL));
    CHECK(live(meter) == 0 && live(other) == 0 && atomic_load(&meter->refs) == 1 && atomic_load(&other->refs) == 1);
}

/* Each allocation of the library fails once: the library gets NULL, and nothing is charged for it. */
static void faults(vmh_meter *meter)
{
    int told = 0;
    vmh_memory_bind(meter);
    for (long at = 0;; at++) {
        failing_malloc(at);
        void *first = greedy_malloc(1000), *second = greedy_calloc(10, 100), *third = greedy_on_a_thread();
        void *more = first == NULL ? NULL : greedy_realloc(first, 100000);
        int lacking = (first == NULL) + (second == NULL) + (third == NULL) + (first != NULL && more == NULL);
        CHECK(lacking == failing_malloc(-1));
        if (first != NULL)
            CHECK(is_good(more == NULL ? first : more, 1000));
        greedy_free(more == NULL ? first : more);
        greedy_free(second);
        greedy_free(third);
        CHECK(live(meter) == 0 && atomic_load(&meter->refs) == 1);
        if (lacking == 0)
            break;
        told++;
    }
    vmh_memory_bind(NULL);
    CHECK(told == 5); /* those four, and what a thread is started with */
}

int main(void)
{
    vmh_meter *meter = vmh_meter_new(), *other = vmh_meter_new();
    CHECK(meter != NULL && other != NULL);
    not_led_yet(meter);
    charged_and_credited(meter);
    everywhere(meter);
    zeroed(meter, other);
    blocks_of_others(meter);
    the_payer_gets_it_back(meter, other);
    outlives();
    refused();
    on_its_own_threads(meter);
    threads(meter, other);
    faults(meter);
    vmh_meter_unref(meter);
    vmh_meter_unref(other);
    printf("test_library_memory: passed\n");
    return 0;
}
