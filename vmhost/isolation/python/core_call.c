/* `_core.Call`: one submitted call, and how callers wait for its end. */
#include <errno.h>
#include <string.h>
#include "wire/buffer.h"
#include "lanes/clock.h"
#include "python/core.h"
#include "vm/fork.h"
#include "wire/wire.h"

PyObject *vmh_core_wrap_call(vmh_call *call, PyObject *unpack)
{
    call_object *self = (call_object *)vmh_call_type->tp_alloc(vmh_call_type, 0);
    if (self == NULL)
        return NULL;
    self->call = call; /* takes the caller's reference */
    call->wrapper = self;
    self->unpack = Py_XNewRef(unpack);
    return (PyObject *)self;
}

static void call_dealloc(PyObject *object)
{
    call_object *self = (call_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->call != NULL && !vmh_fork_is_child()) {
        self->call->wrapper = NULL;
        vmh_call_unref(self->call);
    }
    Py_CLEAR(self->owner);
    Py_CLEAR(self->unpack);
    type->tp_free(object);
    Py_DECREF(type);
    vmh_buffer_release_lent();
}

static int call_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((call_object *)object)->owner);
    Py_VISIT(((call_object *)object)->unpack);
    return 0;
}

static int call_clear(PyObject *object)
{
    Py_CLEAR(((call_object *)object)->owner); /* not `unpack`: result() may still need it */
    return 0;
}

/* The text of the exception that is set. NULL with another one set. */
static PyObject *text_of_error(void)
{
    PyObject *error = PyErr_GetRaisedException(), *text = PyObject_Str(error);
    Py_DECREF(error);
    return text;
}

/* Adds `held`, what held the memory, to the report of a memory limit. Takes over `payload`. */
static PyObject *with_held(PyObject *payload, const char *held)
{
    PyObject *text = PyUnicode_DecodeUTF8(held, (Py_ssize_t)strlen(held), "replace");
    if (text != NULL && !PyDict_CheckExact(payload))
        Py_SETREF(payload, Py_BuildValue("{s:O}", "payload", payload));
    if (text == NULL || payload == NULL || PyDict_SetItemString(payload, "held", text) < 0)
        Py_CLEAR(payload);
    Py_XDECREF(text);
    return payload;
}

/* The payload of a call that ended by its time, with what it waited for a VM: the nanoseconds alone if it never began,
 * else `waited_ns` in the guest's report if that was a tenth of its time. Takes over `payload`. */
static PyObject *with_wait(PyObject *payload, const vmh_call *call)
{
    if (call->started_ns == 0)
        Py_SETREF(payload, PyLong_FromLongLong(call->ended_ns - call->submitted_ns));
    else if (PyDict_CheckExact(payload)
             && (call->started_ns - call->submitted_ns) * 10 > call->ended_ns - call->submitted_ns) {
        PyObject *waited = PyLong_FromLongLong(call->started_ns - call->submitted_ns);
        if (waited == NULL || PyDict_SetItemString(payload, "waited_ns", waited) < 0)
            Py_CLEAR(payload);
        Py_XDECREF(waited);
    }
    return payload;
}

/* The value of a finished call; or its error, in `error` where the caller takes it, otherwise raised. NULL with an
 * exception set otherwise: no end of the call, but what happened while it was read. */
static PyObject *outcome(vmh_call *call, PyObject *unpack, PyObject **error)
{
    vmh_codec codec = {.buffer_type = vmh_buffer_type, .unpack = unpack};
    int kind = call->kind;
    PyObject *payload = NULL;
    if (kind == VMH_OK) {
        PyObject *result = vmh_wire_decode(&call->reply, "result", &codec);
        if (result != NULL || !PyErr_ExceptionMatches(PyExc_ValueError))
            return result;
        kind = VMH_VALUE;
        payload = text_of_error();
    } else {
        payload = call->reply.size == 0 ? Py_NewRef(Py_None) : vmh_wire_decode(&call->reply, "report", &codec);
        if (payload == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
            PyErr_Clear(); /* an exception of a class unknown here: decode the rest of the report */
            codec.lenient = true;
            payload = vmh_wire_decode(&call->reply, "report", &codec);
            if (payload != NULL && PyDict_CheckExact(payload) && PyDict_PopString(payload, "error", NULL) < 0)
                Py_CLEAR(payload);
        }
        if (payload == NULL && PyErr_ExceptionMatches(PyExc_ValueError))
            payload = text_of_error(); /* a forged report */
    }
    if (payload != NULL && kind == VMH_MEMORY_LIMIT && call->held != NULL)
        payload = with_held(payload, call->held);
    if (payload != NULL && kind == VMH_TIME_LIMIT)
        payload = with_wait(payload, call);
    if (payload == NULL)
        return NULL;
    if (error != NULL)
        *error = vmh_core_error(call->lane, kind, payload);
    else
        vmh_core_raise(call->lane, kind, payload);
    Py_DECREF(payload);
    return NULL;
}

