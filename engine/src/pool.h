/* What few operators need to know of the pool beside vme_parallel (internal.h).
 *
 * Pieces are taken in order (unless the job is vme_parallel_apart's), and one that was taken is done to its end. So a piece may wait for those before it, with an eye on the
 * stop flag: they are done or somebody is at work on them. */
#ifndef VME_POOL_H
#define VME_POOL_H

/* Which of the pool's threads this is: 0 for a caller, else a helper's number from 1. Those at work on one job differ. */
int vme_worker(void);

#endif
