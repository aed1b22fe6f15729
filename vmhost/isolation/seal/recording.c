/* In a call that is recorded or replayed, results of clocks and of the system's randomness pass through the call's
 * recorder (vmhost/guest/recording.py). Without a recorder these gates call the original at once. Under the VM's GIL.
 *
 * `datetime.now` and `utcnow` read the clock in C, bypassing `time`: with a recorder they are computed from
 * `time.time()`, as `datetime.today` always is. */
#include "seal/gates.h"

#include <string.h>
#include <sys/random.h>

/* recorder(name, real, argument) -> the answer; `argument` NULL: None. A new reference; NULL: error set. */
static PyObject *ask(PyObject *recorder, const char *name, PyObject *real, PyObject *argument)
{
    return PyObject_CallFunction(recorder, "sOO", name, real, argument == NULL ? Py_None : argument);
}

static int check_answer(vmh_gated *call)
{
    PyObject *recorder = call->seal->recorder;
    if (recorder == NULL)
        return 0;
    PyObject *real = vmh_gated_original(call);
    if (real == NULL)
        return -1;
    Py_INCREF(recorder); /* the call may end the recording */
    call->result = ask(recorder, call->gate->name, real, call->nargs > 0 ? call->args[0] : NULL);
    Py_DECREF(recorder);
    Py_DECREF(real);
    return call->result == NULL ? -1 : 1;
}

/* The recorder's answer to `time.time()`. */
static PyObject *recorded_now(PyObject *recorder)
{
    PyTime_t now;
    if (PyTime_Time(&now) < 0)
        return NULL;
    PyObject *real = PyFloat_FromDouble(PyTime_AsSecondsDouble(now));
    PyObject *answer = real == NULL ? NULL : ask(recorder, "time", real, NULL);
    Py_XDECREF(real);
    return answer;
}

/* Supplies the argument at position `access` if it is missing: the time in seconds, or as local time. */
static int give_now(vmh_gated *call, bool local)
{
    PyObject *recorder = call->seal->recorder;
    int position = call->gate->access;
    if (recorder == NULL || call->nargs < position || call->nargs > position + 1
        || (call->nargs == position + 1 && (local || call->args[position] != Py_None)))
        return 0;
    PyObject *now = local ? PyObject_CallMethod(call->self, "localtime", NULL) : recorded_now(recorder);
    call->nargs = position + 1;
    return vmh_gated_replace(call, &call->args[position], now);
}

static int check_seconds(vmh_gated *call) { return give_now(call, false); }
static int check_local(vmh_gated *call) { return give_now(call, true); }

/* Random.seed() and Random.seed(None) use system randomness; with a recorder they use its number. */
static int check_seed(vmh_gated *call)
{
    PyObject *recorder = call->seal->recorder;
    unsigned char bytes[32];
    if (recorder == NULL || call->nargs > 1 || (call->nargs == 1 && call->args[0] != Py_None))
        return 0;
    if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) {
        PyErr_SetFromErrno(PyExc_OSError);
        return -1;
    }
    PyObject *real = PyLong_FromUnsignedNativeBytes(bytes, sizeof bytes, Py_ASNATIVEBYTES_LITTLE_ENDIAN);
    PyObject *seed = real == NULL ? NULL : ask(recorder, "seed", real, NULL);
    Py_XDECREF(real);
    call->nargs = 1;
    return vmh_gated_replace(call, &call->args[0], seed);
}

#define GATES(G) \
    G(time, , time, check_answer, 0, NULL) \
    G(time, , time_ns, check_answer, 0, NULL) \
    G(time, , monotonic, check_answer, 0, NULL) \
    G(time, , monotonic_ns, check_answer, 0, NULL) \
    G(time, , perf_counter, check_answer, 0, NULL) \
    G(time, , perf_counter_ns, check_answer, 0, NULL) \
    G(time, , process_time, check_answer, 0, NULL) \
    G(time, , process_time_ns, check_answer, 0, NULL) \
    G(time, , thread_time, check_answer, 0, NULL) \
    G(time, , thread_time_ns, check_answer, 0, NULL) \
    G(time, , clock_gettime, check_answer, 0, NULL) \
    G(time, , clock_gettime_ns, check_answer, 0, NULL) \
    G(time, , gmtime, check_seconds, 0, NULL) \
    G(time, , localtime, check_seconds, 0, NULL) \
    G(time, , ctime, check_seconds, 0, NULL) \
    G(time, , asctime, check_local, 0, NULL) \
    G(time, , strftime, check_local, 1, NULL) \
    G(posix, , urandom, check_answer, 0, "size") \
    G(posix, , getrandom, check_answer, 0, "size") \
    G(_uuid, , generate_time_safe, check_answer, 0, NULL) \
    G(_random, Random, seed, check_seed, 0, NULL)

GATES(VMH_GATE_DEFINE)
vmh_gate *const vmh_gates_recording[] = {GATES(VMH_GATE_ADDRESS) NULL};

/* ---- datetime: a static type, whose attributes are in a dict per interpreter. These have not been looked up yet, so
 * no attribute cache has them. */
static struct {
    const char *name, *from;
    PyMethodDef def;
    _Atomic(PyMethodDef *) original;
} nows[2];

