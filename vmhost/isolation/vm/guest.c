/* Runs inside a VM, under its GIL: the native module of the guest runtime, and one call from request to reply. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "wire/buffer.h"
#include "crash/crash.h"
#include "lanes/clock.h"
#include "seal/seal.h"
#include "vm/vm_private.h"
#include "wire/engine.h"
#include "wire/wire.h"

/* ---- logging ---- */

/* The number of bytes at `text` that a log line must not contain: control characters but the tab, line and paragraph
 * separators, and marks that change the direction of the text. Otherwise 0. */
static size_t unsafe(const unsigned char *text, size_t size)
{
    if ((text[0] < 0x20 && text[0] != '\t') || text[0] == 0x7F)
        return 1;
    if (size >= 2 && text[0] == 0xC2 && text[1] >= 0x80 && text[1] <= 0x9F)
        return 2;
    if (size < 3 || text[0] != 0xE2)
        return 0;
    return (text[1] == 0x80 && text[2] >= 0xA8 && text[2] <= 0xAE)
                   || (text[1] == 0x81 && text[2] >= 0xA6 && text[2] <= 0xA9)
               ? 3
               : 0;
}

/* Writes `text` with escapes to `to`, unless NULL. The number of bytes. */
static size_t escaped(const char *text, size_t size, char *to)
{
    size_t written = 0;
    for (size_t at = 0, bytes; at < size; at += bytes) {
        const unsigned char *here = (const unsigned char *)text + at;
        char escape[8];
        size_t odd = unsafe(here, size - at), length;
        bytes = odd == 0 ? 1 : odd;
        if (odd == 0)
            length = 1;
        else if (*here == '\n' || *here == '\r')
            length = (size_t)snprintf(escape, sizeof escape, *here == '\n' ? "\\n" : "\\r");
        else if (odd < 3)
            length = (size_t)snprintf(escape, sizeof escape, "\\x%02x", here[odd - 1]);
        else
            length =
                (size_t)snprintf(escape, sizeof escape, "\\u%04x", 0x2000 | (here[1] & 0x3F) << 6 | (here[2] & 0x3F));
        if (to != NULL)
            memcpy(to + written, odd == 0 ? text + at : escape, length);
        written += length;
    }
    return written;
}

static vmh_log_line *line_new(int level, const char *text, size_t size)
{
    size_t length = escaped(text, size, NULL);
    vmh_log_line *line = malloc(sizeof *line + length + 1);
    if (line == NULL)
        return NULL;
    *line = (vmh_log_line){.level = level, .size = length};
    escaped(text, size, line->text);
    line->text[length] = 0;
    return line;
}

/* The log's lock held. Takes over `line`. */
static void append(vmh_log *log, vmh_log_line *line, int64_t cost)
{
    *log->tail = line;
    log->tail = &line->next;
    log->waiting += cost;
}

/* The log's lock held. */
static void notice(vmh_log *log, int64_t now, bool at_once)
{
    int64_t since = at_once || log->noticed_ns > log->dropping_ns ? log->noticed_ns : log->dropping_ns;
    char text[160];
    if (log->dropped == 0 || now - since < 1000000000)
        return;
    int size = snprintf(text, sizeof text,
                        "%lld lines were dropped: the task writes faster than its limits.output allows, %lld bytes a "
                        "second, or than the host reads",
                        log->dropped, (long long)log->rate);
    vmh_log_line *line = line_new(30, text, (size_t)size);
    if (line == NULL)
        return;
    append(log, line, size);
    log->dropped = 0;
    log->noticed_ns = now;
}

/* The log's lock held. Whether `cost` bytes may be written now. */
static bool afford(vmh_log *log, int64_t cost, int64_t now)
{
    int64_t passed = now - log->credit_ns, most = log->rate;
    if (log->credit_ns == 0 || passed >= 1000000000)
        log->credit = most;
    else
        log->credit += (int64_t)((double)passed * 1e-9 * (double)most);
    log->credit = log->credit > most ? most : log->credit;
    log->credit_ns = now;
    int64_t waiting_max = most > VMH_LOG_WAITING_MAX ? VMH_LOG_WAITING_MAX : most;
    if (log->credit < cost || log->waiting + cost > waiting_max)
        return false;
    log->credit -= cost;
    return true;
}

