#include "lanes/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lanes/critical.h"

vmh_image *vmh_image_new(void)
{
    vmh_image *image = calloc(1, sizeof *image);
    if (image == NULL)
        return NULL;
    image->bucket_count = 256;
    image->buckets = calloc(image->bucket_count, sizeof *image->buckets);
    if (image->buckets == NULL || pthread_rwlock_init(&image->lock, NULL) != 0) {
        free(image->buckets);
        free(image);
        return NULL;
    }
    atomic_init(&image->refs, 1);
    return image;
}

static void module_free(vmh_module *module)
{
    if (module == NULL)
        return;
    free(module->name);
    if (module->drop != NULL)
        module->drop((void *)module->code);
    else if (!module->lent)
        free((void *)module->code);
    free(module);
}

vmh_image *vmh_image_ref(vmh_image *image)
{
    atomic_fetch_add(&image->refs, 1);
    return image;
}

void vmh_image_unref(vmh_image *image)
{
    if (atomic_fetch_sub(&image->refs, 1) != 1)
        return;
    for (size_t i = 0; i < image->bucket_count; i++) {
        vmh_module *module = image->buckets[i];
        while (module != NULL) {
            vmh_module *next = module->next;
            module_free(module);
            module = next;
        }
    }
    pthread_rwlock_destroy(&image->lock);
    free(image->buckets);
    free(image);
}

static size_t hash(const char *name)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */
    for (; *name != 0; name++)
        h = (h ^ (uint8_t)*name) * 1099511628211u;
    return (size_t)h;
}

static vmh_module *find(vmh_image *image, const char *name)
{
    vmh_module *module = image->buckets[hash(name) & (image->bucket_count - 1)];
    while (module != NULL && strcmp(module->name, name) != 0)
        module = module->next;
    return module;
}

/* A larger table where there is memory for one; a crowded one works too. */
static void grow(vmh_image *image)
{
    size_t count = image->bucket_count * 4;
    vmh_module **buckets = calloc(count, sizeof *buckets);
    if (buckets == NULL)
        return;
    for (size_t i = 0; i < image->bucket_count; i++) {
        vmh_module *module = image->buckets[i];
        while (module != NULL) {
            vmh_module *next = module->next;
            size_t at = hash(module->name) & (count - 1);
            module->next = buckets[at];
            buckets[at] = module;
            module = next;
        }
    }
    free(image->buckets);
    image->buckets = buckets;
    image->bucket_count = count;
}

/* Takes `module`, whatever happens. NULL: no memory for it. */
static int add(vmh_image *image, vmh_module *module)
{
    int rc = -1;
    if (module == NULL || module->name == NULL || module->code == NULL)
        goto done;
    vmh_critical_enter();
    pthread_rwlock_wrlock(&image->lock);
    rc = find(image, module->name) != NULL ? 1 : 0;
    if (rc == 0) {
        if (image->count > image->bucket_count)
            grow(image);
        vmh_module **bucket = &image->buckets[hash(module->name) & (image->bucket_count - 1)];
        module->next = *bucket;
        *bucket = module;
        image->count++;
        module = NULL;
    }
    pthread_rwlock_unlock(&image->lock);
    vmh_critical_leave();
done:
    module_free(module);
    return rc;
}

static vmh_module *module_new(const char *name, bool is_package, size_t size)
{
    vmh_module *module = calloc(1, sizeof *module);
    if (module != NULL) {
        module->name = strdup(name);
        module->is_package = is_package;
        module->size = size;
    }
    return module;
}

int vmh_image_add(vmh_image *image, const char *name, bool is_package, const uint8_t *code, size_t size)
{
    vmh_module *module = module_new(name, is_package, size);
    uint8_t *copy = module == NULL ? NULL : malloc(size + 1);
    if (copy != NULL)
        module->code = memcpy(copy, code, size);
    return add(image, module);
}

int vmh_image_lend(vmh_image *image, const char *name, bool is_package, const uint8_t *code, size_t size)
{
    vmh_module *module = module_new(name, is_package, size);
    if (module != NULL) {
        module->code = code;
        module->lent = true;
    }
    return add(image, module);
}

int vmh_image_hold(vmh_image *image, const char *name, void *object, void (*drop)(void *))
{
    vmh_module *module = module_new(name, false, 0);
    if (module == NULL)
        drop(object);
    else {
        module->code = object;
        module->drop = drop;
    }
    return add(image, module);
}

const vmh_module *vmh_image_find(vmh_image *image, const char *dotted)
{
    vmh_critical_enter();
    pthread_rwlock_rdlock(&image->lock);
    const vmh_module *module = find(image, dotted);
    pthread_rwlock_unlock(&image->lock);
    vmh_critical_leave();
    return module;
}

const vmh_module *vmh_image_find_text(vmh_image *image, const uint8_t digest[32])
{
    char name[1 + 64 + 1] = "#";
    for (int i = 0; i < 32; i++)
        snprintf(name + 1 + 2 * i, 3, "%02x", digest[i]);
    return vmh_image_find(image, name);
}

const vmh_module *vmh_image_find_file(vmh_image *image, const char *path)
{
    size_t size = strlen(path);
    char *name = malloc(size + 2);
    if (name == NULL)
        return NULL;
    name[0] = '/';
    memcpy(name + 1, path, size + 1);
    const vmh_module *module = vmh_image_find(image, name);
    free(name);
    return module;
}

int vmh_image_visit(vmh_image *image, const char *prefix, int (*visit)(const vmh_module *, void *), void *context)
{
    size_t size = strlen(prefix);
    int rc = 0;
    vmh_critical_enter();
    pthread_rwlock_rdlock(&image->lock);
    for (size_t i = 0; rc == 0 && i < image->bucket_count; i++)
        for (const vmh_module *module = image->buckets[i]; rc == 0 && module != NULL; module = module->next)
            if (strncmp(module->name, prefix, size) == 0)
                rc = visit(module, context);
    pthread_rwlock_unlock(&image->lock);
    vmh_critical_leave();
    return rc;
}
