/* Code and files of one bundle, in memory that the process owns, readable from every VM without any GIL.
 *
 * The bytes are copied in, or lent for good, so that an image may end on any thread. Modules can be added while VMs run
 * (an executor does); nothing is ever removed or changed. No Python in here.
 */
#ifndef VMH_IMAGE_H
#define VMH_IMAGE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct vmh_module {
    char
        *name; /* dotted module name, text digest in hex behind '#', file path behind '/', or model behind '%'; owned */
    bool is_package;
    const uint8_t *code;  /* marshalled code, or the file's bytes; owned, unless lent */
    bool lent;            /* `code` outlives the image */
    void (*drop)(void *); /* `code` is an object that others know; this lets go of it. NULL: bytes */
    size_t size;
    struct vmh_module *next;
} vmh_module;

typedef struct vmh_image {
    atomic_int refs;
    pthread_rwlock_t lock;
    vmh_module **buckets; /* guarded by lock, like all below */
    size_t bucket_count, count;
} vmh_image;

vmh_image *vmh_image_new(void);
vmh_image *vmh_image_ref(vmh_image *image);
void vmh_image_unref(vmh_image *image);

/* 0, or -1: no memory, 1: the name is there already. */
int vmh_image_add(vmh_image *image, const char *name, bool is_package, const uint8_t *code, size_t size);
/* The same without a copy: `code` outlives the image. */
int vmh_image_lend(vmh_image *image, const char *name, bool is_package, const uint8_t *code, size_t size);

/* An object instead of bytes, which the image lets go of with `drop` when it ends, or at once when it could not be
 * added. */
int vmh_image_hold(vmh_image *image, const char *name, void *object, void (*drop)(void *));

/* What is found stays valid as long as the image is referenced. NULL: not there. */
const vmh_module *vmh_image_find(vmh_image *image, const char *dotted);
const vmh_module *vmh_image_find_text(vmh_image *image, const uint8_t digest[32]);
const vmh_module *vmh_image_find_file(vmh_image *image, const char *path);
/* Calls `visit` with each entry whose name begins with `prefix`; stops when it returns non-zero and returns that. */
int vmh_image_visit(vmh_image *image, const char *prefix, int (*visit)(const vmh_module *, void *), void *context);

#endif