/* Python handles signals on the process's main thread. A signal between its last check and its sleep does not interrupt
 * the sleep, so the wait wakes up to check again; early at first, because that race is most likely when a wait begins.
 */
enum { LOOK_FIRST_NS = 2000000, LOOK_LAST_NS = 128000000 };

static bool handles_signals(void)
{
    static _Thread_local int known; /* 1: yes, 2: no */
    if (known == 0)
        known = syscall(SYS_gettid) == getpid() ? 1 : 2;
    return known == 1;
}

PyObject *vmh_core_last_outcome(vmh_call *call, PyObject *unpack)
{
    PyObject *result = outcome(call, unpack, NULL);
    if (call->kind == VMH_OK) /* the event of a failed call still reads the report */
        vmh_blob_clear(&call->reply);
    return result;
}

PyObject *vmh_core_report(vmh_call *call)
{
    const vmh_codec codec = {.buffer_type = vmh_buffer_type, .lenient = true};
    if (call->kind == VMH_OK || call->reply.size == 0)
        Py_RETURN_NONE;
    PyObject *report = vmh_wire_decode(&call->reply, "report", &codec);
    if (report == NULL && PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyErr_Clear();
        Py_RETURN_NONE;
    }
    return report;
}

int vmh_core_wait(vmh_call *call, int64_t deadline_ns)
{
    int64_t look_ns = handles_signals() ? LOOK_FIRST_NS : VMH_FOREVER;
    while (!vmh_call_done(call)) {
        int rc;
        if (vmh_fork_check() < 0)
            return -1;
        int64_t until_ns = look_ns == VMH_FOREVER ? VMH_FOREVER : vmh_now_ns() + look_ns;
        if (until_ns > deadline_ns)
            until_ns = deadline_ns;
        Py_BEGIN_ALLOW_THREADS rc = vmh_call_wait(call, until_ns);
        Py_END_ALLOW_THREADS if (rc == ETIMEDOUT && until_ns == deadline_ns) return 0;
        if (rc != 0 && PyErr_CheckSignals() < 0)
            return -1;
        if (look_ns < LOOK_LAST_NS)
            look_ns *= 2;
    }
    return 1;
}

void vmh_core_stop(vmh_call *call)
{
    if (!vmh_lane_cancel(call, VMH_CANCELLED))
        vmh_call_request_stop(call);
}

static PyObject *call_done(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(vmh_call_done(((call_object *)object)->call));
}

