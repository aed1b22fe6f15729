/* The interface by which other native modules read and make arrays of `vmhost.engine._array`: a struct in a capsule
 * with this name, which the module stores in PyInterpreterState_GetDict under this key; valid as long as the
 * interpreter.
 *
 * Each interpreter has its own module and so its own struct; arrays of different interpreters never mix. Call with that
 * interpreter's thread state attached. Needs Python.h and vme.h. */
#ifndef VME_PYTHON_H
#define VME_PYTHON_H

#include <Python.h>

#include "vme.h"
#include "vme_embedding.h"

#define VME_PYTHON_ABI     3
#define VME_SCALAR_BYTES   16 /* size of the largest element */
#define VME_PYTHON_CAPSULE "vmhost.engine._array._C_API"
/* The interpreter's owner stores its vme_context here (a capsule with this name, in PyInterpreterState_GetDict, under
 * this key) before vmhost.engine._array is imported; the module takes a reference of its own. Absent: a context without
 * an account. */
#define VME_CONTEXT_CAPSULE "engine.context"
/* A function without arguments that runs what is pending in the interpreter: a stop is raised by it. May be absent. */
#define VME_BREATHE "engine.breathe"

/* If an interpreter may only run certain models, its owner stores their lookup here: a capsule with this name, under
 * this key, of struct vme_python_models. Absent: models are made from the bytes of their files. */
#define VME_MODELS_CAPSULE "vmhost.engine.models"
struct vme_python_models {
    vme_model *(*find)(const char *name); /* borrowed, valid as long as the interpreter; NULL: no such model */
    /* Calls `each` with every name until it returns non-zero, and returns that. */
    int (*visit)(int (*each)(const char *name, void *argument), void *argument);
};

/* An embedding table in Python: a capsule with this name, which owns a struct vme_python_embedding. */
#define VME_EMBEDDING_CAPSULE "vmhost.engine.embedding"
struct vme_python_embedding {
    vme_embedding *table; /* a reference */
    bool trains, owns;    /* may make gradient steps; may also save, evict and restore */
};
/* The interpreter's owner stores the lookup of the tables granted to its program here: a capsule with this name, under
 * this key, of struct vme_python_tables. */
#define VME_TABLES_CAPSULE "vmhost.engine.tables"
struct vme_python_tables {
    vme_embedding *(*find)(const char *name, bool *trains); /* borrowed, valid as long as the interpreter; NULL: no such
                                                             * table */
    int (*visit)(int (*each)(const char *name, void *argument), void *argument); /* as for models */
};

struct vme_python_api {
    uint32_t abi;     /* VME_PYTHON_ABI */
    uint32_t size;    /* sizeof(struct vme_python_api) */
    PyObject *module; /* borrowed; vmhost.engine._array of this interpreter */
    /* Whether it is an array, of any interpreter; so pass only objects of this one. Cannot fail. */
    bool (*array_check)(PyObject *object);
    /* The array's view, borrowed: valid while the caller holds the array, whose shape never changes. Cannot fail. */
    void (*array_view)(PyObject *array, vme_tensor *view);
    /* Whether this array may be written: false also for a read-only view on a writable buffer. */
    bool (*array_writable)(PyObject *array);
    /* Whether to copy it before it is passed to another interpreter: its memory belongs to a Python object of this one
     * (buffer protocol, DLPack) and ends with that; or it may still be written without another check: through a window
     * (vme_window.h), or by a running operation, on another thread or on this one, that runs code of the program in
     * between (`a[0] = x`, `x.__float__`). */
    bool (*array_must_be_copied)(PyObject *array);
    /* A copy of its view, in C order; if its strides repeat elements, with the same strides. NULL: an error is set. */
    PyObject *(*array_copied)(PyObject *array);
    /* A new array on a buffer (it takes a reference of its own); `shape` and `strides` (bytes; NULL: C order) are
     * copied. NULL with ValueError set if the view exceeds the buffer, TypeError for an unknown dtype. */
    PyObject *(*array_from_buffer)(PyObject *module, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                                   const int64_t *strides, size_t offset);
    /* The interpreter's context, borrowed. */
    vme_context *(*context)(PyObject *module);
    /* Whether the array corresponds to a NumPy scalar (immutable, hashable); if so, writes its element. Cannot fail. */
    bool (*array_scalar)(PyObject *array, int *dtype, char element[VME_SCALAR_BYTES]);
    /* Makes such an array. NULL with MemoryError set, TypeError for an unknown dtype. */
    PyObject *(*scalar_new)(PyObject *module, int dtype, const char element[VME_SCALAR_BYTES]);
};

#endif
