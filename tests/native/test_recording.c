/* The gates of recorded calls (seal/recording.c) with counted objects: each call that may fail does once. There is an
 * error or the usual answer, and no object is left. */
#include <errno.h>
#include <string.h>
#include <sys/random.h>

#include "check.h"
#include "seal/gates.h"

static vmh_seal *here;
static vmh_seal seal;
static PyObject *recorder, *times; /* times: the module, or the object whose method is called */
static long asked, originals, fell_back;
static bool ends; /* the recorder ends the recording while it is asked */
static int no_randomness;
static PyMethodDef *added; /* the functions of `_vmhost` */
static PyMethodDescrObject *methods[2];
static struct {
    PyTypeObject type;
    PyObject dict;
} date_time = {.type = {.base = {.type = &PyType_Type}}};

ssize_t __wrap_getrandom(void *to, size_t bytes, unsigned flags);
ssize_t __wrap_getrandom(void *to, size_t bytes, unsigned flags)
{
    CHECK(flags == 0);
    memset(to, 5, bytes);
    errno = no_randomness;
    return no_randomness ? -1 : (ssize_t)bytes;
}

/* ---- CPython */

PyObject *PySys_GetObject(const char *name) { return name == NULL ? Py_None : NULL; }
PyObject *objects_attribute(PyObject *object, const char *name) { return name == NULL ? object : NULL; }

/* The recorder answers a new object; so does localtime(), and datetime.fromtimestamp(). */
PyObject *objects_called(PyObject *object, const char *name, PyObject *const *args, int count)
{
    CHECK(!PyErr_Occurred());
    if (name == NULL) {
        CHECK(object == recorder && count == 3 && args[1] != NULL);
        asked++;
        if (ends)
            vmh_recording_stop();
        CHECK(object->refs > 0); /* the caller holds it */
        return objects_new(NULL, 12, args[0]->pointer);
    }
    if (strcmp(name, "localtime") == 0)
        CHECK(object == times && count == 0);
    else
        CHECK(object == &date_time.type.base && (count == 1 || count == 2) && args[0]->number == 12
              && (strcmp(name, "fromtimestamp") == 0 || strcmp(name, "utcfromtimestamp") == 0));
    return objects_new(NULL, 13, name);
}

static PyTypeObject *found_type;
static bool lookup_fails;

PyObject *vmh_dict_get(PyObject *dict, const char *name)
{
    if (lookup_fails) {
        PyErr_SetNone(PyExc_MemoryError);
        return NULL;
    }
    if (dict == times)
        return found_type == NULL ? NULL : &found_type->base;
    CHECK(dict == &date_time.dict);
    return &methods[strcmp(name, "utcnow") == 0]->base;
}

PyObject *PyType_GetDict(PyTypeObject *type)
{
    CHECK(type == &date_time.type);
    return &date_time.dict;
}

int PyDict_SetItemString(PyObject *dict, const char *name, PyObject *value)
{
    CHECK(dict == &date_time.dict && Py_IS_TYPE(value, &PyClassMethodDescr_Type));
    Py_SETREF(*(PyObject **)&methods[strcmp(name, "utcnow") == 0], Py_NewRef(value));
    return 0;
}

int PyModule_AddFunctions(PyObject *module, PyMethodDef *functions)
{
    CHECK(module == NULL);
    added = functions;
    return 0;
}

/* ---- other rooms */

vmh_seal *vmh_seal_here(void) { return here; }

PyObject *vmh_gated_original(vmh_gated *call)
{
    CHECK(call->gate->check != NULL);
    originals++;
    return objects_new(NULL, 1, "original");
}

int vmh_gated_replace(vmh_gated *call, PyObject **argument, PyObject *value)
{
    if (value == NULL)
        return -1;
    CHECK(call->owned_count < VMH_GATED_OWNED_MAX);
    call->owned[call->owned_count++] = value;
    *argument = value;
    return 0;
}

PyObject *vmh_def_call(PyMethodDef *def, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                       PyObject *kwnames)
{
    (void)args;
    CHECK(def->ml_name != NULL && self == &date_time.type.base && owner == NULL && nargs + (kwnames != NULL) <= 2);
    fell_back++;
    return Py_None;
}

PyObject *vmh_gate_call(vmh_gate *gate, PyObject *self, PyTypeObject *owner, PyObject *const *args, Py_ssize_t nargs,
                        PyObject *kwnames)
{
    (void)gate, (void)self, (void)owner, (void)args, (void)nargs, (void)kwnames;
    CHECK(!"called by this test");
    return NULL;
}

