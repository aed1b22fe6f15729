/* The importer, the only way for code into a VM: it finds modules in the code stores, unmarshals their code, and opens
 * native modules that the policy knows.
 *
 * It does not trust its caller: a guest that calls these functions gets only code that its bundle or the standard
 * library has anyway, or a native module that is already gated. Before the VM existed, the code stores were
 * digest-checked, and their code was accepted by the verifier (`bytecode/verifier`) or compiled by this Python.
 */
#include "wire/engine.h"
#include "seal/gates.h"
#include "memory/library_memory.h"

#include <limits.h>
#include <marshal.h>
#include <string.h>
#include <unistd.h>

enum { KIND_MODULE = 0, KIND_PACKAGE = 1, KIND_BUILTIN = 2, KIND_DYNAMIC = 3 };

/* The location of CPython's own native modules; the same for every VM, set by the first one that boots. */
static pthread_mutex_t once_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    bool set;
    PyMethodDef *create_builtin, *exec_builtin, *create_dynamic, *exec_dynamic;
    char folders[8][PATH_MAX];
    int folder_count;
    char suffix[64];
} python;

/* A native module at another location. Written once, before the first VM. */
static struct {
    const char *name, *path;
} lent;

void vmh_importer_lend(const char *name, const char *path)
{
    lent.name = name;
    lent.path = path;
}

static vmh_code_store *task_store(void)
{
    vmh_seal *seal = vmh_seal_here();
    return seal == NULL ? NULL : seal->task;
}

static PyObject *native_create(PyObject *native, PyObject *asked);

static const vmh_code_entry *module_find(const char *name)
{
    vmh_code_store *task = task_store();
    const vmh_code_entry *found = NULL;
    if (!vmh_code_store_is_module(name))
        return NULL;
    /* creation.c left it out. `importlib` and `zipimport` import it under the name that it has when CPython loads it
     * early. */
    if (strcmp(name, "_frozen_importlib_external") == 0)
        return vmh_code_store_find(vmh_vm_system(vmh_current()), "importlib._bootstrap_external");
    /* A task's module shadows one of the standard library, like a script's folder; it cannot shadow the guest runtime.
     */
    if (task != NULL && strncmp(name, "vmhost", 6) != 0)
        found = vmh_code_store_find(task, name);
    return found != NULL ? found : vmh_code_store_find(vmh_vm_system(vmh_current()), name);
}

static bool is_builtin(const char *name)
{
    for (const struct _inittab *entry = PyImport_Inittab; entry->name != NULL; entry++)
        if (strcmp(entry->name, name) == 0)
            return true;
    return false;
}

static bool dynamic_path(const char *name, char path[PATH_MAX])
{
    const char *ours = lent.name != NULL && strcmp(name, lent.name) == 0 ? lent.path : vmh_engine_module(name);
    if (ours != NULL)
        return snprintf(path, PATH_MAX, "%s", ours) < PATH_MAX && access(path, R_OK) == 0;
    for (int i = 0; i < python.folder_count; i++)
        if (snprintf(path, PATH_MAX, "%s/%s%s", python.folders[i], name, python.suffix) < PATH_MAX
            && access(path, R_OK) == 0)
            return true;
    return false;
}

