/* How soon a core thread needs the CPU when other threads want it too.
 *
 * It is set as the thread's requested time slice (sched_setattr; Linux 6.12 and later, older kernels ignore it): a
 * waking thread preempts one with longer slices at once instead of at a timer tick, up to 4 ms later. CPU shares stay
 * the same, so no thread starves; and unlike a nice value, the request can be undone without a privilege. Where the
 * kernel refuses, nothing changes. A prompt thread also gets a lower nice value where that is allowed.
 */
#ifndef VMH_URGENCY_H
#define VMH_URGENCY_H

enum vmh_urgency {
    VMH_USUAL,   /* the default slice */
    VMH_PROMPT,  /* mostly asleep; runs for microseconds */
    VMH_PATIENT, /* no one waits for its next milliseconds: a VM that boots or ends */
};

/* Applies to the calling thread; PATIENT also yields its core now. A thread with another scheduling policy (such as
 * real-time) is left alone. */
void vmh_urgency_set(enum vmh_urgency urgency);

#endif
