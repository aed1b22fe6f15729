/* Turns a fresh interpreter into a sealed VM: gates its native modules, boots the guest runtime, arms the audit hook.
 */
#include "seal/function_code.h"
#include "seal/gates.h"

#include <frameobject.h>
#include <string.h>

/* Gates every native module that the interpreter has imported; builtins last, since its `open` is _io's. */
static int gate_present(void)
{
    PyObject *modules = PyImport_GetModuleDict();
    PyObject *items = modules == NULL || !PyDict_Check(modules) ? NULL : PyDict_Items(modules);
    int rc = -1;
    if (items == NULL)
        goto done;
    for (int last = 0; last < 2; last++)
        for (Py_ssize_t i = 0; i < PyList_GET_SIZE(items); i++) {
            PyObject *pair = PyList_GET_ITEM(items, i), *module = PyTuple_GET_ITEM(pair, 1);
            const char *name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(pair, 0));
            if (name == NULL)
                goto done;
            if ((strcmp(name, "builtins") == 0) == last && PyModule_Check(module) && vmh_policy_knows(name)
                && vmh_gate_module(module, name) < 0)
                goto done;
        }
    rc = 0;
done:
    Py_XDECREF(items);
    return rc;
}

/* Attributes of a frame that, when set, change what runs next or trace it. A jump (f_lineno) lands where the stack and
 * the locals are not as the verifier proved. A jump needs a trace function, and none can be set in a VM; but if the
 * host ever sets one, this must stay closed. */
static struct {
    const char *name;
    PyGetSetDef def;
} frame_settings[] = {
    {.name = "f_lineno"},
    {.name = "f_trace"},
    {.name = "f_trace_opcodes"},
};

static int frame_set(PyObject *Py_UNUSED(frame), PyObject *Py_UNUSED(value), void *name)
{
    vmh_deny("tasks do not trace", "frame.%s = …", (const char *)name);
    return -1;
}

/* The frame type is static, and its attributes are in a dict per interpreter. These have not been looked up yet, so no
 * attribute cache has them. */
static int frames_gate(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    PyObject *dict = PyType_GetDict(&PyFrame_Type), *new = NULL;
    int rc = dict == NULL ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < sizeof frame_settings / sizeof *frame_settings; i++) {
        const char *name = frame_settings[i].name;
        PyGetSetDef *def = &frame_settings[i].def;
        PyObject *original = vmh_dict_get(dict, name);
        if (original == NULL && PyErr_Occurred()) {
            rc = -1;
            break;
        }
        if (original == NULL || !Py_IS_TYPE(original, &PyGetSetDescr_Type)) {
            PyErr_Format(PyExc_SystemError, "frame.%s cannot be gated in this Python", name);
            rc = -1;
            break;
        }
        pthread_mutex_lock(&lock);
        if (def->name == NULL)
            *def = (PyGetSetDef){name, ((PyGetSetDescrObject *)original)->d_getset->get, frame_set,
                                 ((PyGetSetDescrObject *)original)->d_getset->doc, (void *)name};
        pthread_mutex_unlock(&lock);
        new = PyDescr_NewGetSet(&PyFrame_Type, def);
        rc = new == NULL ? -1 : PyDict_SetItemString(dict, name, new);
        Py_CLEAR(new);
    }
    Py_XDECREF(dict);
    return rc;
}

/* PEP 667 lets `frame.f_locals[name] = value` write into a running frame. A task may do so in frames of its own
 * functions: the verifier assumes nothing about their variables (bytecode/verifier/rules.py). It may not in frames of
 * the guest runtime and the standard library, which trust their variables. Nor may it where the compiler keeps values
 * that the interpreter uses unchecked, under names that are not identifiers, such as a generic function's `.defaults`.
 * Keys are not inspected, as one may change between check and use: the whole frame is read-only then. The type is
 * static: its slots are process-wide, hence the check of who writes; its attributes are per interpreter. */
static objobjargproc _Atomic locals_assign;
static binaryfunc _Atomic locals_merge;

bool vmh_seal_is_library(const vmh_seal *seal, PyCodeObject *code)
{
    static const char frozen[] = "<frozen ";
    const char *file = PyUnicode_AsUTF8(code->co_filename), *slash = strchr(seal->runtime, '/');
    return file == NULL || slash == NULL || strncmp(file, frozen, sizeof frozen - 1) == 0
           || strncmp(file, seal->runtime, (size_t)(slash - seal->runtime) + 1) == 0;
}