/* The text of a module's or file's name; "", which matches nothing, if it contains a NUL. NULL with an error set. */
static const char *name_text(PyObject *name, const char *function)
{
    Py_ssize_t size;
    if (!PyUnicode_Check(name)) {
        PyErr_Format(PyExc_TypeError, "%s: expected str, got %T", function, name);
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(name, &size);
    return text == NULL || strlen(text) == (size_t)size ? text : "";
}

static PyObject *native_find(PyObject *Py_UNUSED(native), PyObject *name)
{
    const char *text = name_text(name, "find");
    if (text == NULL)
        return NULL;
    char path[PATH_MAX];
    const vmh_code_entry *found = module_find(text);
    if (found != NULL)
        return PyLong_FromLong(found->is_package ? KIND_PACKAGE : KIND_MODULE);
    if (vmh_policy_knows(text)) {
        if (is_builtin(text))
            return PyLong_FromLong(KIND_BUILTIN);
        if (dynamic_path(text, path))
            return PyLong_FromLong(KIND_DYNAMIC);
    }
    Py_RETURN_NONE;
}

static PyObject *code_read(const vmh_code_entry *module)
{
    unsigned before = vmh_pass_set(VMH_PASS_CODE);
    PyObject *code = PyMarshal_ReadObjectFromString((const char *)module->code, (Py_ssize_t)module->size);
    vmh_pass_set(before);
    if (code != NULL && !PyCode_Check(code)) {
        PyErr_Format(PyExc_ImportError, "%s: the bundle holds %T where code was expected", module->name, code);
        Py_CLEAR(code);
    }
    if (code != NULL && vmh_compat_has_generics(module->code, module->size))
        vmh_compat_tame_generics((PyCodeObject *)code);
    return code;
}

static PyObject *native_code(PyObject *Py_UNUSED(native), PyObject *name)
{
    const char *text = name_text(name, "code");
    if (text == NULL)
        return NULL;
    const vmh_code_entry *found = module_find(text);
    if (found == NULL)
        return PyErr_Format(PyExc_ModuleNotFoundError, "no module named '%s' in the bundle", text);
    return code_read(found);
}

/* The code of a text that the cloud compiled, by its SHA-256; None: there is none. */
static PyObject *native_text(PyObject *Py_UNUSED(native), PyObject *digest)
{
    if (!PyBytes_Check(digest) || PyBytes_GET_SIZE(digest) != 32)
        return PyErr_Format(PyExc_TypeError, "text: expected 32 bytes, got %R", digest);
    vmh_code_store *task = task_store();
    const uint8_t *key = (const uint8_t *)PyBytes_AS_STRING(digest);
    const vmh_code_entry *found = task == NULL ? NULL : vmh_code_store_find_text(task, key);
    if (found == NULL)
        found = vmh_code_store_find_text(vmh_vm_system(vmh_current()), key);
    if (found == NULL)
        Py_RETURN_NONE;
    return code_read(found);
}

static PyObject *native_file(PyObject *Py_UNUSED(native), PyObject *path)
{
    const char *text = name_text(path, "file");
    if (text == NULL)
        return NULL;
    vmh_code_store *task = task_store();
    const vmh_code_entry *found = task == NULL ? NULL : vmh_code_store_find_file(task, text);
    if (found == NULL)
        Py_RETURN_NONE;
    return PyBytes_FromStringAndSize((const char *)found->code, (Py_ssize_t)found->size);
}

static int file_visit(const vmh_code_entry *module, void *list)
{
    PyObject *name = PyUnicode_FromString(module->name + 1);
    int rc = name == NULL ? -1 : PyList_Append(list, name);
    Py_XDECREF(name);
    return rc;
}

static PyObject *native_files(PyObject *Py_UNUSED(native), PyObject *Py_UNUSED(unused))
{
    vmh_code_store *task = task_store();
    PyObject *list = PyList_New(0);
    if (list != NULL && task != NULL && vmh_code_store_visit(task, "/", file_visit, list) < 0)
        Py_CLEAR(list);
    if (list != NULL && PyList_Sort(list) < 0)
        Py_CLEAR(list);
    return list;
}

typedef struct {
    const char *prefix; /* "package.", or "" */
    PyObject *found;    /* dict: name -> whether it is a package */
} children;

static int child_visit(const vmh_code_entry *module, void *context)
{
    children *all = context;
    const char *name = module->name + strlen(all->prefix);
    if (!vmh_code_store_is_module(module->name) || *name == 0 || strchr(name, '.') != NULL)
        return 0;
    return PyDict_SetItemString(all->found, name, module->is_package ? Py_True : Py_False);
}

static PyObject *native_modules(PyObject *Py_UNUSED(native), PyObject *package)
{
    const char *text = name_text(package, "modules");
    if (text == NULL)
        return NULL;
    char *prefix = PyMem_Malloc(strlen(text) + 2);
    if (prefix == NULL)
        return PyErr_NoMemory();
    sprintf(prefix, "%s%s", text, *text == 0 ? "" : ".");
    vmh_code_store *task = task_store(), *system = vmh_vm_system(vmh_current());
    children all = {prefix, PyDict_New()};
    bool own = *text == 0 || (task != NULL && vmh_code_store_find(task, text) != NULL);
    if (all.found != NULL
        && ((task != NULL && own && vmh_code_store_visit(task, prefix, child_visit, &all) < 0)
            || ((*text == 0 || !own) && vmh_code_store_visit(system, prefix, child_visit, &all) < 0)))
        Py_CLEAR(all.found);
    PyMem_Free(prefix);
    return all.found;
}

/* --- the second phase
 *
 * While it runs, the module's types exist, but are neither finished nor gated. `__subclasses__` omits them until then,
 * since the module may import Python code. */

static PyObject *subclasses(PyObject *type, PyObject *Py_UNUSED(unused));
static PyMethodDef subclasses_def = {
    "__subclasses__", subclasses, METH_NOARGS,
    PyDoc_STR("__subclasses__($self, /)\n--\n\nReturn a list of immediate subclasses.")};
static _Atomic(PyMethodDef *) subclasses_original;

static bool is_under_way(const vmh_seal *seal, PyObject *type)
{
    if (!PyType_Check(type) || !(((PyTypeObject *)type)->tp_flags & Py_TPFLAGS_HEAPTYPE))
        return false;
    PyObject *module = ((PyHeapTypeObject *)type)->ht_module;
    for (const vmh_making *one = seal->making; module != NULL && one != NULL; one = one->next)
        if (one->module == module)
            return true;
    return false;
}

static PyObject *subclasses(PyObject *type, PyObject *Py_UNUSED(unused))
{
    const vmh_seal *seal = vmh_seal_here();
    PyObject *all = atomic_load(&subclasses_original)->ml_meth(type, NULL);
    if (all == NULL || seal == NULL || seal->making == NULL)
        return all;
    PyObject *visible = PyList_New(0);
    for (Py_ssize_t i = 0; visible != NULL && i < PyList_GET_SIZE(all); i++)
        if (!is_under_way(seal, PyList_GET_ITEM(all, i)) && PyList_Append(visible, PyList_GET_ITEM(all, i)) < 0)
            Py_CLEAR(visible);
    Py_DECREF(all);
    return visible;
}

/* `type` is a static type, whose attributes are in a dict per interpreter. This one has not been looked up yet, so no
 * cache has it. */
int vmh_subclasses_gate(void)
{
    PyMethodDef *def = PyType_Type.tp_methods;
    while (def->ml_name != NULL && strcmp(def->ml_name, subclasses_def.ml_name) != 0)
        def++;
    if (def->ml_name == NULL || !(def->ml_flags & METH_NOARGS)) {
        PyErr_SetString(PyExc_SystemError, "type.__subclasses__ cannot be gated in this Python");
        return -1;
    }
    atomic_store(&subclasses_original, def);
    PyObject *dict = PyType_GetDict(&PyType_Type),
             *gate = dict == NULL ? NULL : PyDescr_NewMethod(&PyType_Type, &subclasses_def);
    int rc = gate == NULL ? -1 : PyDict_SetItemString(dict, subclasses_def.ml_name, gate);
    Py_XDECREF(gate);
    Py_XDECREF(dict);
    return rc;
}

/* Executes and gates `module`; 0, or -1 with an error set. */
static int second_phase(PyObject *module, const char *text, PyMethodDef *exec)
{
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL) {
        vmh_deny("this thread is not one of the task's", "import of %s", text);
        return -1;
    }
    vmh_making making = {module, seal->making, &seal->making};
    if (making.next != NULL)
        making.next->link = &making.next;
    seal->making = &making;
    PyObject *status = vmh_def_call(exec, NULL, NULL, &module, 1, NULL);
    *making.link = making.next;
    if (making.next != NULL)
        making.next->link = making.link;
    int rc = status == NULL ? -1 : vmh_gate_module(module, text);
    Py_XDECREF(status);
    return rc;
}

