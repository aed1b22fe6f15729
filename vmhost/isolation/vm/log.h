/* Log lines of a guest, until the host takes them. A VM writes a limited number of bytes a second, and has at most what
 * it may write in a second waiting; what is beyond is dropped, counted, and told by a line at most once a second. */
#ifndef VMH_LOG_H
#define VMH_LOG_H

#include <pthread.h>
#include <stddef.h>

#include "lanes/vm.h"

enum {
    VMH_LOG_LINE_BYTES_MAX = 8192,
    VMH_LOG_LINE_COST = 100, /* bytes that a line counts besides its own: so lines are limited too */
    VMH_LOG_WAITING_MAX = 64 << 20,
    VMH_LOG_RATE = 1 << 20, /* until limits are set */
};

typedef struct vmh_log_line {
    struct vmh_log_line *next;
    int level;
    size_t size;
    char text[];
} vmh_log_line;

typedef struct vmh_log {
    pthread_mutex_t lock;        /* guards the rest */
    vmh_log_line *first, **tail; /* owned */
    int64_t waiting;             /* bytes of these lines, with their costs */
    int64_t rate;                /* bytes a second */
    int64_t credit, credit_ns;   /* bytes that may be written, and since when */
    long long dropped, dropped_in_all;
    int64_t dropping_ns, noticed_ns; /* when the first of `dropped` was dropped; when drops were last told */
} vmh_log;

/* Adds one line, of UTF-8; control characters and line ends in it become escapes. */
void vmh_log_add(vmh_vm *vm, int level, const char *text, size_t size);
/* Adds a line about dropped ones, if there are some: at most one a second, unless `last`. */
void vmh_log_notice(vmh_vm *vm, bool last);

#endif