static bool is_of_task(PyCodeObject *code, const vmh_seal *seal)
{
    /* Code made from recipes has a name like "<string>". */
    return !vmh_seal_is_library(seal, code) && PyUnicode_FindChar(code->co_filename, '<', 0, 1, 1) != 0;
}

static bool has_hidden(PyCodeObject *code)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(code->co_localsplusnames); i++)
        if (!PyUnicode_IsIdentifier(PyTuple_GET_ITEM(code->co_localsplusnames, i)))
            return true;
    return false;
}

/* 0, or -1 with PermissionDenied set. */
static int locals_check(PyObject *locals)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL)
        return 0;
    PyCodeObject *code = PyFrame_GetCode(((PyFrameLocalsProxyObject *)locals)->frame);
    bool is_free = is_of_task(code, seal) && !has_hidden(code);
    Py_DECREF(code);
    if (is_free)
        return 0;
    PyErr_Clear();
    vmh_deny("a task writes the variables of its own functions only, and not where the compiler has hidden ones",
             "frame.f_locals");
    return -1;
}

static int locals_assign_gate(PyObject *locals, PyObject *key, PyObject *value)
{
    return locals_check(locals) < 0 ? -1 : atomic_load(&locals_assign)(locals, key, value);
}

static PyObject *locals_merge_gate(PyObject *locals, PyObject *other)
{
    if (PyFrameLocalsProxy_Check(locals) && locals_check(locals) < 0)
        return NULL;
    return atomic_load(&locals_merge)(locals, other);
}

