/* The sealing of one VM: what its C files (grants, gates, audit, importer, waits) share.
 *
 * A vmh_seal is made when its VM boots and freed after its interpreter has ended. It holds no Python object: what a
 * guest could find through one (gc, attributes) is nothing. Unless said otherwise it is guarded by the VM's GIL.
 */
#ifndef VMH_SEALING_H
#define VMH_SEALING_H

#include "cpython/compat.h"
#include "lanes/code_store.h"
#include "seal/seal.h"
#include "lanes/vm.h"

#include <dirent.h>
#include <sys/types.h>

/* What the audit hook lets through while one operation of ours runs on this thread. */
enum {
    VMH_PASS_CODE = 1,   /* the importer unmarshals code of a code store */
    VMH_PASS_NATIVE = 2, /* the importer opens a native module of the policy */
    VMH_PASS_GATE = 4,   /* a gate has checked the arguments, which are plain values from here on */
};

enum vmh_fd_state {
    VMH_FD_NONE,
    VMH_FD_OPEN,   /* the guest's */
    VMH_FD_CLOSED, /* by the guest; the number stays taken until its last use ends */
};

typedef struct vmh_owned_fd {
    enum vmh_fd_state state;
    unsigned uses;       /* objects of the guest that hold the number, and calls that use it now */
    bool blocks, folder; /* it is no regular file: a read may wait; it is a folder */
    dev_t device;
    ino_t inode; /* a number that came to another file meanwhile (a host that closed it) is not the guest's any more */
} vmh_owned_fd;

typedef struct vmh_fd_init { /* an object that is being given its descriptor; on a stack */
    struct vmh_fd_init *next;
    PyObject *object; /* borrowed */
    bool released;    /* it has let go of one meanwhile, by what ran in between */
} vmh_fd_init;

typedef struct vmh_fd_use { /* an object that keeps a number where we cannot see it */
    struct vmh_fd_use *next;
    PyObject *object; /* by its address only */
    int fd;
} vmh_fd_use;

typedef struct vmh_resolved { /* an address that getaddrinfo gave for a granted host */
    struct vmh_resolved *next;
    char *address;
    const char *pattern; /* of `net` or `listen` */
} vmh_resolved;

typedef struct vmh_map { /* what an anonymous map of a guest has been charged */
    struct vmh_map *next;
    PyObject *object; /* by its address only */
    size_t bytes;
} vmh_map;

typedef struct vmh_list {
    char **items;
    size_t count;
} vmh_list;

enum vmh_waiting { VMH_WAITING, VMH_WOKEN, VMH_INTERRUPTED };

typedef struct vmh_waiter {                      /* one thread in one wait; on its stack */
    struct vmh_waiter *next, **link;             /* of the VM; guarded by the waits' mutex */
    struct vmh_waiter *queue_next, **queue_link; /* of a lock or handle; GIL. queue_link NULL: not queued */
    atomic_uint word;                            /* futex: enum vmh_waiting */
} vmh_waiter;

typedef struct vmh_daemon { /* a thread that the end of the task ends; on its own stack; GIL */
    PyThreadState *ts;
    struct vmh_daemon *next;
} vmh_daemon;

typedef struct vmh_queue { /* threads that wait for one thing, first come first; GIL */
    vmh_waiter *first, **tail;
} vmh_queue;

typedef struct vmh_making { /* a native module whose second phase runs; on the stack of the thread that makes it; GIL */
    PyObject *module;       /* by its address only */
    struct vmh_making *next, **link;
} vmh_making;

/* A folder that an iterator of os.scandir lists. Under the VM's GIL. */
typedef struct vmh_listing {
    struct vmh_listing *next, **link;
    DIR *folder;
} vmh_listing;

typedef struct vmh_seal {
    struct vmh_seal *next; /* all seals; guarded by their own lock */
    vmh_vm *vm;
    vmh_code_store *task; /* one reference; NULL until the VM is attached */
    bool armed;
    vmh_making *making;
    char runtime[256]; /* folder, as code objects name it, of the guest runtime */

    vmh_list read, write, net, listen, env;
    vmh_list environ; /* "NAME=value" of what env names; without items: read from the process */
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
    int threads, daemons;    /* guest threads that run Python, and how many of them are daemons */
    vmh_daemon *daemon_list; /* those that have begun */
    vmh_queue idle;          /* who waits for threads == daemons */
    size_t thread_stack_bytes;

    PyObject *recorder; /* of the call that is recorded or replayed; owned; NULL: none is. GIL */
    atomic_uint used;   /* of VMH_USED_*: what the task has used outside of the VM */
} vmh_seal;

/* The seal of the VM that the calling thread belongs to; NULL on a host thread. */
vmh_seal *vmh_seal_here(void);
void vmh_seal_bind(vmh_seal *seal); /* for the calling thread */

/* The passes of the calling thread; returns the ones before. */
unsigned vmh_pass_set(unsigned pass);
unsigned vmh_pass_get(void);

/* --- grants.c: what the task's permissions name. All: 0, or -1 with a Python error set. */

