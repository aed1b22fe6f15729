/* The tensor engine on both sides of the wall. This core does not link the engine: the host hands it the engine's table
 * once.
 *
 * A VM that loads vmhost.engine._array gets a context first: its meter pays for the arrays, its CPU clock for helper
 * threads, and a stop of the VM stops the engine's work for it. Arrays cross as references to their buffers, frozen
 * from then on.
 */
#ifndef VMH_ENGINE_H
#define VMH_ENGINE_H

#include "cpython/compat.h"
#include "lanes/lane.h"
#include "lanes/storage.h"
#include "lanes/vm.h"

struct vme_context;

/* Main interpreter. `module_path`: the file of vmhost.engine._array. -1: an error is set (another table, another
 * version). */
int vmh_engine_attach(uintptr_t table, const char *module_path);
/* The file of the native module `name` when it is one of the engine's and the engine is attached; else NULL. */
const char *vmh_engine_module(const char *name);

/* Keeps the engine's model at this address, as `name`, for the VMs of the code store's task. -1: no memory, 1: the name
 * is there already. */
int vmh_engine_hold_model(struct vmh_code_store *store, const char *name, uintptr_t model);

/* The same of an embedding table: `capsule` is what vmhost.engine._array of the main interpreter made. -1: an error is
 * set. */
int vmh_engine_hold_table(struct vmh_code_store *store, const char *name, PyObject *capsule, bool trains);

/* In a VM, before vmhost.engine._array is made: its context, left where the module looks for it. -1: an error is set.
 */
int vmh_engine_enter(vmh_vm *vm);
/* What follows is about a VM's context; NULL: it has not loaded the engine, and nothing happens.
 * Any thread: work in progress ends soon / may go on from now. */
void vmh_engine_stop(struct vme_context *context, bool stop);
/* The operator that a model is at now; NULL: none. */
/* From now on it is noted when calls run models. */
void vmh_engine_trace(void);
/* A call begins on this thread, and ends: what models it ran on it, malloc'ed; NULL: none, or no memory. */
void vmh_engine_runs_begin(void);
vmh_engine_runs *vmh_engine_runs_end(void);

const char *vmh_engine_doing(const struct vme_context *context, uintptr_t thread);
/* The interpreter is gone: its buffers that others hold are paid for by one of them from now on. */
void vmh_engine_end(struct vme_context *context);
/* The VM is gone, and with it its reference. */
void vmh_engine_leave(struct vme_context *context);

/* What the engine needs of a VM: vm.c gives it. Its context; NULL: it has not loaded the engine. */
struct vme_context *vmh_vm_engine(vmh_vm *vm);
/* The VM takes over the reference on its context, which a stop that is under way reaches too. */
void vmh_vm_engine_keep(vmh_vm *vm, struct vme_context *context);

/* This interpreter's arrays; NULL: vmhost.engine._array is not loaded in it, or an error is set. */
const struct vme_python_api *vmh_engine_arrays(void);

/* An array as it crosses, without its shape and strides (`rank` of each follow). */
typedef struct vmh_array {
    uint32_t storage; /* its place among the message's storages */
    int32_t dtype, rank;
    int64_t offset; /* bytes from the storage's start to the first element */
} vmh_array;

/* A storage that holds the array's buffer (frozen now), and its description. `crosses` is the array, or a copy where
 * somebody may still write it: a new reference, from which `shape` and `strides` borrow. -1: error set. */
int vmh_engine_put(PyObject *array, const struct vme_python_api *arrays, vmh_storage **storage, vmh_array *description,
                   const int64_t **shape, const int64_t **strides, PyObject **crosses);
/* A new array on what a storage holds; strides NULL: C order. Loads vmhost.engine._array where it is not loaded yet. */
PyObject *vmh_engine_get(vmh_storage *storage, const vmh_array *description, const int64_t *shape,
                         const int64_t *strides);
/* The engine's number for an item format of the struct module; -1: none. */
int vmh_engine_dtype(const char *format);

/* A number of the engine's or of another library's (NumPy's scalars), as it crosses: by value, since nobody can write
 * it. */
typedef struct vmh_scalar {
    int32_t dtype;
    bool foreign; /* not the engine's: where that is not loaded, a Python number will do */
    char element[16];
} vmh_scalar;

/* `scalar` as the engine's, which is loaded unless it is `foreign`; then as Python's number. */
PyObject *vmh_engine_scalar(const vmh_scalar *scalar);

#endif
