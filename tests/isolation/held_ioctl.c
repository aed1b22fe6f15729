/* Preloaded: an ioctl(FIONBIO), by which CPython sets what a socket waits, stops before it reaches the kernel, until it
 * is let go on. Driven through ctypes by test_sockets_in_the_making.py. */
#define _GNU_SOURCE 1
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static atomic_bool armed;
static sem_t here, gone_on;

/* Stops the next ioctl. */
void held_arm(void)
{
    sem_init(&here, 0, 0);
    sem_init(&gone_on, 0, 0);
    atomic_store(&armed, true);
}

/* Returns when an ioctl has stopped. */
void held_wait(void)
{
    while (sem_wait(&here) != 0)
        ;
}

void held_go_on(void) { sem_post(&gone_on); }

int ioctl(int fd, unsigned long request, ...)
{
    va_list arguments;
    va_start(arguments, request);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (request == FIONBIO && atomic_exchange(&armed, false)) {
        sem_post(&here);
        while (sem_wait(&gone_on) != 0)
            ;
    }
    return (int)syscall(SYS_ioctl, fd, request, argument);
}