/* Keeps the first lines when a guest writes faster than it may: the start of a flood is more useful than its end. */
void vmh_log_add(vmh_vm *vm, int level, const char *text, size_t size)
{
    vmh_log *log = &vm->log;
    if (size > VMH_LOG_LINE_BYTES_MAX) {
        size = VMH_LOG_LINE_BYTES_MAX;
        while (size > 0 && ((unsigned char)text[size] & 0xC0) == 0x80)
            size--; /* do not split a character */
    }
    int64_t cost = VMH_LOG_LINE_COST + (int64_t)size, now = vmh_now_ns();
    vmh_mutex_lock(&log->lock);
    vmh_log_line *line = afford(log, cost, now) ? line_new(level, text, size) : NULL;
    if (line != NULL) {
        append(log, line, cost);
    } else {
        log->dropping_ns = log->dropped == 0 ? now : log->dropping_ns;
        log->dropped++;
        log->dropped_in_all++;
        notice(log, now, false);
    }
    bool waits = log->first != NULL;
    vmh_mutex_unlock(&log->lock);
    if (waits)
        vmh_vm_post(vm, &vm->events.log);
}

void vmh_log_notice(vmh_vm *vm, bool last)
{
    vmh_log *log = &vm->log;
    vmh_mutex_lock(&log->lock);
    bool drops = log->dropped > 0;
    if (drops && last)
        log->noticed_ns = 0;
    if (drops)
        notice(log, vmh_now_ns(), true);
    drops = drops && log->dropped == 0;
    vmh_mutex_unlock(&log->lock);
    if (drops)
        vmh_vm_post(vm, &vm->events.log);
}

/* ---- the native module ---- */

enum { HOST_NAME_BYTES_MAX = 1024 };

/* Encodes a text in UTF-8, truncated to the longest log line. Lone surrogates, which UTF-8 cannot encode, become
 * escapes.
 */
static PyObject *line_of(PyObject *text)
{
    PyObject *begin = PyUnicode_Substring(text, 0, VMH_LOG_LINE_BYTES_MAX), *line = NULL;
    if (begin != NULL)
        line = PyUnicode_AsEncodedString(begin, "utf-8", "backslashreplace");
    Py_XDECREF(begin);
    return line;
}

static PyObject *native_log(PyObject *Py_UNUSED(module), PyObject *args)
{
    int level;
    PyObject *text;
    if (!PyArg_ParseTuple(args, "iU:log", &level, &text))
        return NULL;
    PyObject *line = line_of(text);
    if (line == NULL)
        return NULL;
    vmh_log_add(vmh_current(), level, PyBytes_AS_STRING(line), (size_t)PyBytes_GET_SIZE(line));
    Py_DECREF(line);
    Py_RETURN_NONE;
}

static PyObject *native_deadline(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_vm *vm = vmh_current();
    vmh_mutex_lock(&vm->life);
    int64_t deadline = vm->phase.which == VMH_PHASE_IDLE ? VMH_FOREVER : vm->phase.deadline_ns;
    vmh_mutex_unlock(&vm->life);
    if (deadline == VMH_FOREVER)
        Py_RETURN_NONE;
    int64_t left = deadline - vmh_now_ns();
    return PyFloat_FromDouble(left > 0 ? (double)left / 1e9 : 0.0);
}

static PyObject *native_identity(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmh_vm *vm = vmh_current();
    vmh_lane *lane = atomic_load(&vm->work.lane);
    return Py_BuildValue("(Kss)", (unsigned long long)vm->id, lane == NULL ? "" : lane->name,
                         lane == NULL ? "" : lane->version);
}

void vmh_host_call_unref(vmh_host_call *hc)
{
    if (atomic_fetch_sub(&hc->refs, 1) != 1)
        return;
    vmh_blob_clear(&hc->request);
    vmh_blob_clear(&hc->reply);
    vmh_vm_unref(hc->vm);
    free(hc->name);
    free(hc);
}

static vmh_host_call *host_call_new(vmh_vm *vm, const char *name)
{
    vmh_host_call *hc = calloc(1, sizeof *hc);
    if (hc == NULL || (hc->name = strdup(name)) == NULL) {
        free(hc);
        PyErr_NoMemory();
        return NULL;
    }
    atomic_init(&hc->refs, 2); /* ours and the event's */
    hc->vm = vmh_vm_ref(vm);
    vmh_blob_init(&hc->request);
    vmh_blob_charge(&hc->request, vm->memory.meter);
    vmh_blob_init(&hc->reply);
    hc->event = (vmh_event){.type = VMH_EVENT_HOST_CALL, .object = hc};
    return hc;
}

/* host_call(name, value) -> (ok, value or message). Raises if the call is stopped meanwhile. One at a time per VM: each
 * waiting one takes memory of the host for its name and for the decoded value. */
