/* The state of one VM's sealing, shared by its C files (grants, gates, audit, importer, waits).
 *
 * A vmh_seal is created when its VM boots and freed after its interpreter has ended. No Python object refers to it, so
 * a guest cannot find it (gc, attributes). Unless stated otherwise it is guarded by the VM's GIL.
 */
#ifndef VMH_SEALING_H
#define VMH_SEALING_H

#include "cpython/compat.h"
#include "lanes/code_store.h"
#include "seal/seal.h"
#include "lanes/vm.h"

#include <dirent.h>
#include <sys/types.h>

/* Passes: what the audit hook allows during one operation of ours on this thread. */
enum {
    VMH_PASS_CODE = 1,   /* the importer unmarshals code of a code store */
    VMH_PASS_NATIVE = 2, /* the importer opens a native module of the policy */
};

enum vmh_fd_state {
    VMH_FD_NONE,
    VMH_FD_OPEN,   /* owned by the guest */
    VMH_FD_CLOSED, /* closed by the guest; the number stays reserved until its last use ends */
};

typedef struct vmh_owned_fd {
    enum vmh_fd_state state;
    unsigned uses;       /* objects of the guest that hold the number, and calls in progress */
    bool blocks, folder; /* not a regular file, so a read may block; it is a folder */
    dev_t device;
    ino_t inode; /* identity: if the number now belongs to another file (the host closed it), it is not the guest's */
} vmh_owned_fd;

typedef struct vmh_fd_init { /* an object that is being given its descriptor; on the stack */
    struct vmh_fd_init *next;
    PyObject *object; /* borrowed */
    bool released;    /* code that ran meanwhile made it release its descriptor */
} vmh_fd_init;

typedef struct vmh_fd_use { /* an object that keeps a number in a field we cannot see */
    struct vmh_fd_use *next;
    PyObject *object; /* compared by address only */
    int fd;
} vmh_fd_use;

typedef struct vmh_resolved { /* an address that a granted host resolved to */
    struct vmh_resolved *next;
    char *address;
    const char *pattern; /* an item of `net` or `listen` */
} vmh_resolved;

typedef struct vmh_map { /* the charge for an anonymous map of a guest */
    struct vmh_map *next;
    PyObject *object; /* compared by address only */
    size_t bytes;
} vmh_map;

typedef struct vmh_list {
    char **items;
    size_t count;
} vmh_list;

enum vmh_waiting { VMH_WAITING, VMH_WOKEN, VMH_INTERRUPTED };

typedef struct vmh_waiter {                      /* one thread in one wait; on its stack */
    struct vmh_waiter *next, **link;             /* list of the VM; guarded by the waits' mutex */
    struct vmh_waiter *queue_next, **queue_link; /* queue of a lock or handle; GIL. queue_link NULL: not queued */
    atomic_uint word;                            /* futex: enum vmh_waiting */
} vmh_waiter;

typedef struct vmh_daemon { /* a daemon thread, which is ended with the task; on its own stack; GIL */
    PyThreadState *ts;
    struct vmh_daemon *next;
} vmh_daemon;

typedef struct vmh_queue { /* threads that wait for the same thing, FIFO; GIL */
    vmh_waiter *first, **tail;
} vmh_queue;

typedef struct vmh_making { /* a native module in its second phase; on the stack of the importing thread; GIL */
    PyObject *module;       /* compared by address only */
    struct vmh_making *next, **link;
} vmh_making;

/* A folder that an os.scandir iterator lists. Under the VM's GIL. */
typedef struct vmh_listing {
    struct vmh_listing *next, **link;
    DIR *folder;
} vmh_listing;

