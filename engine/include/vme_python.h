/* How other native modules read and make arrays of `vmhost.engine._array`: the struct behind a capsule of this name
 * that the module leaves in PyInterpreterState_GetDict, under this key; it is good for as long as the interpreter is.
 *
 * Each interpreter has its own module and so its own struct; the arrays of one interpreter never meet another's. Call
 * with that interpreter's thread state attached. Needs Python.h and vme.h.
 */
#ifndef VME_PYTHON_H
#define VME_PYTHON_H

#include <Python.h>

#include "vme.h"
#include "vme_embedding.h"

#define VME_PYTHON_ABI     3
#define VME_SCALAR_BYTES   16 /* the largest element */
#define VME_PYTHON_CAPSULE "vmhost.engine._array._C_API"
/* Where an interpreter's owner leaves its vme_context (a capsule of this name, in PyInterpreterState_GetDict, under
 * this key) before vmhost.engine._array is imported there; the module takes a reference of its own. Absent: a context
 * without an account. */
#define VME_CONTEXT_CAPSULE "engine.context"
/* And a function of no arguments that lets the interpreter run what is pending: a stop raises out of it. May be absent.
 */
#define VME_BREATHE "engine.breathe"

/* Where the owner of an interpreter that may run some models only leaves what finds them: a capsule of this name, under
 * this key, of struct vme_python_models. Absent: models are made of the bytes of their files. */
#define VME_MODELS_CAPSULE "vmhost.engine.models"
struct vme_python_models {
    vme_model *(*find)(const char *name); /* borrowed, valid as long as the interpreter; NULL: none of that name */
    /* Calls `each` with every name, until one returns other than 0, which is returned. */
    int (*visit)(int (*each)(const char *name, void *argument), void *argument);
};

/* An embedding table as Python holds it: a capsule of this name, of a struct vme_python_embedding that it owns. */
#define VME_EMBEDDING_CAPSULE "vmhost.engine.embedding"
struct vme_python_embedding {
    vme_embedding *table; /* a reference */
    bool trains, owns;    /* may make gradient steps; may save, evict and restore too */
};
/* Where the owner of an interpreter leaves what finds the tables that its program was granted: a capsule of this name,
 * under this key, of struct vme_python_tables. */
#define VME_TABLES_CAPSULE "vmhost.engine.tables"
struct vme_python_tables {
    vme_embedding *(*find)(const char *name, bool *trains); /* borrowed, valid as long as the interpreter; NULL: none */
    int (*visit)(int (*each)(const char *name, void *argument), void *argument); /* as of models */
};

struct vme_python_api {
    uint32_t abi;     /* VME_PYTHON_ABI */
    uint32_t size;    /* sizeof(struct vme_python_api) */
    PyObject *module; /* borrowed; vmhost.engine._array of this interpreter */
    /* Whether it is an array: of any interpreter, so ask only about objects of this one. Cannot fail. */
    bool (*array_check)(PyObject *object);
    /* What the array shows, borrowed: valid while the caller holds the array, whose shape never changes. Cannot fail.
     */
    void (*array_view)(PyObject *array, vme_tensor *view);
    /* Whether writing through this array is allowed: false also for a read-only view on a writable buffer. */
    bool (*array_writable)(PyObject *array);
    /* Whether to copy it before it crosses to another interpreter. Its memory belongs to a Python object of this one
     * (buffer protocol, DLPack) and ends with it; or somebody may still write it who does not ask again: through a
     * window (vme_window.h), or in an operation that is under way, on another thread or on this one, in the midst of
     * which code of the program runs (`a[0] = x`, `x.__float__`). */
    bool (*array_must_be_copied)(PyObject *array);
    /* A copy of what it shows, in C order; with the strides that it has where they let it show more than there is.
     * NULL: an error is set. */
    PyObject *(*array_copied)(PyObject *array);
    /* A new array on a buffer (a reference of its own is taken); `shape` and `strides` (bytes; NULL: C order) are
     * copied. NULL with ValueError set when the view leaves the buffer, TypeError for an unknown dtype. */
    PyObject *(*array_from_buffer)(PyObject *module, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                                   const int64_t *strides, size_t offset);
    /* The interpreter's context, borrowed. */
    vme_context *(*context)(PyObject *module);
    /* Whether the array stands for a number (what NumPy has scalars for: never written again, hashable); then its
     * element. Cannot fail. */
    bool (*array_scalar)(PyObject *array, int *dtype, char element[VME_SCALAR_BYTES]);
    /* Such an array. NULL with MemoryError set, TypeError for an unknown dtype. */
    PyObject *(*scalar_new)(PyObject *module, int dtype, const char element[VME_SCALAR_BYTES]);
};

#endif
