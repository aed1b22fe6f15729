/* The interface by which other native modules read and make arrays of `vmhost.engine._array`: a struct
 * vme_python_api in a capsule named VME_PYTHON_CAPSULE. The module stores the capsule in PyInterpreterState_GetDict
 * under the same key. It is valid as long as the interpreter.
 *
 * Each interpreter has its own module, and so its own struct; arrays of different interpreters never mix. Call with
 * that interpreter's thread state attached. Needs Python.h and vme.h. */
#ifndef VME_PYTHON_H
#define VME_PYTHON_H

#include <Python.h>

#include "vme.h"
#include "vme_embedding.h"

#define VME_PYTHON_ABI     3
#define VME_SCALAR_BYTES   16 /* size of the largest element */
#define VME_PYTHON_CAPSULE "vmhost.engine._array._C_API"
/* The interpreter's owner stores its vme_context before vmhost.engine._array is imported: a capsule with this name, in
 * PyInterpreterState_GetDict under the same key. The module takes its own reference. Absent: the module makes a context
 * without an account. */
#define VME_CONTEXT_CAPSULE "engine.context"
/* A callable without arguments that runs the interpreter's pending calls, so that a stop raises its exception. May be
 * absent. */
#define VME_BREATHE "engine.breathe"

/* If an interpreter may only run certain models, its owner stores a lookup function for them: a capsule of struct
 * vme_python_models, with this name and key. Absent: models are made from the bytes of their files. */
#define VME_MODELS_CAPSULE "vmhost.engine.models"
struct vme_python_models {
    vme_model *(*find)(const char *name); /* borrowed, valid as long as the interpreter; NULL: no such model */
    /* Calls `each` with every name, until one call returns non-zero; returns that value, or 0. */
    int (*visit)(int (*each)(const char *name, void *argument), void *argument);
};

/* An embedding table in Python is a capsule with this name, which owns a struct vme_python_embedding. */
#define VME_EMBEDDING_CAPSULE "vmhost.engine.embedding"
struct vme_python_embedding {
    vme_embedding *table; /* a reference */
    bool trains, owns;    /* trains: may make gradient steps; owns: may save, evict and restore too */
};
/* The interpreter's owner stores a lookup function for the tables that its program may use: a capsule of struct
 * vme_python_tables, with this name and key. */
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
    /* Whether it is an array. Pass objects of this interpreter only: arrays of others look the same. Cannot fail. */
    bool (*array_check)(PyObject *object);
    /* The array's view, borrowed: valid while the caller holds the array, whose shape never changes. Cannot fail. */
    void (*array_view)(PyObject *array, vme_tensor *view);
    /* Whether this array may be written. False also for a read-only view of a writable buffer. */
    bool (*array_writable)(PyObject *array);
    /* Whether the array must be copied before it is passed to another interpreter. There are two reasons. Its memory
     * belongs to a Python object of this interpreter (buffer protocol, DLPack), so it may be freed with that. Or it may
     * still be written without another check of array_writable: through a window (vme_window.h), or by an operation in
     * progress, on another thread or on this one if the operation calls code of the program (`a[0] = x` calls
     * `x.__float__`). */
    bool (*array_must_be_copied)(PyObject *array);
    /* A copy of the array, in C order; if strides repeat elements, with the same strides. NULL: an exception is set. */
    PyObject *(*array_copied)(PyObject *array);
    /* A new array that is a view of the buffer, of which it takes its own reference. `shape` and `strides` (bytes;
     * NULL: C order) are copied. NULL with ValueError set if the view exceeds the buffer, TypeError for an unknown
     * dtype. */
    PyObject *(*array_from_buffer)(PyObject *module, vme_buffer *buffer, int dtype, int rank, const int64_t *shape,
                                   const int64_t *strides, size_t offset);
    /* The interpreter's context, borrowed. */
    vme_context *(*context)(PyObject *module);
    /* Whether the array corresponds to a NumPy scalar (immutable, hashable); if so, writes its element. Cannot fail. */
    bool (*array_scalar)(PyObject *array, int *dtype, char element[VME_SCALAR_BYTES]);
    /* A new array of that kind. NULL with MemoryError set, or TypeError for an unknown dtype. */
    PyObject *(*scalar_new)(PyObject *module, int dtype, const char element[VME_SCALAR_BYTES]);
};

#endif
