#include "lanes/code_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lanes/critical.h"

bool vmh_code_store_is_module(const char *name) { return *name != 0 && strchr("#/%@", *name) == NULL; }

vmh_code_store *vmh_code_store_new(void)
{
    vmh_code_store *store = calloc(1, sizeof *store);
    if (store == NULL)
        return NULL;
    store->bucket_count = 256;
    store->buckets = calloc(store->bucket_count, sizeof *store->buckets);
    if (store->buckets == NULL || pthread_rwlock_init(&store->lock, NULL) != 0) {
        free(store->buckets);
        free(store);
        return NULL;
    }
    atomic_init(&store->refs, 1);
    return store;
}

static void entry_free(vmh_code_entry *entry)
{
    if (entry == NULL)
        return;
    free(entry->name);
    if (entry->drop != NULL)
        entry->drop((void *)entry->code);
    else if (!entry->lent)
        free((void *)entry->code);
    free(entry);
}

vmh_code_store *vmh_code_store_ref(vmh_code_store *store)
{
    atomic_fetch_add(&store->refs, 1);
    return store;
}

void vmh_code_store_unref(vmh_code_store *store)
{
    if (atomic_fetch_sub(&store->refs, 1) != 1)
        return;
    for (size_t i = 0; i < store->bucket_count; i++) {
        vmh_code_entry *entry = store->buckets[i];
        while (entry != NULL) {
            vmh_code_entry *next = entry->next;
            entry_free(entry);
            entry = next;
        }
    }
    pthread_rwlock_destroy(&store->lock);
    free(store->buckets);
    free(store);
}

static size_t hash(const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *name != 0; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211u;
    return (size_t)h;
}

static vmh_code_entry *find(vmh_code_store *store, const char *name)
{
    vmh_code_entry *entry = store->buckets[hash(name) & (store->bucket_count - 1)];
    while (entry != NULL && strcmp(entry->name, name) != 0)
        entry = entry->next;
    return entry;
}

/* Allocates a larger table. On failure the old one stays, with longer chains. */
static void grow(vmh_code_store *store)
{
    size_t count = store->bucket_count * 4;
    vmh_code_entry **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return;
    for (size_t i = 0; i < store->bucket_count; i++) {
        vmh_code_entry *entry = store->buckets[i];
        while (entry != NULL) {
            vmh_code_entry *next = entry->next;
            size_t at = hash(entry->name) & (count - 1);
            entry->next = buckets[at];
            buckets[at] = entry;
            entry = next;
        }
    }
    free(store->buckets);
    store->buckets = buckets;
    store->bucket_count = count;
}

/* Takes ownership of `entry` in every case; NULL counts as out of memory. */
static int add(vmh_code_store *store, vmh_code_entry *entry)
{
    int rc = -1;
    if (entry == NULL || entry->name == NULL || entry->code == NULL)
        goto done;
    vmh_critical_enter();
    pthread_rwlock_wrlock(&store->lock);
    rc = find(store, entry->name) != NULL ? 1 : 0;
    if (rc == 0) {
        if (store->count > store->bucket_count)
            grow(store);
        vmh_code_entry **bucket = &store->buckets[hash(entry->name) & (store->bucket_count - 1)];
        entry->next = *bucket;
        *bucket = entry;
        store->count++;
        entry = NULL;
    }
    pthread_rwlock_unlock(&store->lock);
    vmh_critical_leave();
done:
    entry_free(entry);
    return rc;
}

static vmh_code_entry *entry_new(const char *name, bool is_package, size_t size)
{
    vmh_code_entry *entry = calloc(1, sizeof *entry);
    if (entry != NULL) {
        entry->name = strdup(name);
        entry->is_package = is_package;
        entry->size = size;
    }
    return entry;
}

int vmh_code_store_add(vmh_code_store *store, const char *name, bool is_package, const uint8_t *code, size_t size)
{
    vmh_code_entry *entry = entry_new(name, is_package, size);
    uint8_t *copy = entry == NULL ? NULL : malloc(size + 1);
    if (copy != NULL)
        entry->code = memcpy(copy, code, size);
    return add(store, entry);
}

int vmh_code_store_lend(vmh_code_store *store, const char *name, bool is_package, const uint8_t *code, size_t size)
{
    vmh_code_entry *entry = entry_new(name, is_package, size);
    if (entry != NULL) {
        entry->code = code;
        entry->lent = true;
    }
    return add(store, entry);
}

int vmh_code_store_hold(vmh_code_store *store, const char *name, void *object, void (*drop)(void *))
{
    vmh_code_entry *entry = entry_new(name, false, 0);
    if (entry == NULL)
        drop(object);
    else {
        entry->code = object;
        entry->drop = drop;
    }
    return add(store, entry);
}

const vmh_code_entry *vmh_code_store_find(vmh_code_store *store, const char *dotted)
{
    vmh_critical_enter();
    pthread_rwlock_rdlock(&store->lock);
    const vmh_code_entry *entry = find(store, dotted);
    pthread_rwlock_unlock(&store->lock);
    vmh_critical_leave();
    return entry;
}

const vmh_code_entry *vmh_code_store_find_text(vmh_code_store *store, const uint8_t digest[32])
{
    char name[1 + 64 + 1] = "#";
    for (int i = 0; i < 32; i++)
        snprintf(name + 1 + 2 * i, 3, "%02x", digest[i]);
    return vmh_code_store_find(store, name);
}

const vmh_code_entry *vmh_code_store_find_file(vmh_code_store *store, const char *path)
{
    size_t size = strlen(path);
    char *name = malloc(size + 2);
    if (name == NULL)
        return NULL;
    name[0] = '/';
    memcpy(name + 1, path, size + 1);
    const vmh_code_entry *entry = vmh_code_store_find(store, name);
    free(name);
    return entry;
}

int vmh_code_store_visit(vmh_code_store *store, const char *prefix, int (*visit)(const vmh_code_entry *, void *),
                         void *context)
{
    size_t size = strlen(prefix);
    int rc = 0;
    vmh_critical_enter();
    pthread_rwlock_rdlock(&store->lock);
    for (size_t i = 0; rc == 0 && i < store->bucket_count; i++)
        for (const vmh_code_entry *entry = store->buckets[i]; rc == 0 && entry != NULL; entry = entry->next)
            if (strncmp(entry->name, prefix, size) == 0)
                rc = visit(entry, context);
    pthread_rwlock_unlock(&store->lock);
    vmh_critical_leave();
    return rc;
}