PyObject *vmh_deny(const char *why, const char *format, ...)
{
    CHECK(why != NULL && format != NULL);
    PyErr_SetNone(PyExc_OSError);
    return NULL;
}

/* ---- one call of each kind */

static const vmh_gate *gate_of(const char *name)
{
    vmh_gate *const *gate = vmh_gates_recording;
    while (*gate != NULL && strcmp((*gate)->name, name) != 0)
        gate++;
    CHECK(*gate != NULL);
    return *gate;
}

/* The check's result, and the number that it put at the place `access`; all its objects are freed. */
static int check(const char *name, Py_ssize_t nargs, PyObject *argument, double *number)
{
    vmh_gate gate = *gate_of(name);
    vmh_gated call = {.gate = &gate, .seal = &seal, .self = times, .nargs = nargs, .args = {argument, argument}};
    PyObject *now = NULL;
    int rc = gate.check(&call);
    CHECK((rc < 0) == (PyErr_Occurred() != NULL) && (rc == 1) == (call.result != NULL));
    if (rc == 1)
        now = call.result;
    else if (call.owned_count > 0)
        now = call.args[call.nargs - 1];
    *number = now == NULL ? 0 : now->number;
    for (int i = 0; i < call.owned_count; i++)
        Py_DECREF(call.owned[i]);
    Py_XDECREF(call.result);
    return rc;
}

static const struct {
    const char *name;
    Py_ssize_t nargs;
    bool none; /* its argument is None */
    int rc;    /* while it is recorded */
    double number;
} checks[] = {
    {"time", 0, false, 1, 12},      {"clock_gettime", 1, false, 1, 12}, {"urandom", 1, false, 1, 12},
    {"localtime", 0, false, 0, 12}, {"gmtime", 1, true, 0, 12},         {"ctime", 1, false, 0, 0},
    {"asctime", 0, false, 0, 13},   {"asctime", 1, true, 0, 0},         {"strftime", 1, false, 0, 13},
    {"strftime", 2, false, 0, 0},   {"seed", 0, false, 0, 12},          {"seed", 1, true, 0, 12},
    {"seed", 1, false, 0, 0},
};

static int check_one(int which)
{
    PyObject argument = {.number = 3};
    double number;
    int rc = check(checks[which].name, checks[which].nargs, checks[which].none ? Py_None : &argument, &number);
    if (rc >= 0 && seal.recorder == NULL && !ends)
        CHECK(rc == 0 && number == 0);
    else if (rc >= 0)
        CHECK(rc == checks[which].rc && number == checks[which].number);
    return rc;
}

/* datetime.now() or utcnow(), through the gate. */
static int date_one(int which)
{
    PyObject zone = {.number = 2}, *args[] = {&zone}, tz = {.pointer = (char[]){"tz"}},
             other = {.pointer = (char[]){"zone"}};
    PyTupleObject by_name = {.size = 1, .items = {&tz}}, wrong = {.size = 1, .items = {&other}};
    const struct {
        Py_ssize_t nargs;
        PyTupleObject *names;
        double number; /* 0: left to the original */
    } calls[] = {{0, NULL, 13},
                 {1, NULL, which == 0 ? 13 : 0},
                 {0, &by_name, which == 0 ? 13 : 0},
                 {0, &wrong, 0},
                 {2, NULL, 0}};
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < sizeof calls / sizeof *calls; i++) {
        PyObject *(*gate)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *) =
            (PyObject * (*)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *))(void (*)(void))methods[which]
                ->d_method->ml_meth;
        const bool recorded = seal.recorder != NULL;
        PyObject *result = gate(&date_time.type.base, args, calls[i].nargs, (PyObject *)calls[i].names);
        rc = result == NULL ? -1 : 0;
        CHECK(rc == 0 ? !PyErr_Occurred() : PyErr_Occurred() == PyExc_MemoryError);
        CHECK(rc != 0 || result->number == (recorded ? calls[i].number : 0));
        Py_XDECREF(result);
    }
    return rc;
}

/* _vmhost.record(recorder or None): how many kinds of things the task had used. */
static int record(PyObject *to, double used)
{
    PyObject *kinds = added[0].ml_meth(NULL, to);
    if (kinds != NULL)
        CHECK(kinds->number == used);
    Py_XDECREF(kinds);
    return kinds == NULL ? -1 : 0;
}

