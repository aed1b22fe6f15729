/* The signal mask of the core's threads. */
#ifndef VMH_SIGNALS_H
#define VMH_SIGNALS_H

#include <pthread.h>
#include <signal.h>
#include <stddef.h>

/* Blocks all signals on the calling thread but faults of its own. Signals to the process are the host's: its handlers
 * must not interrupt a VM, and a host that waits for signals (sigwait) blocks them in all threads, which it cannot do
 * in ours. Faults stay unblocked, or the system would end the process at a stack overflow. */
static inline void vmh_signals_leave_to_host(void)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS};
    sigset_t blocked;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++)
        sigdelset(&blocked, faults[i]);
    pthread_sigmask(SIG_SETMASK, &blocked, NULL);
}

#endif