static PyObject *native_host_call(PyObject *Py_UNUSED(module), PyObject *args)
{
    const char *name;
    Py_ssize_t size;
    PyObject *value, *result = NULL;
    vmh_vm *vm = vmh_current();
    if (!PyArg_ParseTuple(args, "s#O:host_call", &name, &size, &value))
        return NULL;
    if (size > HOST_NAME_BYTES_MAX || strlen(name) != (size_t)size)
        return PyErr_Format(PyExc_ValueError,
                            "host_call: a name of %zd bytes; a host function's name has at most %d, "
                            "none of them NUL",
                            size, HOST_NAME_BYTES_MAX);
    vmh_host_call *hc = host_call_new(vm, name);
    if (hc == NULL)
        return NULL;
    vmh_mutex_lock(&vm->life);
    bool busy = vm->host_call != NULL;
    if (!busy)
        vm->host_call = hc;
    vmh_mutex_unlock(&vm->life);
    if (busy)
        PyErr_SetString(PyExc_RuntimeError, "another thread of this task waits for a host function; one at a time");
    if (busy || vmh_wire_encode(&hc->request, value, "argument", &vm->values.codec, vm) < 0) {
        vmh_mutex_lock(&vm->life);
        if (vm->host_call == hc)
            vm->host_call = NULL;
        vmh_mutex_unlock(&vm->life);
        vmh_host_call_unref(hc);
        vmh_host_call_unref(hc);
        return NULL;
    }
    if (!vmh_events_post(vm->events.queue, &hc->event)) {
        vmh_host_call_unref(hc); /* the host is closing: the stop that follows ends this call */
        unsigned waiting = 0;
        atomic_compare_exchange_strong(&hc->word, &waiting, 2);
    }
    PyThreadState *ts = PyEval_SaveThread();
    while (atomic_load(&hc->word) == 0 && !vmh_vm_stopping(vm))
        vmh_futex_wait(&hc->word, 0, VMH_FOREVER);
    PyEval_RestoreThread(ts);
    vmh_mutex_lock(&vm->life);
    vm->host_call = NULL;
    vmh_mutex_unlock(&vm->life);
    if (atomic_load(&hc->word) == 1) {
        PyObject *reply = vmh_wire_decode(&hc->reply, "result", &vm->values.codec);
        if (reply != NULL)
            result = Py_BuildValue("(NN)", PyBool_FromLong(hc->ok), reply);
    } else {
        PyErr_SetString(PyExc_InterruptedError, "the call was stopped while it waited for a host function");
    }
    vmh_host_call_unref(hc);
    return result;
}

/* ---- the task's own metrics */

static vmh_task_metrics *own_metrics(void)
{
    vmh_lane *lane = atomic_load(&vmh_current()->work.lane);
    vmh_task_metrics *metrics = lane == NULL ? NULL : vmh_lane_metrics(lane);
    if (lane == NULL)
        PyErr_SetString(PyExc_RuntimeError, "a VM that serves no task counts nothing");
    else if (metrics == NULL)
        PyErr_NoMemory();
    return metrics;
}

static PyObject *native_metric(PyObject *Py_UNUSED(module), PyObject *args)
{
    int kind;
    const char *key;
    PyObject *given;
    double bounds[VMH_METRIC_BOUNDS_MAX];
    if (!PyArg_ParseTuple(args, "isO!:metric", &kind, &key, &PyTuple_Type, &given))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (kind < VMH_METRIC_COUNTER || kind > VMH_METRIC_HISTOGRAM || count > VMH_METRIC_BOUNDS_MAX
        || strlen(key) > VMH_METRIC_KEY_MAX)
        return PyErr_Format(PyExc_ValueError, "metric: unknown kind, too many bounds, or too long a key");
    for (Py_ssize_t i = 0; i < count; i++) {
        bounds[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(given, i));
        if (bounds[i] == -1.0 && PyErr_Occurred())
            return NULL;
    }
    vmh_task_metrics *metrics = own_metrics();
    if (metrics == NULL)
        return NULL;
    int index = vmh_task_metrics_find(metrics, (enum vmh_metric_kind)kind, key, bounds, (int)count);
    return index == -3 ? PyErr_NoMemory() : PyLong_FromLong(index);
}

enum metric_act { METRIC_ADD, METRIC_SET, METRIC_OBSERVE };