typedef struct vmh_seal {
    struct vmh_seal *next; /* list of all seals; guarded by its own lock */
    vmh_vm *vm;
    vmh_code_store *task; /* one reference; NULL until the VM is attached */
    bool armed;
    vmh_making *making;
    char runtime[256]; /* folder of the guest runtime, as in its code objects' file names */

    vmh_list read, write, net, listen, env;
    vmh_list environ; /* "NAME=value" of the granted variables; without items: read from the process */
    vmh_resolved *resolved;
    vmh_owned_fd *fds;
    size_t fd_room;
    vmh_fd_init *fd_inits;
    vmh_fd_use *fd_uses;
    vmh_listing *listings;
    vmh_map *maps;
    struct vmh_sqlite_use *sqlite_uses; /* under the VM's GIL: sqlite_use.c */

    pthread_mutex_t waits_mutex;
    vmh_waiter *waiters;     /* guarded by waits_mutex */
    int threads, daemons;    /* guest threads that run Python, and the daemons among them */
    vmh_daemon *daemon_list; /* daemons that have begun */
    vmh_queue idle;          /* waits for threads == daemons */
    size_t thread_stack_bytes;

    PyObject *recorder; /* of the recorded or replayed call; owned; NULL: none. GIL */
    atomic_uint used;   /* VMH_USED_*: resources outside the VM that the task has used */
} vmh_seal;

/* The seal of the calling thread's VM; NULL on a host thread. */
vmh_seal *vmh_seal_here(void);
void vmh_seal_bind(vmh_seal *seal); /* for the calling thread */

/* Sets the passes of the calling thread; returns the previous ones. */
unsigned vmh_pass_set(unsigned pass);
unsigned vmh_pass_get(void);
/* The one audit event that checked code may raise next on the calling thread, a static string; NULL: none. It is used
 * up by that event, so code of the guest that runs meanwhile (`__index__` of another argument) gains nothing else.
 * Returns the previous one. */
const char *vmh_pass_event(const char *event);
bool vmh_pass_take(const char *event); /* uses it up; false: it is not this one */

/* --- grants.c: the task's permissions. All: 0, or -1 with a Python error set. */

