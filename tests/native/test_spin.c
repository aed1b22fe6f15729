/* Spinning: where it is of no use it does not happen, and what it takes without success is bounded. */
#include <pthread.h>
#include <sched.h>

#include "check.h"
#include "lanes/clock.h"
#include "lanes/spin.h"

enum { MANY = 10000 };

static void hold_to(int core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

static bool spent_nothing(vmh_spinner *spinner, int64_t before) { return atomic_load(&spinner->paid_ns) == before; }

static void of_no_use_on_the_core_of_the_other(void)
{
    atomic_uint word = 0;
    vmh_spinner spinner = {0};
    atomic_int peer = vmh_core_here();
    CHECK(!vmh_spin(&word, 1, &spinner, &peer));
    CHECK(spent_nothing(&spinner, 0));
}

/* Both threads are held to a core of their own, so each may use only one. */
static void between_threads_that_are_held_to_two_cores(int other)
{
    atomic_uint word = 0;
    vmh_spinner spinner = {0};
    atomic_int peer = other;
    CHECK(!vmh_spin(&word, 1, &spinner, &peer));
    CHECK(!spent_nothing(&spinner, 0));
}

static void without_success_it_ends(int other)
{
    atomic_uint word = 0;
    vmh_spinner spinner = {0};
    atomic_int peer = other;
    int spins = 0;
    for (int64_t before = 0; spins < MANY; spins++, before = atomic_load(&spinner.paid_ns))
        if (vmh_spin(&word, 1, &spinner, &peer) || spent_nothing(&spinner, before))
            break;
    CHECK(spins > 0 && spins < MANY);
    word = 1;
    atomic_fetch_add(&spinner.paid_ns, 1000000000); /* a second more: debts are paid while this runs */
    CHECK(!vmh_spin(&word, 1, &spinner, &peer));    /* not looked at: until its debt is paid */
}

static void *set_later(void *word)
{
    atomic_store((atomic_uint *)word, 1);
    return NULL;
}

static void what_comes_is_found_and_costs_nothing(int other)
{
    vmh_spinner spinner = {0};
    atomic_int peer = other;
    for (int i = 0; i < 200; i++) {
        atomic_uint word = 0;
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, set_later, &word) == 0);
        int64_t before = atomic_load(&spinner.paid_ns);
        bool came = vmh_spin(&word, 1, &spinner, &peer);
        CHECK(!came || (atomic_load(&word) == 1 && spent_nothing(&spinner, before)));
        CHECK(pthread_join(thread, NULL) == 0);
        spinner.paid_ns = 0;
        word = 1;
        CHECK(vmh_spin(&word, 1, &spinner, &peer));
    }
}

int main(void)
{
    cpu_set_t set;
    CHECK(sched_getaffinity(0, sizeof set, &set) == 0);
    int cores[2] = {-1, -1}, count = 0;
    for (int i = 0; i < CPU_SETSIZE && count < 2; i++)
        if (CPU_ISSET(i, &set))
            cores[count++] = i;
    hold_to(cores[0]);
    of_no_use_on_the_core_of_the_other();
    if (count == 2) {
        between_threads_that_are_held_to_two_cores(cores[1]);
        without_success_it_ends(cores[1]);
        CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
        what_comes_is_found_and_costs_nothing(-1);
    }
    puts("test_spin: passed");
    return 0;
}
