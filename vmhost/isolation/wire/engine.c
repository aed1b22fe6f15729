#include "wire/engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lanes/clock.h"
#include "lanes/code_store.h"
#include "lanes/meter.h"
#include "memory/holders.h"
#include "vme_python.h"

static const char *const module_name = "vmhost.engine._array";

/* Set once, by the host, before any VM can load the engine. */
static _Atomic(const struct vme_api *) engine;
static char module_path[PATH_MAX];
static atomic_bool tracing; /* record model runs once the engine is attached */
static void run_ended(int64_t began_ns);

int vmh_engine_attach(uintptr_t table, const char *path)
{
    const struct vme_api *offered = (const struct vme_api *)table, *known = atomic_load(&engine);
    if (offered == NULL || offered->abi != VME_ABI || offered->size != sizeof *offered) {
        PyErr_SetString(PyExc_ImportError,
                        "the engine was built from other sources than this core; build both again (`make build`)");
        return -1;
    }
    if (known != NULL) {
        if (known == offered)
            return 0;
        PyErr_SetString(PyExc_ImportError, "another copy of the engine is attached already");
        return -1;
    }
    if (strlen(path) >= sizeof module_path) {
        PyErr_Format(PyExc_ImportError, "the path of vmhost.engine._array is longer than %zu bytes",
                     sizeof module_path - 1);
        return -1;
    }
    strcpy(module_path, path);
    atomic_store(&engine, offered);
    if (atomic_load(&tracing))
        offered->runs_observe(vmh_now_ns, run_ended);
    return 0;
}

const char *vmh_engine_module(const char *name)
{
    return atomic_load(&engine) != NULL && strcmp(name, module_name) == 0 ? module_path : NULL;
}

/* ---- models: in the code store, under names with the prefix '%' */
static void drop_model(void *model) { atomic_load(&engine)->model_unref(model); }

int vmh_engine_hold_model(vmh_code_store *store, const char *name, uintptr_t model)
{
    const struct vme_api *api = atomic_load(&engine);
    size_t size = strlen(name);
    char *key = api == NULL ? NULL : malloc(size + 2);
    if (key == NULL)
        return -1;
    key[0] = '%';
    memcpy(key + 1, name, size + 1);
    int rc = vmh_code_store_hold(store, key, api->model_ref((vme_model *)model), drop_model);
    free(key);
    return rc;
}

/* ---- embedding tables: in the code store, with the prefix '@', once for each right: "@items:write" */
enum { TABLE_KEY_MAX = 256 };

static bool table_key(char key[TABLE_KEY_MAX], const char *name, bool trains)
{
    int size = snprintf(key, TABLE_KEY_MAX, "@%s:%s", name, trains ? "write" : "read");
    return size > 0 && size < TABLE_KEY_MAX;
}

static void drop_table(void *table) { atomic_load(&engine)->embedding_unref(table); }

int vmh_engine_hold_table(vmh_code_store *store, const char *name, PyObject *capsule, bool trains)
{
    const struct vme_api *api = atomic_load(&engine);
    const struct vme_python_embedding *handle = PyCapsule_GetPointer(capsule, VME_EMBEDDING_CAPSULE);
    char key[TABLE_KEY_MAX];
    if (handle == NULL)
        return -1;
    if (api == NULL || !table_key(key, name, trains)) {
        PyErr_SetString(PyExc_ValueError,
                        api == NULL ? "the engine is not in this host" : "a table's name is too long");
        return -1;
    }
    int rc = vmh_code_store_hold(store, key, api->embedding_ref(handle->table), drop_table);
    if (rc < 0)
        PyErr_NoMemory();
    else if (rc > 0)
        PyErr_Format(PyExc_ValueError, "%s is in this code store already", key + 1);
    return rc == 0 ? 0 : -1;
}

/* The code store of the task that this thread's VM serves; NULL: none. */
static vmh_code_store *task_store(void)
{
    vmh_vm *vm = vmh_current();
    return vm == NULL ? NULL : vmh_vm_task(vm);
}

static vme_model *find_model(const char *name)
{
    vmh_code_store *task = task_store();
    char key[1 + 256];
    size_t size = strlen(name);
    if (task == NULL || size + 2 > sizeof key)
        return NULL;
    key[0] = '%';
    memcpy(key + 1, name, size + 1);
    const vmh_code_entry *found = vmh_code_store_find(task, key);
    return found == NULL ? NULL : (vme_model *)found->code;
}

