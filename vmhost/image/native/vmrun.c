/* The device host's executable: starts a Python that has no compiler and imports from the image's two bundles only.
 *
 * Beside the executable lie `manifest`, `host.vmb` (the host's Python) and `stdlib.vmb` (the standard library and the
 * guest runtime, for the host and the VMs alike). All modules of both are given to CPython as frozen ones, where they
 * lie in the mapped files; nothing is looked for on any path. In an image that has sqlite3, ssl or zstd, the library is
 * in this executable too, and CPython's shared module for it, `_sqlite3.so` for instance, lies beside it. Then the
 * module `vmrun` (device/vmrun.py) has the command line.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <limits.h>
#include <link.h>
#include <malloc.h>
#include <sodium/crypto_sign_ed25519.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "archive.h"
#include "native_modules.h" /* which modules are linked in: written by link.py */

#include "python/core.h" /* vmhost/isolation */
#ifdef VMRUN_ENGINE
#include "vme_search.h"
#endif

extern const struct _frozen *_PyImport_FrozenBootstrap, *_PyImport_FrozenStdlib, *_PyImport_FrozenTest;
extern const struct _module_alias *_PyImport_FrozenAliases;

/* CPython's own frozen modules are left out: what they hold is in the bundles. */
static struct _frozen bootstrap[3], nothing[1];
const struct _frozen *_PyImport_FrozenBootstrap = bootstrap, *_PyImport_FrozenStdlib = nothing,
                     *_PyImport_FrozenTest = nothing;
const struct _frozen *PyImport_FrozenModules;
static const struct {
    const char *name, *orig;
} no_aliases[1];
const struct _module_alias *_PyImport_FrozenAliases = (const struct _module_alias *)no_aliases;

/* How the line of this file ends in the manifest of an image that has one. */
#define LAPACK_LINE " lapack.so\n"

#ifdef VMRUN_SQLITE
/* The section that link.py puts SQLite's code into. */
extern const char __start_vmrun_sqlite_code[], __stop_vmrun_sqlite_code[];
#endif
static const char *const beside[] = {VMRUN_BESIDE NULL}; /* names of the shared modules' files */

static char folder[PATH_MAX], executable[PATH_MAX], *manifest;
static vmrun_archive host, library;

/* ---- the module _vmrun ---- */

static PyObject *ed25519_matches(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer key, message, signature;
    if (!PyArg_ParseTuple(args, "y*y*y*:ed25519_matches", &key, &message, &signature))
        return NULL;
    bool matches =
        key.len == crypto_sign_ed25519_PUBLICKEYBYTES && signature.len == crypto_sign_ed25519_BYTES
        && crypto_sign_ed25519_verify_detached(signature.buf, message.buf, (unsigned long long)message.len, key.buf)
               == 0;
    PyBuffer_Release(&key);
    PyBuffer_Release(&message);
    PyBuffer_Release(&signature);
    return PyBool_FromLong(matches);
}

/* What VMs boot from, without a copy: the mapped library outlives them all. */
static PyObject *fill_code_store(PyObject *Py_UNUSED(module), PyObject *object)
{
    if (vmh_code_store_type == NULL || !PyObject_TypeCheck(object, vmh_code_store_type))
        return PyErr_Format(PyExc_TypeError, "fill_code_store: expected a CodeStore, got %T", object);
    vmh_code_store *store = ((code_store_object *)object)->store;
    for (size_t i = 0; i < library.count; i++) {
        const vmrun_entry *entry = &library.entries[i];
        if (entry->name[0] != '/'
            && vmh_code_store_lend(store, entry->name, entry->is_package, entry->data, entry->size) != 0)
            return PyErr_NoMemory();
    }
    Py_RETURN_NONE;
}

static PyObject *engine_table(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
#ifdef VMRUN_ENGINE
    char path[PATH_MAX];
    if (strstr(manifest, LAPACK_LINE) != NULL && snprintf(path, sizeof path, "%s/lapack.so", folder) < PATH_MAX
        && vme_lapack_at(path) != VME_OK)
        return PyErr_Format(PyExc_ImportError, "%s: %s", path, vme_message());
    return PyLong_FromVoidPtr((void *)vme_api());
#else
    Py_RETURN_NONE;
#endif
}

