#include "vm/sampler.h"

#include <errno.h>

#include "cpython/stack.h"
#include "lanes/clock.h"
#include "lanes/urgency.h"
#include "lanes/warden.h"
#include "vm/vm_private.h"
#include "wire/engine.h"

/* Sampling uses at most 1/SHARE of a core: if a sample takes longer, samples become rarer. The first UNPACED_NS are
 * not counted: the first samples learn the functions, and a pause for their cost would leave a short profile empty. */
enum { SHARE = 150, UNPACED_NS = 10000000 };

static atomic_flag under_way = ATOMIC_FLAG_INIT;
static int64_t runs; /* guarded by `under_way` */

typedef struct sampling {
    vmh_sampler *sampler;
    int64_t run, wall_ns; /* wall: since the previous sample */
} sampling;

static int64_t clock_ns(clockid_t clock)
{
    struct timespec ts;
    return clock_gettime(clock, &ts) == 0 ? (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec : 0;
}

/* The function that a frame runs; -1: unknown. */
static int32_t function_of(vmh_profile *profile, uint64_t vm, const vmh_stack_frame *frame)
{
    const uint64_t a = frame->code, b = frame->name ^ (uint64_t)frame->first_line << 48,
                   c = frame->line_table ^ vm << 48;
    int32_t function = vmh_profile_code(profile, a, b, c);
    vmh_stack_code code;
    if (function < 0 && vmh_stack_name(frame, &code))
        function =
            vmh_profile_learn(profile, a, b, c, code.file, code.name, code.first_line, code.lines, code.lines_size);
    return function;
}

static void add_stack(sampling *look, vmh_vm *vm, const vmh_lane *lane, PyThreadState *ts, int64_t cpu_ns)
{
    struct vme_context *context = atomic_load(&vm->engine);
    const char *engine = vmh_engine_doing(context, (uintptr_t)ts->thread_id);
    vmh_stack_frame frames[VMH_PROFILE_DEPTH];
    vmh_profile *profile = &look->sampler->profile;
    bool cut;
    int count = vmh_stack_read(ts, frames, VMH_PROFILE_DEPTH, &cut);
    if (count < 0) {
        look->sampler->unreadable++;
        count = 0;
    }
    if (engine != vmh_engine_doing(context, (uintptr_t)ts->thread_id))
        engine = NULL; /* the thread moved on: the stack may belong to another operator */
    int32_t node = vmh_profile_task(profile, lane->name, lane->version);
    if (node < 0)
        return;
    for (int i = count - 1; i >= 0; i--) {
        int32_t function = function_of(profile, vm->id, &frames[i]);
        if (function < 0)
            continue;
        const vmh_function *known = &profile->functions.items[function];
        int line = known->lines == NULL
                       ? 0
                       : vmh_stack_line(known->lines, known->lines_size, known->first_line, frames[i].offset);
        node = vmh_profile_node_of(profile, node, function, line);
    }
    if (engine != NULL) {
        int32_t function = vmh_profile_code(profile, (uintptr_t)engine, 0, 0);
        if (function < 0)
            function = vmh_profile_learn(profile, (uintptr_t)engine, 0, 0, "engine", engine, 0, NULL, 0);
        if (function >= 0)
            node = vmh_profile_node_of(profile, node, function, 0);
    }
    vmh_profile_add(profile, node, look->wall_ns, cpu_ns);
}

/* Samples threads whose VM is in a call or loads its task. CPU time of calls too short to be sampled is added to the
 * next sample of the same thread. */
static void visit(vmh_vm *vm, void *context)
{
    sampling *look = context;
    vmh_mutex_lock(&vm->life);
    vmh_threads *threads = &vm->threads;
    const vmh_lane *lane = atomic_load(&vm->work.lane);
    bool busy = lane != NULL && vm->interpreter.interp != NULL
                && (vm->phase.which == VMH_PHASE_CALL || vm->phase.which == VMH_PHASE_LOAD);
    bool first = threads->sampling != look->run;
    threads->sampling = look->run;
    if (atomic_load(&threads->cpu_clock_valid) && (busy || first)) {
        int64_t cpu = clock_ns(threads->cpu_clock);
        if (busy)
            add_stack(look, vm, lane, vm->interpreter.tstate, first ? 0 : cpu - threads->counted_cpu_ns);
        threads->counted_cpu_ns = cpu;
    }
    for (int i = 0; threads->count > 0 && i < VMH_GUEST_THREADS_MAX; i++) {
        if (!threads->guests[i].used || threads->guests[i].state == NULL)
            continue;
        int64_t cpu = clock_ns(threads->guests[i].clock);
        if (busy)
            add_stack(look, vm, lane, threads->guests[i].state, first ? 0 : cpu - threads->guests[i].counted_cpu_ns);
        if (busy || first)
            threads->guests[i].counted_cpu_ns = cpu;
    }
    vmh_mutex_unlock(&vm->life);
}

/* A pseudo-random number from 0 to 1023. With even intervals, periodic work of a task would be sampled too often or
 * never. */
static unsigned uneven(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(*state >> 54);
}

int vmh_sampler_run(vmh_sampler *sampler)
{
    int rc = vmh_stack_readable();
    if (rc != 0)
        return rc;
    if (atomic_flag_test_and_set(&under_way))
        return EBUSY;
    vmh_urgency_set(VMH_PROMPT);
    sampling look = {.sampler = sampler, .run = ++runs};
    int64_t before = sampler->began_ns = vmh_now_ns(), cpu_began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
    uint64_t state = (uint64_t)before;
    while (atomic_load(&sampler->stop) == 0) {
        int64_t now = vmh_now_ns();
        look.wall_ns = now - before;
        before = now;
        vmh_warden_visit_vms(visit, &look);
        sampler->looks++;
        sampler->cost_ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_began;
        int64_t due = now + sampler->interval_ns / 2 + sampler->interval_ns * uneven(&state) / 1024;
        int64_t affordable = sampler->began_ns + (sampler->cost_ns - UNPACED_NS) * SHARE;
        due = due < affordable ? affordable : due;
        while (atomic_load(&sampler->stop) == 0 && vmh_futex_wait(&sampler->stop, 0, due) != ETIMEDOUT) {}
    }
    sampler->ended_ns = vmh_now_ns();
    vmh_urgency_set(VMH_USUAL);
    atomic_flag_clear(&under_way);
    return 0;
}