typedef struct model_visit {
    int (*each)(const char *name, void *argument);
    void *argument;
} model_visit;

static int visit_model(const vmh_code_entry *module, void *argument)
{
    const model_visit *visit = argument;
    return visit->each(module->name + 1, visit->argument);
}

static int visit_models(int (*each)(const char *name, void *argument), void *argument)
{
    vmh_code_store *task = task_store();
    model_visit visit = {each, argument};
    return task == NULL ? 0 : vmh_code_store_visit(task, "%", visit_model, &visit);
}

static vme_embedding *find_table(const char *name, bool *trains)
{
    vmh_code_store *task = task_store();
    for (int right = 1; task != NULL && right >= 0; right--) {
        char key[TABLE_KEY_MAX];
        const vmh_code_entry *found = table_key(key, name, right == 1) ? vmh_code_store_find(task, key) : NULL;
        if (found != NULL) {
            *trains = right == 1;
            return (vme_embedding *)(uintptr_t)found->code;
        }
    }
    return NULL;
}

static int visit_tables(int (*each)(const char *name, void *argument), void *argument)
{
    vmh_code_store *task = task_store();
    model_visit visit = {each, argument};
    return task == NULL ? 0 : vmh_code_store_visit(task, "@", visit_model, &visit);
}

static const struct vme_python_tables tables = {.find = find_table, .visit = visit_tables};
static const struct vme_python_models models = {.find = find_model, .visit = visit_models};

/* ---- a VM's context ---- */

static bool account_charge(void *meter, size_t bytes)
{
    if (!vmh_meter_charge(meter, bytes))
        return false;
    atomic_fetch_add_explicit(&((vmh_meter *)meter)->buffers, (long long)bytes, memory_order_relaxed);
    return true;
}

static void account_release(void *meter, size_t bytes)
{
    atomic_fetch_sub_explicit(&((vmh_meter *)meter)->buffers, (long long)bytes, memory_order_relaxed);
    vmh_meter_release(meter, bytes);
}

static bool account_inherit(void *meter, size_t bytes, bool forced)
{
    if (!vmh_meter_inherit(meter, bytes, forced))
        return false;
    atomic_fetch_add_explicit(&((vmh_meter *)meter)->buffers, (long long)bytes, memory_order_relaxed);
    return true;
}

static void account_worked(void *meter, uint64_t cpu_ns)
{
    atomic_fetch_add_explicit(&((vmh_meter *)meter)->helper_cpu_ns, (long long)cpu_ns, memory_order_relaxed);
}

static void account_made(void *meter, const void *buffer, size_t bytes) { vmh_holders_made(meter, buffer, bytes); }
static void account_gone(void *meter, const void *buffer) { vmh_holders_gone(meter, buffer); }

/* ---- model runs, for tracing of calls ---- */

static _Thread_local vmh_engine_runs runs __attribute__((tls_model("initial-exec")));

void vmh_engine_runs_begin(void) { runs.count = runs.kept = 0; }

vmh_engine_runs *vmh_engine_runs_end(void)
{
    if (runs.count == 0)
        return NULL;
    vmh_engine_runs *copy = malloc(sizeof *copy);
    if (copy != NULL)
        *copy = runs;
    return copy;
}

static void run_ended(int64_t began_ns)
{
    if (runs.kept < VMH_ENGINE_RUNS)
        runs.items[runs.kept++] = (vmh_engine_run){began_ns, vmh_now_ns()};
    runs.count++;
}

void vmh_engine_trace(void)
{
    atomic_store(&tracing, true);
    const struct vme_api *api = atomic_load(&engine);
    if (api != NULL) /* otherwise done when it is attached */
        api->runs_observe(vmh_now_ns, run_ended);
}

static void account_retain(void *meter) { vmh_meter_ref(meter); }
static void account_forget(void *meter) { vmh_meter_unref(meter); }

