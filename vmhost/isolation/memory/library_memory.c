/* Malloc interposition for native libraries whose allocator cannot be set: OpenSSL (possible only before its first use,
 * which is the host's) and libzstd (possible per object, which `_zstd` does not do).
 *
 * The library's table of imported functions is rewritten, so that its calls of malloc, calloc, realloc and free come
 * here. On a thread without a meter they behave as before. On a VM's thread, a block gets a header that names the
 * meter, so that this VM is credited whoever frees or grows the block, and whenever:
 *
 *   malloc's block  (16 more bytes if the memory would begin a page)  | meter | tag | the library's memory ...
 *
 * The library also passes in blocks without a header: from host threads, from before the interposition, from strdup and
 * posix_memalign. The tag tells them apart: a secret mixed with the block's own address. In glibc, malloc's own size of
 * the block is at the tag's place, and never has the tag's highest bit. Elsewhere the last bytes of another block may
 * be there, but no stale tag, since it is cleared with the block. If the block begins a page, the place may be
 * unmapped; memory with a header never begins a page.
 *
 * There is no lock that a fork could leave taken. A library may call with its own locks held: so all of this code is a
 * critical section, and is placed in its own section of the object file, because the first instructions of a function
 * run before it can enter the critical section (overflow.h).
 *
 * Requests of ASK_BYTES and more may be refused. Smaller ones are charged and never refused: OpenSSL initialises itself
 * once per process, at its first use; a failure because of one VM's quota would disable it for all. The stop comes
 * instead.
 */
#include "memory/library_memory.h"

#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include "lanes/critical.h"
#include "memory/fresh.h"
#include "memory/memory.h"

enum { ASK_BYTES = 1 << 20, PAGE_MIN = 4096 };

typedef struct {
    vmh_meter *meter; /* one reference */
    uint64_t tag;     /* secret ^ the address after the header; bit 0: 16 bytes of padding precede the header */
} header;

enum { ROOM = 2 * sizeof(header) };
_Static_assert(sizeof(header) == 16, "memory after the header is as aligned as malloc's blocks");

static uint64_t secret; /* set before the first table is rewritten */

/* ---- blocks ---- */

/* The header of a block allocated here; NULL: it was allocated elsewhere. Reads malloc's own bytes, which sanitizers
 * would report. */
__attribute__((no_sanitize("address", "thread"), noinline)) static header *header_of(void *memory)
{
    if (((uintptr_t)memory & (PAGE_MIN - 1)) == 0)
        return NULL;
    header *own = (header *)memory - 1;
    return ((own->tag ^ secret ^ (uintptr_t)memory) & ~UINT64_C(1)) == 0 ? own : NULL;
}

static void *base_of(const header *own) { return (void *)(own - (own->tag & 1)); }

/* Puts a header into malloc's block. */
static void *begin(void *base, vmh_meter *meter)
{
    header *own = base;
    uint64_t moved = ((uintptr_t)(own + 1) & (PAGE_MIN - 1)) == 0;
    own += moved;
    *own = (header){meter, (secret ^ (uintptr_t)(own + 1)) | moved};
    return own + 1;
}

static void credit(vmh_meter *meter, long long bytes)
{
    atomic_fetch_sub_explicit(&meter->libraries, bytes, memory_order_relaxed);
    atomic_fetch_sub_explicit(&meter->live, bytes, memory_order_relaxed);
}

/* False: refused. */
static bool charge(vmh_meter *meter, size_t bytes, size_t size)
{
    if (size < ASK_BYTES) {
        vmh_meter_force(meter, bytes);
    } else if (!vmh_meter_charge(meter, bytes)) {
        atomic_store(&meter->denied, true);
        errno = ENOMEM;
        return false;
    }
    atomic_fetch_add_explicit(&meter->libraries, (long long)bytes, memory_order_relaxed);
    return true;
}

/* Zeroed. */
static void *take(vmh_meter *meter, size_t size)
{
    size_t bytes = size + ROOM;
    if (size > PTRDIFF_MAX - ROOM) {
        errno = ENOMEM;
        return NULL;
    }
    if (!charge(meter, bytes, size))
        return NULL;
    void *base = vmh_fresh_new(bytes);
    if (base == NULL) {
        credit(meter, (long long)bytes);
        return NULL;
    }
    credit(meter, (long long)bytes - (long long)malloc_usable_size(base)); /* also charges malloc's rounding */
    return begin(base, vmh_meter_ref(meter));
}

