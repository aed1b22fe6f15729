/* The cores that threads of this process may run on, and threads that keep off one of them. */
#ifndef VME_CORES_H
#define VME_CORES_H

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>

enum { CORE_NONE = -1 };

/* What a thread keeps off. */
typedef struct core_avoided {
    int core, taken; /* the core; the one that was taken from the thread's set for that, or CORE_NONE */
    cpu_set_t left;  /* the set that this left, to see whether somebody else has changed it */
} core_avoided;
#define CORES_ALL ((core_avoided){.core = CORE_NONE, .taken = CORE_NONE})

/* At least 1. */
int cores_count(void);
/* Has a thread keep off `core`, if it may use others, and use the one again that it kept off; CORE_NONE: as it is. One
 * caller at a time. */
void core_avoid(pthread_t thread, core_avoided *avoided, int core);

#endif
