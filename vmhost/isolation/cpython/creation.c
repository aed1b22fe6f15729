#include "cpython/creation.h"

#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <wchar.h>

/* The state of the interpreter that this thread is creating. */
typedef struct {
    bool settled;     /* the first audit event has arrived */
    bool lean;        /* modules are replaced by stand-ins */
    bool external;    /* the path-based importers have a stand-in */
    PyObject *search; /* the stand-in codec search function, held by the codec registry; NULL: none */
} creation;

static _Thread_local creation *current __attribute__((tls_model("initial-exec")));

static const char EXTERNAL[] = "_frozen_importlib_external", CODECS[] = "encodings";

bool vmh_creation_under_way(void) { return current != NULL; }

/* gc.freeze and gc.unfreeze, which have no C API. They act on the current interpreter and ignore their arguments. */
static PyMethodDef *freeze, *unfreeze;

static PyMethodDef *builtin(PyObject *module, const char *name)
{
    PyObject *function = PyObject_GetAttrString(module, name);
    PyMethodDef *def =
        function != NULL && PyCFunction_CheckExact(function) ? ((PyCFunctionObject *)function)->m_ml : NULL;
    Py_XDECREF(function);
    if (def != NULL && def->ml_flags == METH_NOARGS)
        return def;
    if (!PyErr_Occurred())
        PyErr_Format(PyExc_SystemError, "gc.%s is not as expected in this Python", name);
    return NULL;
}

int vmh_creation_install(void)
{
    PyObject *gc = PyImport_ImportModule("gc");
    int rc =
        gc == NULL || (freeze = builtin(gc, "freeze")) == NULL || (unfreeze = builtin(gc, "unfreeze")) == NULL ? -1 : 0;
    Py_XDECREF(gc);
    return rc;
}

void vmh_creation_settle(void)
{
    Py_XDECREF(freeze->ml_meth(NULL, NULL));
    PyGC_Enable();
}

void vmh_creation_unsettle(void) { Py_XDECREF(unfreeze->ml_meth(NULL, NULL)); }

/* ---- stand-ins ---- */

static PyObject *nothing(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(argument)) { Py_RETURN_NONE; }