static void give(header *own)
{
    void *base = base_of(own);
    vmh_meter *meter = own->meter;
    credit(meter, (long long)malloc_usable_size(base));
    own->tag = 0;
    free(base);
    vmh_meter_unref(meter);
}

static void *change(header *own, size_t size)
{
    void *base = base_of(own), *memory = own + 1;
    header before = *own;
    size_t had = malloc_usable_size(base), bytes = size + ROOM;
    if (size > PTRDIFF_MAX - ROOM) {
        errno = ENOMEM;
        return NULL;
    }
    size_t more = bytes > had ? bytes - had : 0;
    if (more > 0 && !charge(before.meter, more, size))
        return NULL;
    size_t offset = (size_t)((char *)memory - (char *)base);
    own->tag = 0;
    void *moved = realloc(base, bytes);
    if (moved == NULL) {
        *own = before;
        credit(before.meter, (long long)more);
        return NULL;
    }
    vmh_fresh_grown(moved, had);
    credit(before.meter, (long long)(had + more) - (long long)malloc_usable_size(moved));
    /* The new block may need the other offset. The header is written after the move, which may overlap it. */
    char *is = (char *)moved + offset;
    char *to = (char *)moved + sizeof(header);
    if (((uintptr_t)to & (PAGE_MIN - 1)) == 0)
        to += sizeof(header);
    if (to != is)
        memmove(to, is, had - offset < size ? had - offset : size);
    return begin(moved, before.meter);
}

/* ---- replacements that the libraries call ---- */

#define INTERPOSED __attribute__((section("vmh_interposed")))
extern __attribute__((visibility("hidden"))) const char __start_vmh_interposed[],
    __stop_vmh_interposed[]; /* defined by the linker */

INTERPOSED static void *counted_malloc(size_t size)
{
    vmh_critical_enter();
    vmh_meter *meter = vmh_memory_payer();
    void *memory = meter == NULL ? malloc(size) : take(meter, size);
    vmh_critical_leave();
    return memory;
}

INTERPOSED static void *counted_calloc(size_t count, size_t size)
{
    size_t bytes;
    vmh_critical_enter();
    vmh_meter *meter = vmh_memory_payer();
    void *memory =
        meter == NULL || __builtin_mul_overflow(count, size, &bytes) ? calloc(count, size) : take(meter, bytes);
    vmh_critical_leave();
    return memory;
}

INTERPOSED static void counted_free(void *memory)
{
    vmh_critical_enter();
    header *own = memory == NULL ? NULL : header_of(memory);
    if (own == NULL)
        free(memory);
    else
        give(own);
    vmh_critical_leave();
}

INTERPOSED static void *counted_realloc(void *memory, size_t size)
{
    if (memory == NULL)
        return counted_malloc(size);
    void *moved = NULL;
    vmh_critical_enter();
    header *own = header_of(memory);
    if (own == NULL)
        moved = realloc(memory, size);
    else if (size == 0)
        give(own);
    else
        moved = change(own, size);
    vmh_critical_leave();
    return moved;
}

/* A thread that the library starts (zstd's workers) works for the VM that caused it. */
typedef struct {
    void *(*run)(void *);
    void *argument;
    vmh_meter *meter; /* one reference */
} worker;

static void *work(void *argument)
{
    worker own = *(worker *)argument;
    free(argument);
    vmh_memory_bind(own.meter);
    void *result = own.run(own.argument);
    vmh_memory_bind(NULL);
    vmh_meter_unref(own.meter);
    return result;
}

static int create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    vmh_meter *meter = vmh_memory_payer();
    if (meter == NULL)
        return pthread_create(thread, attributes, run, argument);
    worker *own = malloc(sizeof *own);
    if (own == NULL)
        return EAGAIN;
    *own = (worker){run, argument, vmh_meter_ref(meter)};
    int rc = pthread_create(thread, attributes, work, own);
    if (rc != 0) {
        vmh_meter_unref(meter);
        free(own);
    }
    return rc;
}

INTERPOSED static int counted_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                                             void *argument)
{
    vmh_critical_enter();
    int rc = create(thread, attributes, run, argument);
    vmh_critical_leave();
    return rc;
}

void vmh_library_memory_code(const void **begin, const void **end)
{
    *begin = __start_vmh_interposed;
    *end = __stop_vmh_interposed;
}

/* ---- the table of imported functions ---- */

