/* Dividing an operator's work: for now all of it is the calling thread's. */
#include "internal.h"

#include <unistd.h>

vme_status vme_parallel(vme_context *context, int64_t count, int64_t grain, vme_body *body, void *argument)
{
    for (int64_t begin = 0; begin < count; begin += grain) {
        if (vme_stopping(context))
            return vme_stopped_here(context);
        vme_status status = body(argument, begin, begin + grain < count ? begin + grain : count);
        if (status != VME_OK)
            return status;
    }
    return VME_OK;
}

int vme_threads(void) { return 1; }

vme_status vme_threads_set(int threads)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (threads < 1 || threads > cores)
        return vme_fail(VME_BAD_VALUE, "threads: expected 1 .. %ld (this machine's cores), got %d", cores, threads);
    return VME_OK;
}
