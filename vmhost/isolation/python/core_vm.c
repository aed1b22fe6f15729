/* `_core.VM`: the host's view of a VM: limits, permissions, statistics, logs. */
#include <errno.h>
#include "wire/buffer.h"
#include "lanes/clock.h"
#include "python/core.h"
#include "seal/seal.h"
#include "wire/engine.h"
#include "vm/fork.h"
#include "wire/wire.h"

/* The configuration for a VM: its permissions and, under "environ", the granted variables as bytes "NAME=value"; a new
 * reference. The variables are read here because the main interpreter's GIL guards the process's environment:
 * os.environ of the host moves and frees it. */
static PyObject *with_environ(PyObject *permissions)
{
    PyObject *names = PyDict_Check(permissions) ? vmh_dict_get(permissions, "env") : NULL;
    if (names == NULL)
        return PyErr_Occurred() ? NULL : Py_NewRef(permissions);
    PyObject *copy = NULL, *found = PyList_New(0);
    PyObject *sequence = PySequence_Fast(names, "permissions: expected lists of str");
    for (char **entry = environ; found != NULL && sequence != NULL && entry != NULL && *entry != NULL; entry++) {
        const char *equals = strchr(*entry, '=');
        bool named = false;
        for (Py_ssize_t i = 0; equals != NULL && !named && i < PySequence_Fast_GET_SIZE(sequence); i++) {
            PyObject *name = PySequence_Fast_GET_ITEM(sequence, i);
            named =
                PyUnicode_Check(name)
                && (PyUnicode_EqualToUTF8AndSize(name, *entry, equals - *entry) || PyUnicode_EqualToUTF8(name, "*"));
        }
        PyObject *line = named ? PyBytes_FromString(*entry) : NULL;
        if (named && (line == NULL || PyList_Append(found, line) < 0))
            Py_CLEAR(found);
        Py_XDECREF(line);
    }
    if (found != NULL && sequence != NULL)
        copy = PyDict_Copy(permissions);
    if (copy != NULL && PyDict_SetItemString(copy, "environ", found) < 0)
        Py_CLEAR(copy);
    Py_XDECREF(found);
    Py_XDECREF(sequence);
    return copy;
}