#if defined(__x86_64__)
enum { SLOT_OF_CALLS = R_X86_64_JUMP_SLOT, SLOT_OF_DATA = R_X86_64_GLOB_DAT };
#elif defined(__aarch64__)
enum { SLOT_OF_CALLS = R_AARCH64_JUMP_SLOT, SLOT_OF_DATA = R_AARCH64_GLOB_DAT };
#else
enum { SLOT_OF_CALLS = -1, SLOT_OF_DATA = -1 }; /* unknown machine: nothing is interposed */
#endif

enum { SLOTS_MAX = 2 }; /* of one function: one for calls, one for its address */

/* In the order of interposition: a block with a header must never reach the C library's own free. */
static const struct {
    const char *name;
    void *ours;
} interposed[] = {
    {"free", (void *)counted_free},
    {"realloc", (void *)counted_realloc},
    {"malloc", (void *)counted_malloc},
    {"calloc", (void *)counted_calloc},
    {"pthread_create", (void *)counted_pthread_create},
};
enum { INTERPOSED_COUNT = sizeof interposed / sizeof *interposed, INTERPOSED_FREE = 0 };

/* Functions that accept malloc's blocks but are not interposed: a library that imports one is left alone. */
static const char *const unsupported[] = {"malloc_usable_size", "reallocarray", "getline",    "getdelim",
                                          "__getdelim",         "cfree",        "free_sized", "free_aligned_sized"};

typedef struct {
    uintptr_t inside;                /* an address within the library */
    uintptr_t base, low, high;       /* load address and extent */
    uintptr_t relro_low, relro_high; /* read-only after relocation (RELRO) */
    const ElfW(Dyn) * dynamic;
    void **slots[INTERPOSED_COUNT][SLOTS_MAX];
} library;

static int look(struct dl_phdr_info *object, size_t size, void *context)
{
    library *found = context;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    library here = {.inside = found->inside, .base = object->dlpi_addr, .low = UINTPTR_MAX};
    (void)size;
    bool holds = false;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        uintptr_t low = here.base + part->p_vaddr, high = low + part->p_memsz;
        if (part->p_type == PT_LOAD) {
            holds |= here.inside >= low && here.inside < high;
            here.low = low < here.low ? low : here.low;
            here.high = high > here.high ? high : here.high;
        } else if (part->p_type == PT_DYNAMIC) {
            here.dynamic = (const ElfW(Dyn) *)low;
        } else if (part->p_type == PT_GNU_RELRO) {
            here.relro_low = low & ~(page - 1);
            here.relro_high = high & ~(page - 1);
        }
    }
    if (holds)
        *found = here;
    return holds;
}

/* An address in the dynamic section: glibc has already added the base, musl has not. */
static uintptr_t absolute(const library *in, ElfW(Addr) address)
{
    return address < in->base ? in->base + address : address;
}

/* False: the library cannot be interposed. */
static bool note_slot(library *in, const char *name, unsigned type, void **slot)
{
    for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
        if (strcmp(name, unsupported[i]) == 0)
            return false;
    for (int i = 0; i < INTERPOSED_COUNT; i++)
        if (strcmp(name, interposed[i].name) == 0) {
            int at = 0;
            while (at < SLOTS_MAX && in->slots[i][at] != NULL)
                at++;
            /* Points into the library itself: its own function, or not bound yet; binding would undo the change. */
            uintptr_t now = (uintptr_t)*slot;
            if (at == SLOTS_MAX || (type != SLOT_OF_CALLS && type != SLOT_OF_DATA)
                || (now >= in->low && now < in->high))
                return false;
            in->slots[i][at] = slot;
        }
    return true;
}

static bool note_slots(library *in, uintptr_t table, size_t bytes, const ElfW(Sym) * symbols, const char *names)
{
    const ElfW(Rela) *entries = (const ElfW(Rela) *)table;
    for (size_t i = 0; i < bytes / sizeof *entries; i++) {
        size_t symbol = ELF64_R_SYM(entries[i].r_info);
        if (symbol != 0
            && !note_slot(in, names + symbols[symbol].st_name, (unsigned)ELF64_R_TYPE(entries[i].r_info),
                          (void **)(in->base + entries[i].r_offset)))
            return false;
    }
    return true;
}