/* Raises PermissionDenied: "<what>: <why>". Returns NULL. */
PyObject *vmh_deny(const char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { VMH_READ = 1, VMH_WRITE = 2 };
/* Paths: paths.h. */
bool vmh_grant_environ(const char *name);

/* --- addresses.c. All: 0, or -1 with a Python error set. */
typedef struct vmh_address {
    PyObject *whole;  /* an exact tuple of exact bytes and ints, for the original; owned */
    const char *host; /* a name or an IP address, never empty; part of `whole` or static */
    long port;
} vmh_address;
/* Converts the address argument for a socket of `family`, once. */
int vmh_address_read(PyObject *address, int family, const char *what, vmh_address *read);
PyObject *vmh_host_exact(PyObject *host, const char *what);       /* bytes, as passed to the resolver */
const char *vmh_host_text(PyObject *host);                        /* of a vmh_host_exact result */
int vmh_grant_send(const vmh_address *address, const char *what); /* connecting, sending: `net` */
/* Port 0 of a numeric address is always allowed, since a connecting socket gets a free port anyway; others need
 * `listen`. */
int vmh_grant_bind(const vmh_address *address, const char *what);
int vmh_grant_listen(int fd, const char *what);         /* checks the address that the socket is bound to */
bool vmh_listens(int fd);                               /* the same check, without an error */
int vmh_grant_host(const char *host, const char *what); /* whether the name may be resolved */
/* Records that the granted `host` resolved to `address`, which is granted on the same ports. */
int vmh_grant_resolved(const char *host, const char *address);
enum { VMH_ADDRESS_TEXT = 64 };
bool vmh_socket_name(int fd, char text[static VMH_ADDRESS_TEXT], long *port); /* false: not bound to the internet */

/* --- answers.c: which datagrams a socket may receive on an address that `listen` does not grant */
int vmh_answers_only(int fd); /* only answers from now on. 0, or -1 with a Python error set */
void vmh_answers_and_others(int fd);
/* Accepts answers of `address` from now on, an exact one to which the socket may send. Returns it with a numeric host,
 * to be used for sending; for a stream, or a socket that accepts all datagrams, `address` itself. A new reference;
 * NULL: error set. */
PyObject *vmh_answers_of(int fd, PyObject *address);

/* --- descriptors.c: a guest uses only descriptors that it created. 0, or -1 with a Python error set. */
int vmh_fd_own(int fd); /* a new descriptor becomes the guest's. On failure it is closed */
int vmh_fd_room(void);  /* call before what opens one has effects that remain: whether the guest may have one more */
/* Counts a descriptor that the guest opens but has no number of; vmh_meter_close() ends that. */
int vmh_fd_open(int fd);
bool vmh_fd_is_last(int fd); /* the process has few left, for the host */
bool vmh_fd_owned(int fd);
int vmh_fd_check(int fd, const char *what);
int vmh_fd_hold(int fd, const char *what); /* begins a use of the guest's descriptor, whose number stays reserved */
void vmh_fd_drop(int fd);                  /* ends a use */
int vmh_fd_close(int fd);                  /* the guest's close: 0 or an errno, no Python error */
const vmh_owned_fd *vmh_fd_entry(int fd);  /* NULL: not related to the guest */
/* Takes the descriptor from `object` (FileIO, socket, epoll), which ends the object's use; `closes`: also closes it. 0
 * or an errno. */
int vmh_fd_release(PyObject *object, bool closes);
/* Call before and after an original sets the descriptor of `object`, or passes it on; see init->released. */
void vmh_fd_init_begin(vmh_seal *seal, vmh_fd_init *init, PyObject *object);
void vmh_fd_init_end(vmh_seal *seal, vmh_fd_init *init);
void vmh_fd_dealloc(PyObject *object, destructor original, bool closes); /* tp_dealloc of such an object */
void vmh_fds_end(vmh_seal *seal);                                        /* closes what the guest left open */

/* --- bundle_files.c: the files of the task's bundle by path */
typedef struct vmh_bundle_entry {
    int kind;     /* S_IFREG, S_IFDIR; 0: missing */
    char *inside; /* its path within the bundle; "": the bundle itself; owned */
    size_t size;
} vmh_bundle_entry;
int vmh_bundle_find(const char *path, vmh_bundle_entry *entry); /* -1: error set */
void vmh_bundle_entry_clear(vmh_bundle_entry *entry);
/* The result of os.<function>(path) for `entry`; `mode`: of access(), or None. NULL: error set. */
PyObject *vmh_bundle_answer(const vmh_bundle_entry *entry, const char *function, PyObject *path, PyObject *mode);

/* seal.c: whether `code` is CPython's or of the VMs' standard library, by its file name: only code of these has such a
 * name that is not a task's own choice, and function_code.c lets no copy of it have another one. */
bool vmh_seal_is_library(const vmh_seal *seal, PyCodeObject *code);

/* --- the seal itself, grants.c */
vmh_seal *vmh_seal_of(vmh_vm *vm);  /* NULL before its boot */
vmh_seal *vmh_seal_new(vmh_vm *vm); /* NULL: no memory */
/* `permissions`: {"read": [...], ...} with the kinds of bytecode/fields.py (GRANTS), or NULL: nothing. */
int vmh_seal_permit(vmh_seal *seal, PyObject *permissions);

/* Calls `visit` with the seal of `vm`, which is not freed meanwhile; does nothing if there is none. Any thread, no GIL.
 */
void vmh_seal_visit(vmh_vm *vm, void (*visit)(vmh_seal *));

/* gates_posix.c: adds the granted variables to os.environ. */
int vmh_environ_fill(vmh_seal *seal);

/* repairs.c: fixes builtin types with which plain Python crashes the interpreter. In the calling interpreter, before a
 * task's code runs; -1: error set. */
int vmh_repairs_make(void);
/* The slots of the types, which all interpreters share; and what the host's interpreter needs to be as before. */
int vmh_repairs_host(void);

/* importer.c: the native module `name` is loaded from the file `path`, not from CPython's folders. Both strings are
 * kept. Before the first VM. */
void vmh_importer_lend(const char *name, const char *path);

/* recording.c: records that the calling VM has used an outside resource. */
enum { VMH_USED_FILES = 1, VMH_USED_SOCKETS = 2, VMH_USED_SQLITE = 4 };
void vmh_used(unsigned what);

/* Add a file's functions to `_vmhost`. */
int vmh_importer_add(PyObject *native);
int vmh_recording_add(PyObject *native);
int vmh_subclasses_gate(void);
PyObject *vmh_importer_code(const char *name); /* code of the system code store */

/* waits.c: waits until a descriptor is ready (poll events). 1: ready, 0: timed out, -1: stopped (error set). */
struct pollfd;
int vmh_wait_fds(struct pollfd *fds, int count, int64_t deadline_ns); /* room for one more at fds[count] */

#endif
