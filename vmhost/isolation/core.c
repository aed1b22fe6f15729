/* `vmhost.isolation._core`: what the host's Python sees of images, lanes, calls, VMs and events. Main interpreter only.
 *
 * A wrapper owns one reference on its native object. Events travel with native references; the queue's reader finds the
 * wrapper through the object's `wrapper` field, which is touched under the main GIL only.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "clock.h"
#include "creation.h"
#include "engine.h"
#include "fork.h"
#include "handover.h"
#include "seal.h"
#include "sqlite_memory.h"
#include "sqlite_rules.h"
#include "vm_private.h"
#include "wire.h"

typedef struct {
    PyObject_HEAD
    vmh_image *image;
} image_object;

typedef struct {
    PyObject_HEAD
    vmh_events *events;
} events_object;

typedef struct {
    PyObject_HEAD
    vmh_lane *lane;
    PyObject *weakrefs;
} lane_object;

typedef struct {
    PyObject_HEAD
    vmh_call *call;
    PyObject *owner;        /* whatever the host's Python hangs on a call: its Future */
} call_object;

typedef struct {
    PyObject_HEAD
    vmh_vm *vm;
    PyObject *weakrefs;
} vm_object;

typedef struct {
    PyObject_HEAD
    vmh_host_call *hc;
} host_call_object;

/* One main interpreter, one core: the module refuses to load anywhere else, so these may be static. */
static PyTypeObject *image_type, *events_type, *lane_type, *call_type, *vm_type, *host_call_type, *buffer_type;
static PyObject *error_factory;

/* A span in seconds (None: for ever) as a monotonic deadline. 0, or -1 with an error set. */
static int deadline_from(PyObject *timeout_s, int64_t *deadline_ns)
{
    if (timeout_s == NULL || timeout_s == Py_None) {
        *deadline_ns = VMH_FOREVER;
        return 0;
    }
    double seconds = PyFloat_AsDouble(timeout_s);
    if (seconds == -1.0 && PyErr_Occurred())
        return -1;
    if (!(seconds >= 0)) {
        PyErr_Format(PyExc_ValueError, "timeout_s: expected a number of seconds from 0 on, got %R", timeout_s);
        return -1;
    }
    *deadline_ns = seconds > 1e9 ? VMH_FOREVER : vmh_after_ns(vmh_now_ns(), (int64_t)(seconds * 1e9));
    return 0;
}

static int64_t span_ns(double seconds)
{
    return seconds < 0 || seconds > 1e9 ? VMH_FOREVER : (int64_t)(seconds * 1e9);
}

/* ---- Image -------------------------------------------------------------------------------------------------------- */

