#include "crash.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

/* Large enough for a chained handler such as faulthandler's. */
enum { STACK_BYTES = 64 * 1024 };

static _Thread_local void *stack;

void vmh_crash_thread_enter(void)
{
    stack = malloc(STACK_BYTES);
    if (stack != NULL)
        sigaltstack(&(stack_t){.ss_sp = stack, .ss_size = STACK_BYTES}, NULL);
}

void vmh_crash_thread_leave(void)
{
    sigaltstack(&(stack_t){.ss_flags = SS_DISABLE}, NULL);
    free(stack);
    stack = NULL;
}