/* As engine/library.py's Model and the code store's add_model, in one. */
static PyObject *add_model(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *store, *name;
    Py_buffer data;
    int spend;
    if (!PyArg_ParseTuple(args, "OUy*p:add_model", &store, &name, &data, &spend))
        return NULL;
    PyObject *result = NULL;
#ifdef VMRUN_ENGINE
    vme_context *context = NULL;
    vme_model *model = NULL;
    vme_status status = vme_context_new(NULL, 0, &context);
    if (status == VME_OK)
        status = vme_model_prepare(context, data.buf, (size_t)data.len,
                                   &(vme_model_options){.fixed = true, .spend = spend && !data.readonly}, &model);
    if (status == VME_OK)
        result = PyObject_CallMethod(store, "add_model", "OK", name, (unsigned long long)(uintptr_t)model);
    else
        PyErr_SetString(PyExc_ValueError, vme_message());
    if (model != NULL)
        vme_model_unref(model);
    if (context != NULL)
        vme_context_unref(context);
#else
    PyErr_SetString(PyExc_ValueError, "the tensor engine, which runs models, is not in this image; make it again with "
                                      "`vmhost image OUT --bundle BUNDLE`, "
                                      "or with `--with-engine`");
#endif
    PyBuffer_Release(&data);
    return result;
}

/* The code of the executable and its libraries: pages that nobody writes, so they can be read from their files again.
 */
static int code_rests(struct dl_phdr_info *object, size_t Py_UNUSED(size), void *Py_UNUSED(unused))
{
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && !(part->p_flags & PF_W))
            vmrun_pages_rest((const char *)object->dlpi_addr + part->p_vaddr, part->p_memsz);
    }
    return 0;
}

/* For an idle host: pages of the image's files, which the kernel has at hand when they are needed again, and what
 * malloc keeps. */
static PyObject *give_back_memory(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    vmrun_archive_rest(&host);
    vmrun_archive_rest(&library);
    dl_iterate_phdr(code_rests, NULL);
    malloc_trim(0);
    Py_RETURN_NONE;
}

static bool beside_path(const char *name, char path[PATH_MAX])
{
    return snprintf(path, PATH_MAX, "%s/%s", folder, name) < PATH_MAX;
}

/* True where every file of the image is as the manifest says; what is not is told on stderr. */
static PyObject *check_files(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    bool right = vmrun_file_check(executable, "vmrun", manifest, true);
    for (const char *const *name = beside; *name != NULL; name++) {
        char path[PATH_MAX];
        right &= beside_path(*name, path) && vmrun_file_check(path, *name, manifest, true);
    }
    static const char *const names[] = {"host.vmb", "stdlib.vmb", "lapack.so"};
    for (size_t i = 0; i < (strstr(manifest, LAPACK_LINE) != NULL ? 3 : 2); i++) {
        char path[PATH_MAX];
        right &= snprintf(path, sizeof path, "%s/%s", folder, names[i]) < PATH_MAX
                 && vmrun_file_check(path, names[i], manifest, true);
    }
    return PyBool_FromLong(right);
}

static PyMethodDef methods[] = {
    {"ed25519_matches", ed25519_matches, METH_VARARGS,
     PyDoc_STR("ed25519_matches(public key, message, signature) -> bool")},
    {"fill_code_store", fill_code_store, METH_O,
     PyDoc_STR("fill_code_store(core.CodeStore): puts the standard library into it.")},
    {"engine_table", engine_table, METH_NOARGS,
     PyDoc_STR("The address of the engine's table, or None: not linked in.")},
    {"add_model", add_model, METH_VARARGS,
     PyDoc_STR("add_model(core.CodeStore, name, data, spend): prepares a model file for the image's VMs.")},
    {"give_back_memory", give_back_memory, METH_NOARGS,
     PyDoc_STR("Gives memory that an idle host does not need to the kernel.")},
    {"check_files", check_files, METH_NOARGS, PyDoc_STR("Are the image's files as its manifest says?")},
    {NULL, NULL, 0, NULL},
};

