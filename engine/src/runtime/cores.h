/* The cores that threads of this process may run on, and threads that avoid one of them. */
#ifndef VME_CORES_H
#define VME_CORES_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

enum { CORE_NONE = -1 };

/* The core that a thread avoids. */
typedef struct core_avoided {
    int core, taken; /* the core to avoid; the core removed from the thread's affinity mask, or CORE_NONE */
    cpu_set_t left;  /* the mask as it was set here, to notice changes by somebody else */
} core_avoided;
#define CORES_ALL ((core_avoided){.core = CORE_NONE, .taken = CORE_NONE})

/* At least 1. */
int cores_count(void);
/* Makes a thread avoid `core`, if it may run on others, and allows the core that it avoided before. CORE_NONE: only
 * allows. Not thread-safe. */
void core_avoid(pthread_t thread, core_avoided *avoided, int core);

#endif
