/* `_core.Lane`: the queue of one task version. It encodes arguments, pushes calls and decodes results. */
#include <stdlib.h>
#include <string.h>

#include "wire/buffer.h"
#include "lanes/clock.h"
#include "lanes/critical.h"
#include "python/core.h"
#include "vm/fork.h"
#include "wire/wire.h"

static PyObject *lane_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name",   "version",  "store",        "entry",  "events",        "wall_s",
                            "cpu_s",  "capacity", "calls_per_vm", "slow_s", "caller_errors", "pack",
                            "unpack", "coverage", "memory_lines", NULL};
    const char *name, *version, *entry, *caller_errors = NULL;
    PyObject *store, *events, *pack = NULL, *unpack = NULL;
    double wall_s = -1, cpu_s = -1, slow_s = -1, coverage = 0;
    Py_ssize_t capacity = PY_SSIZE_T_MAX;
    int calls_per_vm = 0, memory_lines = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "ssO!sO!|ddnidzOOdp:Lane", names, &name, &version,
                                     vmh_code_store_type, &store, &entry, vmh_events_type, &events, &wall_s, &cpu_s,
                                     &capacity, &calls_per_vm, &slow_s, &caller_errors, &pack, &unpack, &coverage,
                                     &memory_lines))
        return NULL;
    if (capacity < 0)
        return PyErr_Format(PyExc_ValueError, "capacity: expected a count from 0 on, got %zd", capacity);
    lane_object *self = (lane_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->lane =
        vmh_lane_new(name, version, entry, ((code_store_object *)store)->store, ((events_object *)events)->events);
    if (self->lane == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->lane->wall_ns = vmh_core_span_ns(wall_s);
    self->lane->cpu_ns = vmh_core_span_ns(cpu_s);
    self->lane->capacity = capacity == PY_SSIZE_T_MAX ? SIZE_MAX : (size_t)capacity;
    self->lane->calls_per_vm = calls_per_vm;
    self->lane->coverage = coverage;
    self->lane->memory_lines = memory_lines;
    self->lane->slow_ns = vmh_core_span_ns(slow_s);
    if (caller_errors != NULL && (self->lane->caller_errors = strdup(caller_errors)) == NULL) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->lane->wrapper = self;
    self->pack = Py_XNewRef(pack);
    self->unpack = Py_XNewRef(unpack);
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
    Py_CLEAR(self->pack);
    Py_CLEAR(self->unpack);
    type->tp_free(object);
    Py_DECREF(type);
}

typedef struct {
    PyObject *timeout_s, *entry, *record; /* NULL: not given */
    int priority;
    bool spread;
} options;

/* Parses the positional and keyword options after the value: timeout_s, priority, entry, spread, record. */
static int options_parse(const char *function, options *o, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    static const char *const names[] = {"timeout_s", "priority", "entry", "spread", "record"};
    enum { OPTIONS = sizeof names / sizeof *names };
    PyObject *found[OPTIONS] = {NULL};
    *o = (options){NULL, NULL, NULL, 0, false};
    if (count < 1 || count > OPTIONS + 1) {
        PyErr_Format(PyExc_TypeError, "%s() takes one value and the options timeout_s, priority, entry, spread, record",
                     function);
        return -1;
    }
    if (count == 1 && keywords == NULL)
        return 0;
    for (Py_ssize_t i = 1; i < count; i++)
        found[i - 1] = args[i];
    for (Py_ssize_t i = 0; keywords != NULL && i < PyTuple_GET_SIZE(keywords); i++) {
        PyObject *keyword = PyTuple_GET_ITEM(keywords, i);
        int at = 0;
        while (at < OPTIONS && PyUnicode_CompareWithASCIIString(keyword, names[at]) != 0)
            at++;
        if (at == OPTIONS || found[at] != NULL) {
            PyErr_Format(PyExc_TypeError, "%s(): option %R is unknown or given twice", function, keyword);
            return -1;
        }
        found[at] = args[count + i];
    }
    o->timeout_s = found[0];
    if (found[1] != NULL) {
        int overflow;
        long priority = PyLong_AsLongAndOverflow(found[1], &overflow);
        if (priority == -1 && PyErr_Occurred()) {
            if (PyErr_ExceptionMatches(PyExc_TypeError))
                PyErr_Format(PyExc_TypeError, "priority: expected a whole number from -8 to 7, got `%T`", found[1]);
            return -1;
        }
        if (overflow != 0) {
            PyErr_SetString(PyExc_ValueError, "priority: expected -8 to 7, got a number of more than 64 bits");
            return -1;
        }
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
    o->record = found[4] == Py_None ? NULL : found[4];
    return 0;
}

/* Raises the error for a value that cannot cross. Takes over `text`; NULL: an exception is set already. */
static void refuse_value(vmh_lane *lane, PyObject *text)
{
    if (text != NULL)
        vmh_core_raise(lane, VMH_VALUE, text);
    Py_XDECREF(text);
}

/* A call with its value encoded, not yet pushed; NULL with an error set. */
static vmh_call *prepare(const lane_object *self, PyObject *value, const options *o)
{
    vmh_lane *lane = self->lane;
    const vmh_codec codec = {.buffer_type = vmh_buffer_type, .packed_type = vmh_packed_type, .pack = self->pack};
    if (vmh_fork_check() < 0)
        return NULL;
    int64_t limit = vmh_after_ns(vmh_now_ns(), lane->wall_ns), asked;
    if (vmh_core_deadline(o->timeout_s, &asked) < 0)
        return NULL;
    vmh_call *call = vmh_call_new(lane);
    if (call == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    call->deadline_ns = asked < limit ? asked : limit;
    call->timed = asked < limit;
    call->level = 7 - o->priority;
    call->spread = o->spread;
    if (o->entry != NULL) {
        Py_ssize_t size;
        const char *entry = PyUnicode_AsUTF8AndSize(o->entry, &size);
        if (entry == NULL && !PyErr_ExceptionMatches(PyExc_UnicodeError))
            goto failed;
        if (entry == NULL || strlen(entry) != (size_t)size) { /* lone surrogates, or a NUL */
            PyErr_Clear();
            PyErr_Format(PyExc_ValueError, "entry: expected \"module:function\", got %A", o->entry);
            goto failed;
        }
        if ((call->entry = strdup(entry)) == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
    }
    if (o->record != NULL) {
        if ((call->record = malloc(sizeof *call->record)) == NULL) {
            PyErr_NoMemory();
            goto failed;
        }
        vmh_blob_init(call->record);
        if (vmh_wire_encode(call->record, o->record, "record", &codec, NULL) < 0)
            goto wire_failed;
    }
    if (vmh_wire_encode(&call->request, value, "argument", &codec, NULL) < 0)
        goto wire_failed;
    call->request_bytes = vmh_blob_bytes(&call->request);
    return call;
wire_failed:
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_ValueError)) {
        PyObject *error = PyErr_GetRaisedException();
        refuse_value(lane, PyObject_Str(error));
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
        vmh_core_raise(lane, kind, size);
    Py_XDECREF(size);
    return -1;
}

/* Parses a method's arguments and prepares its call; NULL with an error set. */
static vmh_call *one_call(const char *method, const lane_object *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *keywords)
{
    options o;
    return options_parse(method, &o, args, count, keywords) < 0 ? NULL : prepare(self, args[0], &o);
}

static PyObject *lane_call(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    const lane_object *self = (lane_object *)object;
    vmh_call *call = one_call("call", self, args, count, keywords);
    if (call == NULL)
        return NULL;
    PyObject *result = NULL;
    if (push(self->lane, &call, 1) == 0) {
        if (vmh_core_wait(call, VMH_FOREVER) < 0)
            vmh_core_stop(call); /* Ctrl-C: the caller leaves, so stop the call */
        else
            result = vmh_core_last_outcome(call, self->unpack);
    }
    vmh_call_unref(call);
    vmh_buffer_release_lent();
    return result;
}

static PyObject *lane_submit(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    const lane_object *self = (lane_object *)object;
    vmh_call *call = one_call("submit", self, args, count, keywords);
    if (call == NULL)
        return NULL;
    PyObject *wrapper = vmh_core_wrap_call(vmh_call_ref(call), self->unpack);
    if (wrapper == NULL)
        vmh_call_unref(call);
    else if (push(self->lane, &call, 1) < 0)
        Py_CLEAR(wrapper);
    vmh_call_unref(call);
    return wrapper;
}

/* Prepares one call for each of a method's values and pushes them under one lock: all or none. Returns a malloc'ed
 * array of references; NULL with an error set. */
static vmh_call **all_calls(const char *method, const lane_object *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *keywords, Py_ssize_t *prepared_count)
{
    options o;
    vmh_lane *lane = self->lane;
    PyObject *items = NULL;
    Py_ssize_t n = 0, prepared = 0;
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
    while (prepared < n) {
        PyObject *value =
            Py_NewRef(PySequence_Fast_GET_ITEM(items, prepared)); /* encoding may run code that changes the list */
        calls[prepared] = prepare(self, value, &o);
        Py_DECREF(value);
        if (calls[prepared] == NULL)
            break;
        prepared++;
        if (PySequence_Fast_GET_SIZE(items) != n) {
            refuse_value(lane, PyUnicode_FromFormat(
                                   "argument: this `%s` of values changed while they crossed: code of one of them "
                                   "ran and changed it",
                                   Py_TYPE(items)->tp_name));
            goto drop;
        }
    }
    if (prepared < n || (n > 0 && push(lane, calls, (size_t)n) < 0)) {
drop:
        while (prepared > 0)
            vmh_call_unref(calls[--prepared]);
        free(calls);
        calls = NULL;
    }
done:
    Py_DECREF(items);
    *prepared_count = n;
    return calls;
}

static PyObject *lane_submit_many(PyObject *object, PyObject *const *args, Py_ssize_t count, PyObject *keywords)
{
    Py_ssize_t n;
    vmh_call **calls = all_calls("submit_many", (lane_object *)object, args, count, keywords, &n);
    if (calls == NULL)
        return NULL;
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *wrapper = list == NULL ? NULL : vmh_core_wrap_call(calls[i], ((lane_object *)object)->unpack);
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
    vmh_call **calls = all_calls("map", (lane_object *)object, args, count, keywords, &n);
    if (calls == NULL)
        return NULL;
    PyObject *list = PyList_New(n);
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *item = NULL;
        if (list != NULL && vmh_core_wait(calls[i], VMH_FOREVER) >= 0)
            item = vmh_core_last_outcome(calls[i], ((lane_object *)object)->unpack);
        if (item == NULL) {
            Py_CLEAR(list);
            vmh_core_stop(calls[i]); /* the remaining results are not wanted */
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
    Py_BEGIN_ALLOW_THREADS vmh_lane_close(lane, !drain);
    Py_END_ALLOW_THREADS Py_RETURN_NONE;
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
    const vmh_codec codec = {.buffer_type = vmh_buffer_type};
    if (vmh_wire_encode(&blob, message, "message", &codec, NULL) == 0)
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

static PyObject *counts_by_kind(const atomic_llong *counts)
{
    PyObject *result = PyTuple_New(VMH_KINDS);
    for (int i = 0; result != NULL && i < VMH_KINDS; i++) {
        PyObject *n = PyLong_FromLongLong(atomic_load(&counts[i]));
        if (n == NULL)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i, n);
    }
    return result;
}

static PyObject *lane_statistics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    pthread_mutex_lock(&lane->lock);
    size_t queued = lane->queued;
    unsigned idle = lane->idle_count, workers = lane->workers;
    bool closed = lane->closed;
    pthread_mutex_unlock(&lane->lock);
    /* `excused` after `ends`: so every excused end in the first count is also in the second, which may have a newer
     * one. */
    PyObject *ends = counts_by_kind(lane->ends);
    PyObject *excused = ends == NULL ? NULL : counts_by_kind(lane->excused);
    if (excused == NULL) {
        Py_XDECREF(ends);
        return NULL;
    }
    const struct {
        const char *name;
        PyObject *value; /* owned; NULL: an error */
    } counters[] = {
        {"queued", PyLong_FromSize_t(queued)},
        {"idle", PyLong_FromUnsignedLong(idle)},
        {"vms", PyLong_FromUnsignedLong(workers)},
        {"running", PyLong_FromLongLong(atomic_load(&lane->running))},
        {"closed", PyBool_FromLong(closed)},
        {"submitted", PyLong_FromLongLong(atomic_load(&lane->submitted_total))},
        {"wall_s", PyFloat_FromDouble((double)atomic_load(&lane->wall_ns_total) / 1e9)},
        {"wait_s", PyFloat_FromDouble((double)atomic_load(&lane->wait_ns_total) / 1e9)},
        {"slow", PyLong_FromLongLong(atomic_load(&lane->slow_total))},
        {"denied", PyLong_FromLongLong(atomic_load(&lane->denied_total))},
        {"input_bytes", PyLong_FromLongLong(atomic_load(&lane->request_bytes_total))},
        {"ends", ends},
        {"excused", excused},
    };
    enum { COUNTERS = sizeof counters / sizeof *counters };
    static PyObject *names[COUNTERS]; /* created once: interned, with cached hashes */
    PyObject *found = PyDict_New();
    for (int i = 0; i < COUNTERS; i++) {
        if (names[i] == NULL)
            names[i] = PyUnicode_InternFromString(counters[i].name);
        if (names[i] == NULL || counters[i].value == NULL
            || (found != NULL && PyDict_SetItem(found, names[i], counters[i].value) < 0))
            Py_CLEAR(found);
        Py_XDECREF(counters[i].value);
    }
    return found;
}

/* The counts of a histogram as bytes: an unsigned 64-bit number per bucket, in native byte order. */
static PyObject *counts_as_bytes(const vmh_histogram *histogram)
{
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, VMH_HISTOGRAM_BUCKETS * (Py_ssize_t)sizeof(uint64_t));
    if (bytes == NULL)
        return NULL;
    char *to = PyBytes_AS_STRING(bytes);
    for (int i = 0; i < VMH_HISTOGRAM_BUCKETS; i++) {
        uint64_t count = (uint64_t)atomic_load_explicit(&histogram->counts[i], memory_order_relaxed);
        memcpy(to + (size_t)i * sizeof count, &count, sizeof count);
    }
    return bytes;
}

static PyObject *lane_durations(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const vmh_lane *lane = ((lane_object *)object)->lane;
    PyObject *walls = counts_as_bytes(&lane->walls), *waits = walls == NULL ? NULL : counts_as_bytes(&lane->waits);
    if (waits == NULL) {
        Py_XDECREF(walls);
        return NULL;
    }
    return Py_BuildValue("(NN)", walls, waits);
}

/* Cumulative counts: of the first `first` buckets, then of `step` more, and so on, `steps` numbers; then the total
 * count, `sum_s`, and the total count again. */
static PyObject *reached_row(const vmh_histogram *histogram, int first, int step, int steps, double sum_s)
{
    PyObject *row = PyList_New(steps + 3);
    long long sum = 0;
    for (int i = 0, at = 0; row != NULL && i <= steps; i++) {
        for (int end = i == steps ? VMH_HISTOGRAM_BUCKETS : first + step * i; at < end; at++)
            sum += atomic_load_explicit(&histogram->counts[at], memory_order_relaxed);
        PyObject *number = PyLong_FromLongLong(sum);
        if (number == NULL)
            Py_CLEAR(row);
        else
            PyList_SET_ITEM(row, i, number);
    }
    PyObject *seconds = row == NULL ? NULL : PyFloat_FromDouble(sum_s), *all = PyLong_FromLongLong(sum);
    if (row == NULL || seconds == NULL || all == NULL) {
        Py_XDECREF(row);
        Py_XDECREF(seconds);
        Py_XDECREF(all);
        return NULL;
    }
    PyList_SET_ITEM(row, steps + 1, seconds);
    PyList_SET_ITEM(row, steps + 2, all);
    return row;
}

static PyObject *lane_numbers(PyObject *object, PyObject *args)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    int first, step, steps;
    if (!PyArg_ParseTuple(args, "iii:numbers", &first, &step, &steps))
        return NULL;
    if (first < 0 || step < 1 || steps < 1 || first + (int64_t)step * (steps - 1) > VMH_HISTOGRAM_BUCKETS) {
        PyErr_SetString(PyExc_ValueError, "numbers: expected buckets that the histogram has");
        return NULL;
    }
    pthread_mutex_lock(&lane->lock);
    Py_ssize_t queued = (Py_ssize_t)lane->queued;
    pthread_mutex_unlock(&lane->lock);
    PyObject *ends = counts_by_kind(lane->ends);
    PyObject *walls =
        ends == NULL ? NULL
                     : reached_row(&lane->walls, first, step, steps, (double)atomic_load(&lane->wall_ns_total) / 1e9);
    PyObject *waits =
        walls == NULL ? NULL
                      : reached_row(&lane->waits, first, step, steps, (double)atomic_load(&lane->wait_ns_total) / 1e9);
    if (waits == NULL) {
        Py_XDECREF(ends);
        Py_XDECREF(walls);
        return NULL;
    }
    return Py_BuildValue("(NnLLLNN)", ends, queued, atomic_load(&lane->running), atomic_load(&lane->denied_total),
                         atomic_load(&lane->request_bytes_total), walls, waits);
}

static PyObject *metric_as_tuple(const vmh_task_metric *metric)
{
    PyObject *counts = PyTuple_New(metric->kind == VMH_METRIC_HISTOGRAM ? metric->bound_count + 1 : 0);
    PyObject *bounds = counts == NULL ? NULL : PyTuple_New(metric->bound_count);
    for (Py_ssize_t i = 0; bounds != NULL && i < PyTuple_GET_SIZE(counts); i++) {
        PyObject *count = PyLong_FromLongLong(atomic_load(&metric->counts[i]));
        PyObject *bound = i == metric->bound_count ? NULL : PyFloat_FromDouble(metric->bounds[i]);
        if (count != NULL)
            PyTuple_SET_ITEM(counts, i, count);
        if (bound != NULL)
            PyTuple_SET_ITEM(bounds, i, bound);
        if (count == NULL || (bound == NULL && i < metric->bound_count))
            Py_CLEAR(bounds);
    }
    if (bounds == NULL) {
        Py_XDECREF(counts);
        return NULL;
    }
    return Py_BuildValue("(izdNN)", (int)metric->kind, metric->key, atomic_load(&metric->value), bounds, counts);
}

static PyObject *lane_metrics(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_task_metrics *metrics = atomic_load(&((lane_object *)object)->lane->metrics);
    int count = metrics == NULL ? 0 : atomic_load(&metrics->count);
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *item = metric_as_tuple(metrics->items[i]);
        if (item == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list == NULL ? NULL : Py_BuildValue("(NL)", list, metrics == NULL ? 0LL : atomic_load(&metrics->left_out));
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
    size_t count = (intptr_t)which == LANE_QUEUED ? lane->queued
                   : (intptr_t)which == LANE_IDLE ? lane->idle_count
                                                  : lane->workers;
    pthread_mutex_unlock(&lane->lock);
    return PyLong_FromSize_t(count);
}

static PyObject *lane_text(PyObject *object, void *which)
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    return PyUnicode_FromString(which == NULL ? lane->name : lane->version);
}

static PyObject *lane_tails(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    vmh_tail found[2 * VMH_TAILS];
    int64_t now = vmh_now_ns();
    vmh_mutex_lock(&lane->lock);
    int count = vmh_tails_read(&lane->tails, now - 2 * VMH_TAILS_WINDOW_NS, found);
    vmh_mutex_unlock(&lane->lock);
    PyObject *list = PyList_New(count);
    for (int i = 0; list != NULL && i < count; i++) {
        PyObject *tail =
            Py_BuildValue("(dddni)", (double)(now - found[i].ended_ns) / 1e9, (double)found[i].wall_ns / 1e9,
                          (double)found[i].wait_ns / 1e9, (Py_ssize_t)found[i].request_bytes, found[i].kind);
        if (tail == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, tail);
    }
    return list;
}

static PyObject *lane_held(PyObject *object, PyObject *Py_UNUSED(unused))
{
    vmh_lane *lane = ((lane_object *)object)->lane;
    vmh_mutex_lock(&lane->lock);
    char *held = lane->held == NULL ? NULL : strdup(lane->held);
    vmh_mutex_unlock(&lane->lock);
    PyObject *text =
        held == NULL ? Py_NewRef(Py_None) : PyUnicode_DecodeUTF8(held, (Py_ssize_t)strlen(held), "replace");
    free(held);
    return text;
}

static PyMethodDef lane_methods[] = {
    {"call", (PyCFunction)(void (*)(void))lane_call, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("call(value, timeout_s=None, priority=0, entry=None, spread=False): submits and returns the result.")},
    {"submit", (PyCFunction)(void (*)(void))lane_submit, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("submit(value, …) -> Call")},
    {"submit_many", (PyCFunction)(void (*)(void))lane_submit_many, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("submit_many(values, …) -> list of Call: queues all or none")},
    {"map", (PyCFunction)(void (*)(void))lane_map, METH_FASTCALL | METH_KEYWORDS,
     PyDoc_STR("map(values, …) -> list of results; raises the first error in order and stops the remaining calls")},
    {"close", (PyCFunction)(void (*)(void))lane_close, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("close(drain=True): accepts no more calls; without drain, queued ones end with kind CLOSED")},
    {"stop_running", lane_stop_all, METH_NOARGS,
     PyDoc_STR("Stops every running call, with kind CLOSED; for a closed lane.")},
    {"fail", lane_fail, METH_O, PyDoc_STR("fail(message) -> count: ends queued calls with kind VM_LOST.")},
    {"mute", lane_mute, METH_O, PyDoc_STR("mute(bool): suppresses 'starved' events while true.")},
    {"durations", lane_durations, METH_NOARGS,
     PyDoc_STR("Two histograms (lanes/histogram.h) as bytes: run times and queue times of calls.")},
    {"held", lane_held, METH_NOARGS,
     PyDoc_STR("What held the memory when a call last met its limit, in the format of profile/holdings.h, or None.")},
    {"metrics", lane_metrics, METH_NOARGS,
     PyDoc_STR("([(kind, key, value or sum, bounds, counts), ...], series left out): the task's own metrics.")},
    {"tails", lane_tails, METH_NOARGS,
     PyDoc_STR("[(seconds since the end, run time, queue time, bytes of the value, kind), ...]: the slowest calls of "
               "the last minutes (lanes/tails.h).")},
    {"numbers", lane_numbers, METH_VARARGS,
     PyDoc_STR("numbers(first, step, steps) -> (ends by kind, queued, running, denied, bytes of inputs, walls, waits). "
               "The last two: cumulative counts up to each bound, total count, sum in seconds, total count.")},
    {"statistics", lane_statistics, METH_NOARGS, PyDoc_STR("Counters, as a dict; ends: by kind.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef lane_getset[] = {
    {"starved", lane_starved, NULL, PyDoc_STR("Calls wait and no attached VM is idle."), NULL},
    {"queued", lane_count, NULL, PyDoc_STR("Queued calls."), (void *)LANE_QUEUED},
    {"idle", lane_count, NULL, PyDoc_STR("Attached VMs without a call."), (void *)LANE_IDLE},
    {"vms", lane_count, NULL, PyDoc_STR("Attached VMs."), (void *)LANE_VMS},
    {"running", lane_count, NULL, PyDoc_STR("Running calls."), (void *)LANE_RUNNING},
    {"unfinished", lane_count, NULL, PyDoc_STR("Calls that have not ended: queued, handed to a VM, or running."),
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

PyType_Spec vmh_lane_spec = {"vmhost.isolation._core.Lane", sizeof(lane_object), 0, Py_TPFLAGS_DEFAULT, lane_slots};
