/* Blob: encoded values (wire/wire.h) and the storage that they refer to. A call carries two, its request and its
 * reply. No Python in here. */
#ifndef VMH_BLOB_H
#define VMH_BLOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lanes/meter.h"
#include "lanes/storage.h"

#define VMH_BLOB_INLINE 160

typedef struct vmh_blob {
    uint8_t *data; /* heap, or `inside` */
    size_t size, capacity;
    vmh_storage **storages; /* one reference each */
    unsigned storage_count, storage_capacity;
    vmh_meter *payer; /* charged for the heap memory, without what the storages hold; one reference; NULL: nobody */
    uint8_t inside[VMH_BLOB_INLINE];
} vmh_blob;

void vmh_blob_init(vmh_blob *blob);
void vmh_blob_charge(vmh_blob *blob, vmh_meter *payer); /* from now on; call it while the blob is empty */
void vmh_blob_clear(vmh_blob *blob);                    /* empties it and frees its memory */
bool vmh_blob_reserve(vmh_blob *blob,
                      size_t more); /* room for `more` bytes at data + size; false: no memory, or refused */
bool vmh_blob_add_storage(vmh_blob *blob, vmh_storage *storage); /* takes a reference of its own */
size_t vmh_blob_bytes(const vmh_blob *blob);                     /* its size, storages included */
void vmh_blob_move(vmh_blob *to, vmh_blob *from);                /* clears `to` first; `from` is empty afterwards */

#endif