static PyObject *metric_do(PyObject *const *args, Py_ssize_t count, enum metric_act act)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "expected a series number and a value");
    long index = PyLong_AsLong(args[0]);
    double value = PyFloat_AsDouble(args[1]);
    if (PyErr_Occurred())
        return NULL;
    vmh_task_metrics *metrics = own_metrics();
    vmh_task_metric *metric = metrics == NULL ? NULL : vmh_task_metrics_at(metrics, index);
    if (metrics == NULL)
        return NULL;
    if (metric == NULL || (metric->kind == VMH_METRIC_HISTOGRAM) != (act == METRIC_OBSERVE))
        return PyErr_Format(PyExc_ValueError, "there is no such series");
    if (act == METRIC_ADD)
        vmh_task_metric_add(metric, value);
    else if (act == METRIC_SET)
        atomic_store(&metric->value, value);
    else
        vmh_task_metric_observe(metric, value);
    Py_RETURN_NONE;
}

static PyObject *native_metric_add(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return metric_do(args, count, METRIC_ADD);
}

static PyObject *native_metric_set(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return metric_do(args, count, METRIC_SET);
}

static PyObject *native_metric_observe(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return metric_do(args, count, METRIC_OBSERVE);
}

#define FAST(FUNCTION) (PyCFunction)(void (*)(void)) FUNCTION, METH_FASTCALL

static PyMethodDef native_methods[] = {
    {"log", native_log, METH_VARARGS, PyDoc_STR("log(level, text): sends one line to the host's logger.")},
    {"deadline", native_deadline, METH_NOARGS, PyDoc_STR("Seconds left to the current call, or None.")},
    {"identity", native_identity, METH_NOARGS, PyDoc_STR("(number of this VM, task name, task version)")},
    {"metric", native_metric, METH_VARARGS,
     PyDoc_STR(
         "metric(kind, key, bounds) -> series number; -1: too many, -2: the key has another kind or other bounds")},
    {"metric_add", FAST(native_metric_add), PyDoc_STR("metric_add(number, value): for a counter or gauge")},
    {"metric_set", FAST(native_metric_set), PyDoc_STR("metric_set(number, value): for a counter or gauge")},
    {"metric_observe", FAST(native_metric_observe), PyDoc_STR("metric_observe(number, value): for a histogram")},
    {"host_call", native_host_call, METH_VARARGS, PyDoc_STR("host_call(name, value) -> (ok, result or message)")},
    {NULL, NULL, 0, NULL},
};

int vmh_guest_boot(vmh_vm *vm)
{
    int rc = -1;
    vm->guest.native = PyModule_New("_vmhost");
    vm->values.codec.buffer_type = vmh_buffer_type_new();
    vm->guest.entries = PyDict_New();
    if (vm->guest.native == NULL || vm->values.codec.buffer_type == NULL || vm->guest.entries == NULL
        || PyModule_AddFunctions(vm->guest.native, native_methods) < 0
        || PyModule_AddObjectRef(vm->guest.native, "Buffer", (PyObject *)vm->values.codec.buffer_type) < 0)
        goto done;
    PyObject *stop_error = PyErr_NewExceptionWithDoc(
        "vmhost.guest.Stopped",
        "The host stops this call: a limit was passed, or its caller gave up. Raised repeatedly until the call "
        "has unwound; catching it does not help.",
        PyExc_BaseException, NULL);
    if (stop_error == NULL)
        goto done;
    vmh_mutex_lock(&vm->life); /* the warden reads it when the boot deadline has passed */
    vm->stop.error = stop_error;
    vmh_mutex_unlock(&vm->life);
    if (vmh_cover_boot(&vm->cover) < 0)
        goto done;
    if (PyModule_AddObjectRef(vm->guest.native, "Stopped", stop_error) < 0)
        goto done;
    /* boot.py has set its functions in the module; from now on this file and the wire call them. */
    if (vmh_seal_boot(vm, vm->guest.native) < 0
        || (vm->guest.entry_for = PyObject_GetAttrString(vm->guest.native, "entry_for")) == NULL
        || (vm->guest.report = PyObject_GetAttrString(vm->guest.native, "report")) == NULL
        || (vm->guest.finish = PyObject_GetAttrString(vm->guest.native, "finish")) == NULL
        || (vm->guest.begin_recording = PyObject_GetAttrString(vm->guest.native, "begin_recording")) == NULL
        || (vm->guest.end_recording = PyObject_GetAttrString(vm->guest.native, "end_recording")) == NULL
        || (vm->values.codec.pack = PyObject_GetAttrString(vm->guest.native, "pack")) == NULL
        || (vm->values.codec.unpack = PyObject_GetAttrString(vm->guest.native, "unpack")) == NULL)
        goto done;
    rc = 0;
done:
    return rc;
}