/* --- the second phase of a module during which no Python of a guest may run
 *
 * Above all for modules with gates: no Python runs from the start of the phase until the module is gated. Its imports
 * are looked up only in `sys.modules`, and must be plain modules there. Two modules trust what they import, and so get
 * native stand-ins during the phase: `_sqlite3` assumes that functools.lru_cache returns statements, and `_decimal`
 * passes its unfinished type to numbers.Number. */

static PyObject *cache_of(PyObject *size, PyObject *function)
{
    PyObject *kind = PyTuple_GET_ITEM(size, 1);
    return PyObject_CallFunction(kind, "OOOO", function, PyTuple_GET_ITEM(size, 0), Py_False, Py_None);
}

static PyMethodDef cache_of_def = {"lru_cache", cache_of, METH_O, NULL};

/* lru_cache(size) -> a decorator; `kind` is the type of the decorated function. */
static PyObject *lru_cache(PyObject *kind, PyObject *size)
{
    PyObject *both = PyLong_CheckExact(size) ? PyTuple_Pack(2, size, kind) : NULL;
    if (both == NULL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "lru_cache: expected int, got %T", size);
    PyObject *wrapper = PyCFunction_New(&cache_of_def, both);
    Py_DECREF(both);
    return wrapper;
}

static PyMethodDef lru_cache_def = {"lru_cache", lru_cache, METH_O, NULL};