static PyObject *vm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"system",      "events", "stack_bytes", "soft_bytes", "hard_bytes", "grace_s",
                            "permissions", "boot_s", "load_s",      "end_s",      NULL};
    PyObject *system, *events, *permissions = NULL;
    Py_ssize_t stack_bytes = 1 << 20, soft_bytes = PY_SSIZE_T_MAX, hard_bytes = PY_SSIZE_T_MAX;
    double grace_s = 0.25, boot_s = 30, load_s = 30, end_s = 2;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$nnndOddd:VM", names, vmh_code_store_type, &system,
                                     vmh_events_type, &events, &stack_bytes, &soft_bytes, &hard_bytes, &grace_s,
                                     &permissions, &boot_s, &load_s, &end_s))
        return NULL;
    if (vmh_fork_check() < 0 || vmh_seal_prepare() < 0)
        return NULL;
    if (stack_bytes < 128 * 1024)
        return PyErr_Format(PyExc_ValueError, "stack_bytes: expected 131072 or more, got %zd", stack_bytes);
    vm_object *self = (vm_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    vmh_vm *vm = vmh_vm_new(((code_store_object *)system)->store, ((events_object *)events)->events);
    if (vm == NULL) {
        int error = errno;
        Py_DECREF(self);
        errno = error;
        return error == ENOMEM ? PyErr_NoMemory() : PyErr_SetFromErrno(PyExc_OSError);
    }
    self->vm = vm;
    vm->wrapper = self;
    vm->limits.stack_bytes = ((size_t)stack_bytes + 4095) & ~(size_t)4095;
    atomic_store(&vm->memory.soft_bytes, soft_bytes);
    atomic_store(&vm->memory.hard_bytes, hard_bytes);
    vm->limits.grace_ns = vmh_core_span_ns(grace_s);
    vm->limits.boot_ns = vmh_core_span_ns(boot_s);
    vm->limits.load_ns = vmh_core_span_ns(load_s);
    vm->limits.end_ns = vmh_core_span_ns(end_s);
    const vmh_codec codec = {.buffer_type = vmh_buffer_type};
    PyObject *granted = permissions == NULL || permissions == Py_None ? PyDict_New() : with_environ(permissions);
    int rc = granted == NULL ? -1 : vmh_wire_encode(&vm->values.permissions, granted, "permissions", &codec, NULL);
    Py_XDECREF(granted);
    if (rc == 0 && (errno = vmh_vm_start(vm)) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        rc = -1;
    }
    if (rc < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void vm_dealloc(PyObject *object)
{
    vm_object *self = (vm_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    if (self->vm != NULL && !vmh_fork_is_child()) {
        self->vm->wrapper = NULL;
        vmh_vm_retire(self->vm);
        vmh_vm_unref(self->vm);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static const char *const vm_states[] = {"booting", "ready", "serving", "ending", "ended", "failed", "quarantined"};

static PyObject *vm_attach(PyObject *object, PyObject *lane)
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    if (!PyObject_TypeCheck(lane, vmh_lane_type))
        return PyErr_Format(PyExc_TypeError, "attach: expected a Lane, got `%s`", Py_TYPE(lane)->tp_name);
    int state = atomic_load(&vm->state);
    if (state > VMH_VM_READY || atomic_load(&vm->work.lane) != NULL)
        return PyErr_Format(PyExc_RuntimeError, "VM %llu is %s%s: it can be attached once, while booting or ready",
                            (unsigned long long)vm->id, vm_states[state],
                            atomic_load(&vm->work.lane) != NULL ? " and attached" : "");
    vmh_vm_attach(vm, ((lane_object *)lane)->lane);
    Py_RETURN_NONE;
}

static PyObject *vm_set_limits(PyObject *object, PyObject *args)
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    Py_ssize_t soft, hard;
    int descriptors = INT_MAX;
    long long output = VMH_LOG_RATE;
    if (!PyArg_ParseTuple(args, "nn|iL:set_limits", &soft, &hard, &descriptors, &output))
        return NULL;
    vmh_mutex_lock(&vm->log.lock);
    vm->log.rate = output;
    vm->log.credit_ns = 0; /* all of it may be written at once */
    vmh_mutex_unlock(&vm->log.lock);
    atomic_store(&vm->memory.meter->descriptors_max, descriptors);
    atomic_store(&vm->memory.soft_bytes, soft);
    atomic_store(&vm->memory.hard_bytes, hard);
    int state = atomic_load(&vm->state);
    if (state == VMH_VM_READY || state == VMH_VM_SERVING) {
        atomic_store(&vm->memory.meter->soft, soft);
        atomic_store(&vm->memory.meter->hard, hard);
    }
    Py_RETURN_NONE;
}

static PyObject *vm_set_permissions(PyObject *object, PyObject *permissions)
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    if (atomic_load(&vm->work.lane) != NULL)
        return PyErr_Format(PyExc_RuntimeError, "VM %llu is attached: its permissions are settled",
                            (unsigned long long)vm->id);
    vmh_blob blob;
    vmh_blob_init(&blob);
    const vmh_codec codec = {.buffer_type = vmh_buffer_type};
    PyObject *copy = with_environ(permissions);
    int rc = copy == NULL ? -1 : vmh_wire_encode(&blob, copy, "permissions", &codec, NULL);
    Py_XDECREF(copy);
    if (rc == 0) {
        pthread_mutex_lock(&vm->life);
        vmh_blob_move(&vm->values.permissions, &blob);
        pthread_mutex_unlock(&vm->life);
    }
    vmh_blob_clear(&blob);
    if (rc < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *vm_retire(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_vm_retire(((vm_object *)object)->vm);
    Py_RETURN_NONE;
}

static PyObject *vm_statistics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    vmh_meter *meter = vm->memory.meter;
    int64_t cpu = vmh_vm_cpu_ns(vm);
    pthread_mutex_lock(&vm->life);
    int threads = vm->threads.count;
    const char *phase = vmh_phase_name(vm->phase.which);
    int64_t generation = vm->phase.generation;
    pthread_mutex_unlock(&vm->life);
    pthread_mutex_lock(&vm->log.lock);
    long long dropped = vm->log.dropped_in_all;
    pthread_mutex_unlock(&vm->log.lock);
    int64_t idle_since = atomic_load(&vm->counters.idle_since_ns);
    double idle_s = strcmp(phase, "idle") == 0 && idle_since != 0 ? (double)(vmh_now_ns() - idle_since) / 1e9 : 0.0;
    return Py_BuildValue(
        "{s:K,s:s,s:s,s:L,s:L,s:L,s:L,s:L,s:d,s:L,s:L,s:L,s:i,s:i,s:d,s:d,s:L,s:L}", "id", (unsigned long long)vm->id,
        "state", vm_states[atomic_load(&vm->state)], "phase", phase, "live_bytes", vmh_meter_live(meter), "peak_bytes",
        atomic_load(&meter->peak), "arenas", atomic_load(&meter->arenas), "buffer_bytes", atomic_load(&meter->buffers),
        "refused", atomic_load(&meter->refused), "cpu_s", (double)cpu / 1e9, "calls", atomic_load(&vm->counters.calls),
        "errors", atomic_load(&vm->counters.errors), "stops", atomic_load(&vm->counters.stops), "threads", threads,
        "descriptors", atomic_load(&meter->descriptors), "boot_s",
        (double)atomic_load(&vm->counters.boot_ns_taken) / 1e9, "idle_s", idle_s, "generation", (long long)generation,
        "lines_dropped", dropped);
}

static PyObject *vm_take_logs(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    pthread_mutex_lock(&vm->log.lock);
    vmh_log_line *line = vm->log.first;
    vm->log.first = NULL;
    vm->log.tail = &vm->log.first;
    vm->log.waiting = 0;
    pthread_mutex_unlock(&vm->log.lock);
    PyObject *list = PyList_New(0);
    while (line != NULL) {
        vmh_log_line *next = line->next;
        PyObject *item = list == NULL
                             ? NULL
                             : Py_BuildValue("(iN)", line->level,
                                             PyUnicode_DecodeUTF8(line->text, (Py_ssize_t)line->size, "replace"));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        free(line);
        line = next;
    }
    return list;
}

static PyObject *vm_state(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(vm_states[atomic_load(&((vm_object *)object)->vm->state)]);
}

static PyObject *vm_id(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromUnsignedLongLong(((vm_object *)object)->vm->id);
}

static PyMethodDef vm_methods[] = {
    {"attach", vm_attach, METH_O, PyDoc_STR("attach(lane): serve this lane's calls from now on; once.")},
    {"retire", vm_retire, METH_NOARGS, PyDoc_STR("End after the current call.")},
    {"set_limits", vm_set_limits, METH_VARARGS,
     PyDoc_STR("set_limits(soft_bytes, hard_bytes, descriptors=none, output_bytes=1048576)")},
    {"set_permissions", vm_set_permissions, METH_O, PyDoc_STR("set_permissions(dict): before attach.")},
    {"statistics", vm_statistics, METH_NOARGS, PyDoc_STR("Counters, as a dict.")},
    {"take_logs", vm_take_logs, METH_NOARGS,
     PyDoc_STR("list of (level, line) that the guest wrote since the last call")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef vm_getset[] = {
    {"state", vm_state, NULL, PyDoc_STR("booting, ready, serving, ending, ended, failed or quarantined"), NULL},
    {"id", vm_id, NULL, PyDoc_STR("Number of this VM in the process, from 1."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef vm_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(vm_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot vm_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("One subinterpreter on one native thread; begins to boot at once.")},
    {Py_tp_new, vm_new},
    {Py_tp_dealloc, vm_dealloc},
    {Py_tp_methods, vm_methods},
    {Py_tp_getset, vm_getset},
    {Py_tp_members, vm_members},
    {0, NULL},
};

PyType_Spec vmh_vm_spec = {"vmhost.isolation._core.VM", sizeof(vm_object), 0, Py_TPFLAGS_DEFAULT, vm_slots};