/* Raises PermissionDenied: "<what>: <why>". Returns NULL. */
PyObject *vmh_deny(const char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum { VMH_READ = 1, VMH_WRITE = 2 };
/* Paths: paths.h. */
bool vmh_grant_environ(const char *name);

/* --- addresses.c. All: 0, or -1 with a Python error set. */
typedef struct vmh_address {
    PyObject *whole;  /* an exact tuple of exact str, bytes and ints: what is passed on; owned */
    const char *host; /* a name or a number, never empty; in `whole` or static */
    long port;
} vmh_address;
/* Reads what a socket of `family` is given as an address, once and for all. */
int vmh_address_read(PyObject *address, int family, const char *what, vmh_address *read);
PyObject *vmh_host_exact(PyObject *host, const char *what);       /* str or bytes, as the resolver takes it */
const char *vmh_host_text(PyObject *host);                        /* of vmh_host_exact's */
int vmh_grant_send(const vmh_address *address, const char *what); /* connecting, sending: `net` */
/* Port 0 of an address in numbers is what the kernel gives a socket anyway that connects; all else is `listen`'s. */
int vmh_grant_bind(const vmh_address *address, const char *what);
int vmh_grant_listen(int fd, const char *what);         /* by where the socket is bound */
bool vmh_listens(int fd);                               /* the same question */
int vmh_grant_host(const char *host, const char *what); /* may its name be resolved? */
/* `host`, which the permissions name, is `address` too, on the same ports. */
int vmh_grant_resolved(const char *host, const char *address);
enum { VMH_ADDRESS_TEXT = 64 };
bool vmh_socket_name(int fd, char text[static VMH_ADDRESS_TEXT], long *port); /* false: not bound to the internet */

/* --- answers.c: what a datagram socket receives that `listen` does not name */
int vmh_answers_only(int fd); /* from now on nothing but answers. 0, or -1 with a Python error set */
void vmh_answers_and_others(int fd);
/* From now on those of `address` too, an exact one to which the socket may send: the same in numbers, which is then
 * what is sent to. Of a stream, or a socket that takes everybody's datagrams, the address itself. New; NULL: error set.
 */
PyObject *vmh_answers_of(int fd, PyObject *address);

/* --- descriptors.c: a guest uses those that it made. 0, or -1 with a Python error set. */
int vmh_fd_own(int fd); /* just made: from now on the guest's. On failure it is closed */
bool vmh_fd_owned(int fd);
int vmh_fd_check(int fd, const char *what);
int vmh_fd_hold(int fd, const char *what); /* one use of a number of the guest's, which stays taken until it ends */
void vmh_fd_drop(int fd);                  /* ends one use */
int vmh_fd_close(int fd);                  /* as the guest: 0 or an errno, no Python error */
const vmh_owned_fd *vmh_fd_entry(int fd);  /* NULL: the guest has nothing to do with it */
/* `object` (FileIO, socket, epoll) lets go of its descriptor, which ends the object's use of it, and `closes` it or
 * not. 0 or an errno. */
int vmh_fd_release(PyObject *object, bool closes);
/* `object` is being given its descriptor, or its descriptor is being given to another, between the two; see
 * init->released. */
void vmh_fd_init_begin(vmh_seal *seal, vmh_fd_init *init, PyObject *object);
void vmh_fd_init_end(vmh_seal *seal, vmh_fd_init *init);
void vmh_fd_dealloc(PyObject *object, destructor original,
                    bool closes); /* what a tp_dealloc does with such an object */
void vmh_fds_end(vmh_seal *seal); /* closes what the guest left open */

/* --- bundle_files.c: the files of the task's bundle, as paths name them */
typedef struct vmh_bundle_entry {
    int kind;     /* S_IFREG, S_IFDIR; 0: not there */
    char *inside; /* its path within the bundle, "" the bundle itself; owned */
    size_t size;
} vmh_bundle_entry;
int vmh_bundle_find(const char *path, vmh_bundle_entry *entry); /* -1: error set */
void vmh_bundle_entry_clear(vmh_bundle_entry *entry);
/* What os.<function>(path) answers about `entry`; `mode` is that of access, or None. NULL: error set. */
PyObject *vmh_bundle_answer(const vmh_bundle_entry *entry, const char *function, PyObject *path, PyObject *mode);

/* --- the seal itself, grants.c */
vmh_seal *vmh_seal_of(vmh_vm *vm);  /* NULL before its boot */
vmh_seal *vmh_seal_new(vmh_vm *vm); /* NULL: no memory */
/* `permissions`: {"read": [...], ...} with the kinds of bytecode/fields.py (GRANTS), or NULL: nothing. */
int vmh_seal_permit(vmh_seal *seal, PyObject *permissions);

/* Calls `visit` with the seal of `vm`, which cannot go meanwhile; nothing when there is none. Any thread, no GIL. */
void vmh_seal_visit(vmh_vm *vm, void (*visit)(vmh_seal *));

/* gates_posix.c: os.environ holds what the permissions name, from now on. */
int vmh_environ_fill(vmh_seal *seal);

/* repairs.c: builtin types over which plain Python crashes the interpreter. In the calling interpreter, before code of
 * a task runs; -1: error set. */
int vmh_repairs_make(void);

/* importer.c: the native module `name` comes from the file `path`, not from CPython's folders. Both are kept. Before
 * the first VM. */
void vmh_importer_lend(const char *name, const char *path);

/* recording.c: the calling VM has used something outside. */
enum { VMH_USED_FILES = 1, VMH_USED_SOCKETS = 2, VMH_USED_SQLITE = 4 };
void vmh_used(unsigned what);

/* What each file adds to `_vmhost`. */
int vmh_importer_add(PyObject *native);
int vmh_recording_add(PyObject *native);
int vmh_subclasses_gate(void);
PyObject *vmh_importer_code(const char *name); /* code of the system code store */

/* waits.c: waits until a descriptor is ready (poll events), the VM is stopped (error set) or the time is over.
 * 1 ready, 0 time over, -1 error set. */
struct pollfd;
int vmh_wait_fds(struct pollfd *fds, int count, int64_t deadline_ns); /* room for one more at fds[count] */

#endif