static int vmrun_exec(PyObject *module)
{
    return PyModule_AddStringConstant(module, "folder", folder) < 0
                   || PyModule_AddStringConstant(module, "manifest", manifest) < 0
               ? -1
               : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, vmrun_exec},
    {Py_mod_multiple_interpreters, Py_MOD_MULTIPLE_INTERPRETERS_NOT_SUPPORTED},
    {0, NULL},
};
static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "_vmrun", .m_doc = PyDoc_STR("The device host's executable."),
    .m_methods = methods,  .m_slots = slots,
};

static PyObject *PyInit__vmrun(void) { return PyModuleDef_Init(&definition); }

struct _inittab _PyImport_Inittab[] = {
    VMRUN_NATIVE_MODULES{"_vmrun", PyInit__vmrun},
    {NULL, NULL},
};

/* ---- start ---- */

static struct _frozen *freeze(struct _frozen *to, const vmrun_archive *archive)
{
    for (size_t i = 0; i < archive->count; i++) {
        const vmrun_entry *entry = &archive->entries[i];
        if (entry->name[0] != '/' && entry->size <= INT_MAX)
            *to++ = (struct _frozen){entry->name, entry->data, (int)entry->size, entry->is_package};
    }
    return to;
}

/* The host's modules come first, as its package `vmhost` hides the one of the guests. */
static bool freeze_all(void)
{
    static const char *const first[] = {"_frozen_importlib", "_frozen_importlib_external"};
    struct _frozen *table = calloc(host.count + library.count + 1, sizeof *table);
    if (table == NULL)
        return false;
    freeze(freeze(table, &host), &library);
    PyImport_FrozenModules = table;
    for (size_t i = 0; i < sizeof first / sizeof *first; i++)
        for (const struct _frozen *at = table; at->name != NULL && bootstrap[i].name == NULL; at++)
            if (strcmp(at->name, first[i]) == 0)
                bootstrap[i] = *at;
    return bootstrap[0].name != NULL && bootstrap[1].name != NULL;
}

/* Bundles that another Python's image brought here would crash this one: they are checked against their manifest only.
 */
static bool is_made_for_this(const char *path)
{
    struct utsname machine;
    char expected[256];
    if (uname(&machine) != 0
        || snprintf(expected, sizeof expected, "vmhost-image 3\npython %s\nmachine %s\n", PY_VERSION, machine.machine)
               >= (int)sizeof expected)
        return false;
    bool right = strncmp(manifest, expected, strlen(expected)) == 0;
    if (!right)
        fprintf(stderr,
                "vmrun: %s: expected an image for Python %s on %s, as this executable is, got one that begins "
                "%.60s...; keep the files of an image "
                "together, or make it again with `vmhost image`\n",
                path, PY_VERSION, machine.machine, manifest);
    return right;
}

/* The executable's own file is looked at as well, unless the command `check` will do so thoroughly: what is damaged in
 * it shows in any way, or in none, but mostly not in what runs until here. */
static bool find_image(bool with_executable)
{
    char path[PATH_MAX];
    size_t manifest_bytes;
    ssize_t size = readlink("/proc/self/exe", executable, sizeof executable - 1);
    if (size <= 0) {
        fputs("vmrun: /proc/self/exe cannot be read, so the image cannot be found; is /proc mounted?\n", stderr);
        return false;
    }
    executable[size] = 0;
    strcpy(folder, executable);
    *strrchr(folder, '/') = 0;
    if (snprintf(path, sizeof path, "%s/manifest", folder) >= (int)sizeof path
        || (manifest = vmrun_file_read(path, &manifest_bytes)) == NULL)
        return false;
    if (!is_made_for_this(path) || !vmrun_manifest_check(path, manifest, manifest_bytes))
        return false;
    if (with_executable && !vmrun_file_check(executable, "vmrun", manifest, false))
        return false;
    for (const char *const *name = beside; *name != NULL; name++)
        if (!beside_path(*name, path) || !vmrun_file_check(path, *name, manifest, false))
            return false;
#ifdef VMRUN_SQLITE
    static char sqlite_module[PATH_MAX];
    if (!beside_path("_sqlite3.so", sqlite_module))
        return false;
    vmh_core_sqlite_linked(sqlite_module, __start_vmrun_sqlite_code, __stop_vmrun_sqlite_code);
#endif
    return vmrun_archive_open(&host, folder, "host.vmb", manifest)
           && vmrun_archive_open(&library, folder, "stdlib.vmb", manifest);
}

