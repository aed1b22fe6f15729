/* Paths of guests: found, held by a descriptor, compared with the grants, and used through that descriptor.
 *
 * A path is text that anybody may bring to mean something else between two looks at it. So each gate holds what the
 * path leads to (O_PATH), asks the kernel what that is called (/proc/self/fd/N), compares the answer with the grants,
 * and then acts on what it holds: on the object itself, or on a name in the folder that it holds. The kernel resolves
 * the path, so that slashes at its end, "..", links and errors mean what they mean to any program.
 * docs/decisions/paths.md has the reasons. None of this needs the GIL, unless said so.
 */
#ifndef VMH_PATHS_H
#define VMH_PATHS_H

#include "seal/sealing.h"

#include <limits.h>

/* What of a path is meant. */
enum vmh_path_meaning {
    VMH_PATH_OBJECT,   /* what it leads to, links followed */
    VMH_PATH_NAME,     /* its last part in a folder, whatever is there: to be made, renamed, removed */
    VMH_PATH_LINK,     /* the object, but a link itself where its last part is one: lstat */
    VMH_PATH_READLINK, /* its last part in a folder, as VMH_PATH_LINK: readlink. To be read, folders above a
                        * granted one count as granted with these two */
};
/* Beside one of them: "-journal", "-wal" and "-shm" are granted with the database before them. */
enum { VMH_PATH_DATABASE = 8 };

typedef struct vmh_path_handle {
    int fd;                   /* O_PATH: the object, or the folder that has the name; -1: nothing is held */
    bool named;               /* it is the folder */
    char text[NAME_MAX + 40]; /* a path, for other functions, to the object or the name through `fd` */
    int denied;               /* found nothing: the access that is not granted, or 0, and errno says why */
} vmh_path_handle;

/* Holds what `text`, which must be absolute, means for the seal of this thread. False: see `denied`. */
bool vmh_path_handle_find(vmh_path_handle *handle, const char *text, unsigned of, int access);
void vmh_path_handle_close(vmh_path_handle *handle);

/* open(2) of what `text` means; -1 as vmh_path_handle_find. `gil`: the caller has the GIL, which others get while the
 * kernel opens. O_CLOEXEC is always set. */
int vmh_path_handle_open(vmh_path_handle *handle, const char *text, int flags, mode_t mode, unsigned of, int access,
                         bool gil);

/* Where a file of that path is, or would be made: its path without links, malloc'ed. NULL as vmh_path_handle_find. */
char *vmh_path_handle_real(vmh_path_handle *handle, const char *text, int access);

/* Would what `from` names be read where `to` names it, though not where it is? Both were found as VMH_PATH_NAME. */
bool vmh_path_handle_opens(const vmh_path_handle *from, const vmh_path_handle *to);

/* --- for gates: with the GIL; -1 or NULL with a Python error set */

/* `path` (str, bytes or PathLike), asked once: *given is the str or bytes that it stands for, *text its bytes. */
int vmh_path_convert(PyObject *path, PyObject **given, PyObject **text);
/* PermissionDenied unless it begins with "/". */
int vmh_path_absolute(PyObject *text, const char *what);
/* Raises what kept a path from being found: PermissionDenied, or OSError with `given` as its filename. NULL. */
PyObject *vmh_path_handle_raise(const vmh_path_handle *handle, PyObject *given, PyObject *text, const char *what);
/* As vmh_path_handle_find, also where `text` is not absolute. */
int vmh_path_handle_get(vmh_path_handle *handle, PyObject *given, PyObject *text, unsigned of, int access,
                        const char *what);
/* As vmh_path_handle_open, also where `text` is not absolute. The host's audit hooks are told "open", as io.open ("w+")
 * and os.open (NULL) tell it. */
int vmh_path_open(PyObject *given, PyObject *text, const char *mode_text, int flags, mode_t mode, int access,
                  const char *what);
/* The text of `handle` as the type that `given` has; a new reference. */
PyObject *vmh_path_handle_object(const vmh_path_handle *handle, PyObject *given);
/* The OSError that is raised names `first` and `second` (or NULL) where it named what stood for them. */
void vmh_path_restore(PyObject *first, PyObject *second);

#endif
