/* The audit hook: the backstop behind the importer and the gates. It sees every interpreter of the process and acts
 * only on threads of a sealed VM. Listed events are allowed; others need a pass of the importer's, or the pass that a
 * gate sets for the one event of its original. */
#include "cpython/creation.h"
#include "seal/sealing.h"

#include <string.h>

/* Events allowed without a pass, the most frequent first. A name that ends in a dot is a prefix, of events that pure
 * Python modules raise: their system calls go through the gates. */
static const char *const harmless[] = {
    "builtins.id",
    "exec",
    "sys._getframe",
    "object.__getattr__",
    "_thread.start_joinable_thread",
    "_thread.start_new_thread",
    "array.__new__",
    "cpython.PyInterpreterState_Clear",
    "email.",
    "ftplib.",
    "function.__new__",
    "glob.",
    "http.client.",
    "imaplib.",
    "object.__delattr__",
    "object.__setattr__",
    "os.fwalk",
    "os.walk",
    "pathlib.",
    "pickle.find_class",
    "poplib.",
    "shutil.",
    "smtplib.",
    "socket.__new__",
    "socket.getservbyname",
    "socket.getservbyport",
    "sqlite3.connect/handle",
    "sys._getframemodulename",
    "sys.excepthook",
    "sys.set_asyncgen_hook_finalizer",
    "sys.set_asyncgen_hook_firstiter",
    "sys.unraisablehook",
    "tempfile.",
    "time.sleep",
    "urllib.",
};

static bool is_harmless(const char *event)
{
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        size_t size = strlen(harmless[i]);
        if (harmless[i][size - 1] == '.' ? strncmp(event, harmless[i], size) == 0 : strcmp(event, harmless[i]) == 0)
            return true;
    }
    return false;
}

/* Whether this is the code that creates a generic function with defaults. The compiler calls it on the spot and passes
 * the defaults in arguments whose names cannot be written in source; the code assumes unchecked that they are a tuple
 * and a dict. Also true when memory runs out. */
static bool is_hidden(PyObject *code)
{
    if (code == NULL || !PyCode_Check(code))
        return false;
    PyObject *names = PyCode_GetVarnames((PyCodeObject *)code);
    if (names == NULL) {
        PyErr_Clear();
        return true;
    }
    bool hidden = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names) && !hidden; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        hidden = PyUnicode_EqualToUTF8(name, ".defaults") || PyUnicode_EqualToUTF8(name, ".kwdefaults");
    }
    Py_DECREF(names);
    return hidden;
}

/* Whether this event would give the guest a callable function over such code. */
static bool bares_hidden(const char *event, PyObject *args)
{
    if (strcmp(event, "function.__new__") == 0 || strcmp(event, "exec") == 0)
        return PyTuple_GET_SIZE(args) > 0 && is_hidden(PyTuple_GET_ITEM(args, 0));
    return strcmp(event, "object.__setattr__") == 0 && PyTuple_GET_SIZE(args) > 2
           && is_hidden(PyTuple_GET_ITEM(args, 2));
}

static int hook(const char *event, PyObject *args, void *Py_UNUSED(data))
{
    vmh_vm *vm = vmh_current();
    if (vm == NULL)
        return 0;
    if (vmh_creation_under_way())
        return vmh_creation_event(event, args);
    vmh_seal *seal = vmh_seal_here();
    if (seal == NULL || !seal->armed)
        return 0;
    unsigned pass = vmh_pass_get();
    if (bares_hidden(event, args)) {
        vmh_deny("the code that makes a generic function is called by its `def` only", "%s", event);
        return -1;
    }
    if (is_harmless(event))
        return 0;
    if (strcmp(event, "import") == 0) {
        /* (name, file, path, meta_path, path_hooks); with a file, a native module is opened */
        if (PyTuple_GET_SIZE(args) < 2 || PyTuple_GET_ITEM(args, 1) == Py_None || (pass & VMH_PASS_NATIVE))
            return 0;
        vmh_deny("native modules are opened by the importer only", "import");
        return -1;
    }
    if (strcmp(event, "code.__new__") == 0 || strncmp(event, "marshal.", 8) == 0) {
        if (pass & VMH_PASS_CODE)
            return 0;
        vmh_deny("a task makes no code; it runs what its bundle holds", "%s", event);
        return -1;
    }
    if (strcmp(event, "compile") == 0) {
        vmh_deny("a VM has no compiler", "compile");
        return -1;
    }
    if (vmh_pass_take(event))
        return 0;
    vmh_deny("not granted to this task", "%s", event);
    return -1;
}

int vmh_audit_install(void) { return PySys_AddAuditHook(hook, NULL); }
