/* A guest that is written in C: what calls of test_vms.c ask for, and what the VMs did. */
#ifndef VMH_TEST_FAKE_GUEST_H
#define VMH_TEST_FAKE_GUEST_H

#include <stdatomic.h>

/* The request's one byte. Those from SLEEP on never end by themselves. */
enum work {
    WORK_NOTHING,
    WORK_LOCK,    /* the same lock as the VM's guest threads */
    WORK_NAP,     /* a short wait, which runs to its end */
    WORK_ENGINE,  /* loads the engine, unless it is loaded */
    WORK_POST,    /* speaks to the host */
    WORK_SLEEP,   /* time.sleep */
    WORK_READ,    /* a descriptor that nothing is written to */
    WORK_BLOCKED, /* a lock that is never released */
    WORK_SPIN,
    WORK_MEMORY, /* spins, over its memory limit */
    WORK_KINDS
};

enum { GUEST_THREADS = 2, GUEST_SOFT_BYTES = 1 << 20 };

#define GUEST_BOOT_NS INT64_C(1000000) /* the time to boot of a VM that is to take longer */

extern atomic_long guest_locked;  /* how often the lock was taken, by all VMs */
extern atomic_long guest_stopped; /* how many waits of guest threads a stop ended */
extern atomic_int guest_seals;    /* that live */

#endif
