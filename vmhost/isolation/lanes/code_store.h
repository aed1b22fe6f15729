/* The contents of one bundle that VMs run from: code, texts, files and models, in memory that the process owns,
 * readable from every VM without any GIL.
 *
 * The bytes are copied in or lent for good, so that a code store may end on any thread. Modules can be added while VMs
 * run (an executor does this); entries are never removed or changed. No Python in here.
 */
#ifndef VMH_CODE_STORE_H
#define VMH_CODE_STORE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmh_code_entry {
    char *name; /* dotted module name, text digest in hex behind '#', file path behind '/', model behind '%', or table
                   behind '@'; owned */
    bool is_package;
    const uint8_t *code;  /* marshalled code, or the file's bytes; owned, unless lent */
    bool lent;            /* `code` outlives the code store */
    void (*drop)(void *); /* `code` is a shared object, and this releases it; NULL: `code` is bytes */
    size_t size;
    struct vmh_code_entry *next;
} vmh_code_entry;

typedef struct vmh_code_store {
    atomic_int refs;
    pthread_rwlock_t lock;
    vmh_code_entry **buckets; /* guarded by lock, like all below */
    size_t bucket_count, count;
} vmh_code_store;

vmh_code_store *vmh_code_store_new(void);
vmh_code_store *vmh_code_store_ref(vmh_code_store *store);
void vmh_code_store_unref(vmh_code_store *store);

/* Whether an entry of this name is a module. */
bool vmh_code_store_is_module(const char *name);

/* 0, or -1: no memory, 1: the name is there already. */
int vmh_code_store_add(vmh_code_store *store, const char *name, bool is_package, const uint8_t *code, size_t size);
/* The same without a copy: `code` outlives the code store. */
int vmh_code_store_lend(vmh_code_store *store, const char *name, bool is_package, const uint8_t *code, size_t size);

/* An object instead of bytes. The code store releases it with `drop` when the store ends, or at once if it could not be
 * added. */
int vmh_code_store_hold(vmh_code_store *store, const char *name, void *object, void (*drop)(void *));

/* The result stays valid while the code store is referenced. NULL: not found. */
const vmh_code_entry *vmh_code_store_find(vmh_code_store *store, const char *dotted);
const vmh_code_entry *vmh_code_store_find_text(vmh_code_store *store, const uint8_t digest[32]);
const vmh_code_entry *vmh_code_store_find_file(vmh_code_store *store, const char *path);
/* Calls `visit` with each entry whose name begins with `prefix`; stops when it returns non-zero and returns that. */
int vmh_code_store_visit(vmh_code_store *store, const char *prefix, int (*visit)(const vmh_code_entry *, void *),
                         void *context);

#endif
