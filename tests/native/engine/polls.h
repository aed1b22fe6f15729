/* Included before every source of the engine for test_polls.c, which counts the looks at the stop flag
 * (tests/native/run.py). */
#include "runtime/internal.h"

void vme_polled(void) __attribute__((weak));
#define vme_stopping(context) ((vme_polled != NULL ? vme_polled() : (void)0), vme_stopping(context))