static void list_free(PyObject *capsule) { Py_DECREF((PyObject *)PyCapsule_GetPointer(capsule, NULL)); }

/* register(type) -> type, of the stand-in for numbers.Number: the type is registered after the phase. */
static PyObject *number_register(PyObject *capsule, PyObject *type)
{
    PyObject *list = PyCapsule_GetPointer(capsule, NULL);
    return list == NULL || PyList_Append(list, type) < 0 ? NULL : Py_NewRef(type);
}

static PyMethodDef number_register_def = {"register", number_register, METH_O, NULL};

/* A module with what `_decimal` imports from `numbers`; `types` collects the types that it registers. */
static PyObject *numbers_native(PyObject *numbers, PyObject *types)
{
    PyObject *capsule = PyCapsule_New(types, NULL, list_free);
    if (capsule != NULL)
        Py_INCREF(types);
    PyObject *function = capsule == NULL ? NULL : PyCFunction_New(&number_register_def, capsule);
    PyObject *number = function == NULL ? NULL : PyModule_New("Number"),
             *module = number == NULL ? NULL : PyModule_New("numbers");
    PyObject *rational = module == NULL ? NULL : PyObject_GetAttrString(numbers, "Rational");
    if (rational == NULL || PyModule_AddObjectRef(number, "register", function) < 0
        || PyModule_AddObjectRef(module, "Number", number) < 0
        || PyModule_AddObjectRef(module, "Rational", rational) < 0)
        Py_CLEAR(module);
    Py_XDECREF(rational);
    Py_XDECREF(number);
    Py_XDECREF(function);
    Py_XDECREF(capsule);
    return module;
}

/* Registers the types with the real numbers.Number; 0, or -1 with an error set. */
static int numbers_register(PyObject *numbers, PyObject *types)
{
    PyObject *number = PyObject_GetAttrString(numbers, "Number"), *result = number;
    for (Py_ssize_t i = 0; result != NULL && i < PyList_GET_SIZE(types); i++) {
        PyObject *type = Py_NewRef(PyList_GET_ITEM(types, i));
        result = PyObject_CallMethod(number, "register", "O", type);
        Py_DECREF(type);
        Py_XDECREF(result);
    }
    Py_XDECREF(number);
    return result == NULL ? -1 : 0;
}

/* A module with what `_sqlite3` imports from functools. */
static PyObject *functools_native(void)
{
    PyObject *name = PyUnicode_FromString("_functools"), *native = name == NULL ? NULL : native_create(NULL, name);
    PyObject *kind = native == NULL ? NULL : PyObject_GetAttrString(native, "_lru_cache_wrapper");
    PyObject *function = kind == NULL ? NULL : PyCFunction_New(&lru_cache_def, kind), *module = NULL;
    if (function != NULL && (module = PyModule_New("functools")) != NULL
        && PyModule_AddObjectRef(module, "lru_cache", function) < 0)
        Py_CLEAR(module);
    Py_XDECREF(name);
    Py_XDECREF(native);
    Py_XDECREF(kind);
    Py_XDECREF(function);
    return module;
}

/* Whether all keys are exact str. Comparing others would run Python of the guest's. */
static bool has_plain_keys(PyObject *dict)
{
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (dict == NULL || !PyDict_CheckExact(dict))
        return false;
    while (PyDict_Next(dict, &at, &key, &value))
        if (!PyUnicode_CheckExact(key))
            return false;
    return true;
}

/* `__import__` during such a phase: the caller then takes the module from sys.modules. Attributes of a plain module are
 * read without running Python. */
