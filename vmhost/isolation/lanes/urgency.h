/* How soon a thread of the core needs the processor when others want it too.
 *
 * Told to the kernel as the length of time slice that the thread is content with (sched_setattr; Linux 6.12 and later,
 * older ones ignore it): who wakes takes the core at once from a thread with longer slices, instead of at a timer tick,
 * which may be 4 ms away. Shares of the processor stay as they are, so nobody starves; and unlike a nice value a thread
 * may take it back without a privilege. Where the kernel refuses, all goes on as before. A prompt thread is made nice
 * as well where that is allowed.
 */
#ifndef VMH_URGENCY_H
#define VMH_URGENCY_H

enum vmh_urgency {
    VMH_USUAL,   /* as any other thread */
    VMH_PROMPT,  /* sleeps most of the time, and runs for microseconds */
    VMH_PATIENT, /* nobody waits for what it does in the next milliseconds: a VM that boots or ends */
};

/* Of the calling thread; PATIENT also lets those run first who wait for its core now. A thread under a real-time or
 * other policy of its own is left alone. */
void vmh_urgency_set(enum vmh_urgency urgency);

#endif
