/* The files of the task's bundle, as seen through the file system: by relative paths, since a guest's current folder is
 * "/", and by absolute paths that name one of them and are not granted otherwise. vmhost.guest.folders answers os.stat
 * and the like; vmhost.guest.files answers io.open.
 */
#include "seal/sealing.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static int any(const vmh_code_entry *Py_UNUSED(module), void *Py_UNUSED(context)) { return 1; }

/* The type (S_IFREG, S_IFDIR, 0: none) and size of `path`, which has no "." or "..", in `store`. */
static int kind_of(vmh_code_store *store, const char *path, size_t *size)
{
    size_t length = strlen(path);
    *size = 0;
    if (length == 0)
        return S_IFDIR;
    const vmh_code_entry *file = vmh_code_store_find_file(store, path);
    if (file != NULL) {
        *size = file->size;
        return S_IFREG;
    }
    char *prefix = malloc(length + 3);
    if (prefix == NULL)
        return 0;
    prefix[0] = '/';
    memcpy(prefix + 1, path, length);
    memcpy(prefix + 1 + length, "/", 2);
    bool folder = vmh_code_store_visit(store, prefix, any, NULL) != 0;
    free(prefix);
    return folder ? S_IFDIR : 0;
}

/* Normalises `path` into `to`, which has room for all of it: single slashes, no "." or "..". */
static void tidy(char *to, const char *path)
{
    char *end = to;
    while (*path != 0) {
        size_t size = strcspn(path, "/");
        if (size == 2 && path[0] == '.' && path[1] == '.') {
            while (end > to && *--end != '/')
                ;
        } else if (size > 0 && !(size == 1 && path[0] == '.')) {
            if (end > to)
                *end++ = '/';
            memcpy(end, path, size);
            end += size;
        }
        path += size + (path[size] == '/');
    }
    *end = 0;
}

int vmh_bundle_find(const char *path, vmh_bundle_entry *entry)
{
    vmh_seal *seal = vmh_seal_here();
    *entry = (vmh_bundle_entry){0};
    if (seal == NULL || seal->task == NULL || *path == 0)
        return 0;
    char *inside = malloc(strlen(path) + 1);
    if (inside == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    tidy(inside, path);
    entry->kind = kind_of(seal->task, inside, &entry->size);
    char *slash = strchr(inside, '/'), *at = strchr(inside, '@');
    if (entry->kind == 0 && at != NULL && (slash == NULL || at < slash)) { /* name@version/..., as in __file__ */
        memmove(inside, slash == NULL ? "" : slash + 1, strlen(slash == NULL ? "" : slash + 1) + 1);
        entry->kind = kind_of(seal->task, inside, &entry->size);
    }
    if (entry->kind == S_IFREG && path[strlen(path) - 1] == '/')
        entry->kind = 0;
    entry->inside = inside;
    if (entry->kind == 0)
        vmh_bundle_entry_clear(entry);
    return 0;
}

void vmh_bundle_entry_clear(vmh_bundle_entry *entry)
{
    free(entry->inside);
    *entry = (vmh_bundle_entry){0};
}

PyObject *vmh_bundle_answer(const vmh_bundle_entry *entry, const char *function, PyObject *path, PyObject *mode)
{
    PyObject *folders = PyImport_ImportModule("vmhost.guest.folders");
    PyObject *answer = folders == NULL ? NULL : PyObject_GetAttrString(folders, "answer");
    PyObject *result = answer == NULL ? NULL
                                      : PyObject_CallFunction(answer, "sOsOnO", function, path, entry->inside,
                                                              entry->kind == S_IFDIR ? Py_True : Py_False,
                                                              (Py_ssize_t)entry->size, mode);
    Py_XDECREF(folders);
    Py_XDECREF(answer);
    return result;
}