static PyObject *image_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":Image", names))
        return NULL;
    image_object *self = (image_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->image = vmh_image_new()) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void image_dealloc(PyObject *object)
{
    image_object *self = (image_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->image != NULL)
        vmh_image_unref(self->image);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *image_add(PyObject *object, const char *name, bool is_package, Py_buffer *data)
{
    int rc = vmh_image_add(((image_object *)object)->image, name, is_package, data->buf, (size_t)data->len);
    PyBuffer_Release(data);
    if (rc < 0)
        return PyErr_NoMemory();
    if (rc > 0)
        return PyErr_Format(PyExc_ValueError, "%s is in this image already", name);
    Py_RETURN_NONE;
}

static PyObject *image_add_module(PyObject *self, PyObject *args)
{
    const char *name;
    int is_package;
    Py_buffer code;
    if (!PyArg_ParseTuple(args, "spy*:add_module", &name, &is_package, &code))
        return NULL;
    return image_add(self, name, is_package, &code);
}

static PyObject *image_add_text(PyObject *self, PyObject *args)
{
    Py_buffer digest, code;
    char name[1 + 64 + 1] = "#";
    if (!PyArg_ParseTuple(args, "y*y*:add_text", &digest, &code))
        return NULL;
    if (digest.len != 32) {
        PyErr_Format(PyExc_ValueError, "digest: expected 32 bytes, got %zd", digest.len);
        PyBuffer_Release(&digest);
        PyBuffer_Release(&code);
        return NULL;
    }
    for (int i = 0; i < 32; i++)
        snprintf(name + 1 + 2 * i, 3, "%02x", ((const uint8_t *)digest.buf)[i]);
    PyBuffer_Release(&digest);
    return image_add(self, name, false, &code);
}

static PyObject *image_add_file(PyObject *self, PyObject *args)
{
    PyObject *path;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Uy*:add_file", &path, &data))
        return NULL;
    PyObject *name = PyUnicode_FromFormat("/%U", path);
    const char *text = name == NULL ? NULL : PyUnicode_AsUTF8(name);
    if (text == NULL) {
        PyBuffer_Release(&data);
        Py_XDECREF(name);
        return NULL;
    }
    PyObject *result = image_add(self, text, false, &data);
    Py_DECREF(name);
    return result;
}

static PyMethodDef image_methods[] = {
    {"add_module", image_add_module, METH_VARARGS, PyDoc_STR("add_module(name, is_package, code): marshalled code, digest-checked by the caller.")},
    {"add_text", image_add_text, METH_VARARGS, PyDoc_STR("add_text(digest, code): marshalled code of a text, by its SHA-256.")},
    {"add_file", image_add_file, METH_VARARGS, PyDoc_STR("add_file(path, data): a resource.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot image_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("Code and files of one bundle, in memory that every VM can read.")},
    {Py_tp_new, image_new},
    {Py_tp_dealloc, image_dealloc},
    {Py_tp_methods, image_methods},
    {0, NULL},
};

static PyType_Spec image_spec = {"vmhost.isolation._core.Image", sizeof(image_object), 0, Py_TPFLAGS_DEFAULT, image_slots};

/* ---- Call --------------------------------------------------------------------------------------------------------- */

static PyObject *call_wrap(vmh_call *call)
{
    call_object *self = (call_object *)call_type->tp_alloc(call_type, 0);
    if (self == NULL)
        return NULL;
    self->call = call;      /* takes the caller's reference */
    call->wrapper = self;
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
    type->tp_free(object);
    Py_DECREF(type);
    vmh_buffer_release_lent();
}

static int call_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((call_object *)object)->owner);
    return 0;
}

static int call_clear(PyObject *object)
{
    Py_CLEAR(((call_object *)object)->owner);
    return 0;
}

/* Raises what the factory makes of kind and payload. Always NULL. */
static PyObject *raise_kind(vmh_lane *lane, int kind, PyObject *payload)
{
    if (error_factory == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%s@%s: call ended with kind %d: %R", lane->name, lane->version, kind, payload);
        return NULL;
    }
    PyObject *error = PyObject_CallFunction(error_factory, "iOss", kind, payload, lane->name, lane->version);
    if (error == NULL)
        return NULL;
    if (PyExceptionInstance_Check(error))
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    else
        PyErr_Format(PyExc_TypeError, "the error factory gave a `%s`", Py_TYPE(error)->tp_name);
    Py_DECREF(error);
    return NULL;
}

/* The call is done: its value, or its error raised. */
static PyObject *outcome(vmh_call *call)
{
    if (call->kind == VMH_OK)
        return vmh_wire_decode(&call->reply, buffer_type);
    PyObject *payload = call->reply.size == 0 ? Py_NewRef(Py_None) : vmh_wire_decode(&call->reply, buffer_type);
    if (payload == NULL)
        return NULL;
    raise_kind(call->lane, call->kind, payload);
    Py_DECREF(payload);
    return NULL;
}

/* Python handles signals on the process's first thread. One that arrives between its last look at them and its sleep does not
 * interrupt the sleep, so it looks again in between; soon at first, since a wait that begins is when that happens. */
enum { LOOK_FIRST_NS = 2000000, LOOK_LAST_NS = 128000000 };

static bool handles_signals(void)
{
    static _Thread_local int known;     /* 1: yes, 2: no */
    if (known == 0)
        known = syscall(SYS_gettid) == getpid() ? 1 : 2;
    return known == 1;
}

/* As outcome(), for who asks once only: lets go of what the reply holds, so that its arrays are the caller's alone. */
static PyObject *last_outcome(vmh_call *call)
{
    PyObject *result = outcome(call);
    vmh_blob_clear(&call->reply);
    return result;
}

/* Waits with the GIL released. 1: done, 0: the time is over, -1: a signal handler raised. */
static int wait_for(vmh_call *call, int64_t deadline_ns)
{
    int64_t look_ns = handles_signals() ? LOOK_FIRST_NS : VMH_FOREVER;
    while (!vmh_call_done(call)) {
        int rc;
        if (vmh_fork_check() < 0)
            return -1;
        int64_t until_ns = look_ns == VMH_FOREVER ? VMH_FOREVER : vmh_now_ns() + look_ns;
        if (until_ns > deadline_ns)
            until_ns = deadline_ns;
        Py_BEGIN_ALLOW_THREADS
        rc = vmh_call_wait(call, until_ns);
        Py_END_ALLOW_THREADS
        if (rc == ETIMEDOUT && until_ns == deadline_ns)
            return 0;
        if (rc != 0 && PyErr_CheckSignals() < 0)
            return -1;
        if (look_ns < LOOK_LAST_NS)
            look_ns *= 2;
    }
    return 1;
}

static void stop(vmh_call *call)
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
    if (!PyArg_ParseTuple(args, "|O:wait", &timeout_s) || deadline_from(timeout_s, &deadline) < 0)
        return NULL;
    int rc = wait_for(((call_object *)object)->call, deadline);
    return rc < 0 ? NULL : PyBool_FromLong(rc);
}