void vmh_guest_clear(vmh_vm *vm)
{
    vmh_cover_clear(&vm->cover);
    Py_CLEAR(vm->guest.entries);
    Py_CLEAR(vm->guest.entry_for);
    Py_CLEAR(vm->guest.report);
    Py_CLEAR(vm->guest.finish);
    Py_CLEAR(vm->guest.begin_recording);
    Py_CLEAR(vm->guest.end_recording);
    Py_CLEAR(vm->values.codec.pack);
    Py_CLEAR(vm->values.codec.unpack);
    Py_CLEAR(vm->values.codec.buffer_type);
    Py_CLEAR(vm->guest.native);
    vmh_blob_clear(&vm->values.scratch);
}

void vmh_error_describe(char *to, size_t size)
{
    PyObject *error = PyErr_GetRaisedException();
    if (error == NULL) {
        snprintf(to, size, "no reason given");
        return;
    }
    PyObject *text = PyObject_Str(error), *line = text == NULL ? NULL : line_of(text);
    snprintf(to, size, "%.200s: %s", Py_TYPE(error)->tp_name, line == NULL ? "?" : PyBytes_AS_STRING(line));
    PyErr_Clear();
    Py_XDECREF(line);
    Py_XDECREF(text);
    Py_DECREF(error);
}

/* ---- one call ---- */

/* The traceback of `error` as text. Runs no Python of the guest, which may be stopped or out of memory. */
static PyObject *plain_traceback(PyObject *error)
{
    PyObject *lines = PyList_New(0);
    PyObject *traceback = PyException_GetTraceback(error);
    while (lines != NULL && traceback != NULL && PyList_GET_SIZE(lines) < 100) {
        PyTracebackObject *tb = (PyTracebackObject *)traceback;
        PyCodeObject *code = PyFrame_GetCode(tb->tb_frame);
        int line_number = tb->tb_lineno;
        if (line_number < 0)
            line_number = PyCode_Addr2Line(code, tb->tb_lasti);
        PyObject *line =
            PyUnicode_FromFormat("  File \"%U\", line %d, in %U\n", code->co_filename, line_number, code->co_name);
        Py_DECREF(code);
        if (line == NULL || PyList_Append(lines, line) < 0)
            Py_CLEAR(lines);
        Py_XDECREF(line);
        PyObject *next = Py_XNewRef((PyObject *)tb->tb_next);
        Py_DECREF(traceback);
        traceback = next;
    }
    Py_XDECREF(traceback);
    PyObject *text = NULL;
    if (lines != NULL) {
        PyObject *empty = PyUnicode_FromString("");
        text = empty == NULL ? NULL : PyUnicode_Join(empty, lines);
        Py_XDECREF(empty);
        Py_DECREF(lines);
    }
    return text;
}

/* Encodes a report into vm->values.scratch. False: it cannot cross, or is too large; no error is set. */
static bool put_report(vmh_vm *vm, PyObject *report)
{
    bool fits =
        report != NULL
        && vmh_wire_encode_within(&vm->values.scratch, VMH_REPORT_BYTES_MAX, report, "report", &vm->values.codec, vm)
               == 0
        && vm->values.scratch.storage_count == 0;
    if (!fits)
        vmh_blob_clear(&vm->values.scratch);
    PyErr_Clear();
    return fits;
}

/* Encodes a report of the error that is set into vm->values.scratch, and clears the error. `full`: the report comes
 * from the guest runtime's report(), which the task may have replaced. The host trusts nothing in it; here only its
 * size is checked. */
static void encode_report(vmh_vm *vm, bool full)
{
    PyObject *error = PyErr_GetRaisedException();
    vmh_blob_clear(&vm->values.scratch);
    if (error == NULL)
        return;
    PyObject *report = full ? PyObject_CallOneArg(vm->guest.report, error) : NULL;
    bool sent = put_report(vm, report);
    if (!sent && report != NULL && PyDict_CheckExact(report)) { /* retry without the exception, which may not cross */
        sent = PyDict_PopString(report, "error", NULL) > 0 && put_report(vm, report);
        PyErr_Clear();
    }
    if (!sent) {
        PyObject *text = plain_traceback(error), *name = PyUnicode_FromFormat("%.200s", Py_TYPE(error)->tp_name);
        PyErr_Clear();
        Py_XSETREF(report, name == NULL
                               ? NULL
                               : Py_BuildValue("{s:O,s:O}", "type", name, "traceback", text == NULL ? Py_None : text));
        put_report(vm, report);
        Py_XDECREF(name);
        Py_XDECREF(text);
    }
    Py_XDECREF(report);
    Py_DECREF(error);
}