static PyStatus start_python(int argc, char **argv)
{
    PyPreConfig before;
    PyConfig config;
    PyPreConfig_InitIsolatedConfig(&before);
    before.utf8_mode = 1;
    PyStatus status = Py_PreInitialize(&before);
    if (PyStatus_Exception(status))
        return status;
    PyConfig_InitIsolatedConfig(&config);
    config.site_import = 0;
    config.write_bytecode = 0;
    config.install_signal_handlers = 1;
    config.pathconfig_warnings = 0;
    config.use_frozen_modules = 1;
    config.module_search_paths_set = 1;
    config.parse_argv = 0;
    wchar_t *const here = Py_DecodeLocale(folder, NULL), *const own = Py_DecodeLocale(executable, NULL);
    wchar_t **const folders[] = {
        &config.home,        &config.prefix,           &config.base_prefix,
        &config.exec_prefix, &config.base_exec_prefix, &config.stdlib_dir,
    };
    status = here == NULL || own == NULL ? PyStatus_NoMemory() : PyConfig_SetBytesArgv(&config, argc, argv);
    for (size_t i = 0; i < sizeof folders / sizeof *folders && !PyStatus_Exception(status); i++)
        status = PyConfig_SetString(&config, folders[i], here);
    if (!PyStatus_Exception(status))
        status = PyConfig_SetString(&config, &config.executable, own);
    if (!PyStatus_Exception(status))
        status = PyConfig_SetString(&config, &config.base_executable, own);
    if (!PyStatus_Exception(status))
        status = Py_InitializeFromConfig(&config);
    PyMem_RawFree(here);
    PyMem_RawFree(own);
    PyConfig_Clear(&config);
    return status;
}

/* Runs what atexit has, writes out what was printed, and leaves the rest to the kernel: taking apart modules one by one
 * frees nothing that the end of the process does not. */
static int end(int code)
{
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *done = atexit == NULL ? NULL : PyObject_CallMethod(atexit, "_run_exitfuncs", NULL);
    PyErr_Clear();
    Py_XDECREF(done);
    Py_XDECREF(atexit);
    static const char *const names[] = {"stdout", "stderr"};
    for (int i = 0; i < 2; i++) {
        PyObject *stream = PySys_GetObject(names[i]);
        PyObject *flushed = stream == NULL || stream == Py_None ? NULL : PyObject_CallMethod(stream, "flush", NULL);
        if (flushed == NULL && PyErr_Occurred()) {
            PyErr_Clear();
            code = code == 0 ? 5 : code;
        }
        Py_XDECREF(flushed);
    }
    fflush(NULL);
    _exit(code);
}

int main(int argc, char **argv)
{
    if (!find_image(argc < 2 || strcmp(argv[1], "check") != 0))
        return 5;
    if (!freeze_all()) {
        fputs("vmrun: the image's bundles lack what Python starts with, or there is no memory; make the image again\n",
              stderr);
        return 5;
    }
    PyStatus status = start_python(argc, argv);
    if (PyStatus_Exception(status))
        Py_ExitStatusException(status);
    /* What is imported until the command begins stays; looking through it for garbage costs a tenth of the start. */
    PyGC_Disable();
    int code = 5;
    PyObject *module = PyImport_ImportModule("vmrun");
    PyObject *result = module == NULL ? NULL : PyObject_CallMethod(module, "main", NULL);
    if (result != NULL)
        code = (int)PyLong_AsLong(result);
    if (PyErr_Occurred())
        PyErr_Print();
    Py_XDECREF(result);
    Py_XDECREF(module);
    return end(code);
}