static PyObject *call_result(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_call *call = ((call_object *)object)->call;
    if (wait_for(call, VMH_FOREVER) < 0)
        return NULL;
    vmh_buffer_release_lent();
    return outcome(call);
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
    stop(((call_object *)object)->call);
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

static PyObject *call_state(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    if (vmh_call_done(call))
        return PyUnicode_FromString("done");
    return PyUnicode_FromString(atomic_load(&call->state) == VMH_QUEUED ? "queued" : "running");
}

static PyObject *call_timings(PyObject *object, void *Py_UNUSED(closure))
{
    vmh_call *call = ((call_object *)object)->call;
    bool done = vmh_call_done(call);
    return Py_BuildValue("(LLL)", (long long)call->submitted_ns, (long long)(done ? call->started_ns : 0),
                         (long long)(done ? call->ended_ns : 0));
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
    {"done", call_done, METH_NOARGS, PyDoc_STR("True once the call has its end.")},
    {"wait", call_wait, METH_VARARGS, PyDoc_STR("wait(timeout_s=None) -> bool: done in time?")},
    {"result", call_result, METH_NOARGS, PyDoc_STR("The value, or the call's error raised; waits for it.")},
    {"cancel", call_cancel, METH_NOARGS, PyDoc_STR("True when the call was waiting and is cancelled now.")},
    {"stop", call_stop, METH_NOARGS, PyDoc_STR("Cancel the call, or stop it where it runs.")},
    {"watch", call_watch, METH_NOARGS, PyDoc_STR("Deliver ('done', call) when it ends, or now.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef call_getset[] = {
    {"kind", call_kind, NULL, PyDoc_STR("How it ended (vm.h), None before."), NULL},
    {"state", call_state, NULL, PyDoc_STR("'queued', 'running' or 'done'."), NULL},
    {"timings", call_timings, NULL, PyDoc_STR("(submitted, started, ended), monotonic ns; 0: not (known) yet."), NULL},
    {"lane", call_lane, NULL, PyDoc_STR("The lane."), NULL},
    {"owner", call_get_owner, call_set_owner, PyDoc_STR("Anything; kept for the caller."), NULL},
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

static PyType_Spec call_spec = {
    "vmhost.isolation._core.Call", sizeof(call_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION, call_slots,
};

/* ---- Lane --------------------------------------------------------------------------------------------------------- */

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "version", "image", "entry", "events", "wall_s", "cpu_s", "capacity", "calls_per_vm",
                            "slow_s", NULL};
    const char *name, *version, *entry;
    PyObject *image, *events;
    double wall_s = -1, cpu_s = -1, slow_s = -1;
    Py_ssize_t capacity = PY_SSIZE_T_MAX;
    int calls_per_vm = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ssO!sO!|ddnid:Lane", names, &name, &version, image_type, &image, &entry,
                                     events_type, &events, &wall_s, &cpu_s, &capacity, &calls_per_vm, &slow_s))
        return NULL;
    if (capacity < 0)
        return PyErr_Format(PyExc_ValueError, "capacity: expected a count from 0 on, got %zd", capacity);
    lane_object *self = (lane_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lane = vmh_lane_new(name, version, entry, ((image_object *)image)->image, ((events_object *)events)->events);
    if (self->lane == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->lane->wall_ns = span_ns(wall_s);
    self->lane->cpu_ns = span_ns(cpu_s);
    self->lane->capacity = capacity == PY_SSIZE_T_MAX ? SIZE_MAX : (size_t)capacity;
    self->lane->calls_per_vm = calls_per_vm;
    self->lane->slow_ns = span_ns(slow_s);
    self->lane->wrapper = self;
    return (PyObject *)self;
}

static void lane_dealloc(PyObject *object)
{
    lane_object *self = (lane_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->weakrefs != NULL)
        PyObject_ClearWeakRefs(object);
    if (self->lane != NULL && !vmh_fork_is_child()) {
        self->lane->wrapper = NULL;
        vmh_lane_unref(self->lane);
    }
    type->tp_free(object);
    Py_DECREF(type);
}

typedef struct {
    PyObject *timeout_s, *entry;
    int priority;
    bool spread;
} options;

/* Keyword and positional options after the value: timeout_s, priority, entry, spread. */
static int options_parse(const char *function, options *o, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"timeout_s", "priority", "entry", "spread"};
    PyObject *found[4] = {NULL, NULL, NULL, NULL};
    *o = (options){NULL, NULL, 0, false};
    if (count < 1 || count > 5) {
        PyErr_Format(PyExc_TypeError, "%s() takes one value and the options timeout_s, priority, entry, spread", function);
        return -1;
    }
    if (count == 1 && keywords == NULL)
        return 0;
    for (Py_ssize_t i = 1; i < count; i++)
        found[i - 1] = args[i];
    for (Py_ssize_t i = 0; keywords != NULL && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        int at = 0;
        while (at < 4 && PyUnicode_CompareWithASCIIString(keyword, names[at]) != 0)
            at++;
        if (at == 4 || found[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s(): option %R is unknown or given twice", function, keyword);
            return -1;
        }
        found[at] = args[count + i];
    }
    o->timeout_s = found[0];
    if (found[1] != NULL) {
        long priority = PyLong_AsLong(found[1]);
        if (priority == -1 && PyErr_Occurred())
            return -1;
        if (priority < -8 || priority > 7) {
            PyErr_Format(PyExc_ValueError, "priority: expected -8 to 7, got %ld", priority);
            return -1;
        }
        o->priority = (int)priority;
    }
    o->entry = found[2] == Py_None ? NULL : found[2];
    if (o->entry != NULL && !PyUnicode_Check(o->entry)) {
        PyErr_Format(PyExc_TypeError, "entry: expected \"module:function\", got `%s`", Py_TYPE(o->entry)->tp_name);
        return -1;
    }
    if (found[3] != NULL) {
        int spread = PyObject_IsTrue(found[3]);
        if (spread < 0)
            return -1;
        o->spread = spread;
    }
    return 0;
}

/* A call with its value encoded, not pushed yet; NULL with an error set. */
static vmh_call *prepare(vmh_lane *lane, PyObject *value, const options *o)
{
    if (vmh_fork_check() < 0)
        return NULL;
    int64_t limit = vmh_after_ns(vmh_now_ns(), lane->wall_ns), asked;
    if (deadline_from(o->timeout_s, &asked) < 0)
        return NULL;
    vmh_call *call = vmh_call_new(lane);
    if (call == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    call->deadline_ns = asked < limit ? asked : limit;
    call->level = 7 - o->priority;
    call->spread = o->spread;
    if (o->entry != NULL) {
        const char *entry = PyUnicode_AsUTF8(o->entry);
        if (entry == NULL)
            goto failed;
        if ((call->entry = strdup(entry)) == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
    }
    if (vmh_wire_encode(&call->request, value, "argument", buffer_type, NULL) < 0)
        goto wire_failed;
    return call;
wire_failed:
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyObject *error = PyErr_GetRaisedException(), *text = PyObject_Str(error);
        if (text != NULL)
            raise_kind(lane, VMH_VALUE, text);
        Py_XDECREF(text);
        Py_DECREF(error);
    }
failed:
    vmh_call_unref(call);
    return NULL;
}

static int push(vmh_lane *lane, vmh_call **calls, size_t count)
{
    enum vmh_kind kind = vmh_lane_push(lane, calls, count);
    if (kind == VMH_OK)
        return 0;
    PyObject *size = PyLong_FromSize_t(lane->capacity);
    if (size != NULL)
        raise_kind(lane, kind, size);
    Py_XDECREF(size);
    return -1;
}

/* The call that a method's arguments ask for, as prepare() leaves it; NULL with an error set. */
static vmh_call *one_call(const char *method, vmh_lane *lane, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    options o;
    return options_parse(method, &o, args, count, keywords) < 0 ? NULL : prepare(lane, args[0], &o);
}

static PyObject *lane_call(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    vmh_call *call = one_call("call", lane, args, count, keywords);
    if (call == NULL)
        return NULL;
    PyObject *result = NULL;
    if (push(lane, &call, 1) == 0) {
        if (wait_for(call, VMH_FOREVER) < 0)
            stop(call);     /* Ctrl-C: the caller leaves, and so does the call */
        else
            result = last_outcome(call);
    }
    vmh_call_unref(call);
    vmh_buffer_release_lent();
    return result;
}

static PyObject *lane_submit(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    vmh_call *call = one_call("submit", lane, args, count, keywords);
    if (call == NULL)
        return NULL;
    PyObject *wrapper = call_wrap(vmh_call_ref(call));
    if (wrapper == NULL)
        vmh_call_unref(call);
    else if (push(lane, &call, 1) < 0)
        Py_CLEAR(wrapper);
    vmh_call_unref(call);
    return wrapper;
}

/* The calls that a method's arguments ask for, one for each of its values, pushed under one lock: all or none. A malloc'd array of
 * references; NULL with an error set. */
static vmh_call **all_calls(const char *method, vmh_lane *lane, PyObject *const *args, Py_ssize_t count, PyObject *keywords,
                            Py_ssize_t *made_count)
{
    options o;
    PyObject *items = NULL;
    Py_ssize_t n = 0, made = 0;
    vmh_call **calls = NULL;
    if (options_parse(method, &o, args, count, keywords) < 0
        || (items = PySequence_Fast(args[0], "expected an iterable of values")) == NULL)
        return NULL;
    n = PySequence_Fast_GET_SIZE(items);
    calls = malloc(((size_t)n + 1) * sizeof *calls);
    if (calls == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    while (made < n && (calls[made] = prepare(lane, PySequence_Fast_GET_ITEM(items, made), &o)) != NULL)
        made++;
    if (made < n || (n > 0 && push(lane, calls, (size_t)n) < 0)) {
        while (made > 0)
            vmh_call_unref(calls[--made]);
        free(calls);
        calls = NULL;
    }
done:
    Py_DECREF(items);
    *made_count = n;
    return calls;
}

static PyObject *lane_submit_many(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t n;
    vmh_call **calls = all_calls("submit_many", ((lane_object *)object)->lane, args, count, keywords, &n);
    if (calls == NULL)
        return NULL;
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *wrapper = list == NULL ? NULL : call_wrap(calls[i]);
        if (wrapper == NULL) {
            vmh_call_unref(calls[i]);
            Py_CLEAR(list);
        } else {
            PyList_SET_ITEM(list, i, wrapper);
        }
    }
    free(calls);
    return list;
}

static PyObject *lane_map(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t n;
    vmh_call **calls = all_calls("map", ((lane_object *)object)->lane, args, count, keywords, &n);
    if (calls == NULL)
        return NULL;
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = NULL;
        if (list != NULL && wait_for(calls[i], VMH_FOREVER) >= 0)
            item = last_outcome(calls[i]);
        if (item == NULL) {
            Py_CLEAR(list);
            stop(calls[i]);     /* nobody waits for the rest */
        } else {
            PyList_SET_ITEM(list, i, item);
        }
        vmh_call_unref(calls[i]);
    }
    free(calls);
    vmh_buffer_release_lent();
    return list;
}

static PyObject *lane_close(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"drain", NULL};
    int drain = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:close", names, &drain))
        return NULL;
    vmh_lane *lane = ((lane_object *)object)->lane;
    Py_BEGIN_ALLOW_THREADS
    vmh_lane_close(lane, !drain);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyObject *lane_stop_all(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_lane_stop_running(((lane_object *)object)->lane);
    Py_RETURN_NONE;
}

static PyObject *lane_fail(PyObject *object, PyObject *message)
{
    vmh_blob blob;
    vmh_blob_init(&blob);
    PyObject *result = NULL;
    if (vmh_wire_encode(&blob, message, "message", buffer_type, NULL) == 0)
        result = PyLong_FromSize_t(vmh_lane_fail(((lane_object *)object)->lane, blob.data, blob.size));
    vmh_blob_clear(&blob);
    return result;
}

static PyObject *lane_mute(PyObject *object, PyObject *muted)
{
    int yes = PyObject_IsTrue(muted);
    if (yes < 0)
        return NULL;
    atomic_store(&((lane_object *)object)->lane->muted, yes);
    Py_RETURN_NONE;
}

static PyObject *lane_statistics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    pthread_mutex_lock(&lane->lock);
    size_t queued = lane->queued;
    unsigned idle = lane->idle_count, workers = lane->workers;
    bool closed = lane->closed;
    pthread_mutex_unlock(&lane->lock);
    PyObject *ends = PyTuple_New(VMH_KINDS);
    for (int i = 0; ends != NULL && i < VMH_KINDS; i++) {
        PyObject *n = PyLong_FromLongLong(atomic_load(&lane->ends[i]));
        if (n == NULL)
            Py_CLEAR(ends);
        else
            PyTuple_SET_ITEM(ends, i, n);
    }
    if (ends == NULL)
        return NULL;
    return Py_BuildValue("{s:n,s:I,s:I,s:L,s:O,s:L,s:d,s:L,s:N}", "queued", (Py_ssize_t)queued, "idle", idle, "vms", workers,
                         "running", atomic_load(&lane->running), "closed", closed ? Py_True : Py_False, "submitted",
                         atomic_load(&lane->submitted_total), "wall_s", (double)atomic_load(&lane->wall_ns_total) / 1e9,
                         "slow", atomic_load(&lane->slow_total), "ends", ends);
}

static PyObject *lane_starved(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(vmh_lane_starved(((lane_object *)object)->lane));
}

enum { LANE_QUEUED, LANE_IDLE, LANE_VMS, LANE_RUNNING, LANE_UNFINISHED };

static PyObject *lane_count(PyObject *object, void *which)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    if ((intptr_t)which == LANE_RUNNING)
        return PyLong_FromLongLong(atomic_load(&lane->running));
    if ((intptr_t)which == LANE_UNFINISHED)
        return PyLong_FromLongLong(vmh_lane_unfinished(lane));
    pthread_mutex_lock(&lane->lock);
    size_t count = (intptr_t)which == LANE_QUEUED ? lane->queued : (intptr_t)which == LANE_IDLE ? lane->idle_count
        : lane->workers;
    pthread_mutex_unlock(&lane->lock);
    return PyLong_FromSize_t(count);
}

static PyObject *lane_text(PyObject *object, void *which)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    return PyUnicode_FromString(which == NULL ? lane->name : lane->version);
}

