#include "crash/starvation.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Reads /proc/self/task/<tid>/<name>; false: not readable, or empty. */
static bool read_text(pid_t tid, const char *name, char *to, size_t size)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%d/%s", (int)tid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t got = read(fd, to, size - 1);
    close(fd);
    to[got < 0 ? 0 : got] = '\0';
    return got > 0;
}

static bool read_turns(pid_t tid, int64_t *ran_ns, int64_t *waited_ns, int64_t *turns)
{
    char text[96];
    return read_text(tid, "schedstat", text, sizeof text)
           && sscanf(text, "%" SCNd64 " %" SCNd64 " %" SCNd64, ran_ns, waited_ns, turns) == 3;
}

static bool runnable(pid_t tid)
{
    char text[512];
    const char *name_end; /* of the thread's name, which may hold anything */
    return read_text(tid, "stat", text, sizeof text) && (name_end = strrchr(text, ')')) != NULL
           && strncmp(name_end, ") R", 3) == 0;
}

int64_t vmh_starved_so_far_ns(pid_t tid)
{
    int64_t ran, waited, turns;
    return read_turns(tid, &ran, &waited, &turns) ? waited : 0;
}

int64_t vmh_starved_ns(vmh_starvation *watch, int64_t round, pid_t tid, int64_t now_ns)
{
    int64_t ran, waited, turns;
    if (!read_turns(tid, &ran, &waited, &turns))
        return 0;
    if (watch->round != round) {
        *watch = (vmh_starvation){.round = round, .base_ns = waited, .ran_ns = ran, .turns = turns, .seen_ns = now_ns};
        return 0;
    }
    if (watch->ran_ns != ran || watch->turns != turns) {
        watch->ran_ns = ran;
        watch->turns = turns;
        watch->seen_ns = now_ns;
    }
    int64_t under_way = now_ns > watch->seen_ns && runnable(tid) ? now_ns - watch->seen_ns : 0;
    return waited - watch->base_ns + under_way;
}