static PyObject *now_of(int which, PyObject *cls, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    vmh_seal *seal = vmh_seal_here();
    PyObject *recorder = seal == NULL ? NULL : seal->recorder;
    Py_ssize_t given = nargs + (kwnames == NULL ? 0 : PyTuple_GET_SIZE(kwnames));
    if (recorder == NULL || given > 1 || (which == 1 && given > 0)
        || (kwnames != NULL && PyTuple_GET_SIZE(kwnames) == 1
            && !PyUnicode_EqualToUTF8(PyTuple_GET_ITEM(kwnames, 0), "tz")))
        return vmh_def_call(atomic_load(&nows[which].original), cls, NULL, args, nargs, kwnames);
    Py_INCREF(recorder);
    PyObject *now = recorded_now(recorder), *result = NULL;
    Py_DECREF(recorder);
    if (now != NULL)
        result = PyObject_CallMethod(cls, nows[which].from, given == 1 ? "OO" : "O", now, given == 1 ? args[0] : NULL);
    Py_XDECREF(now);
    return result;
}

static PyObject *gate_now(PyObject *cls, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return now_of(0, cls, args, nargs, kwnames);
}

static PyObject *gate_utcnow(PyObject *cls, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    return now_of(1, cls, args, nargs, kwnames);
}

int vmh_datetime_finish(PyObject *dict, PyObject *Py_UNUSED(module))
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    PyTypeObject *type = (PyTypeObject *)vmh_dict_get(dict, "datetime");
    if (type == NULL || !PyType_Check(type))
        return PyErr_Occurred() ? -1 : 0;
    PyObject *methods = PyType_GetDict(type);
    int rc = methods == NULL ? -1 : 0;
    for (int which = 0; rc == 0 && which < 2; which++) {
        const char *name = which == 0 ? "now" : "utcnow";
        PyObject *method = vmh_dict_get(methods, name);
        if (method == NULL && PyErr_Occurred()) {
            rc = -1;
            break;
        }
        if (method == NULL || !Py_IS_TYPE(method, &PyClassMethodDescr_Type)) {
            PyErr_Format(PyExc_SystemError, "datetime.%s cannot be gated in this Python", name);
            rc = -1;
            break;
        }
        PyMethodDef *original = ((PyMethodDescrObject *)method)->d_method;
        if (original == &nows[which].def)
            continue;
        vmh_mutex_lock(&lock);
        if (nows[which].name == NULL) {
            atomic_store(&nows[which].original, original);
            nows[which].from = which == 0 ? "fromtimestamp" : "utcfromtimestamp";
            nows[which].def =
                (PyMethodDef){original->ml_name, (PyCFunction)(void (*)(void))(which == 0 ? gate_now : gate_utcnow),
                              METH_FASTCALL | METH_KEYWORDS | METH_CLASS, original->ml_doc};
            nows[which].name = name;
        }
        vmh_mutex_unlock(&lock);
        PyObject *new = PyDescr_NewClassMethod(type, &nows[which].def);
        rc = new == NULL ? -1 : PyDict_SetItemString(methods, name, new);
        Py_XDECREF(new);
    }
    Py_XDECREF(methods);
    return rc;
}

/* ---- functions for the guest runtime */

static const struct {
    unsigned bit;
    const char *name;
} uses[] = {{VMH_USED_FILES, "files"}, {VMH_USED_SOCKETS, "sockets"}, {VMH_USED_SQLITE, "sqlite"}};

void vmh_used(unsigned what)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal != NULL)
        atomic_fetch_or_explicit(&seal->used, what, memory_order_relaxed);
}

/* Connections and databases may be used as long as the VM lives; files only while open. */
static void forget_files(vmh_seal *seal)
{
    for (size_t fd = 0; fd < seal->fd_room; fd++)
        if (seal->fds[fd].state == VMH_FD_OPEN && !seal->fds[fd].blocks)
            return;
    atomic_fetch_and(&seal->used, ~(unsigned)VMH_USED_FILES);
}

static PyObject *native_record(PyObject *Py_UNUSED(module), PyObject *recorder)
{
    vmh_seal *seal = vmh_seal_here();
    PyObject *used = PyList_New(0);
    if (seal == NULL || used == NULL) {
        Py_XDECREF(used);
        return seal == NULL ? vmh_deny("this thread is not one of the task's", "record") : NULL;
    }
    if (recorder != Py_None)
        forget_files(seal);
    unsigned bits = atomic_load(&seal->used);
    for (size_t i = 0; i < sizeof uses / sizeof *uses; i++) {
        PyObject *name = bits & uses[i].bit ? PyUnicode_FromString(uses[i].name) : NULL;
        int rc = name == NULL ? 0 : PyList_Append(used, name);
        Py_XDECREF(name);
        if (rc < 0 || PyErr_Occurred()) {
            Py_DECREF(used);
            return NULL;
        }
    }
    PyObject *before = seal->recorder;
    seal->recorder = recorder == Py_None ? NULL : Py_NewRef(recorder);
    Py_XDECREF(before);
    return used;
}

void vmh_recording_stop(void)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal != NULL)
        Py_CLEAR(seal->recorder);
}

static PyMethodDef methods[] = {
    {"record", native_record, METH_O,
     PyDoc_STR("record(recorder or None) -> kinds of outside resources in use: clocks and randomness pass through "
               "recorder(name, real, argument).")},
    {NULL, NULL, 0, NULL},
};

int vmh_recording_add(PyObject *native) { return PyModule_AddFunctions(native, methods); }