static PyMethodDef external_methods[] = {
    {"_install", nothing, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

/* The methods that a text stream calls on its encoder. */
static PyMethodDef encoder_methods[] = {
    {"setstate", nothing, METH_O, NULL},
    {"reset", nothing, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyObject *coder(PyObject *self, PyObject *Py_UNUSED(errors)) { return Py_NewRef(self); }
static PyMethodDef coder_method = {"coder", coder, METH_O, NULL};

static PyStructSequence_Field codec_fields[] = {
    {"encode", NULL},
    {"decode", NULL},
    {"streamreader", NULL},
    {"streamwriter", NULL},
    {"name", NULL},
    {"incrementalencoder", NULL},
    {"incrementaldecoder", NULL},
    {"_is_text_encoding", NULL},
    {NULL, NULL},
};
static PyStructSequence_Desc codec_type = {"vmhost.codec", NULL, codec_fields, 4};

static PyObject *module_new(const char *name, PyMethodDef *methods)
{
    PyObject *module = PyModule_New(name);
    if (module != NULL && methods != NULL && PyModule_AddFunctions(module, methods) < 0)
        Py_CLEAR(module);
    return module;
}

/* A UTF-8 codec that is just enough for the interpreter's own text streams until the guest runtime replaces them:
 * nothing is written to them. */
static PyObject *codec_find(PyObject *Py_UNUSED(self), PyObject *name)
{
    PyObject *codec = NULL, *encoder = module_new("encoder", encoder_methods);
    PyObject *make = encoder == NULL ? NULL : PyCFunction_New(&coder_method, encoder),
             *text = PyUnicode_FromString("utf-8");
    PyTypeObject *type = PyStructSequence_NewType(&codec_type);
    if (type == NULL || make == NULL || text == NULL || (codec = PyStructSequence_New(type)) == NULL)
        goto done;
    PyObject *const fields[] = {make, make, make, make, text, make, make, Py_True};
    for (Py_ssize_t i = 0; i < (Py_ssize_t)(sizeof fields / sizeof *fields); i++)
        PyStructSequence_SetItem(codec, i, Py_NewRef(fields[i]));
done:
    Py_XDECREF(type);
    Py_XDECREF(encoder);
    Py_XDECREF(make);
    Py_XDECREF(text);
    return codec;
}

static PyMethodDef codec_find_method = {"search_function", codec_find, METH_O, NULL};

/* Registers a stand-in in sys.modules under the name of a module that is about to be imported. */
static int stand_in(const char *name, PyMethodDef *methods)
{
    PyObject *modules = PyImport_GetModuleDict(), *module = module_new(name, methods);
    int rc = modules == NULL || module == NULL ? -1 : PyDict_SetItemString(modules, name, module);
    Py_XDECREF(module);
    return rc;
}

static int stand_in_external(void)
{
    current->external = stand_in(EXTERNAL, external_methods) == 0;
    return current->external ? 0 : -1;
}

static int stand_in_codecs(void)
{
    PyObject *search = PyCFunction_New(&codec_find_method, NULL);
    int rc = search == NULL || PyCodec_Register(search) < 0 ? -1 : stand_in(CODECS, NULL);
    if (rc == 0)
        current->search = search;
    Py_XDECREF(search);
    return rc;
}

/* ---- creation ---- */

/* At the first audit event the configuration is already the interpreter's own copy, and `site` is not yet imported. */
static int settle(void)
{
    PyConfig *config = (PyConfig *)_Py_GetConfig();
    current->settled = true;
    config->site_import = 0;
    /* A file system encoding other than UTF-8 needs the real codecs, from the file system: such an interpreter is
     * created without stand-ins. */
    current->lean = config->filesystem_encoding != NULL && wcscmp(config->filesystem_encoding, L"utf-8") == 0;
    if (current->lean) {
        PyStatus status = PyConfig_SetString(config, &config->stdio_encoding, L"utf-8");
        if (PyStatus_Exception(status)) {
            PyErr_NoMemory();
            return -1;
        }
    }
    PyGC_Disable(); /* there is no garbage yet */
    return 0;
}

int vmh_creation_event(const char *event, PyObject *args)
{
    if (!current->settled && settle() < 0)
        return -1;
    if (!current->lean || strcmp(event, "import") != 0 || !PyUnicode_Check(PyTuple_GET_ITEM(args, 0)))
        return 0;
    PyObject *name = PyTuple_GET_ITEM(args, 0);
    if (PyUnicode_EqualToUTF8(name, EXTERNAL))
        return stand_in_external();
    if (PyUnicode_EqualToUTF8(name, CODECS))
        return stand_in_codecs();
    if (PyUnicode_EqualToUTF8(name, "zipimport")) {
        PyErr_SetString(PyExc_ImportError, "a VM imports from bundles only"); /* CPython goes on without it */
        return -1;
    }
    return 0;
}

/* ---- after creation ---- */

/* Imports the codecs package at the first codec lookup. CPython has the common codecs (UTF-8, Latin-1, ASCII) built in
 * and seldom looks them up. */
static PyObject *codec_search(PyObject *Py_UNUSED(self), PyObject *name)
{
    PyObject *package = PyImport_ImportModule(CODECS), *found = NULL;
    PyObject *search = package == NULL ? NULL : PyObject_GetAttrString(package, "search_function");
    if (search != NULL)
        found = PyObject_CallOneArg(search, name);
    Py_XDECREF(search);
    Py_XDECREF(package);
    return found;
}

static PyMethodDef codec_search_method = {"search_function", codec_search, METH_O, NULL};

/* Removes the stand-ins. */
static int clear_up(void)
{
    PyObject *modules = PyImport_GetModuleDict(), *search = NULL, *importlib = NULL;
    int rc = -1;
    if (current->external
        && (modules == NULL || (importlib = PyImport_ImportModule("_frozen_importlib")) == NULL
            || PyObject_SetAttrString(importlib, "_bootstrap_external", Py_None) < 0
            || PyDict_DelItemString(modules, EXTERNAL) < 0))
        goto done;
    if (current->search != NULL
        && (modules == NULL || PyDict_DelItemString(modules, CODECS) < 0
            || PyCodec_Unregister(current->search) < 0 /* also empties the codec cache */
            || (search = PyCFunction_New(&codec_search_method, NULL)) == NULL || PyCodec_Register(search) < 0))
        goto done;
    rc = 0;
done:
    Py_XDECREF(search);
    Py_XDECREF(importlib);
    return rc;
}

/* CPython crashes where memory runs out early in the creation of an interpreter: it reports that by a type which is not
 * made yet. So there has to be room before. Threads that begin reserve much address space for an instant, so it is
 * asked for more than once. */
static bool has_room(void)
{
    enum { ROOM_BYTES = 4 << 20, TRIES = 50 };
    const struct timespec pause = {0, 1000000};
    for (int tried = 0; tried < TRIES; tried++, nanosleep(&pause, NULL)) {
        void *room = mmap(NULL, ROOM_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (room != MAP_FAILED)
            return munmap(room, ROOM_BYTES) == 0;
    }
    return false;
}

PyStatus vmh_creation_make(PyThreadState **tstate)
{
    const PyInterpreterConfig config = {
        .use_main_obmalloc = 0,
        .allow_fork = 0,
        .allow_exec = 0,
        .allow_threads = 1,
        .allow_daemon_threads = 0, /* no thread outlives the interpreter: those of threads.c end with the task */
        .check_multi_interp_extensions = 1,
        .gil = PyInterpreterConfig_OWN_GIL,
    };
    if (!has_room())
        return PyStatus_NoMemory();
    creation own = {0};
    current = &own;
    PyStatus status = Py_NewInterpreterFromConfig(tstate, &config);
    int rc = PyStatus_Exception(status) ? 0 : clear_up();
    current = NULL;
    if (rc < 0) {
        PyErr_Clear();
        Py_EndInterpreter(*tstate);
        *tstate = NULL;
        status = PyStatus_NoMemory();
    }
    return status;
}
