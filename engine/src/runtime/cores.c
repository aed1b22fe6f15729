/* CPU affinity (cores.h). If other code has changed a thread's affinity mask in the meantime, that mask is kept. */
#include "runtime/cores.h"

#include <unistd.h>

int cores_count(void)
{
    cpu_set_t set;
    long online = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > CPU_SETSIZE ? CPU_SETSIZE : (int)online;
}

void core_avoid(pthread_t thread, core_avoided *avoided, int core)
{
    cpu_set_t set;
    if (core < 0 || avoided->core == core || pthread_getaffinity_np(thread, sizeof set, &set) != 0)
        return;
    if (avoided->taken >= 0 && CPU_EQUAL(&set, &avoided->left))
        CPU_SET(avoided->taken, &set);
    bool take = core < CPU_SETSIZE && CPU_ISSET(core, &set) && CPU_COUNT(&set) > 1;
    if (take)
        CPU_CLR(core, &set);
    if (pthread_setaffinity_np(thread, sizeof set, &set) != 0)
        return;
    avoided->core = core;
    avoided->taken = take ? core : CORE_NONE;
    avoided->left = set;
}
