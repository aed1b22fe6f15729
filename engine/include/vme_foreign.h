/* Threads that run foreign libraries (LAPACK), of the process. */
#ifndef VME_FOREIGN_PUBLIC_H
#define VME_FOREIGN_PUBLIC_H

#include "vme.h"

/* Threads that still work for calls that a stop has ended. */
VME_API int vme_abandoned_threads(void);

#endif
