/* The signal mask of the engine's threads, which they inherit from the thread that starts them. */
#ifndef VME_SIGNALS_H
#define VME_SIGNALS_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Blocks all signals on the calling thread but faults: the system ends a process at once, without a report, if a fault
 * is blocked where it occurs. 0 or an errno; `before` receives the mask to restore. */
static inline int vme_signals_block(sigset_t *before)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    return pthread_sigmask(SIG_SETMASK, &blocked, before);
}

#endif
