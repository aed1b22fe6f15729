/* The dump that a crashing process writes: the native stack of the thread that crashed, the Python stacks of all VMs,
 * and notes kept by the host. It runs in a handler of fatal signals: it takes no lock and allocates nothing. The parts
 * most likely to fault again are written last; a second fault ends the process, and what was written stays. */
#ifndef VMH_DUMP_H
#define VMH_DUMP_H

#include <stddef.h>
#include <stdint.h>

#include "crash/crash.h"

enum { VMH_DUMP_NOTES = 2, VMH_DUMP_WAIT_S = 10 };

/* Creates or empties the file. One per process. 0 or an errno. */
int vmh_dump_open(const char *path);
void vmh_dump_forked(void);
/* Registers bytes that live as long as the process; they are written up to the first zero byte. */
void vmh_dump_note(int which, const char *data, size_t size);

/* These set or clear the state of the slot with this index. */
void vmh_dump_interpreter(int slot, void *interpreter);
void vmh_dump_call(int slot, const char *entry, size_t bytes, int64_t started_ns);
void vmh_dump_forget(int slot);

/* Once, by the first thread that crashes. `slot` -1: the thread belongs to no VM. */
void vmh_dump_write(int signal, int slot, const vmh_crash_slot *slots);

#endif