/* A recorded call that makes each kind of call. */
static int everything(void)
{
    static vmh_owned_fd fds[2] = {{.state = VMH_FD_OPEN, .blocks = true}, {.state = VMH_FD_CLOSED}};
    int rc = vmh_datetime_finish(times, NULL);
    atomic_store(&seal.used, 0);
    seal.fds = fds;
    seal.fd_room = 2;
    vmh_used(VMH_USED_FILES);
    vmh_used(VMH_USED_SOCKETS);
    if (rc == 0)
        rc = record(recorder, 1); /* no file is open by now */
    CHECK(rc == 0 || seal.recorder == NULL);
    for (int i = 0; rc == 0 && i < (int)(sizeof checks / sizeof *checks); i++)
        rc = check_one(i) < 0 ? -1 : 0;
    for (int i = 0; rc == 0 && i < 2; i++)
        rc = date_one(i);
    vmh_used(VMH_USED_SQLITE);
    if (rc == 0)
        rc = record(Py_None, 2);
    vmh_recording_stop();
    CHECK(seal.recorder == NULL);
    return rc;
}

static PyMethodDef natives[] = {{"now", NULL, METH_CLASS, "now"}, {"utcnow", NULL, METH_CLASS, "utcnow"}};

/* As in a new interpreter. */
static void fresh(void)
{
    for (int i = 0; i < 2; i++) {
        Py_SETREF(*(PyObject **)&methods[i], objects_new(&PyClassMethodDescr_Type, 0, NULL));
        CHECK(methods[i] != NULL);
        methods[i]->d_method = &natives[i];
    }
}

static void unusual(void)
{
    for (int i = 0; i < (int)(sizeof checks / sizeof *checks); i++)
        CHECK(check_one(i) == 0); /* nothing is recorded: all is left to the original */
    CHECK(date_one(0) == 0 && date_one(1) == 0);
    ends = true;
    for (int i = 0; i < 2; i++) {
        CHECK(record(recorder, 2) == 0);
        Py_DECREF(recorder); /* the seal's is the last reference */
        CHECK((i == 0 ? check_one(0) == 1 : date_one(0) == 0) && seal.recorder == NULL);
        recorder = objects_new(NULL, 0, NULL);
    }
    ends = false;
    CHECK(record(recorder, 2) == 0);
    no_randomness = ENOSYS;
    CHECK(check("seed", 0, NULL, &(double){0}) == -1 && PyErr_Occurred() == PyExc_OSError);
    PyErr_Clear();
    no_randomness = 0;
    static vmh_owned_fd file = {.state = VMH_FD_OPEN};
    seal.fds = &file;
    seal.fd_room = 1;
    vmh_used(VMH_USED_FILES);
    CHECK(record(Py_None, 3) == 0 && record(recorder, 3) == 0); /* it may still be read */
    here = NULL;
    vmh_used(VMH_USED_FILES);
    vmh_recording_stop();
    CHECK(record(recorder, 0) == -1 && PyErr_Occurred() == PyExc_OSError && seal.recorder != NULL);
    PyErr_Clear();
    here = &seal;
    vmh_recording_stop();
    /* another Python's datetime */
    methods[1]->base.type = NULL;
    fresh();
    methods[1]->base.type = NULL;
    CHECK(vmh_datetime_finish(times, NULL) == -1 && PyErr_Occurred() == PyExc_SystemError);
    PyErr_Clear();
    fresh();
    found_type = NULL;
    CHECK(vmh_datetime_finish(times, NULL) == 0 && methods[0]->d_method == &natives[0]);
    lookup_fails = true;
    CHECK(vmh_datetime_finish(times, NULL) == -1 && PyErr_Occurred() == PyExc_MemoryError);
    PyErr_Clear();
}

int main(void)
{
    static PyObject module;
    long at = 0;
    times = &module;
    here = &seal;
    found_type = &date_time.type;
    CHECK(vmh_recording_add(NULL) == 0 && added != NULL && strcmp(added[0].ml_name, "record") == 0);
    for (;; at++) {
        fresh();
        recorder = objects_new(NULL, 0, NULL);
        objects_fail(at);
        int rc = everything();
        bool failed = objects_fail(-1);
        CHECK(failed ? rc == -1 && PyErr_Occurred() == PyExc_MemoryError : rc == 0 && !PyErr_Occurred());
        CHECK(objects_live() == 3 && recorder->refs == 1);
        PyErr_Clear();
        if (!failed)
            break;
        Py_DECREF(recorder);
    }
    CHECK(at > 40 && asked > 0 && originals > 0 && fell_back > 0);
    unusual();
    for (int i = 0; i < 2; i++)
        Py_DECREF(methods[i]);
    Py_DECREF(recorder);
    CHECK(objects_live() == 0);
    printf("test_recording: passed, %ld calls failed once each\n", at);
    return 0;
}