static PyMethodDef lane_methods[] = {
    {"call", (PyCFunction)(void (*)(void))lane_call, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("call(value, timeout_s=None, priority=0, entry=None, spread=False): submit, wait, result.")},
    {"submit", (PyCFunction)(void (*)(void))lane_submit, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("submit(value, …) -> Call")},
    {"submit_many", (PyCFunction)(void (*)(void))lane_submit_many, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("submit_many(values, …) -> list of Call: all are queued, or none")},
    {"map", (PyCFunction)(void (*)(void))lane_map, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("map(values, …) -> list of results; the first error in order is raised and the rest stopped")},
    {"close", (PyCFunction)(void (*)(void))lane_close, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("close(drain=True): takes no more calls; without drain those that wait end with kind CLOSED")},
    {"stop_running", lane_stop_all, METH_NOARGS, PyDoc_STR("Stops every call that runs, with kind CLOSED; for a closed lane.")},
    {"fail", lane_fail, METH_O, PyDoc_STR("fail(message) -> count: calls that wait end with kind VM_LOST.")},
    {"mute", lane_mute, METH_O, PyDoc_STR("mute(bool): no 'starved' events while true.")},
    {"statistics", lane_statistics, METH_NOARGS, PyDoc_STR("Counters, as a dict; ends: by kind.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_getset[] = {
    {"starved", lane_starved, NULL, PyDoc_STR("Calls wait and no attached VM is idle."), NULL},
    {"queued", lane_count, NULL, PyDoc_STR("Calls that wait."), (void *)LANE_QUEUED},
    {"idle", lane_count, NULL, PyDoc_STR("Attached VMs that wait."), (void *)LANE_IDLE},
    {"vms", lane_count, NULL, PyDoc_STR("Attached VMs."), (void *)LANE_VMS},
    {"running", lane_count, NULL, PyDoc_STR("Calls that run."), (void *)LANE_RUNNING},
    {"unfinished", lane_count, NULL, PyDoc_STR("Calls that have no end yet: they wait, are on their way to a VM, or run."),
     (void *)LANE_UNFINISHED},
    {"name", lane_text, NULL, PyDoc_STR("Task name."), NULL},
    {"version", lane_text, NULL, PyDoc_STR("Task version."), (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef lane_members[] = {
    {"__weaklistoffset__", Py_T_PYSSIZET, offsetof(lane_object, weakrefs), Py_READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot lane_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("The native queue of calls of one task version.")},
    {Py_tp_new, lane_new},
    {Py_tp_dealloc, lane_dealloc},
    {Py_tp_methods, lane_methods},
    {Py_tp_getset, lane_getset},
    {Py_tp_members, lane_members},
    {0, NULL},
};

static PyType_Spec lane_spec = {"vmhost.isolation._core.Lane", sizeof(lane_object), 0, Py_TPFLAGS_DEFAULT, lane_slots};

/* ---- VM ----------------------------------------------------------------------------------------------------------- */

static PyObject *vm_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"system", "events", "stack_bytes", "soft_bytes", "hard_bytes", "grace_s", "permissions", "boot_s",
                            "load_s", "end_s", NULL};
    PyObject *system, *events, *permissions = NULL;
    Py_ssize_t stack_bytes = 1 << 20, soft_bytes = PY_SSIZE_T_MAX, hard_bytes = PY_SSIZE_T_MAX;
    double grace_s = 0.25, boot_s = 30, load_s = 30, end_s = 2;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!|$nnndOddd:VM", names, image_type, &system, events_type, &events,
                                     &stack_bytes, &soft_bytes, &hard_bytes, &grace_s, &permissions, &boot_s, &load_s, &end_s))
        return NULL;
    if (vmh_fork_check() < 0)
        return NULL;
    if (stack_bytes < 128 * 1024)
        return PyErr_Format(PyExc_ValueError, "stack_bytes: expected 131072 or more, got %zd", stack_bytes);
    vm_object *self = (vm_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    vmh_vm *vm = vmh_vm_new(((image_object *)system)->image, ((events_object *)events)->events);
    if (vm == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->vm = vm;
    vm->wrapper = self;
    vm->stack_bytes = ((size_t)stack_bytes + 4095) & ~(size_t)4095;
    atomic_store(&vm->soft_bytes, soft_bytes);
    atomic_store(&vm->hard_bytes, hard_bytes);
    vm->grace_ns = span_ns(grace_s);
    vm->boot_ns = span_ns(boot_s);
    vm->load_ns = span_ns(load_s);
    vm->end_ns = span_ns(end_s);
    PyObject *granted = permissions == NULL || permissions == Py_None ? PyDict_New() : Py_NewRef(permissions);
    int rc = granted == NULL ? -1 : vmh_wire_encode(&vm->permissions, granted, "permissions", buffer_type, NULL);
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
    if (!PyObject_TypeCheck(lane, lane_type))
        return PyErr_Format(PyExc_TypeError, "attach: expected a Lane, got `%s`", Py_TYPE(lane)->tp_name);
    int state = atomic_load(&vm->state);
    if (state > VMH_VM_READY || atomic_load(&vm->lane) != NULL)
        return PyErr_Format(PyExc_RuntimeError, "VM %llu is %s%s: it can be attached once, while booting or ready",
                            (unsigned long long)vm->id, vm_states[state],
                            atomic_load(&vm->lane) != NULL ? " and attached" : "");
    vmh_vm_attach(vm, ((lane_object *)lane)->lane);
    Py_RETURN_NONE;
}

static PyObject *vm_set_limits(PyObject *object, PyObject *args)
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    Py_ssize_t soft, hard;
    if (!PyArg_ParseTuple(args, "nn:set_limits", &soft, &hard))
        return NULL;
    atomic_store(&vm->soft_bytes, soft);
    atomic_store(&vm->hard_bytes, hard);
    int state = atomic_load(&vm->state);
    if (state == VMH_VM_READY || state == VMH_VM_SERVING) {
        atomic_store(&vm->meter->soft, soft);
        atomic_store(&vm->meter->hard, hard);
    }
    Py_RETURN_NONE;
}

static PyObject *vm_set_permissions(PyObject *object, PyObject *permissions)
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    if (atomic_load(&vm->lane) != NULL)
        return PyErr_Format(PyExc_RuntimeError, "VM %llu is attached: its permissions are settled", (unsigned long long)vm->id);
    vmh_blob blob;
    vmh_blob_init(&blob);
    int rc = vmh_wire_encode(&blob, permissions, "permissions", buffer_type, NULL);
    if (rc == 0) {
        pthread_mutex_lock(&vm->life);
        vmh_blob_move(&vm->permissions, &blob);
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
    vmh_meter *meter = vm->meter;
    int64_t cpu = vmh_vm_cpu_ns(vm);
    pthread_mutex_lock(&vm->life);
    int threads = vm->thread_count;
    const char *phase = vmh_phase_name(vm->phase);
    int64_t generation = vm->generation;
    pthread_mutex_unlock(&vm->life);
    int64_t idle_since = atomic_load(&vm->idle_since_ns);
    double idle_s = strcmp(phase, "idle") == 0 && idle_since != 0 ? (double)(vmh_now_ns() - idle_since) / 1e9 : 0.0;
    return Py_BuildValue("{s:K,s:s,s:s,s:L,s:L,s:L,s:L,s:L,s:d,s:L,s:L,s:L,s:i,s:d,s:d,s:L}",
        "id", (unsigned long long)vm->id, "state", vm_states[atomic_load(&vm->state)], "phase", phase,
        "live_bytes", atomic_load(&meter->live), "peak_bytes", atomic_load(&meter->peak),
        "arenas", atomic_load(&meter->arenas), "buffer_bytes", atomic_load(&meter->buffers),
        "refused", atomic_load(&meter->refused), "cpu_s", (double)cpu / 1e9, "calls", atomic_load(&vm->calls),
        "errors", atomic_load(&vm->errors), "stops", atomic_load(&vm->stops), "threads", threads,
        "boot_s", (double)atomic_load(&vm->boot_ns_taken) / 1e9, "idle_s", idle_s, "generation", (long long)generation);
}

static PyObject *vm_take_logs(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_vm *vm = ((vm_object *)object)->vm;
    pthread_mutex_lock(&vm->log_lock);
    vmh_log_line *line = vm->log_first;
    long long dropped = vm->log_dropped;
    vm->log_first = NULL;
    vm->log_tail = &vm->log_first;
    vm->log_count = 0;
    vm->log_dropped = 0;
    pthread_mutex_unlock(&vm->log_lock);
    PyObject *list = PyList_New(0);
    while (line != NULL) {
        vmh_log_line *next = line->next;
        PyObject *item = list == NULL ? NULL
            : Py_BuildValue("(iN)", line->level, PyUnicode_DecodeUTF8(line->text, (Py_ssize_t)line->size, "replace"));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
        free(line);
        line = next;
    }
    if (list != NULL && dropped > 0) {
        PyObject *text = PyUnicode_FromFormat("%lld more lines were dropped: the task writes faster than the host reads", dropped);
        PyObject *item = text == NULL ? NULL : Py_BuildValue("(iN)", 30, text);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
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
    {"set_limits", vm_set_limits, METH_VARARGS, PyDoc_STR("set_limits(soft_bytes, hard_bytes)")},
    {"set_permissions", vm_set_permissions, METH_O, PyDoc_STR("set_permissions(dict): before attach.")},
    {"statistics", vm_statistics, METH_NOARGS, PyDoc_STR("Counters, as a dict.")},
    {"take_logs", vm_take_logs, METH_NOARGS, PyDoc_STR("list of (level, line) that the guest wrote since the last call")},
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

static PyType_Spec vm_spec = {"vmhost.isolation._core.VM", sizeof(vm_object), 0, Py_TPFLAGS_DEFAULT, vm_slots};

/* ---- HostCall ----------------------------------------------------------------------------------------------------- */

static void host_call_dealloc(PyObject *object)
{
    host_call_object *self = (host_call_object *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->hc != NULL)
        vmh_host_call_unref(self->hc);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyObject *host_call_answer(PyObject *object, PyObject *value, bool ok)
{
    vmh_host_call *hc = ((host_call_object *)object)->hc;
    if (atomic_load(&hc->word) == 1)
        return PyErr_Format(PyExc_RuntimeError, "host function %s was answered already", hc->name);
    vmh_blob_clear(&hc->reply);
    if (vmh_wire_encode(&hc->reply, value, "result", buffer_type, NULL) < 0)
        return NULL;
    hc->ok = ok;
    unsigned waiting = 0;
    if (atomic_compare_exchange_strong(&hc->word, &waiting, 1))
        vmh_futex_wake(&hc->word, INT_MAX);
    Py_RETURN_NONE;
}

static PyObject *host_call_reply(PyObject *object, PyObject *value) { return host_call_answer(object, value, true); }
static PyObject *host_call_fail(PyObject *object, PyObject *message) { return host_call_answer(object, message, false); }

static PyObject *host_call_name(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(((host_call_object *)object)->hc->name);
}

static PyObject *host_call_value(PyObject *object, void *Py_UNUSED(closure))
{
    return vmh_wire_decode(&((host_call_object *)object)->hc->request, buffer_type);
}

static PyObject *host_call_lane(PyObject *object, void *which)
{
    vmh_lane *lane = atomic_load(&((host_call_object *)object)->hc->vm->lane);
    return PyUnicode_FromString(lane == NULL ? "" : which == NULL ? lane->name : lane->version);
}

static PyMethodDef host_call_methods[] = {
    {"reply", host_call_reply, METH_O, PyDoc_STR("reply(value): the guest's call gives this.")},
    {"fail", host_call_fail, METH_O, PyDoc_STR("fail(message): the guest's call raises with this.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef host_call_getset[] = {
    {"name", host_call_name, NULL, PyDoc_STR("Which host function."), NULL},
    {"value", host_call_value, NULL, PyDoc_STR("Its argument."), NULL},
    {"lane_name", host_call_lane, NULL, PyDoc_STR("The task that asks."), NULL},
    {"lane_version", host_call_lane, NULL, PyDoc_STR("Its version."), (void *)1},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot host_call_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("A guest waits for a function of the host.")},
    {Py_tp_dealloc, host_call_dealloc},
    {Py_tp_methods, host_call_methods},
    {Py_tp_getset, host_call_getset},
    {0, NULL},
};

static PyType_Spec host_call_spec = {
    "vmhost.isolation._core.HostCall", sizeof(host_call_object), 0,
    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, host_call_slots,
};

/* ---- Events ------------------------------------------------------------------------------------------------------- */

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
    case VMH_EVENT_STARVED:
        vmh_lane_unref(object);
        break;
    case VMH_EVENT_FAILED_CALL:
    case VMH_EVENT_DONE:
        vmh_call_unref(object);
        break;
    case VMH_EVENT_HOST_CALL:
        vmh_host_call_unref(object);
        break;
    default:
        vmh_vm_unref(object);
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

/* The tuple for a node whose reference on the object the caller still holds. */
static PyObject *event_tuple(enum vmh_event_type type, void *object)
{
    vmh_vm *vm = object;
    vmh_call *call = object;
    host_call_object *hc;
    switch (type) {
    case VMH_EVENT_READY:
        return Py_BuildValue("(sN)", "ready", wrapper_of(vm->wrapper));
    case VMH_EVENT_FAILED:
        return Py_BuildValue("(sNs)", "failed", wrapper_of(vm->wrapper), vm->failure);
    case VMH_EVENT_ENDED:
        return Py_BuildValue("(sN)", "ended", wrapper_of(vm->wrapper));
    case VMH_EVENT_QUARANTINED:
        return Py_BuildValue("(sNs)", "quarantined", wrapper_of(vm->wrapper), vm->quarantined_in);
    case VMH_EVENT_STOPPED:
        return Py_BuildValue("(sN)", "stopped", wrapper_of(vm->wrapper));
    case VMH_EVENT_LOG:
        return Py_BuildValue("(sN)", "log", wrapper_of(vm->wrapper));
    case VMH_EVENT_STARVED:
        return Py_BuildValue("(sN)", "starved", wrapper_of(((vmh_lane *)object)->wrapper));
    case VMH_EVENT_FAILED_CALL:
        return Py_BuildValue("(sNi)", "failed_call", wrapper_of(call->lane->wrapper), (int)call->kind);
    case VMH_EVENT_DONE:
        return Py_BuildValue("(sN)", "done", wrapper_of(call->wrapper));
    case VMH_EVENT_HOST_CALL:
        hc = (host_call_object *)host_call_type->tp_alloc(host_call_type, 0);
        if (hc == NULL)
            return NULL;
        hc->hc = object;
        atomic_fetch_add(&hc->hc->refs, 1);
        return Py_BuildValue("(sN)", "host_call", hc);
    case VMH_EVENT_NONE:
        break;
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
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:wait", names, &timeout_s) || deadline_from(timeout_s, &deadline) < 0)
        return NULL;
    vmh_event *node = vmh_events_take(events);
    if (node == NULL) {
        int rc;
        Py_BEGIN_ALLOW_THREADS
        rc = vmh_events_wait(events, deadline);
        Py_END_ALLOW_THREADS
        if (rc == EINTR && PyErr_CheckSignals() < 0)
            return NULL;
        node = vmh_events_take(events);
    }
    vmh_buffer_release_lent();
    PyObject *list = PyList_New(0);
    while (node != NULL) {
        vmh_event *next = node->next;
        enum vmh_event_type type = node->type;
        void *about = node->object;
        atomic_store(&node->queued, false);     /* from here on it may be posted again */
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

static PyObject *events_wake(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_events_wake(((events_object *)object)->events);
    Py_RETURN_NONE;
}

static PyMethodDef events_methods[] = {
    {"wait", (PyCFunction)(void (*)(void))events_wait, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("wait(timeout_s=None) -> list of tuples; empty after wake(), a signal or the time. One thread at a time.")},
    {"wake", events_wake, METH_NOARGS, PyDoc_STR("Ends the wait() that runs, or the next one.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot events_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("What happened natively and Python must act on.")},
    {Py_tp_new, events_new},
    {Py_tp_dealloc, events_dealloc},
    {Py_tp_methods, events_methods},
    {0, NULL},
};

static PyType_Spec events_spec = {
    "vmhost.isolation._core.Events", sizeof(events_object), 0, Py_TPFLAGS_DEFAULT, events_slots,
};

/* ---- the module --------------------------------------------------------------------------------------------------- */

static PyObject *set_error_factory(PyObject *Py_UNUSED(module), PyObject *factory)
{
    Py_XSETREF(error_factory, Py_NewRef(factory));
    Py_RETURN_NONE;
}

static PyObject *crash_open(PyObject *Py_UNUSED(module), PyObject *path)
{
    PyObject *encoded = NULL, *list = NULL;
    if (!PyUnicode_FSConverter(path, &encoded))
        return NULL;
    vmh_crash_map *before = malloc(sizeof *before);
    if (before == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if ((errno = vmh_crash_open(PyBytes_AS_STRING(encoded), before)) != 0) {
        PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
        goto done;
    }
    list = PyList_New(0);
    for (int i = 0; list != NULL && i < VMH_CRASH_SLOTS; i++) {
        vmh_crash_slot *slot = &before->slots[i];
        int number = atomic_load(&slot->signal), phase = atomic_load(&slot->phase);
        if (number == 0)
            continue;
        slot->task[VMH_CRASH_TEXT - 1] = slot->version[VMH_CRASH_TEXT - 1] = 0;
        PyObject *item = Py_BuildValue(
            "{s:N,s:N,s:s,s:i,s:i,s:K}",
            "task", PyUnicode_DecodeUTF8(slot->task, (Py_ssize_t)strlen(slot->task), "replace"),
            "version", PyUnicode_DecodeUTF8(slot->version, (Py_ssize_t)strlen(slot->version), "replace"),
            "phase", vmh_phase_name(phase >= VMH_PHASE_IDLE && phase <= VMH_PHASE_END ? phase : VMH_PHASE_IDLE),
            "signal", number, "pid", (int)before->pid, "vm", (unsigned long long)slot->vm_id);
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
done:
    free(before);
    Py_XDECREF(encoded);
    return list;
}

static PyObject *sqlite_counted(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    return PyBool_FromLong(vmh_sqlite_memory_counted());
}

static PyObject *engine_attach(PyObject *Py_UNUSED(module), PyObject *args)
{
    unsigned long long table;
    const char *path;
    if (!PyArg_ParseTuple(args, "Ks:engine_attach", &table, &path) || vmh_engine_attach((uintptr_t)table, path) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef core_methods[] = {
    {"engine_attach", engine_attach, METH_VARARGS,
     PyDoc_STR("engine_attach(table, path): the address of the engine's `struct vme_api`, and the file of engine._array.")},
    {"sqlite_counted", sqlite_counted, METH_NOARGS,
     PyDoc_STR("Is what SQLite allocates charged to the VM that asks for it? Not if the host used SQLite before the core was loaded.")},
    {"crash_open", crash_open, METH_O,
     PyDoc_STR("crash_open(path) -> list of dicts: keeps this process's breadcrumbs in the file, and tells which VMs were running on "
               "the crashing thread of the process that had it before. OSError EBUSY: another process has it.")},
    {"fork_prepare", vmh_fork_prepare, METH_NOARGS, PyDoc_STR("os.register_at_fork: before")},
    {"fork_parent", vmh_fork_parent, METH_NOARGS, PyDoc_STR("os.register_at_fork: after_in_parent")},
    {"fork_child", vmh_fork_child, METH_NOARGS, PyDoc_STR("os.register_at_fork: after_in_child")},
    {"end_all", vmh_exit, METH_NOARGS,
     PyDoc_STR("At exit: stops every call, ends every VM, and sees to it that the process can leave without those that do not.")},
    {"set_error_factory", set_error_factory, METH_O,
     PyDoc_STR("set_error_factory(f): f(kind, payload, lane name, lane version) -> exception to raise for a call's end.")},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyTypeObject **type, PyType_Spec *spec)
{
    *type = (PyTypeObject *)PyType_FromModuleAndSpec(module, spec, NULL);
    return *type == NULL ? -1 : PyModule_AddType(module, *type);
}

/* The interpreter must not be finalised while VMs live: their threads would run in freed memory. Nor may a fork's child see them. */
static int register_hooks(PyObject *module)
{
    int rc = -1;
    PyObject *atexit = PyImport_ImportModule("atexit"), *os = PyImport_ImportModule("os"), *done = NULL;
    PyObject *end_all = PyObject_GetAttrString(module, "end_all"), *nothing = PyTuple_New(0);
    PyObject *hooks = Py_BuildValue("{s:N,s:N,s:N}", "before", PyObject_GetAttrString(module, "fork_prepare"),
                                    "after_in_parent", PyObject_GetAttrString(module, "fork_parent"),
                                    "after_in_child", PyObject_GetAttrString(module, "fork_child"));
    PyObject *at_fork = os == NULL ? NULL : PyObject_GetAttrString(os, "register_at_fork");
    if (atexit == NULL || end_all == NULL || nothing == NULL || hooks == NULL || at_fork == NULL)
        goto finish;
    done = PyObject_CallMethod(atexit, "register", "O", end_all);
    if (done == NULL)
        goto finish;
    Py_SETREF(done, PyObject_Call(at_fork, nothing, hooks));
    rc = done == NULL ? -1 : 0;
finish:
    Py_XDECREF(atexit);
    Py_XDECREF(os);
    Py_XDECREF(end_all);
    Py_XDECREF(nothing);
    Py_XDECREF(hooks);
    Py_XDECREF(at_fork);
    Py_XDECREF(done);
    return rc;
}

/* SQLite takes an allocator only before its first use, which may be the host's own: so as early as can be. */
static int install_sqlite(void)
{
    PyObject *util = PyImport_ImportModule("importlib.util"), *origin = NULL;
    PyObject *spec = util == NULL ? NULL : PyObject_CallMethod(util, "find_spec", "s", "_sqlite3");
    if (spec != NULL && spec != Py_None)
        origin = PyObject_GetAttrString(spec, "origin");
    if (origin != NULL && PyUnicode_Check(origin)) {
        const char *path = PyUnicode_AsUTF8(origin);
        const char *file = path == NULL || strcmp(path, "built-in") == 0 ? NULL : path;
        if (path != NULL) {
            vmh_sqlite_memory_install(file);
            vmh_sqlite_rules_install(file);
        }
    }
    Py_XDECREF(util);
    Py_XDECREF(spec);
    Py_XDECREF(origin);
    return PyErr_Occurred() ? -1 : 0;
}

static int core_exec(PyObject *module)
{
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "vmhost.isolation._core is for the main interpreter only");
        return -1;
    }
    if (image_type != NULL) {
        PyErr_SetString(PyExc_ImportError, "vmhost.isolation._core cannot be loaded twice in one process");
        return -1;
    }
    if (vmh_memory_install() < 0 || vmh_audit_install() < 0 || vmh_creation_install() < 0 || install_sqlite() < 0)
        return -1;
    vmh_handover_try();
    buffer_type = vmh_buffer_type_new();
    if (buffer_type == NULL || PyModule_AddType(module, buffer_type) < 0
        || add_type(module, &events_type, &events_spec) < 0 || add_type(module, &lane_type, &lane_spec) < 0
        || add_type(module, &call_type, &call_spec) < 0 || add_type(module, &vm_type, &vm_spec) < 0
        || add_type(module, &host_call_type, &host_call_spec) < 0)
        return -1;
    if (add_type(module, &image_type, &image_spec) < 0)
        return -1;
    return register_hooks(module);
}

static PyModuleDef_Slot core_slots[] = {
    {Py_mod_exec, core_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};

static PyModuleDef core_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "vmhost.isolation._core",
    .m_doc = PyDoc_STR("The native core: VMs, lanes, calls, events."),
    .m_size = 0,
    .m_methods = core_methods,
    .m_slots = core_slots,
};

PyMODINIT_FUNC PyInit__core(void);
PyMODINIT_FUNC PyInit__core(void)
{
    return PyModuleDef_Init(&core_module);
}