static bool find_slots(library *in)
{
    uintptr_t rela = 0, calls = 0;
    size_t rela_bytes = 0, calls_bytes = 0;
    const ElfW(Sym) *symbols = NULL;
    const char *names = NULL;
    for (const ElfW(Dyn) *entry = in->dynamic; entry != NULL && entry->d_tag != DT_NULL; entry++)
        switch (entry->d_tag) {
        case DT_RELA: rela = absolute(in, entry->d_un.d_ptr); break;
        case DT_RELASZ: rela_bytes = entry->d_un.d_val; break;
        case DT_JMPREL: calls = absolute(in, entry->d_un.d_ptr); break;
        case DT_PLTRELSZ: calls_bytes = entry->d_un.d_val; break;
        case DT_SYMTAB: symbols = (const ElfW(Sym) *)absolute(in, entry->d_un.d_ptr); break;
        case DT_STRTAB: names = (const char *)absolute(in, entry->d_un.d_ptr); break;
        case DT_REL: return false;
        default: break;
        }
    if (symbols == NULL || names == NULL)
        return false;
    /* Some linkers include the table of calls in the other one. */
    if (calls >= rela && calls < rela + rela_bytes)
        calls_bytes = 0;
    return note_slots(in, rela, rela_bytes, symbols, names) && note_slots(in, calls, calls_bytes, symbols, names)
           && in->slots[INTERPOSED_FREE][0] != NULL;
}

static bool rewrite(const library *in)
{
    size_t closed = in->relro_high > in->relro_low ? in->relro_high - in->relro_low : 0;
    if (closed > 0 && mprotect((void *)in->relro_low, closed, PROT_READ | PROT_WRITE) != 0)
        return false;
    for (int i = 0; i < INTERPOSED_COUNT; i++)
        for (int at = 0; at < SLOTS_MAX && in->slots[i][at] != NULL; at++)
            __atomic_store_n(in->slots[i][at], interposed[i].ours, __ATOMIC_SEQ_CST);
    if (closed > 0)
        mprotect((void *)in->relro_low, closed, PROT_READ);
    return true;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the variables below; never taken in an allocation */
static uintptr_t bases[8];                               /* bases of libraries */
static int base_count;

bool vmh_library_memory_interpose(const void *inside)
{
    library in = {.inside = (uintptr_t)inside};
    bool done = false;
    vmh_mutex_lock(&lock);
    if (inside == NULL || dl_iterate_phdr(look, &in) == 0 || base_count == (int)(sizeof bases / sizeof *bases))
        goto finish;
    for (int i = 0; i < base_count; i++)
        done |= bases[i] == in.base;
    /* Allocations of CPython itself are charged by its own hooks. */
    uintptr_t python = (uintptr_t)dlsym(RTLD_DEFAULT, "PyObject_Malloc");
    if (done || (python >= in.low && python < in.high) || !find_slots(&in))
        goto finish;
    if (secret == 0 && getrandom(&secret, sizeof secret, GRND_NONBLOCK) != (ssize_t)sizeof secret)
        secret = (uintptr_t)&in ^ (uint64_t)getpid() << 32;
    secret = (secret | UINT64_C(1) << 63) & ~UINT64_C(1);
    done = rewrite(&in);
    if (done)
        bases[base_count++] = in.base;
finish:
    vmh_mutex_unlock(&lock);
    return done;
}

/* ---- which libraries ---- */

const char *const vmh_library_memory_modules[] = {"_hashlib", "_ssl", "_zstd", NULL};
static const char *const functions[] = {"CRYPTO_malloc", "CRYPTO_malloc", "ZSTD_createCCtx"}; /* of their libraries */
enum { UNTRIED, COUNTED, UNCOUNTED };
static atomic_int states[sizeof functions / sizeof *functions];

static int index_of(const char *name)
{
    int i = 0;
    while (vmh_library_memory_modules[i] != NULL && strcmp(vmh_library_memory_modules[i], name) != 0)
        i++;
    return vmh_library_memory_modules[i] == NULL ? -1 : i;
}

void vmh_library_memory_loaded(const char *name, const char *path)
{
    int i = index_of(name);
    if (i < 0 || atomic_load_explicit(&states[i], memory_order_acquire) != UNTRIED)
        return;
    /* Kept open, since its library stays interposed. dlsym does not find hidden functions. */
    void *module = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    void *inside = module == NULL ? NULL : dlsym(module, functions[i]);
    bool counted = vmh_library_memory_interpose(inside);
    atomic_store_explicit(&states[i], counted ? COUNTED : UNCOUNTED, memory_order_release);
}

bool vmh_library_memory_counted(const char *name)
{
    int i = index_of(name);
    return i >= 0 && atomic_load_explicit(&states[i], memory_order_acquire) == COUNTED;
}