/* The callable for `name`, borrowed; NULL with an error set. */
static PyObject *entry_named(vmh_vm *vm, const char *name)
{
    PyObject *key = PyUnicode_FromString(name);
    if (key == NULL)
        return NULL;
    PyObject *entry = PyDict_GetItemWithError(vm->guest.entries, key);
    if (entry == NULL && !PyErr_Occurred()) {
        PyObject *found = PyObject_CallOneArg(vm->guest.entry_for, key);
        if (found != NULL && PyDict_SetItem(vm->guest.entries, key, found) == 0)
            entry = PyDict_GetItemWithError(vm->guest.entries, key);
        Py_XDECREF(found);
    }
    Py_DECREF(key);
    return entry;
}

/* Whether the memory limit caused the error that is set. A library whose allocation failed raises its own error,
 * perhaps before the stop arrives. A MemoryError is the task's own if no request was `refused`. */
static bool memory_limit_raised(const vmh_vm *vm, bool refused)
{
    const vmh_meter *meter = vm->memory.meter;
    return (refused && PyErr_ExceptionMatches(PyExc_MemoryError)) || atomic_load(&meter->over)
           || atomic_load(&meter->denied);
}

void vmh_guest_load(vmh_vm *vm, vmh_lane *lane)
{
    enum vmh_kind kind;
    long long refused_before = atomic_load(&vm->memory.meter->refused);
    vmh_phase_begin(vm, VMH_PHASE_LOAD, NULL, vmh_after_ns(vmh_now_ns(), vm->limits.load_ns), VMH_FOREVER);
    if (lane->memory_lines)
        vmh_holders_start(vm->memory.meter, lane->name, lane->version);
    PyObject *permissions = vmh_wire_decode(&vm->values.permissions, "permissions", &vm->values.codec);
    vmh_seal_task(vm, lane->store);
    if (permissions == NULL || vmh_seal_grant(vm, permissions) < 0) {
        /* A VM with partial grants must not serve. */
        vm->work.load_kind = PyErr_ExceptionMatches(PyExc_MemoryError) ? VMH_MEMORY_LIMIT : VMH_VM_LOST;
        encode_report(vm, false);
        vm->work.doomed = true;
    }
    Py_XDECREF(permissions);
    vmh_cover_begin(&vm->cover, lane, true);
    if (!vm->work.doomed && lane->entry[0] != 0 && entry_named(vm, lane->entry) == NULL) {
        if (memory_limit_raised(vm, atomic_load(&vm->memory.meter->refused) != refused_before)) {
            /* The first call would meet the error of setup() again, but no limit. */
            vm->work.load_kind = VMH_MEMORY_LIMIT;
            encode_report(vm, false);
            vm->work.doomed = true;
        }
        PyErr_Clear(); /* any other failure recurs in the first call, which reports it to its caller */
    }
    vmh_cover_end(&vm->cover);
    if (vmh_phase_end(vm, &kind) && kind != VMH_CLOSED)
        vm->work.load_kind = kind;
    if (vm->work.load_kind != VMH_OK) {
        /* Report it to a caller now: the next VM would fail the same way, and the call might wait for ever. */
        vmh_call *call = vmh_lane_take(lane, &vm->work.worker);
        if (call != NULL) {
            if (vmh_call_claim(call, VMH_RUNNING)) {
                vmh_blob_move(&call->reply, &vm->values.scratch);
                if (vm->work.load_kind == VMH_MEMORY_LIMIT)
                    vmh_call_hold(call, vmh_holders_report(vm->memory.meter));
                vmh_call_finish(call, vm->work.load_kind);
            }
            vmh_call_unref(call);
        }
    }
}

static PyObject *call_entry(PyObject *entry, PyObject *value, bool spread)
{
    if (!spread)
        return PyObject_CallOneArg(entry, value);
    if (!PyTuple_Check(value) || PyTuple_GET_SIZE(value) != 2 || !PyTuple_Check(PyTuple_GET_ITEM(value, 0))
        || !PyDict_Check(PyTuple_GET_ITEM(value, 1))) {
        PyErr_SetString(PyExc_SystemError, "vmhost: a spread call expects (args, kwargs)");
        return NULL;
    }
    return PyObject_Call(entry, PyTuple_GET_ITEM(value, 0), PyTuple_GET_ITEM(value, 1));
}