static PyObject *quiet_import(PyObject *is_gated, PyObject *args)
{
    if (is_gated != Py_True)
        Py_RETURN_NONE;
    PyObject *name = PyTuple_GET_SIZE(args) > 0 ? PyTuple_GET_ITEM(args, 0) : Py_None;
    PyObject *module = PyUnicode_CheckExact(name) ? PyDict_GetItemWithError(PyImport_GetModuleDict(), name) : NULL;
    PyObject *dict = module != NULL && PyModule_CheckExact(module) ? PyModule_GetDict(module) : NULL;
    if (!has_plain_keys(dict) || vmh_dict_get(dict, "__getattr__") != NULL)
        return PyErr_Occurred()
                   ? NULL
                   : PyErr_Format(PyExc_ImportError, "a native module needs %R, which is not as Python made it", name);
    Py_RETURN_NONE;
}

static PyMethodDef quiet_import_def = {"__import__", quiet_import, METH_VARARGS, NULL};

typedef struct {
    PyObject *module;       /* borrowed; NULL: the phase has run */
    PyObject *stand_in;     /* borrowed; NULL: none needed */
    const char *stands_for; /* the name of the module that it replaces */
    PyMethodDef *exec;
    const char *text;
} quiet_phase;

static void quiet_free(PyObject *capsule) { PyMem_Free(PyCapsule_GetPointer(capsule, NULL)); }

static PyObject *quiet_run(PyObject *capsule, PyObject *Py_UNUSED(unused))
{
    quiet_phase *phase = PyCapsule_GetPointer(capsule, NULL);
    PyObject *modules = PyImport_GetModuleDict(), *module = phase == NULL ? NULL : phase->module, *status = NULL,
             *key = NULL, *before = NULL;
    if (module == NULL)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "a module's second phase runs once");
    phase->module = NULL;
    if (!has_plain_keys(modules))
        return PyErr_Format(PyExc_ImportError, "native module '%s': sys.modules holds keys that are no str",
                            phase->text);
    if (phase->stand_in != NULL) {
        if ((key = PyUnicode_FromString(phase->stands_for)) == NULL)
            return NULL;
        before = Py_XNewRef(PyDict_GetItemWithError(modules, key));
        if (PyErr_Occurred() || PyDict_SetItem(modules, key, phase->stand_in) < 0)
            goto done;
    }
    status = second_phase(module, phase->text, phase->exec) < 0 ? NULL : Py_NewRef(Py_None);
    if (phase->stand_in != NULL) {
        PyObject *error = PyErr_GetRaisedException();
        int rc = before == NULL ? PyDict_DelItem(modules, key) : PyDict_SetItem(modules, key, before);
        if (rc < 0) {
            Py_CLEAR(status);
            Py_XDECREF(error);
        } else
            PyErr_SetRaisedException(error);
    }
done:
    Py_XDECREF(before);
    Py_XDECREF(key);
    return status;
}

static PyMethodDef quiet_run_def = {"run", quiet_run, METH_NOARGS, NULL};

/* Modules that are imported before such a phase begins. */
static const struct {
    const char *by, *name;
} needed[] = {
    {"_ssl", "_socket"},
    {"_decimal", "collections"},
    {"_decimal", "collections.abc"},
};

/* Executes and gates `module`; 0, or -1 with an error set. A module's imports use the globals of the calling frame,
 * which would be a guest's: hence a frame with globals of our own. */
