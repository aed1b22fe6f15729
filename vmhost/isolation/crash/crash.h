/* Records which VM was running when the process crashed, in a file that outlives the process. No Python in here.
 *
 * Each VM thread has a slot: task, version, phase. A handler of fatal signals, on an alternate stack, marks the slot of
 * the thread that crashed, writes it to the file and chains to the previous handler. The file is not mapped: writing to
 * a mapping crashes if the disk is full or the file has been truncated. Its blocks are allocated in advance. One
 * process at a time owns it (flock). A VM thread's stack overflow is first offered to overflow.c, which may keep the
 * process alive.
 */
#ifndef VMH_CRASH_H
#define VMH_CRASH_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum { VMH_CRASH_SLOTS = 1024, VMH_CRASH_TEXT = 96 };

typedef struct vmh_crash_slot {
    atomic_int used;
    atomic_int signal; /* of the crash, on the thread that crashed; 0: none */
    atomic_int phase;  /* enum vmh_phase */
    uint64_t vm_id;
    char task[VMH_CRASH_TEXT], version[VMH_CRASH_TEXT];
} vmh_crash_slot;

typedef struct vmh_crash_map {
    char magic[8];
    int32_t pid;
    vmh_crash_slot slots[VMH_CRASH_SLOTS];
} vmh_crash_map;

/* Opens the crash file at `path`. The record of the previous process is copied to *before (pid 0: none), even when this
 * fails. 0 or an errno: EBUSY: another process owns the file; EEXIST: this process already has another file;
 * ENOSPC, EFBIG, EDQUOT: no space for it. Installs the handlers. */
int vmh_crash_open(const char *path, vmh_crash_map *before);
/* In a forked child: closes the file, which stays the parent's. */
void vmh_crash_forked(void);

/* Installs the handlers, once; vmh_crash_open does so too. Handlers installed later run first. */
void vmh_crash_install(void);

/* Each VM thread, at its beginning and end. NULL: all slots are taken, and this thread leaves no record. */
vmh_crash_slot *vmh_crash_thread_enter(uint64_t vm_id);
void vmh_crash_thread_leave(vmh_crash_slot *slot);
/* For another thread of the same VM. */
void vmh_crash_thread_join(vmh_crash_slot *slot);
void vmh_crash_name(vmh_crash_slot *slot, const char *task, const char *version);
/* Sets the VM's PyInterpreterState after its creation, and NULL before its end. */
void vmh_crash_interpreter(vmh_crash_slot *slot, void *interpreter);
/* Sets the running call: `entry` must live until the call has ended (then NULL). On the VM's own thread. */
void vmh_crash_call(vmh_crash_slot *slot, const char *entry, size_t bytes, int64_t started_ns);

#endif
