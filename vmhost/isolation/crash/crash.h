/* Which VM was running when the process crashed: breadcrumbs that outlive the process. No Python in here.
 *
 * Each VM thread has a slot: task, version, phase. A handler of fatal signals, on an alternate stack, marks the slot of
 * the thread that crashed, writes it to a file and chains to the handler before it. The file is not mapped: a map of a
 * file without blocks, on a full disk, or of one that somebody truncates, is a crash of its own. Its blocks are there
 * before they are needed. It belongs to one process at a time (flock). A VM thread that runs over the end of its stack
 * is first offered to overflow.c, which may keep the process alive.
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

/* Puts the breadcrumbs into the file at `path`. What the last process left there is copied to *before (pid 0: nothing),
 * also when this fails. 0 or an errno: EBUSY: another process has it; EEXIST: this one has another file already;
 * ENOSPC, EFBIG, EDQUOT: no room for it. Installs the handlers. */
int vmh_crash_open(const char *path, vmh_crash_map *before);
/* In a forked child: lets go of the file, which stays the parent's. */
void vmh_crash_forked(void);

/* Installs the handlers, once; vmh_crash_open does it too. What handles these signals from later on comes first. */
void vmh_crash_install(void);

/* Each VM thread, at its beginning and end. NULL: all slots are taken (then that thread leaves no trace). */
vmh_crash_slot *vmh_crash_thread_enter(uint64_t vm_id);
void vmh_crash_thread_leave(vmh_crash_slot *slot);
/* A further thread of the same VM. */
void vmh_crash_thread_join(vmh_crash_slot *slot);
void vmh_crash_name(vmh_crash_slot *slot, const char *task, const char *version);
/* Its PyInterpreterState, from when it is made until it ends (NULL). */
void vmh_crash_interpreter(vmh_crash_slot *slot, void *interpreter);
/* The call that it begins: `entry` lives until the call has ended (NULL). On the VM's own thread. */
void vmh_crash_call(vmh_crash_slot *slot, const char *entry, size_t bytes, int64_t started_ns);

#endif