int vmh_engine_enter(vmh_vm *vm)
{
    const struct vme_api *api = atomic_load(&engine);
    if (api == NULL) {
        PyErr_SetString(PyExc_ImportError, "the engine is not in this host");
        return -1;
    }
    if (vmh_vm_engine(vm) == NULL) {
        vme_account account = {
            .owner = vmh_vm_meter(vm),
            .charge = account_charge,
            .release = account_release,
            .inherit = account_inherit,
            .worked = account_worked,
            .retain = account_retain,
            .forget = account_forget,
        };
        if (atomic_load(&vmh_vm_meter(vm)->holdings) != NULL) { /* before any array is created */
            account.made = account_made;
            account.gone = account_gone;
        }
        vme_context *context;
        if (api->context_new(&account, 0, &context) != VME_OK) {
            PyErr_NoMemory();
            return -1;
        }
        vmh_vm_engine_keep(vm, context);
    }
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *capsule = PyCapsule_New(vmh_vm_engine(vm), VME_CONTEXT_CAPSULE, NULL);
    PyObject *breathe = dict == NULL ? NULL : vmh_dict_get(dict, "vmhost.breathe"); /* borrowed */
    PyObject *finder = PyCapsule_New((void *)&models, VME_MODELS_CAPSULE, NULL);
    PyObject *granted = PyCapsule_New((void *)&tables, VME_TABLES_CAPSULE, NULL);
    int rc = capsule == NULL || breathe == NULL || finder == NULL || granted == NULL
                     || PyDict_SetItemString(dict, VME_CONTEXT_CAPSULE, capsule) < 0
                     || PyDict_SetItemString(dict, VME_MODELS_CAPSULE, finder) < 0
                     || PyDict_SetItemString(dict, VME_TABLES_CAPSULE, granted) < 0
                     || PyDict_SetItemString(dict, VME_BREATHE, breathe) < 0
                 ? -1
                 : 0;
    Py_XDECREF(capsule);
    Py_XDECREF(finder);
    Py_XDECREF(granted);
    if (rc < 0 && !PyErr_Occurred())
        PyErr_NoMemory();
    return rc;
}

void vmh_engine_stop(vme_context *context, bool stop)
{
    if (context != NULL)
        atomic_load(&engine)->context_stop(context, stop);
}

const char *vmh_engine_doing(const struct vme_context *context, uintptr_t thread)
{
    return context == NULL ? NULL : atomic_load(&engine)->context_doing(context, thread);
}

void vmh_engine_end(vme_context *context)
{
    if (context != NULL)
        atomic_load(&engine)->context_end(context);
}

void vmh_engine_leave(vme_context *context)
{
    if (context != NULL)
        atomic_load(&engine)->context_unref(context);
}

/* ---- arrays that cross ---- */

const struct vme_python_api *vmh_engine_arrays(void)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *capsule = dict == NULL ? NULL : vmh_dict_get(dict, VME_PYTHON_CAPSULE);
    return capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, VME_PYTHON_CAPSULE);
}

/* Called with the last reference to a storage that held an engine's buffer. */
static void drop_buffer(void *buffer) { atomic_load(&engine)->buffer_unref(buffer); }
static void drop_storage(void *storage) { vmh_storage_unref(storage); }

int vmh_engine_put(PyObject *array, const struct vme_python_api *arrays, vmh_storage **storage, vmh_array *description,
                   const int64_t **shape, const int64_t **strides, PyObject **crosses)
{
    const struct vme_api *api = atomic_load(&engine);
    if (api == NULL) {
        PyErr_SetString(PyExc_ValueError, "arrays cannot cross: the engine is not attached to this host");
        return -1;
    }
    *crosses = arrays->array_must_be_copied(array) ? arrays->array_copied(array) : Py_NewRef(array);
    if (*crosses == NULL)
        return -1;
    vme_tensor view;
    arrays->array_view(*crosses, &view);
    vme_buffer *held = api->buffer_ref(api->buffer_whole(view.buffer));
    *storage = vmh_storage_hold(api->buffer_data(held), api->buffer_size(held), held, drop_buffer);
    if (*storage == NULL) {
        api->buffer_unref(held);
        Py_CLEAR(*crosses);
        PyErr_NoMemory();
        return -1;
    }
    api->buffer_freeze(held);
    description->dtype = view.dtype;
    description->rank = view.rank;
    description->offset = view.data - (char *)api->buffer_data(held);
    *shape = view.shape;
    *strides = view.strides;
    return 0;
}

