/* Reference-counted storage, owned by the process, that crosses between interpreters without a copy.
 *
 * Own storage is malloc'ed and charged to the meter of the VM that made it (NULL: the host's). Lent storage is a buffer
 * of the host's (such as a NumPy array): its `lender` can be released only on the main interpreter, so dropping the
 * last reference, on any thread, queues it on a list that the main interpreter empties. Held storage is another
 * reference-counted owner's bytes (an engine buffer). No Python in here.
 */
#ifndef VMH_STORAGE_H
#define VMH_STORAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/meter.h"

typedef struct vmh_storage {
    atomic_int refs;
    atomic_bool frozen; /* has crossed: no more writes */
    atomic_int writers; /* writable views that exist; it cannot cross while there are any */
    void *data;         /* 64-byte aligned when own */
    size_t size;        /* bytes */
    vmh_meter *meter;   /* charged for it; NULL: the host */
    void *lender;       /* lent: Py_buffer of the main interpreter; NULL: own */
    void *held;         /* held: the owner's handle, which `drop` releases on any thread; NULL: not held */
    void (*drop)(void *held);
    struct vmh_storage *next; /* in the list for the main interpreter to release */
} vmh_storage;

/* NULL: no memory, or `meter` refused. */
vmh_storage *vmh_storage_new(size_t size, vmh_meter *meter);
vmh_storage *vmh_storage_lend(void *data, size_t size, void *lender);
/* Frozen; `drop(held)` is called once, with the last reference. */
vmh_storage *vmh_storage_hold(void *data, size_t size, void *held, void (*drop)(void *held));
/* Takes over a malloc'ed block that is charged to no meter. */
vmh_storage *vmh_storage_adopt(void *block, size_t size);
vmh_storage *vmh_storage_ref(vmh_storage *storage);
void vmh_storage_unref(vmh_storage *storage);

/* The list of lent storage without references; the caller (main interpreter) releases each lender and calls free() on
 * each node. */
vmh_storage *vmh_storage_take_released(void);

#endif
