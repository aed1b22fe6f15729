#include "vm/cover.h"

#include <string.h>

#include "profile/coverage.h"
#include "seal/sealing.h"
#include "vm/vm_private.h"

enum { TOOL = 1 }; /* sys.monitoring.COVERAGE_ID */

int vmh_cover_boot(vmh_cover *cover)
{
    PyObject *module = PySys_GetObject("monitoring"); /* borrowed */
    cover->monitoring = Py_XNewRef(module);
    cover->state = (uint64_t)(uintptr_t)cover;
    return 0;
}

void vmh_cover_clear(vmh_cover *cover)
{
    Py_CLEAR(cover->disable);
    Py_CLEAR(cover->monitoring);
}

/* Whether `file` belongs to the task itself and not to the standard library: its files are named "name@version/...". */
static bool of_task(const vmh_lane *lane, const char *file)
{
    size_t name = strlen(lane->name), version = strlen(lane->version);
    return strncmp(file, lane->name, name) == 0 && file[name] == '@'
           && strncmp(file + name + 1, lane->version, version) == 0 && file[name + 1 + version] == '/';
}

/* Records one covered line, branch or return. A `to` of NULL counts as 0. */
static PyObject *note(enum vmh_covered kind, PyObject *code_object, PyObject *from, PyObject *to)
{
    const vmh_cover *cover = &vmh_current()->cover;
    PyObject *before = PyErr_GetRaisedException();
    PyCodeObject *code = (PyCodeObject *)code_object;
    const char *file = PyUnicode_AsUTF8(code->co_filename), *name = NULL;
    if (file != NULL && cover->lane != NULL && of_task(cover->lane, file)
        && (name = PyUnicode_AsUTF8(code->co_qualname)) != NULL)
        vmh_coverage_add(file, name, code->co_firstlineno, kind, (int)PyLong_AsLong(from),
                         to == NULL ? 0 : (int)PyLong_AsLong(to));
    PyErr_SetRaisedException(before); /* also discards an error raised in here */
    return Py_NewRef(cover->disable);
}

static bool is_code(PyObject *const *args, Py_ssize_t count, Py_ssize_t min)
{
    if (count >= min && PyCode_Check(args[0]))
        return true;
    PyErr_SetString(PyExc_TypeError, "vmhost: a callback of sys.monitoring was called with unexpected arguments");
    return false;
}

static PyObject *on_line(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return is_code(args, count, 2) ? note(VMH_COVERED_LINE, args[0], args[1], NULL) : NULL;
}

static PyObject *on_branch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return is_code(args, count, 3) ? note(VMH_COVERED_BRANCH, args[0], args[1], args[2]) : NULL;
}

static PyObject *on_return(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    return is_code(args, count, 2) ? note(VMH_COVERED_RETURN, args[0], args[1], NULL) : NULL;
}

static PyMethodDef callbacks[] = {
    {"on_line", _PyCFunction_CAST(on_line), METH_FASTCALL, NULL},
    {"on_branch", _PyCFunction_CAST(on_branch), METH_FASTCALL, NULL},
    {"on_return", _PyCFunction_CAST(on_return), METH_FASTCALL, NULL},
};
static const struct {
    const char *event;
    int callback;
} events[] = {{"LINE", 0}, {"BRANCH_LEFT", 1}, {"BRANCH_RIGHT", 1}, {"PY_RETURN", 2}};
enum { EVENTS = sizeof events / sizeof *events };

/* Turns the callbacks on or off. -1: an error is set. */
static int set_events(const vmh_cover *cover, bool on)
{
    long wanted = 0;
    PyObject *numbers = on ? PyObject_GetAttrString(cover->monitoring, "events") : NULL;
    for (int i = 0; numbers != NULL && i < EVENTS && !PyErr_Occurred(); i++) {
        PyObject *number = PyObject_GetAttrString(numbers, events[i].event);
        wanted |= number == NULL ? 0 : PyLong_AsLong(number);
        Py_XDECREF(number);
    }
    Py_XDECREF(numbers);
    if (PyErr_Occurred())
        return -1;
    PyObject *done = PyObject_CallMethod(cover->monitoring, "set_events", "il", TOOL, wanted);
    Py_XDECREF(done);
    return done == NULL ? -1 : 0;
}

/* Registers the callback of one event. -1: an error is set. */
static int set_callback(const vmh_cover *cover, PyObject *numbers, int event)
{
    PyObject *number = PyObject_GetAttrString(numbers, events[event].event);
    PyObject *callback = number == NULL ? NULL : PyCFunction_New(&callbacks[events[event].callback], NULL);
    const char *passed = vmh_pass_event("sys.monitoring.register_callback"); /* the audit hook would deny it */
    PyObject *before = callback == NULL
                           ? NULL
                           : PyObject_CallMethod(cover->monitoring, "register_callback", "iOO", TOOL, number, callback);
    vmh_pass_event(passed);
    int rc = before == NULL ? -1 : 0;
    Py_XDECREF(number);
    Py_XDECREF(callback);
    Py_XDECREF(before);
    return rc;
}

static int set_up(vmh_cover *cover)
{
    int rc = -1;
    if (cover->monitoring == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "sys.monitoring is not there");
        return -1;
    }
    PyObject *disable = PyObject_GetAttrString(cover->monitoring, "DISABLE");
    PyObject *numbers = disable == NULL ? NULL : PyObject_GetAttrString(cover->monitoring, "events");
    PyObject *done =
        numbers == NULL ? NULL : PyObject_CallMethod(cover->monitoring, "use_tool_id", "is", TOOL, "vmhost");
    if (done != NULL)
        rc = 0;
    for (int i = 0; rc == 0 && i < EVENTS; i++)
        rc = set_callback(cover, numbers, i);
    if (rc == 0)
        cover->disable = Py_NewRef(disable);
    Py_XDECREF(numbers);
    Py_XDECREF(disable);
    Py_XDECREF(done);
    return rc;
}

void vmh_cover_begin(vmh_cover *cover, const vmh_lane *lane, bool loads)
{
    if (lane->coverage <= 0 || cover->failed)
        return;
    cover->state = cover->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    if (!loads && (double)(cover->state >> 11) * 0x1p-53 >= lane->coverage)
        return;
    PyObject *before = PyErr_GetRaisedException();
    cover->lane = lane;
    if ((cover->disable == NULL && set_up(cover) < 0) || set_events(cover, true) < 0)
        cover->failed = true;
    else
        cover->on = true;
    PyErr_SetRaisedException(before);
}

void vmh_cover_end(vmh_cover *cover)
{
    if (!cover->on)
        return;
    PyObject *before = PyErr_GetRaisedException();
    if (set_events(cover, false) < 0)
        cover->failed = true;
    cover->on = false;
    PyErr_SetRaisedException(before);
}
