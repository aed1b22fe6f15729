/* Coverage of a VM (vm/cover.c) with counted objects that stand for sys.monitoring: each call that may fail does once.
 * The call that is looked at goes on without coverage, its error is what it was, and no object is left. */
#include <string.h>

#include "check.h"
#include "profile/coverage.h"
#include "seal/sealing.h"
#include "vm/vm_private.h"

enum { LINES = 1, LEFT = 2, RIGHT = 4, RETURNS = 8, ALL = 15 };

static PyObject monitoring, event_numbers, disable;
static PyCFunctionFast callbacks[ALL + 1];
static long watched; /* what set_events was last told */
static bool used, there;
static const char *passed;
static vmh_vm *vm;

/* ---- sys.monitoring */

PyObject *PySys_GetObject(const char *name) { return there && strcmp(name, "monitoring") == 0 ? &monitoring : NULL; }

PyObject *objects_attribute(PyObject *object, const char *name)
{
    static const struct {
        const char *name;
        int bit;
    } bits[] = {{"LINE", LINES}, {"BRANCH_LEFT", LEFT}, {"BRANCH_RIGHT", RIGHT}, {"PY_RETURN", RETURNS}};
    if (object == &monitoring) {
        CHECK(strcmp(name, "events") == 0 || strcmp(name, "DISABLE") == 0);
        return name[0] == 'e' ? &event_numbers : &disable;
    }
    CHECK(object == &event_numbers);
    for (int i = 0; i < 4; i++)
        if (strcmp(name, bits[i].name) == 0)
            return objects_new(NULL, bits[i].bit, NULL);
    CHECK(!"an event that CPython knows");
    return NULL;
}

PyObject *objects_called(PyObject *object, const char *name, PyObject *const *args, int count)
{
    CHECK(object == &monitoring && args[0]->number == 1 && !PyErr_Occurred());
    if (strcmp(name, "set_events") == 0) {
        CHECK(count == 2 && used);
        watched = (long)args[1]->number;
        return Py_None;
    }
    if (strcmp(name, "use_tool_id") == 0) {
        CHECK(count == 2 && !used);
        used = true;
        return Py_None;
    }
    CHECK(strcmp(name, "register_callback") == 0 && count == 3);
    CHECK(passed != NULL && strcmp(passed, "sys.monitoring.register_callback") == 0); /* once a call */
    passed = NULL;
    callbacks[(int)args[1]->number] = (PyCFunctionFast)(void (*)(void))((const PyMethodDef *)args[2]->pointer)->ml_meth;
    return Py_None;
}

/* ---- other rooms */

const char *vmh_pass_event(const char *event)
{
    const char *before = passed;
    passed = event;
    return before;
}

vmh_vm *vmh_current(void) { return vm; }

/* ---- the test */

/* A call that runs a line, a branch (both ways end at one place) and a return of its own code, and a line of the
 * standard library's. */
static void run(void)
{
    PyObject own = {.pointer = (char[]){"task@1/main.py"}}, other = {.pointer = (char[]){"task@12/main.py"}},
             name = {.pointer = (char[]){"run"}};
    PyCodeObject code = {{.type = &PyCode_Type}, &own, &name, 3}, library = {{.type = &PyCode_Type}, &other, &name, 1};
    PyObject from = {.number = 7}, to = {.number = 9}, *args[] = {&code.base, &from, &to};
    for (int bit = LINES; bit <= RETURNS; bit *= 2) {
        if ((watched & bit) == 0)
            continue;
        args[0] = &code.base;
        PyObject *result = callbacks[bit](NULL, args, bit == LINES || bit == RETURNS ? 2 : 3);
        CHECK(result == &disable && PyErr_Occurred() == NULL);
        args[0] = &library.base;
        CHECK(callbacks[bit](NULL, args, 3) == &disable);
        args[0] = &from;
        CHECK(callbacks[bit](NULL, args, 3) == NULL && PyErr_Occurred() == PyExc_TypeError);
        PyErr_Clear();
        args[0] = &code.base;
        CHECK(callbacks[bit](NULL, args, 1) == NULL && PyErr_Occurred() == PyExc_TypeError);
        PyErr_Clear();
    }
}

/* A VM's life with two calls; gives how many points are known, -1: a call failed on the way. */
static int live(long failing, long failing_memory)
{
    vmh_lane lane = {.name = "task", .version = "1", .coverage = 1};
    vm->cover = (vmh_cover){0};
    used = false;
    watched = 0;
    vmh_coverage_clear();
    CHECK(vmh_cover_boot(&vm->cover) == 0);
    objects_fail(failing);
    bool failed_memory = false;
    for (int i = 0; i < 2; i++) {
        PyErr_SetNone(PyExc_ValueError); /* of the call: coverage does not touch it */
        vmh_cover_begin(&vm->cover, &lane, i == 0);
        CHECK(PyErr_Occurred() == PyExc_ValueError && passed == NULL && vm->cover.on == (watched != 0));
        PyErr_Clear();
        failing_malloc(i == 0 ? failing_memory
                              : -1); /* of what the process knows: objects are made of the same memory */
        run();
        failed_memory = failing_malloc(-1) || failed_memory;
        PyErr_SetNone(PyExc_ValueError);
        vmh_cover_end(&vm->cover);
        CHECK(PyErr_Occurred() == PyExc_ValueError && !vm->cover.on);
        CHECK(watched == 0 || vm->cover.failed);
        watched = 0;
        PyErr_Clear();
    }
    bool failed = objects_fail(-1);
    const vmh_coverage *known = vmh_coverage_lock();
    const int count = known->count;
    CHECK(count == 3 || failed || failed_memory);
    CHECK(!failed_memory || known->full);
    vmh_coverage_unlock();
    vmh_cover_clear(&vm->cover);
    CHECK(objects_live() == 0 && vm->cover.monitoring == NULL && vm->cover.disable == NULL);
    return failed || failed_memory ? -1 : count;
}

static void not_asked_for(void)
{
    vmh_lane lane = {.name = "task", .version = "1"};
    vm->cover = (vmh_cover){0};
    vmh_cover_begin(&vm->cover, &lane, true);
    CHECK(!vm->cover.on && !vm->cover.failed);
    lane.coverage = 0.5;
    there = false;
    CHECK(vmh_cover_boot(&vm->cover) == 0);
    vmh_cover_begin(&vm->cover, &lane, true); /* a Python without sys.monitoring */
    CHECK(!vm->cover.on && vm->cover.failed && PyErr_Occurred() == NULL);
    vmh_cover_end(&vm->cover);
    vmh_cover_clear(&vm->cover);
}

int main(void)
{
    long calls = 0, allocations = 0;
    vm = calloc(1, sizeof *vm);
    CHECK(vm != NULL);
    there = true;
    while (live(calls, -1) < 0)
        calls++;
    while (live(-1, allocations) < 0)
        allocations++;
    CHECK(calls > 20 && allocations > 2 && live(-1, -1) == 3);
    not_asked_for();
    vmh_coverage_clear();
    free(vm);
    printf("test_cover: passed, %ld calls and %ld allocations failed once each\n", calls, allocations);
    return 0;
}
