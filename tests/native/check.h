/* The smallest of test frames: a failed check says where and stops the program. */
#ifndef VMH_TEST_CHECK_H
#define VMH_TEST_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#define CHECK(what) \
    do { \
        if (!(what)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #what); \
            exit(1); \
        } \
    } while (0)

/* From failing_calls.c: one allocation fails, after `after` more went well; -1: none does. Gives whether one failed
 * since the last time. */
int failing_malloc(long after);
/* The same of reads and writes of files. */
int failing_files(long after);

#endif
