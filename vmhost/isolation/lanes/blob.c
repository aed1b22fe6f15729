#include "lanes/blob.h"

#include <stdlib.h>
#include <string.h>

void vmh_blob_init(vmh_blob *blob)
{
    blob->data = blob->inside;
    blob->size = 0;
    blob->capacity = sizeof blob->inside;
    blob->storages = NULL;
    blob->storage_count = blob->storage_capacity = 0;
    blob->payer = NULL;
}

void vmh_blob_charge(vmh_blob *blob, vmh_meter *payer) { blob->payer = vmh_meter_ref(payer); }

/* Like realloc; the payer is charged before. NULL: no memory, or refused; nothing has changed. */
static void *grow(const vmh_blob *blob, void *memory, size_t before, size_t after)
{
    if (blob->payer != NULL && !vmh_meter_charge(blob->payer, after - before))
        return NULL;
    void *grown = realloc(memory, after);
    if (grown == NULL && blob->payer != NULL)
        vmh_meter_release(blob->payer, after - before);
    return grown;
}

static size_t heap_bytes(const vmh_blob *blob)
{
    return (blob->data == blob->inside ? 0 : blob->capacity) + blob->storage_capacity * sizeof *blob->storages;
}

void vmh_blob_clear(vmh_blob *blob)
{
    if (blob->payer != NULL) {
        vmh_meter_release(blob->payer, heap_bytes(blob));
        vmh_meter_unref(blob->payer);
    }
    if (blob->data != blob->inside)
        free(blob->data);
    for (unsigned i = 0; i < blob->storage_count; i++)
        vmh_storage_unref(blob->storages[i]);
    free(blob->storages);
    vmh_blob_init(blob);
}

bool vmh_blob_reserve(vmh_blob *blob, size_t more)
{
    if (more <= blob->capacity - blob->size)
        return true;
    if (more > SIZE_MAX / 2 - blob->size)
        return false;
    size_t capacity = blob->capacity + blob->capacity / 2;
    if (capacity < blob->size + more)
        capacity = blob->size + more;
    bool first = blob->data == blob->inside;
    uint8_t *data = grow(blob, first ? NULL : blob->data, first ? 0 : blob->capacity, capacity);
    if (data == NULL)
        return false;
    if (first)
        memcpy(data, blob->inside, blob->size);
    blob->data = data;
    blob->capacity = capacity;
    return true;
}

bool vmh_blob_add_storage(vmh_blob *blob, vmh_storage *storage)
{
    if (blob->storage_count == blob->storage_capacity) {
        unsigned capacity = blob->storage_capacity * 2 + 4;
        vmh_storage **storages =
            grow(blob, blob->storages, blob->storage_capacity * sizeof *storages, capacity * sizeof *storages);
        if (storages == NULL)
            return false;
        blob->storages = storages;
        blob->storage_capacity = capacity;
    }
    blob->storages[blob->storage_count++] = vmh_storage_ref(storage);
    return true;
}

size_t vmh_blob_bytes(const vmh_blob *blob)
{
    size_t bytes = blob->size;
    for (unsigned i = 0; i < blob->storage_count; i++)
        bytes += blob->storages[i]->size;
    return bytes;
}

void vmh_blob_move(vmh_blob *to, vmh_blob *from)
{
    vmh_blob_clear(to);
    if (from->data == from->inside) {
        memcpy(to->inside, from->inside, from->size);
    } else {
        to->data = from->data;
        to->capacity = from->capacity;
    }
    to->size = from->size;
    to->storages = from->storages;
    to->storage_count = from->storage_count;
    to->storage_capacity = from->storage_capacity;
    to->payer = from->payer;
    vmh_blob_init(from);
}