/* The same, but loads the module if necessary; NULL: an error is set. */
static const struct vme_python_api *arrays_loaded(void)
{
    const struct vme_python_api *arrays = vmh_engine_arrays();
    if (arrays != NULL || PyErr_Occurred())
        return arrays;
    PyObject *module = PyImport_ImportModule(module_name);
    Py_XDECREF(module);
    if (module == NULL)
        return NULL;
    arrays = vmh_engine_arrays();
    if (arrays == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_ImportError, "vmhost.engine._array is loaded, but left no table of its arrays");
    return arrays;
}

PyObject *vmh_engine_get(vmh_storage *storage, const vmh_array *description, const int64_t *shape,
                         const int64_t *strides)
{
    const struct vme_api *api = atomic_load(&engine);
    if (api == NULL) {
        PyErr_SetString(PyExc_ImportError, "an array came, but the engine is not attached to this host");
        return NULL;
    }
    const struct vme_python_api *arrays = arrays_loaded();
    if (arrays == NULL)
        return NULL;
    vme_buffer *buffer;
    vme_context *own = arrays->context(arrays->module);
    if (storage->drop == drop_buffer) {
        if (api->buffer_share(own, storage->held, &buffer) != VME_OK)
            return PyErr_NoMemory();
    } else if (api->buffer_wrap(own, storage->data, storage->size, false, vmh_storage_ref(storage), drop_storage,
                                &buffer)
               != VME_OK) {
        vmh_storage_unref(storage);
        return PyErr_NoMemory();
    }
    PyObject *array = arrays->array_from_buffer(arrays->module, buffer, description->dtype, description->rank, shape,
                                                strides, (size_t)description->offset);
    api->buffer_unref(buffer);
    return array;
}

/* ---- numbers that cross */
#define NUMBER(type, make) \
    { \
        type number; \
        memcpy(&number, element, sizeof number); \
        return make(number); \
    }
#define COMPLEX(type) \
    { \
        type real_imaginary[2]; \
        memcpy(real_imaginary, element, sizeof real_imaginary); \
        return PyComplex_FromDoubles(real_imaginary[0], real_imaginary[1]); \
    }

static PyObject *python_number(int dtype, const char *element)
{
    switch (dtype) {
    case VME_BOOL: NUMBER(uint8_t, PyBool_FromLong)
    case VME_INT8: NUMBER(int8_t, PyLong_FromLong)
    case VME_INT16: NUMBER(int16_t, PyLong_FromLong)
    case VME_INT32: NUMBER(int32_t, PyLong_FromLong)
    case VME_INT64: NUMBER(int64_t, PyLong_FromInt64)
    case VME_UINT8: NUMBER(uint8_t, PyLong_FromLong)
    case VME_UINT16: NUMBER(uint16_t, PyLong_FromLong)
    case VME_UINT32: NUMBER(uint32_t, PyLong_FromUInt32)
    case VME_UINT64: NUMBER(uint64_t, PyLong_FromUInt64)
    case VME_FLOAT16: return PyFloat_FromDouble(PyFloat_Unpack2(element, __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__));
    case VME_FLOAT32: NUMBER(float, PyFloat_FromDouble)
    case VME_FLOAT64: NUMBER(double, PyFloat_FromDouble)
    case VME_COMPLEX64: COMPLEX(float)
    default: COMPLEX(double)
    }
}
#undef NUMBER
#undef COMPLEX

PyObject *vmh_engine_scalar(const vmh_scalar *scalar)
{
    const struct vme_python_api *arrays = scalar->foreign ? vmh_engine_arrays() : arrays_loaded();
    if (arrays == NULL)
        return PyErr_Occurred() ? NULL : python_number(scalar->dtype, scalar->element);
    return arrays->scalar_new(arrays->module, scalar->dtype, scalar->element);
}
_Static_assert(sizeof((vmh_scalar *)0)->element == VME_SCALAR_BYTES, "vme_python.h says how many bytes an element has");

int vmh_engine_dtype(const char *format)
{
    const struct vme_api *api = atomic_load(&engine);
    vme_dtype dtype;
    return api != NULL && api->dtype_from_format(format, &dtype) ? (int)dtype : -1;
}
