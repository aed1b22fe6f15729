/* The sampler of profiles over VMs that are none: each allocation fails once while it looks at them, and what it saw
 * stays whole. */
#include <errno.h>

#include "check.h"
#include "cpython/stack.h"
#include "lanes/urgency.h"
#include "lanes/warden.h"
#include "vm/sampler.h"
#include "vm/vm_private.h"
#include "wire/engine.h"

enum { VMS = 3, FUNCTIONS = 40, LOOKS = 4 };

static vmh_vm *vms[VMS];
static vmh_lane lane = {.name = "task", .version = "1"};
static vmh_sampler *sampler;
static int looks, readable, inner; /* inner: the error of a sampler that was started beside the other */

/* ---- other rooms */

void vmh_warden_visit_vms(void (*visit)(vmh_vm *, void *), void *context)
{
    for (int i = 0; i < VMS; i++)
        visit(vms[i], context);
    if (looks == 0) {
        vmh_sampler second = {0};
        inner = vmh_sampler_run(&second);
    }
    if (++looks == LOOKS)
        atomic_store(&sampler->stop, 1);
}

const char *vmh_engine_doing(const struct vme_context *context, uintptr_t thread)
{
    return context == NULL || thread != 1 ? NULL : "matmul";
}
void vmh_urgency_set(enum vmh_urgency urgency) { (void)urgency; }
int vmh_stack_readable(void) { return readable; }

/* Other functions at each look; a guest thread's stack cannot be read, and functions go meanwhile. */
int vmh_stack_read(PyThreadState *ts, vmh_stack_frame *frames, int max, bool *cut)
{
    CHECK(max == VMH_PROFILE_DEPTH);
    *cut = false;
    for (int i = 0; i < FUNCTIONS; i++)
        frames[i] = (vmh_stack_frame){.code = (uintptr_t)(1 + i + FUNCTIONS * looks), .name = 7, .first_line = i};
    return ts->thread_id == 0 ? -1 : FUNCTIONS;
}

bool vmh_stack_name(const vmh_stack_frame *frame, vmh_stack_code *code)
{
    unsigned char *lines = frame->first_line == 5 ? NULL : calloc(4, 1);
    if (lines == NULL)
        return false;
    *code = (vmh_stack_code){.first_line = frame->first_line, .lines_size = 4, .lines = lines};
    snprintf(code->file, sizeof code->file, "task@1/main.py");
    snprintf(code->name, sizeof code->name, "function%d", frame->first_line);
    return true;
}

int vmh_stack_line(const unsigned char *lines, size_t size, int first_line, int offset)
{
    CHECK(lines[0] == 0 && size == 4 && offset == 0);
    return first_line;
}

/* ---- the test */

static int64_t look(long failing)
{
    vmh_sampler one = {.interval_ns = 1000};
    int64_t wall_ns = 0;
    sampler = &one;
    looks = 0;
    failing_malloc(failing);
    CHECK(vmh_sampler_run(&one) == 0 && inner == EBUSY);
    bool failed = failing_malloc(-1);
    CHECK(one.looks == LOOKS && one.ended_ns >= one.began_ns && one.unreadable == LOOKS);
    const vmh_profile *profile = &one.profile;
    for (int32_t i = 0; i < profile->node_count; i++) {
        CHECK(profile->nodes[i].parent < i && profile->nodes[i].function < profile->functions.count);
        CHECK(profile->nodes[i].parent >= 0
              || *profile->functions.items[profile->nodes[i].function].file == 0); /* a task */
        wall_ns += profile->nodes[i].wall_ns;
    }
    CHECK(failed || (!profile->full && profile->functions.count == 1 + 1 + FUNCTIONS - 1));
    vmh_profile_clear(&one.profile);
    return failed ? -1 : wall_ns;
}

int main(void)
{
    static PyThreadState own = {.thread_id = 1}, guest = {.thread_id = 0};
    for (int i = 0; i < VMS; i++) {
        vms[i] = calloc(1, sizeof *vms[i]);
        CHECK(vms[i] != NULL);
        pthread_mutex_init(&vms[i]->life, NULL);
        vms[i]->id = (uint64_t)i + 1;
        atomic_store(&vms[i]->work.lane, &lane);
        vms[i]->interpreter.interp = (PyInterpreterState *)(void *)&own;
        vms[i]->interpreter.tstate = &own;
        vms[i]->phase.which = i == VMS - 1 ? VMH_PHASE_IDLE : VMH_PHASE_CALL;
        vms[i]->threads.cpu_clock = CLOCK_THREAD_CPUTIME_ID;
        atomic_store(&vms[i]->threads.cpu_clock_valid, true);
    }
    atomic_store(&vms[0]->engine, (struct vme_context *)(void *)&guest);
    vms[1]->threads.count = 1;
    vms[1]->threads.guests[2].used = true;
    vms[1]->threads.guests[2].state = &guest;
    vms[1]->threads.guests[2].clock = CLOCK_THREAD_CPUTIME_ID;

    long at = 0;
    while (look(at) < 0)
        at++;
    CHECK(at > 50);
    vmh_sampler none = {0};
    readable = EPERM;
    CHECK(vmh_sampler_run(&none) == EPERM && none.looks == 0);
    for (int i = 0; i < VMS; i++) {
        pthread_mutex_destroy(&vms[i]->life);
        free(vms[i]);
    }
    printf("test_sampler: passed, %ld allocations failed once each\n", at);
    return 0;
}