static int second_phase_quiet(PyObject *module, const char *text, PyMethodDef *exec)
{
    int rc = -1;
    PyObject *globals = PyDict_New(), *builtins = PyDict_New(), *stand_in = NULL;
    PyObject *import = PyCFunction_New(&quiet_import_def, vmh_policy_gates(text) ? Py_True : Py_False);
    PyObject *numbers = NULL, *types = NULL;
    PyObject *code = vmh_dict_get(PyInterpreterState_GetDict(PyInterpreterState_Get()), "vmhost.enter"),
             *capsule = NULL, *run = NULL;
    PyObject *enter = NULL, *result = NULL;
    quiet_phase *phase = NULL;
    if (globals == NULL || builtins == NULL || import == NULL
        || PyDict_SetItemString(builtins, "__import__", import) < 0
        || PyDict_SetItemString(globals, "__builtins__", builtins) < 0)
        goto done;
    if (strcmp(text, "_sqlite3") == 0 && (stand_in = functools_native()) == NULL)
        goto done;
    if (strcmp(text, "_decimal") == 0
        && ((types = PyList_New(0)) == NULL || (numbers = PyImport_ImportModule("numbers")) == NULL
            || (stand_in = numbers_native(numbers, types)) == NULL))
        goto done;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++)
        if (strcmp(text, needed[i].by) == 0) {
            PyObject *there = PyImport_ImportModule(needed[i].name);
            Py_XDECREF(there);
            if (there == NULL)
                goto done;
        }
    if (code == NULL) {
        PyErr_SetString(PyExc_ImportError, "native modules with gates are opened once the VM has booted");
        goto done;
    }
    phase = PyMem_Malloc(sizeof *phase);
    if (phase == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    *phase = (quiet_phase){module, stand_in, types == NULL ? "functools" : "numbers", exec, text};
    if ((capsule = PyCapsule_New(phase, NULL, quiet_free)) == NULL) {
        PyMem_Free(phase);
        goto done;
    }
    if ((run = PyCFunction_New(&quiet_run_def, capsule)) == NULL || (enter = PyFunction_New(code, globals)) == NULL)
        goto done;
    result = PyObject_CallOneArg(enter, run);
    phase->module = NULL; /* in case it never ran */
    rc = result == NULL || (types != NULL && numbers_register(numbers, types) < 0) ? -1 : 0;
done:
    Py_XDECREF(globals);
    Py_XDECREF(builtins);
    Py_XDECREF(import);
    Py_XDECREF(stand_in);
    Py_XDECREF(numbers);
    Py_XDECREF(types);
    Py_XDECREF(capsule);
    Py_XDECREF(run);
    Py_XDECREF(enter);
    Py_XDECREF(result);
    return rc;
}

/* create(name) -> module, executed and gated. Both phases run here, before anyone gets the module: functions of a
 * module that was not executed read missing state; and so the gates apply to what the module created, not to a guest's
 * replacement. */
static PyObject *native_create(PyObject *Py_UNUSED(native), PyObject *asked)
{
    PyObject *module = NULL, *spec = NULL, *origin = NULL, *name = NULL;
    const char *text = name_text(asked, "create");
    char path[PATH_MAX];
    if (text == NULL || !vmh_policy_knows(text))
        return text == NULL
                   ? NULL
                   : PyErr_Format(PyExc_ModuleNotFoundError, "native module '%s' is not available in a VM", text);
    bool builtin = is_builtin(text);
    if (builtin)
        origin = PyUnicode_FromString("built-in");
    else if (dynamic_path(text, path))
        origin = PyUnicode_DecodeFSDefault(path);
    else
        return PyErr_Format(PyExc_ModuleNotFoundError, "native module '%s' does not come with this Python", text);
    /* Our own spec and str: a guest's could return another name at each access. */
    name = PyUnicode_FromString(text);
    spec = name == NULL ? NULL : PyModule_NewObject(name);
    if (spec == NULL || origin == NULL || PyObject_SetAttrString(spec, "name", name) < 0
        || PyObject_SetAttrString(spec, "origin", origin) < 0)
        goto done;
    if (vmh_engine_module(text) != NULL && vmh_engine_enter(vmh_current()) < 0)
        goto done;
    unsigned before = vmh_pass_set(VMH_PASS_NATIVE);
    module = vmh_def_call(builtin ? python.create_builtin : python.create_dynamic, NULL, NULL, &spec, 1, NULL);
    vmh_pass_set(before);
    if (module == NULL)
        goto done;
    vmh_library_memory_loaded(text, builtin ? NULL : path);
    if (!PyModule_Check(module) || PyModule_GetDef(module) == NULL) {
        PyErr_Format(PyExc_ImportError, "native module '%s' has no definition", text);
        Py_CLEAR(module);
        goto done;
    }
    PyMethodDef *exec = builtin ? python.exec_builtin : python.exec_dynamic;
    /* Without the pass: it may import Python code. */
    bool quiet = vmh_policy_gates(text) || strcmp(text, "_decimal") == 0;
    if ((quiet ? second_phase_quiet(module, text, exec) : second_phase(module, text, exec)) < 0)
        Py_CLEAR(module);
done:
    Py_XDECREF(origin);
    Py_XDECREF(spec);
    Py_XDECREF(name);
    return module;
}

