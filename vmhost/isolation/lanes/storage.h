/* Bytes that cross a wall without a copy: storage that the process owns and counts references to.
 *
 * Own storage is malloc'd and charged to the meter of the VM that made it (NULL: the host's). Lent storage is a buffer
 * of the host's (a NumPy array, say): its `lender` is released on the main interpreter only, so the last reference,
 * wherever it is dropped, queues it on a list that the main interpreter empties. Held storage is another counted
 * owner's bytes (an engine buffer). No Python in here.
 */
#ifndef VMH_STORAGE_H
#define VMH_STORAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "lanes/meter.h"

typedef struct vmh_storage {
    atomic_int refs;
    atomic_bool frozen; /* crossed a wall: nobody writes any more */
    atomic_int writers; /* views that were given out writable; it cannot cross while there are some */
    void *data;         /* 64-byte aligned when own */
    size_t size;        /* bytes */
    vmh_meter *meter;   /* who pays; NULL: the host */
    void *lender;       /* lent: Py_buffer of the main interpreter; NULL: own */
    void *held;         /* another owner's bytes: what `drop` lets go of, on any thread; NULL: not so */
    void (*drop)(void *held);
    struct vmh_storage *next; /* in the list of what the main interpreter must release */
} vmh_storage;

/* NULL: no memory, or `meter` refused. */
vmh_storage *vmh_storage_new(size_t size, vmh_meter *meter);
vmh_storage *vmh_storage_lend(void *data, size_t size, void *lender);
/* Frozen; `drop(held)` is called once, when the last reference is gone. */
vmh_storage *vmh_storage_hold(void *data, size_t size, void *held, void (*drop)(void *held));
/* Takes over a malloc'd block that nobody pays for. */
vmh_storage *vmh_storage_adopt(void *block, size_t size);
vmh_storage *vmh_storage_ref(vmh_storage *storage);
void vmh_storage_unref(vmh_storage *storage);

/* Lent storage whose last reference is gone; the caller (main interpreter) releases each lender and frees the node with
 * free(). */
vmh_storage *vmh_storage_take_released(void);

#endif
