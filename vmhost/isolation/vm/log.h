/* Log lines of a guest, until the host takes them. */
#ifndef VMH_LOG_H
#define VMH_LOG_H

#include <pthread.h>
#include <stddef.h>

#include "lanes/vm.h"

enum { VMH_LOG_LINES_MAX = 1000, VMH_LOG_LINE_BYTES_MAX = 8192 };

typedef struct vmh_log_line {
    struct vmh_log_line *next;
    int level;
    size_t size;
    char text[];
} vmh_log_line;

typedef struct vmh_log {
    pthread_mutex_t lock;        /* guards the rest */
    vmh_log_line *first, **tail; /* owned */
    int count;
    long long dropped;
} vmh_log;

void vmh_log_add(vmh_vm *vm, int level, const char *text, size_t size);

#endif
