/* CPU affinity: the cores that this process may run on, and threads that avoid one of them. */
#ifndef VME_CORES_H
#define VME_CORES_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

enum { CORE_NONE = -1 };

/* The core that a thread avoids. */
typedef struct core_avoided {
    int core, taken; /* the core to avoid; the core removed from the thread's affinity mask, or CORE_NONE */
    cpu_set_t left;  /* the mask that was set last, to detect changes by other code */
} core_avoided;
#define CORES_ALL ((core_avoided){.core = CORE_NONE, .taken = CORE_NONE})

/* The number of cores that the calling thread may run on, at least 1. */
int cores_count(void);
/* Removes `core` from the thread's affinity mask, unless it is the only one, and restores the core removed before.
 * Does nothing for CORE_NONE. Not thread-safe. */
void core_avoid(pthread_t thread, core_avoided *avoided, int core);

#endif