static PyObject *locals_set(PyObject *locals, PyObject *args)
{
    PyObject *key, *value;
    if (!PyArg_UnpackTuple(args, "__setitem__", 2, 2, &key, &value) || locals_assign_gate(locals, key, value) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *locals_delete(PyObject *locals, PyObject *key)
{
    if (locals_assign_gate(locals, key, NULL) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* Checks the frame and calls the type's own method `name`. */
static PyObject *locals_call(PyObject *locals, const char *name, PyObject *args, PyObject *kwargs)
{
    PyMethodDef *def = PyFrameLocalsProxy_Type.tp_methods;
    if (locals_check(locals) < 0)
        return NULL;
    while (def->ml_name != NULL && strcmp(def->ml_name, name) != 0)
        def++;
    PyObject *method = def->ml_name == NULL ? NULL : PyCFunction_New(def, locals);
    PyObject *result = method == NULL ? NULL : PyObject_Call(method, args, kwargs);
    if (method == NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "FrameLocalsProxy.%s is not there in this Python", name);
    Py_XDECREF(method);
    return result;
}

#define LOCALS_METHOD(NAME) \
    static PyObject *locals_##NAME(PyObject *locals, PyObject *args, PyObject *kwargs) \
    { \
        return locals_call(locals, #NAME, args, kwargs); \
    }
LOCALS_METHOD(update)
LOCALS_METHOD(setdefault)
LOCALS_METHOD(pop)

#define LOCALS_DEF(NAME) {#NAME, (PyCFunction)(void (*)(void))locals_##NAME, METH_VARARGS | METH_KEYWORDS, NULL}
static PyMethodDef locals_methods[] = {
    {"__setitem__", locals_set, METH_VARARGS, NULL},
    {"__delitem__", locals_delete, METH_O, NULL},
    {"__ior__", locals_merge_gate, METH_O, NULL},
    LOCALS_DEF(update),
    LOCALS_DEF(setdefault),
    LOCALS_DEF(pop),
};

static void locals_slots(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    PyTypeObject *type = &PyFrameLocalsProxy_Type;
    pthread_mutex_lock(&lock);
    if (atomic_load(&locals_assign) == NULL) {
        atomic_store(&locals_assign, type->tp_as_mapping->mp_ass_subscript);
        atomic_store(&locals_merge, type->tp_as_number->nb_inplace_or);
        __atomic_store_n(&type->tp_as_mapping->mp_ass_subscript, locals_assign_gate, __ATOMIC_SEQ_CST);
        __atomic_store_n(&type->tp_as_number->nb_inplace_or, locals_merge_gate, __ATOMIC_SEQ_CST);
    }
    pthread_mutex_unlock(&lock);
}

static int locals_gate(void)
{
    PyTypeObject *type = &PyFrameLocalsProxy_Type;
    locals_slots();
    PyObject *dict = PyType_GetDict(type), *new = NULL;
    int rc = dict == NULL ? -1 : 0;
    for (size_t i = 0; rc == 0 && i < sizeof locals_methods / sizeof *locals_methods; i++) {
        new = PyDescr_NewMethod(type, &locals_methods[i]);
        rc = new == NULL ? -1 : PyDict_SetItemString(dict, locals_methods[i].ml_name, new);
        Py_CLEAR(new);
    }
    Py_XDECREF(dict);
    return rc;
}

static int denied_make(PyObject *native)
{
    PyObject *dict = PyInterpreterState_GetDict(PyInterpreterState_Get());
    PyObject *denied = PyErr_NewExceptionWithDoc(
        "vmhost.guest.PermissionDenied",
        "The task may not do this. The text names what was denied and the key of task.yaml that would grant it.",
        PyExc_PermissionError, NULL);
    int rc = dict == NULL || denied == NULL || PyDict_SetItemString(dict, "vmhost.denied", denied) < 0
                     || PyModule_AddObjectRef(native, "PermissionDenied", denied) < 0
                 ? -1
                 : 0;
    Py_XDECREF(denied);
    return rc;
}

/* Runs `code` as the module `name`. CPython's function for this uses the path-based importers, which a VM does not
 * have.
 */
static PyObject *module_run(const char *name, PyObject *code)
{
    PyObject *module = PyImport_AddModuleRef(name), *space = module == NULL ? NULL : PyModule_GetDict(module),
             *result = NULL;
    if (space != NULL && PyDict_SetItemString(space, "__builtins__", PyEval_GetBuiltins()) == 0
        && PyDict_SetItemString(space, "__file__", ((PyCodeObject *)code)->co_filename) == 0)
        result = PyEval_EvalCode(code, space, space);
    if (result == NULL)
        Py_CLEAR(module);
    Py_XDECREF(result);
    return module;
}

int vmh_seal_prepare(void)
{
    locals_slots();
    return vmh_repairs_host() < 0 || vmh_super_gate() < 0 || vmh_function_gate() < 0 ? -1 : 0;
}

int vmh_seal_boot(vmh_vm *vm, PyObject *native)
{
    PyObject *code = NULL, *module = NULL, *boot = NULL, *breathe = NULL, *enter = NULL, *importing = NULL,
             *result = NULL;
    int rc = -1;
    vmh_seal *seal = vmh_seal_new(vm);
    if (seal == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    vmh_seal_bind(seal);
    if (denied_make(native) < 0 || vmh_importer_add(native) < 0 || vmh_recording_add(native) < 0
        || PyModule_AddFunctions(native, vmh_function_code_methods) < 0 || gate_present() < 0 || frames_gate() < 0
        || locals_gate() < 0 || vmh_super_gate() < 0 || vmh_function_gate() < 0 || vmh_repairs_make() < 0
        || vmh_subclasses_gate() < 0)
        goto done;
    code = vmh_importer_code("vmhost.guest.boot");
    module = code == NULL ? NULL : module_run("vmhost.guest.boot", code);
    if (module == NULL)
        goto done;
    const char *file = PyUnicode_AsUTF8(((PyCodeObject *)code)->co_filename),
               *slash = file == NULL ? NULL : strrchr(file, '/');
    if (file == NULL)
        goto done;
    size_t folder = slash == NULL ? 0 : (size_t)(slash - file) + 1;
    if (folder < sizeof seal->runtime)
        memcpy(seal->runtime, file, folder);
    boot = PyObject_GetAttrString(module, "boot");
    breathe = PyObject_GetAttrString(module, "breathe");
    enter = PyObject_GetAttrString(module, "enter");
    importing = PyObject_GetAttrString(module, "IMPORT_CODE");
    PyObject *kept = PyInterpreterState_GetDict(PyInterpreterState_Get()); /* borrowed; no guest reaches it */
    if (boot == NULL || breathe == NULL || enter == NULL || importing == NULL || !PyTuple_CheckExact(importing)
        || PyDict_SetItemString(kept, "vmhost.enter", PyFunction_GetCode(enter)) < 0
        || PyDict_SetItemString(kept, "vmhost.breathe", breathe) < 0
        || PyDict_SetItemString(kept, "vmhost.import_code", importing) < 0)
        goto done;
    result = PyObject_CallOneArg(boot, native);
    seal->armed = result != NULL;
    rc = result == NULL ? -1 : 0;
done:
    Py_XDECREF(code);
    Py_XDECREF(module);
    Py_XDECREF(boot);
    Py_XDECREF(breathe);
    Py_XDECREF(enter);
    Py_XDECREF(importing);
    Py_XDECREF(result);
    return rc;
}