/* Whether the class of the current exception, or one of its bases, is listed as the caller's fault. Runs no Python of
 * the guest. */
static bool blames_caller(const vmh_lane *lane)
{
    if (lane->caller_errors == NULL)
        return false;
    PyObject *raised = PyErr_GetRaisedException();
    PyObject *classes = Py_XNewRef(Py_TYPE(raised)->tp_mro);
    bool found = false;
    for (Py_ssize_t i = 0; classes != NULL && i < PyTuple_GET_SIZE(classes) && !found; i++) {
        PyObject *name = PyType_GetFullyQualifiedName((PyTypeObject *)PyTuple_GET_ITEM(classes, i));
        Py_ssize_t size = 0;
        const char *text = name == NULL ? NULL : PyUnicode_AsUTF8AndSize(name, &size);
        for (const char *at = lane->caller_errors;
             text != NULL && size > 0 && (at = strstr(at, text)) != NULL && !found; at++)
            found = at > lane->caller_errors && at[-1] == '\n' && at[size] == '\n';
        Py_XDECREF(name);
    }
    Py_XDECREF(classes);
    PyErr_SetRaisedException(raised);
    return found;
}

/* ---- recording, by the guest runtime (vmhost/guest/recording.py), between these two functions */

/* The memory figures before the call; its own peak starts at live_before, and the VM's peak is restored afterwards. */
typedef struct recording {
    long long live_before, peak_before;
    vmh_blob record; /* the record of the call, once it has ended */
    bool complete;
} recording;

/* 0, or -1 with an error set, which then ends the call. */
static int recording_begin(vmh_vm *vm, vmh_call *call, recording *state)
{
    vmh_meter *meter = vm->memory.meter;
    PyObject *given = vmh_wire_decode(call->record, "record", &vm->values.codec);
    PyObject *begun = given == NULL ? NULL : PyObject_CallOneArg(vm->guest.begin_recording, given);
    Py_XDECREF(given);
    Py_XDECREF(begun);
    state->live_before = atomic_load(&meter->live);
    state->peak_before = atomic_exchange(&meter->peak, state->live_before);
    return begun == NULL ? -1 : 0;
}

/* Keeps the error that is set. */
static void recording_end(vmh_vm *vm, recording *state)
{
    vmh_meter *meter = vm->memory.meter;
    PyObject *error = PyErr_GetRaisedException();
    long long peak = atomic_load(&meter->peak);
    if (peak < state->peak_before)
        atomic_store(&meter->peak, state->peak_before);
    PyObject *record = PyObject_CallNoArgs(vm->guest.end_recording);
    vmh_recording_stop();
    if (record != NULL && PyDict_CheckExact(record)) {
        PyObject *bytes = PyLong_FromLongLong(peak > state->live_before ? peak - state->live_before : 0);
        state->complete = bytes != NULL && PyDict_SetItemString(record, "peak_bytes", bytes) == 0
                          && vmh_wire_encode(&state->record, record, "record", &vm->values.codec, vm) == 0;
        Py_XDECREF(bytes);
    }
    Py_XDECREF(record);
    PyErr_Clear(); /* a stop that arrives here still stops the call; the record is lost */
    PyErr_SetRaisedException(error);
}