static PyObject *call_wait(PyObject *object, PyObject *args)
{
    PyObject *timeout_s = NULL;
    int64_t deadline;
    if (!PyArg_ParseTuple(args, "|O:wait", &timeout_s) || vmh_core_deadline(timeout_s, &deadline) < 0)
        return NULL;
    int rc = vmh_core_wait(((call_object *)object)->call, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *call_result(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_call *call = ((call_object *)object)->call;
    if (vmh_core_wait(call, VMH_FOREVER) < 0)
        return NULL;
    vmh_buffer_release_lent();
    return outcome(call, ((call_object *)object)->unpack, NULL);
}

static PyObject *call_outcome(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_call *call = ((call_object *)object)->call;
    if (vmh_core_wait(call, VMH_FOREVER) < 0)
        return NULL;
    vmh_buffer_release_lent();
    PyObject *error = NULL, *result = outcome(call, ((call_object *)object)->unpack, &error);
    if (error != NULL)
        return Py_BuildValue("(ON)", Py_None, error);
    return result == NULL ? NULL : Py_BuildValue("(NO)", result, Py_None);
}

static PyObject *call_cancel(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (vmh_fork_check() < 0)
        return NULL;
    return PyBool_FromLong(vmh_lane_cancel(((call_object *)object)->call, VMH_CANCELLED));
}

static PyObject *call_stop(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (vmh_fork_check() < 0)
        return NULL;
    vmh_core_stop(((call_object *)object)->call);
    Py_RETURN_NONE;
}

static PyObject *call_watch(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_call_watch(((call_object *)object)->call);
    Py_RETURN_NONE;
}

static PyObject *call_kind(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    if (!vmh_call_done(call))
        Py_RETURN_NONE;
    return PyLong_FromLong(call->kind);
}

static PyObject *call_excused(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    return PyBool_FromLong(vmh_call_done(call) && call->excused);
}

static PyObject *call_state(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    if (vmh_call_done(call))
        return PyUnicode_FromString("done");
    return PyUnicode_FromString(atomic_load(&call->state) == VMH_QUEUED ? "queued" : "running");
}

/* The recording of the call, made by its VM. */
static PyObject *call_record(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    const vmh_codec codec = {
        .buffer_type = vmh_buffer_type, .unpack = ((call_object *)object)->unpack, .lenient = true};
    if (!vmh_call_done(call) || !call->recorded)
        Py_RETURN_NONE;
    return vmh_wire_decode(call->record, "record", &codec);
}

static PyObject *call_timings(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    bool done = vmh_call_done(call);
    return Py_BuildValue("(LLL)", (long long)call->submitted_ns, (long long)(done ? call->started_ns : 0),
                         (long long)(done ? call->ended_ns : 0));
}

static PyObject *call_engine_runs(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    const vmh_engine_runs *runs = vmh_call_done(call) ? call->runs : NULL;
    PyObject *items = PyTuple_New(runs == NULL ? 0 : runs->kept);
    for (int i = 0; items != NULL && runs != NULL && i < runs->kept; i++) {
        PyObject *item = Py_BuildValue("(LL)", (long long)runs->items[i].began_ns, (long long)runs->items[i].ended_ns);
        if (item == NULL)
            Py_CLEAR(items);
        else
            PyTuple_SET_ITEM(items, i, item);
    }
    return Py_BuildValue("(iN)", runs == NULL ? 0 : runs->count, items);
}

static PyObject *call_lane(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_lane *lane = ((call_object *)object)->call->lane;
    return lane->wrapper == NULL ? Py_NewRef(Py_None) : Py_NewRef((PyObject *)lane->wrapper);
}

static PyObject *call_get_owner(PyObject *object, void *Py_UNUSED(closure))
{
    PyObject *owner = ((call_object *)object)->owner;
    return Py_NewRef(owner == NULL ? Py_None : owner);
}

static int call_set_owner(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    Py_XSETREF(((call_object *)object)->owner, Py_XNewRef(value));
    return 0;
}

static PyMethodDef call_methods[] = {
    {"done", call_done, METH_NOARGS, PyDoc_STR("True once the call has ended.")},
    {"wait", call_wait, METH_VARARGS, PyDoc_STR("wait(timeout_s=None) -> bool: whether it ended in time")},
    {"result", call_result, METH_NOARGS, PyDoc_STR("Waits; returns the call's value or raises its error.")},
    {"outcome", call_outcome, METH_NOARGS,
     PyDoc_STR("Waits; returns (value, None) or (None, error). It raises only what is no end of the call, such as the "
               "exception of a signal handler.")},
    {"cancel", call_cancel, METH_NOARGS, PyDoc_STR("True if the call was queued and is now cancelled.")},
    {"stop", call_stop, METH_NOARGS, PyDoc_STR("Cancels the call, or stops it if it runs.")},
    {"watch", call_watch, METH_NOARGS, PyDoc_STR("Delivers ('done', call) when it ends, or now.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef call_getset[] = {
    {"kind", call_kind, NULL, PyDoc_STR("How it ended (vm.h); None before."), NULL},
    {"excused", call_excused, NULL, PyDoc_STR("True once it has ended and does not count against the task."), NULL},
    {"state", call_state, NULL, PyDoc_STR("'queued', 'running' or 'done'."), NULL},
    {"record", call_record, NULL, PyDoc_STR("The VM's recording of a recorded call that has ended, or None."), NULL},
    {"timings", call_timings, NULL, PyDoc_STR("(submitted, started, ended), monotonic ns; 0: not yet known."), NULL},
    {"engine_runs", call_engine_runs, NULL,
     PyDoc_STR("(number of models run, begin and end of the first ones), after trace_engine()."), NULL},
    {"lane", call_lane, NULL, PyDoc_STR("The lane."), NULL},
    {"owner", call_get_owner, call_set_owner, PyDoc_STR("Any object, kept for the caller."), NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot call_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("One submitted call.")},
    {Py_tp_dealloc, call_dealloc},
    {Py_tp_traverse, call_traverse},
    {Py_tp_clear, call_clear},
    {Py_tp_methods, call_methods},
    {Py_tp_getset, call_getset},
    {0, NULL},
};

PyType_Spec vmh_call_spec = {
    "vmhost.isolation._core.Call",
    sizeof(call_object),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    call_slots,
};