static PyMethodDef methods[] = {
    {"find", native_find, METH_O,
     PyDoc_STR("find(name) -> 0 module, 1 package, 2 builtin, 3 dynamic native module, or None")},
    {"code", native_code, METH_O, PyDoc_STR("code(name) -> the code object of a module in the bundles")},
    {"text", native_text, METH_O, PyDoc_STR("text(digest) -> the code object of a precompiled text, or None")},
    {"file", native_file, METH_O, PyDoc_STR("file(path) -> the bytes of a file of the task's bundle, or None")},
    {"files", native_files, METH_NOARGS, PyDoc_STR("The paths of the files of the task's bundle, sorted.")},
    {"modules", native_modules, METH_O,
     PyDoc_STR("modules(package) -> {name: whether it is a package} of the bundles' modules in a package; \"\": all")},
    {"create", native_create, METH_O, PyDoc_STR("create(name) -> native module, executed and gated")},
    {NULL, NULL, 0, NULL},
};

static PyMethodDef *imp_def(PyObject *dict, const char *name)
{
    PyObject *function = vmh_dict_get(dict, name);
    if (function == NULL && PyErr_Occurred())
        return NULL;
    if (function == NULL || !PyCFunction_CheckExact(function)) {
        PyErr_Format(PyExc_SystemError, "_imp.%s is missing in this Python", name);
        return NULL;
    }
    return ((PyCFunctionObject *)function)->m_ml;
}

/* The first VM of the process records how this Python opens its native modules, from `_imp` before it is gated. */
static int python_learn(void)
{
    int rc = -1;
    PyObject *suffixes = NULL, *imp = PyImport_ImportModule("_imp"), *dict = imp == NULL ? NULL : PyModule_GetDict(imp);
    vmh_mutex_lock(&once_lock);
    if (python.set) {
        rc = 0;
        goto done;
    }
    if (dict == NULL || (python.create_builtin = imp_def(dict, "create_builtin")) == NULL
        || (python.exec_builtin = imp_def(dict, "exec_builtin")) == NULL
        || (python.create_dynamic = imp_def(dict, "create_dynamic")) == NULL
        || (python.exec_dynamic = imp_def(dict, "exec_dynamic")) == NULL)
        goto done;
    suffixes = PyObject_CallMethod(imp, "extension_suffixes", NULL);
    if (suffixes == NULL || !PyList_Check(suffixes) || PyList_GET_SIZE(suffixes) == 0)
        goto done;
    const char *suffix = PyUnicode_AsUTF8(PyList_GET_ITEM(suffixes, 0));
    if (suffix == NULL || strlen(suffix) >= sizeof python.suffix)
        goto done;
    strcpy(python.suffix, suffix);
    PyObject *path = PySys_GetObject("path");
    if (path == NULL)
        goto done; /* the next VM tries again */
    python.folder_count = 0;
    for (Py_ssize_t i = 0; path != NULL && PyList_Check(path) && i < PyList_GET_SIZE(path) && python.folder_count < 8;
         i++) {
        const char *folder =
            PyUnicode_Check(PyList_GET_ITEM(path, i)) ? PyUnicode_AsUTF8(PyList_GET_ITEM(path, i)) : NULL;
        size_t size = folder == NULL ? 0 : strlen(folder);
        if (size > 11 && size < PATH_MAX && strcmp(folder + size - 11, "lib-dynload") == 0)
            strcpy(python.folders[python.folder_count++], folder);
    }
    if (PyErr_Occurred())
        goto done;
    python.set = true;
    rc = 0;
done:
    vmh_mutex_unlock(&once_lock);
    Py_XDECREF(suffixes);
    Py_XDECREF(imp);
    if (rc < 0 && !PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "this Python's _imp is not as expected");
    return rc;
}

int vmh_importer_add(PyObject *native) { return python_learn() < 0 ? -1 : PyModule_AddFunctions(native, methods); }

PyObject *vmh_importer_code(const char *name)
{
    const vmh_code_entry *found = vmh_code_store_find(vmh_vm_system(vmh_current()), name);
    if (found == NULL)
        return PyErr_Format(PyExc_ModuleNotFoundError, "the system code store has no module '%s'", name);
    return code_read(found);
}
