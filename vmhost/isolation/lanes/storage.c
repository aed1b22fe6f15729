#include "lanes/storage.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static _Atomic(vmh_storage *) released;

vmh_storage *vmh_storage_new(size_t size, vmh_meter *meter)
{
    vmh_storage *storage = calloc(1, sizeof *storage);
    if (storage == NULL)
        return NULL;
    if (size > PTRDIFF_MAX - 64 || (meter != NULL && !vmh_meter_charge(meter, size))) {
        free(storage);
        return NULL;
    }
    /* aligned_alloc requires a multiple of the alignment. memset, unlike calloc, commits the pages at once. */
    size_t rounded = (size + 63) & ~(size_t)63;
    storage->data = aligned_alloc(64, rounded == 0 ? 64 : rounded);
    if (storage->data == NULL) {
        if (meter != NULL)
            vmh_meter_release(meter, size);
        free(storage);
        return NULL;
    }
    memset(storage->data, 0, rounded == 0 ? 64 : rounded);
    storage->size = size;
    atomic_init(&storage->refs, 1);
    if (meter != NULL) {
        storage->meter = vmh_meter_ref(meter);
        atomic_fetch_add(&meter->buffers, (long long)size);
        if (atomic_load_explicit(&meter->holdings, memory_order_acquire) != NULL)
            meter->watch->made(meter, storage, size);
    }
    return storage;
}

static vmh_storage *foreign(void *data, size_t size)
{
    vmh_storage *storage = calloc(1, sizeof *storage);
    if (storage == NULL)
        return NULL;
    atomic_init(&storage->refs, 1);
    atomic_init(&storage->frozen, true);
    storage->data = data;
    storage->size = size;
    return storage;
}

vmh_storage *vmh_storage_lend(void *data, size_t size, void *lender)
{
    vmh_storage *storage = foreign(data, size);
    if (storage != NULL)
        storage->lender = lender;
    return storage;
}

vmh_storage *vmh_storage_hold(void *data, size_t size, void *held, void (*drop)(void *held))
{
    vmh_storage *storage = foreign(data, size);
    if (storage != NULL) {
        storage->held = held;
        storage->drop = drop;
    }
    return storage;
}

vmh_storage *vmh_storage_adopt(void *block, size_t size) { return vmh_storage_lend(block, size, NULL); }

vmh_storage *vmh_storage_ref(vmh_storage *storage)
{
    atomic_fetch_add_explicit(&storage->refs, 1, memory_order_relaxed);
    return storage;
}

void vmh_storage_unref(vmh_storage *storage)
{
    if (atomic_fetch_sub(&storage->refs, 1) != 1)
        return;
    if (storage->lender != NULL) {
        vmh_storage *head = atomic_load(&released);
        do
            storage->next = head;
        while (!atomic_compare_exchange_weak(&released, &head, storage));
        return;
    }
    if (storage->meter != NULL) {
        if (atomic_load_explicit(&storage->meter->holdings, memory_order_acquire) != NULL)
            storage->meter->watch->gone(storage->meter, storage);
        vmh_meter_release(storage->meter, storage->size);
        atomic_fetch_sub(&storage->meter->buffers, (long long)storage->size);
        vmh_meter_unref(storage->meter);
    }
    if (storage->drop != NULL)
        storage->drop(storage->held);
    else
        free(storage->data);
    free(storage);
}

vmh_storage *vmh_storage_take_released(void)
{
    return atomic_load_explicit(&released, memory_order_relaxed) == NULL ? NULL : atomic_exchange(&released, NULL);
}