void vmh_guest_serve(vmh_vm *vm, vmh_call *call)
{
    vmh_lane *lane = call->lane;
    enum vmh_kind kind = VMH_OK, stop_kind;
    atomic_fetch_add_explicit(&lane->running, 1, memory_order_relaxed);
    vmh_hot_enter();
    if (atomic_load(&vm->memory.meter->over) || atomic_load(&vm->memory.meter->denied))
        vmh_meter_rearm(vm->memory.meter);
    long long refused_before = atomic_load(&vm->memory.meter->refused);
    vmh_holders_rearm(vm->memory.meter);
    vmh_engine_runs_begin();
    vmh_phase_begin(vm, VMH_PHASE_CALL, call, call->deadline_ns, lane->cpu_ns);
    vmh_crash_call(vm->threads.crash_slot, call->entry == NULL ? lane->entry : call->entry, call->request.size,
                   call->started_ns);
    PyObject *entry = entry_named(vm, call->entry == NULL ? lane->entry : call->entry);
    PyObject *value = NULL, *result = NULL;
    bool refused_argument = false;
    recording state = {0};
    vmh_blob_init(&state.record);
    if (entry == NULL) {
        kind = VMH_LOAD_ERROR;
    } else {
        Py_INCREF(entry);
        vmh_codec codec = vm->values.codec;
        codec.entry = call->entry == NULL ? lane->entry : call->entry;
        value = vmh_wire_decode(&call->request, "argument", &codec);
        vmh_blob_clear(&call->request);
        vmh_cover_begin(&vm->cover, lane, false);
        if (value != NULL && call->record == NULL)
            result = call_entry(entry, value, call->spread);
        else if (value != NULL) {
            if (recording_begin(vm, call, &state) == 0)
                result = call_entry(entry, value, call->spread);
            recording_end(vm, &state);
        }
        vmh_cover_end(&vm->cover);
        Py_DECREF(entry);
        if (value == NULL && PyErr_ExceptionMatches(PyExc_ValueError))
            kind = VMH_VALUE;
        else if (result == NULL)
            kind = VMH_TASK_ERROR;
        refused_argument = kind == VMH_VALUE;
        Py_XDECREF(value);
    }
    if (result != NULL) {
        if (vmh_wire_encode_away(&vm->values.scratch, result, "result", &vm->values.codec, vm) < 0)
            kind = PyErr_ExceptionMatches(PyExc_MemoryError) ? VMH_TASK_ERROR : VMH_VALUE;
    }
    bool refused = result != NULL || atomic_load(&vm->memory.meter->refused) != refused_before;
    if ((kind == VMH_TASK_ERROR || kind == VMH_LOAD_ERROR) && memory_limit_raised(vm, refused))
        kind = VMH_MEMORY_LIMIT;
    bool unwound = kind != VMH_OK && PyErr_ExceptionMatches(vm->stop.error);
    /* Also the caller's fault: an entry point that it named and the task does not have, and an argument that cannot be
     * decoded. */
    bool excused = kind == VMH_LOAD_ERROR ? call->entry != NULL
                   : kind == VMH_VALUE    ? refused_argument
                                          : kind == VMH_TASK_ERROR && !unwound && blames_caller(lane);
    if (kind != VMH_OK && !unwound)
        encode_report(vm, kind != VMH_MEMORY_LIMIT);
    bool stopped = vmh_phase_end(vm, &stop_kind);
    if (stopped) {
        kind = stop_kind;
        if (unwound)
            encode_report(vm, false);
        else if (!PyErr_Occurred() && kind == VMH_OK)
            vmh_blob_clear(&vm->values.scratch);
    } else if (unwound) {
        encode_report(vm, false); /* the task itself raised Stopped: report it like any other error */
    }
    if (stopped && !unwound && result != NULL)
        vmh_blob_clear(&vm->values.scratch); /* it returned although it was stopped: drop the result */
    PyErr_Clear();
    if (kind == VMH_OK
        && atomic_load(&lane->stop)) { /* it finished before the stop, but a closing lane returns no results */
        kind = VMH_CLOSED;
        vmh_blob_clear(&vm->values.scratch);
    }
    if (kind == VMH_MEMORY_LIMIT)
        vm->work.doomed = true;
    vmh_log_notice(vm, false);
    vmh_crash_call(vm->threads.crash_slot, NULL, 0, 0);
    vmh_hot_leave();
    atomic_fetch_add_explicit(&vm->counters.calls, 1, memory_order_relaxed);
    if (kind != VMH_OK)
        atomic_fetch_add_explicit(&vm->counters.errors, 1, memory_order_relaxed);
    if (vmh_call_claim(call, VMH_RUNNING)) {
        vmh_blob_move(&call->reply, &vm->values.scratch);
        if (state.complete) {
            vmh_blob_move(call->record, &state.record);
            call->recorded = true;
        }
        call->runs = vmh_engine_runs_end();
        if (kind == VMH_MEMORY_LIMIT)
            vmh_call_hold(call, vmh_holders_report(vm->memory.meter));
        call->excused = excused && (kind == VMH_TASK_ERROR || kind == VMH_LOAD_ERROR || kind == VMH_VALUE);
        vmh_call_finish(call, kind);
    } else {
        vmh_blob_clear(&vm->values.scratch);
    }
    vmh_blob_clear(&state.record);
}

void vmh_guest_finish(vmh_vm *vm)
{
    if (vm->guest.finish == NULL)
        return;
    PyObject *result = PyObject_CallNoArgs(vm->guest.finish);
    if (result == NULL) {
        char text[512];
        vmh_error_describe(text, sizeof text);
        vmh_log_add(vm, 40, text, strlen(text));
    }
    Py_XDECREF(result);
    vmh_log_notice(vm, true);
}
