/* `_core.Events` and `_core.HostCall`: native events that the host's Python must handle. */
#include <errno.h>
#include "wire/buffer.h"
#include "lanes/clock.h"
#include "python/core.h"
#include "vm/fork.h"
#include "wire/wire.h"

/* ---- HostCall ---- */

/* Answers a host call that was dropped without an answer; otherwise the guest would wait until its deadline. */
static void answer_nothing(vmh_host_call *hc)
{
    if (atomic_load(&hc->word) != 0)
        return;
    vmh_blob_clear(&hc->reply);
    hc->ok = false;
    unsigned waiting = 0;
    bool sent = vmh_wire_text(&hc->reply, "the host did not answer; its log says why");
    if (atomic_compare_exchange_strong(&hc->word, &waiting, sent ? 1 : 2))
        vmh_futex_wake(&hc->word, INT_MAX);
}

static void host_call_dealloc(PyObject *object)
{
    host_call_object *self = (host_call_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->hc != NULL) {
        answer_nothing(self->hc);
        vmh_host_call_unref(self->hc);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

/* The codec of the calling task's lane. */
static vmh_codec codec_of(const vmh_host_call *hc)
{
    const vmh_lane *lane = atomic_load(&hc->vm->work.lane);
    const lane_object *wrapper = lane == NULL ? NULL : lane->wrapper;
    return (vmh_codec){.buffer_type = vmh_buffer_type,
                       .packed_type = vmh_packed_type,
                       .pack = wrapper == NULL ? NULL : Py_XNewRef(wrapper->pack),
                       .unpack = wrapper == NULL ? NULL : Py_XNewRef(wrapper->unpack)};
}

static void codec_drop(vmh_codec *codec)
{
    Py_CLEAR(codec->pack);
    Py_CLEAR(codec->unpack);
}

static PyObject *host_call_answer(PyObject *object, PyObject *value, bool ok)
{
    vmh_host_call *hc = ((host_call_object *)object)->hc;
    if (atomic_load(&hc->word) == 1)
        return PyErr_Format(PyExc_RuntimeError, "host function %s was answered already", hc->name);
    vmh_blob_clear(&hc->reply);
    vmh_codec codec = codec_of(hc);
    int rc = vmh_wire_encode(&hc->reply, value, "result", &codec, NULL);
    codec_drop(&codec);
    if (rc < 0)
        return NULL;
    hc->ok = ok;
    unsigned waiting = 0;
    if (atomic_compare_exchange_strong(&hc->word, &waiting, 1))
        vmh_futex_wake(&hc->word, INT_MAX);
    Py_RETURN_NONE;
}

static PyObject *host_call_reply(PyObject *object, PyObject *value) { return host_call_answer(object, value, true); }
static PyObject *host_call_fail(PyObject *object, PyObject *message)
{
    return host_call_answer(object, message, false);
}

static PyObject *host_call_name(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((host_call_object *)object)->hc->name);
}

static PyObject *host_call_value(PyObject *object, void *Py_UNUSED(closure))
{
    const vmh_host_call *hc = ((host_call_object *)object)->hc;
    vmh_codec codec = codec_of(hc);
    PyObject *value = vmh_wire_decode(&hc->request, "argument", &codec);
    codec_drop(&codec);
    return value;
}

static PyObject *host_call_lane(PyObject *object, void *which)
{
    vmh_lane *lane = atomic_load(&((host_call_object *)object)->hc->vm->work.lane);
    return PyUnicode_FromString(lane == NULL ? "" : which == NULL ? lane->name : lane->version);
}

static PyMethodDef host_call_methods[] = {
    {"reply", host_call_reply, METH_O, PyDoc_STR("reply(value): the guest's call returns this.")},
    {"fail", host_call_fail, METH_O, PyDoc_STR("fail(message): the guest's call raises this.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef host_call_getset[] = {
    {"name", host_call_name, NULL, PyDoc_STR("The host function's name."), NULL},
    {"value", host_call_value, NULL, PyDoc_STR("Its argument."), NULL},
    {"lane_name", host_call_lane, NULL, PyDoc_STR("The calling task."), NULL},
    {"lane_version", host_call_lane, NULL, PyDoc_STR("The calling task's version."), (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot host_call_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("A guest's call of a host function.")},
    {Py_tp_dealloc, host_call_dealloc},
    {Py_tp_methods, host_call_methods},
    {Py_tp_getset, host_call_getset},
    {0, NULL},
};

PyType_Spec vmh_host_call_spec = {
    "vmhost.isolation._core.HostCall",
    sizeof(host_call_object),
    0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    host_call_slots,
};

/* ---- Events ---- */

static PyObject *events_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Events", names))
        return NULL;
    events_object *self = (events_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->events = vmh_events_new()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void drop_object(enum vmh_event_type type, void *object)
{
    switch (type) {
    case VMH_EVENT_STARVED: vmh_lane_unref(object); break;
    case VMH_EVENT_FAILED_CALL:
    case VMH_EVENT_DONE: vmh_call_unref(object); break;
    case VMH_EVENT_HOST_CALL: vmh_host_call_unref(object); break;
    default: vmh_vm_unref(object);
    }
}

static void events_drain(vmh_events *events)
{
    vmh_event *node = vmh_events_take(events);
    while (node != NULL) {
        vmh_event *next = node->next;
        enum vmh_event_type type = node->type;
        void *about = node->object;
        atomic_store(&node->queued, false);
        drop_object(type, about);
        node = next;
    }
}

static void events_dealloc(PyObject *object)
{
    events_object *self = (events_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->events != NULL && !vmh_fork_is_child()) {
        vmh_events_close(self->events);
        events_drain(self->events);
        vmh_events_unref(self->events);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *wrapper_of(void *wrapper) { return Py_NewRef(wrapper == NULL ? Py_None : (PyObject *)wrapper); }

/* Reading reports costs the service thread time: a task that fails all the time is told about some of them. */
static bool wants_report(vmh_lane *lane)
{
    enum { REPORTS_MAX = 20 };
    int64_t now = vmh_now_ns();
    if (now - lane->reports_since_ns > INT64_C(1000000000)) {
        lane->reports_since_ns = now;
        lane->reports = 0;
    }
    return lane->reports++ < REPORTS_MAX;
}

/* The event tuple of a node. The caller keeps its reference to the object. */
static PyObject *event_tuple(enum vmh_event_type type, void *object)
{
    vmh_vm *vm = object;
    vmh_call *call = object;
    host_call_object *hc;
    PyObject *report;
    switch (type) {
    case VMH_EVENT_READY: return Py_BuildValue("(sN)", "ready", wrapper_of(vm->wrapper));
    case VMH_EVENT_FAILED: return Py_BuildValue("(sNs)", "failed", wrapper_of(vm->wrapper), vm->failure);
    case VMH_EVENT_ENDED: return Py_BuildValue("(sN)", "ended", wrapper_of(vm->wrapper));
    case VMH_EVENT_QUARANTINED:
        return Py_BuildValue("(sNs)", "quarantined", wrapper_of(vm->wrapper), vm->stop.quarantined_in);
    case VMH_EVENT_STOPPED: return Py_BuildValue("(sN)", "stopped", wrapper_of(vm->wrapper));
    case VMH_EVENT_LOG: return Py_BuildValue("(sN)", "log", wrapper_of(vm->wrapper));
    case VMH_EVENT_STARVED: return Py_BuildValue("(sN)", "starved", wrapper_of(((vmh_lane *)object)->wrapper));
    case VMH_EVENT_FAILED_CALL:
        report = wants_report(call->lane) ? vmh_core_report(call) : Py_NewRef(Py_None);
        return report == NULL
                   ? NULL
                   : Py_BuildValue("(sNiN)", "failed_call", wrapper_of(call->lane->wrapper), (int)call->kind, report);
    case VMH_EVENT_DONE: return Py_BuildValue("(sN)", "done", wrapper_of(call->wrapper));
    case VMH_EVENT_HOST_CALL:
        hc = (host_call_object *)vmh_host_call_type->tp_alloc(vmh_host_call_type, 0);
        if (hc == NULL)
            return NULL;
        hc->hc = object;
        atomic_fetch_add(&hc->hc->refs, 1);
        return Py_BuildValue("(sN)", "host_call", hc);
    case VMH_EVENT_NONE: break;
    }
    PyErr_SetString(PyExc_SystemError, "vmhost: unknown event");
    return NULL;
}

static PyObject *events_wait(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"timeout_s", NULL};
    vmh_events *events = ((events_object *)object)->events;
    PyObject *timeout_s = NULL;
    int64_t deadline;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:wait", names, &timeout_s)
        || vmh_core_deadline(timeout_s, &deadline) < 0)
        return NULL;
    vmh_event *node = vmh_events_take(events);
    if (node == NULL) {
        int rc;
        Py_BEGIN_ALLOW_THREADS rc = vmh_events_wait(events, deadline);
        Py_END_ALLOW_THREADS if (rc == EINTR && PyErr_CheckSignals() < 0) return NULL;
        node = vmh_events_take(events);
    }
    vmh_buffer_release_lent();
    PyObject *list = PyList_New(0);
    while (node != NULL) {
        vmh_event *next = node->next;
        enum vmh_event_type type = node->type;
        void *about = node->object;
        atomic_store(&node->queued, false); /* from now on it may be posted again */
        PyObject *item = list == NULL ? NULL : event_tuple(type, about);
        if (item != NULL && PyTuple_GET_ITEM(item, 1) != Py_None && PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        if (item == NULL)
            Py_CLEAR(list);
        Py_XDECREF(item);
        drop_object(type, about);
        node = next;
    }
    return list;
}

/* Accepts the arguments of a weakref callback. As a C function it runs no Python, so Ctrl-C cannot interrupt it. */
static PyObject *events_wake(PyObject *object, PyObject *Py_UNUSED(arguments))
{
    vmh_events_wake(((events_object *)object)->events);
    Py_RETURN_NONE;
}

static PyMethodDef events_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))events_wait, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("wait(timeout_s=None) -> list of tuples; empty after wake(), a signal or the timeout. One thread at a "
               "time.")},
    {"wake", events_wake, METH_VARARGS,
     PyDoc_STR("Ends the current wait(), or the next one. Ignores its arguments: it may be a weakref callback.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Native events that Python must handle.")},
    {Py_tp_new, events_new},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_methods, events_methods},
    {0, NULL},
};

PyType_Spec vmh_events_spec = {
    "vmhost.isolation._core.Events", sizeof(events_object), 0, Py_TPFLAGS_DEFAULT, events_slots,
};
