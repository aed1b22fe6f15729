/* The tensor engine on the host and in VMs. This core does not link the engine: the host passes it the engine's
 * function table once.
 *
 * A VM that loads vmhost.engine._array first gets a context: its meter is charged for arrays, its CPU time includes
 * helper threads, and a stop of the VM stops the engine's work for it. Arrays cross as references to their buffers,
 * which are frozen then.
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
/* The file of the native module `name`, if it is the engine's and the engine is attached; otherwise NULL. */
const char *vmh_engine_module(const char *name);

/* Keeps the engine's model at this address, as `name`, for the VMs of the code store's task. -1: no memory, 1: the name
 * exists already. */
int vmh_engine_hold_model(struct vmh_code_store *store, const char *name, uintptr_t model);

/* The same for an embedding table: `capsule` was created by the main interpreter's vmhost.engine._array. -1: an error
 * is set. */
int vmh_engine_hold_table(struct vmh_code_store *store, const char *name, PyObject *capsule, bool trains);

/* In a VM, before vmhost.engine._array is created: creates its context, where the module will find it. -1: an error is
 * set. */
int vmh_engine_enter(vmh_vm *vm);
/* From now on, records when calls run models. */
void vmh_engine_trace(void);
/* A call begins, or ends, on this thread: the model runs of the call, malloc'ed; NULL: none, or no memory. */
void vmh_engine_runs_begin(void);
vmh_engine_runs *vmh_engine_runs_end(void);

/* The following functions do nothing if `context` is NULL: the VM has not loaded the engine.
 * Any thread: work in progress ends soon (`stop`), or may continue. */
void vmh_engine_stop(struct vme_context *context, bool stop);
/* The operator that a model is running on `thread` now; NULL: none. */
const char *vmh_engine_doing(const struct vme_context *context, uintptr_t thread);
/* Call after the interpreter has ended: buffers that others still hold are charged to one of them from now on. */
void vmh_engine_end(struct vme_context *context);
/* Drops the VM's reference to its context. */
void vmh_engine_leave(struct vme_context *context);

/* Interface to a VM, implemented by vm.c. The VM's context; NULL: it has not loaded the engine. */
struct vme_context *vmh_vm_engine(vmh_vm *vm);
/* The VM takes over the reference to its context. A stop in progress is applied to it. */
void vmh_vm_engine_keep(vmh_vm *vm, struct vme_context *context);

/* This interpreter's array functions; NULL: vmhost.engine._array is not loaded in it, or an error is set. */
const struct vme_python_api *vmh_engine_arrays(void);

/* An array's encoding, followed by its shape and strides (`rank` of each). */
typedef struct vmh_array {
    uint32_t storage; /* index among the message's storages */
    int32_t dtype, rank;
    int64_t offset; /* bytes from the storage's start to the first element */
} vmh_array;

/* A storage that holds the array's buffer, now frozen, and its description. `crosses` is the array, or a copy if
 * someone may still write to it: a new reference, from which `shape` and `strides` are borrowed. -1: error set. */
int vmh_engine_put(PyObject *array, const struct vme_python_api *arrays, vmh_storage **storage, vmh_array *description,
                   const int64_t **shape, const int64_t **strides, PyObject **crosses);
/* A new array over a storage; strides NULL: C order. Loads vmhost.engine._array if necessary. */
PyObject *vmh_engine_get(vmh_storage *storage, const vmh_array *description, const int64_t *shape,
                         const int64_t *strides);
/* The engine's number for an item format of the struct module; -1: none. */
int vmh_engine_dtype(const char *format);

/* A scalar of the engine's or another library's (NumPy's). It crosses by value, since it is immutable. */
typedef struct vmh_scalar {
    int32_t dtype;
    bool foreign; /* not the engine's: becomes a Python number if the engine is not loaded */
    char element[16];
} vmh_scalar;

/* `scalar` as a scalar of the engine, which is loaded unless it is `foreign`; then as a Python number. */
PyObject *vmh_engine_scalar(const vmh_scalar *scalar);

#endif
