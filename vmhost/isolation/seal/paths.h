/* Paths of guests: found, held by a descriptor, compared with the grants, and used through that descriptor.
 *
 * What a path means can change between two uses of it. So each gate holds what the path leads to (O_PATH), asks the
 * kernel for its real path (/proc/self/fd/N), compares that with the grants, and then acts on what it holds: the object
 * itself, or a name in the held folder. The kernel resolves the path, so trailing slashes, "..", links and errors mean
 * what they mean to any program. docs/decisions/paths.md has the reasons. Nothing here needs the GIL unless stated.
 */
#ifndef VMH_PATHS_H
#define VMH_PATHS_H

#include "seal/sealing.h"

#include <limits.h>

/* What a path stands for. */
enum vmh_path_meaning {
    VMH_PATH_OBJECT,   /* the object, links followed */
    VMH_PATH_NAME,     /* the last component in its folder, existing or not: to create, rename, remove */
    VMH_PATH_LINK,     /* the object, or the link itself if the last component is one: lstat */
    VMH_PATH_READLINK, /* the last component in its folder, with the grants of VMH_PATH_LINK: readlink. With these two,
                        * folders above a granted one may be read */
};
/* Added to one of them: "-journal", "-wal" and "-shm" files are granted with their database. */
enum { VMH_PATH_DATABASE = 8 };

typedef struct vmh_path_handle {
    int fd;                   /* O_PATH: the object, or the folder that contains the name; -1: none */
    bool named;               /* `fd` is the folder */
    char text[NAME_MAX + 40]; /* a path through `fd` to the object or the name, for other functions */
    int denied;               /* on failure: the access that is not granted; 0: see errno */
} vmh_path_handle;

/* Holds `text`, which must be absolute, checked against this thread's seal. False: see `denied`. */
bool vmh_path_handle_find(vmh_path_handle *handle, const char *text, unsigned of, int access);
void vmh_path_handle_close(vmh_path_handle *handle);

/* open(2) of `text`; -1 as in vmh_path_handle_find. `gil`: the caller has the GIL, and it is released during the open.
 * O_CLOEXEC is always set. */
int vmh_path_handle_open(vmh_path_handle *handle, const char *text, int flags, mode_t mode, unsigned of, int access,
                         bool gil);

/* The real path, malloc'ed, of an existing file or of one to be created. NULL as in vmh_path_handle_find. */
char *vmh_path_handle_real(vmh_path_handle *handle, const char *text, int access);

/* Whether `text` is an existing folder that contains a granted one, or that the task may write. Of a folder that it may
 * not read, a task learns no more than that: os.makedirs() needs it. */
bool vmh_path_leads(const char *text);

/* Whether moving `from` to `to` would make it readable when it is not now. Both were found as VMH_PATH_NAME. */
bool vmh_path_handle_opens(const vmh_path_handle *from, const vmh_path_handle *to);

/* --- for gates: with the GIL; -1 or NULL with a Python error set */

/* Converts `path` (str, bytes or PathLike) once: *given is the str or bytes, *text its bytes. */
int vmh_path_convert(PyObject *path, PyObject **given, PyObject **text);
/* PermissionDenied unless it begins with "/". */
/* Raises PermissionDenied unless the path begins with "/". */
int vmh_path_absolute(PyObject *text, const char *what);
/* Raises why a path was not found: PermissionDenied, or OSError with `given` as its filename. NULL. */
PyObject *vmh_path_handle_raise(const vmh_path_handle *handle, PyObject *given, PyObject *text, const char *what);
/* Like vmh_path_handle_find; also checks that `text` is absolute. */
int vmh_path_handle_get(vmh_path_handle *handle, PyObject *given, PyObject *text, unsigned of, int access,
                        const char *what);
/* Like vmh_path_handle_open; also checks that `text` is absolute. Raises the audit event "open" with `mode_text`, like
 * io.open ("w+") and os.open (NULL). */
int vmh_path_open(PyObject *given, PyObject *text, const char *mode_text, int flags, mode_t mode, int access,
                  const char *what);
/* The text of `handle`, of the same type as `given`; a new reference. */
PyObject *vmh_path_handle_object(const vmh_path_handle *handle, PyObject *given);
/* Replaces the filenames of the current OSError by `first` and `second` (or NULL), the guest's own. */
void vmh_path_restore(PyObject *first, PyObject *second);

#endif
