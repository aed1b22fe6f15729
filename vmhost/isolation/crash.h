/* Which VM was running when the process crashed: breadcrumbs in a file-backed map that outlive the process. */
#ifndef VMH_CRASH_H
#define VMH_CRASH_H

/* Each VM thread, at its beginning and end: an alternate signal stack, so that a stack overflow can be recorded. */
void vmh_crash_thread_enter(void);
void vmh_crash_thread_leave(void);

#endif
