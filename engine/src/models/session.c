/* Runs a prepared model: its steps, or chains of steps (bands.c), in order, each divided among threads. A session keeps
 * its arena between runs, so that a run allocates nothing; simultaneous runs of one session allocate arenas of their
 * own. For a model with open sizes it caches plans, and keeps one arena as large as the largest plan so far. */
#include "models/bands.h"
#include "models/outside.h"
#include "models/model.h"
#include "models/plans.h"
#include "models/step.h"
#include "models/steps.h"
#include "runtime/internal.h"

#include <stdlib.h>

struct vme_session {
    vme_context *context;
    vme_model *model;
    char *arena;
    size_t arena_bytes;
    atomic_bool busy;
    vme_thread_options options;
    model_plans plans;
};

/* Observer of runs; NULL: none. `run_now_ns` is set before `run_ended`. */
static int64_t (*_Atomic run_now_ns)(void);
static void (*_Atomic run_ended)(int64_t began_ns);

void vme_runs_observe(int64_t (*now_ns)(void), void (*ended)(int64_t began_ns))
{
    atomic_store(&run_now_ns, now_ns);
    atomic_store(&run_ended, ended);
}

/* ---- sessions */
/* Zeroed: a file may read parts of values that no step wrote; those must not reveal old contents of memory. */
static vme_status arena_new(vme_context *context, const vme_model *model, char **result)
{
    char *arena = vme_scratch_new(context, model->arena_bytes);
    if (arena == NULL)
        return VME_NO_MEMORY;
    model_clear(context, arena, model->arena_bytes);
    if (vme_stopping(context)) {
        vme_scratch_free(context, arena, model->arena_bytes);
        return vme_stopped_here(context);
    }
    *result = arena;
    return VME_OK;
}

vme_status vme_session_new(vme_context *context, vme_model *model, vme_session **result)
{
    vme_session *session = calloc(1, sizeof *session);
    if (session == NULL)
        return vme_fail(VME_NO_MEMORY, "no memory for a session");
    if (model->opens == 0) { /* otherwise the first run determines the size */
        vme_status status = arena_new(context, model, &session->arena);
        if (status != VME_OK) {
            free(session);
            return status;
        }
        session->arena_bytes = model->arena_bytes;
    }
    pthread_mutex_init(&session->plans.lock, NULL);
    session->context = vme_context_ref(context);
    session->model = vme_model_ref(model);
    *result = session;
    return VME_OK;
}

void vme_session_free(vme_session *session)
{
    if (session == NULL)
        return;
    vme_scratch_free(session->context, session->arena, session->arena_bytes);
    plans_free(&session->plans);
    vme_model_unref(session->model);
    vme_context_unref(session->context);
    free(session);
}

vme_model *vme_session_model(const vme_session *session) { return session->model; }

static vme_status check_port(const vme_model *model, bool output, int number, const vme_tensor *tensor)
{
    vme_port port;
    vme_model_port(model, output, number, &port);
    const char *what = output ? "output" : "input";
    if (tensor->dtype != port.dtype)
        return vme_fail(VME_BAD_DTYPE, "%s '%s': expected %s, got %s", what, port.name,
                        vme_dtype_name((vme_dtype)port.dtype), vme_dtype_name((vme_dtype)tensor->dtype));
    bool same = tensor->rank == port.rank;
    for (int d = 0; same && d < port.rank; d++)
        same = tensor->shape[d] == port.shape[d];
    if (!same || !vme_is_contiguous(tensor))
        return vme_fail(VME_BAD_SHAPE, "%s '%s': expected a contiguous array of %d dimensions and the model's shape",
                        what, port.name, port.rank);
    return output ? vme_check_output(tensor) : VME_OK;
}

vme_status vme_session_options(vme_session *session, int threads, unsigned flags)
{
    if (threads < 0)
        return vme_fail(VME_BAD_VALUE, "threads: expected 1 or more, got %d", threads);
    if (flags & ~VME_FLUSH_SUBNORMALS)
        return vme_fail(VME_BAD_VALUE, "there are no session options %#x", flags & ~VME_FLUSH_SUBNORMALS);
    session->options = (vme_thread_options){.threads = threads, .flags = flags};
    return VME_OK;
}

vme_status vme_session_plan(vme_session *session, const vme_tensor *const *inputs, vme_model **plan)
{
    return plans_find(&session->plans, session->context, session->model, inputs, plan);
}

/* The session's own arena, enlarged if the plan needs more; only for the run that holds the session. */
static vme_status session_arena(vme_session *session, const vme_model *plan, char **arena)
{
    vme_status status = VME_OK;
    if (session->arena == NULL || session->arena_bytes < plan->arena_bytes) {
        vme_scratch_free(session->context, session->arena, session->arena_bytes);
        session->arena = NULL;
        session->arena_bytes = 0;
        status = arena_new(session->context, plan, &session->arena);
        if (status == VME_OK)
            session->arena_bytes = plan->arena_bytes;
    }
    *arena = session->arena;
    return status;
}

/* Runs a plan. `ns` receives the time of each step, in nanoseconds, for vme_session_profile; otherwise it is NULL. */
static vme_status run_plan(vme_session *session, const vme_model *model, const vme_tensor *const *inputs,
                           const vme_tensor *const *outputs, uint64_t *ns)
{
    vme_context *context = session->context;
    vme_status status = VME_OK;
    for (int i = 0; status == VME_OK && i < model->inputs; i++)
        status = check_port(model, false, i, inputs[i]);
    for (int i = 0; status == VME_OK && i < model->outputs; i++)
        status = check_port(model, true, i, outputs[i]);
    if (status != VME_OK)
        return status;
    bool expected = false, holds_session = atomic_compare_exchange_strong(&session->busy, &expected, true);
    char *arena = NULL;
    status = holds_session ? session_arena(session, model, &arena) : arena_new(context, model, &arena);
    if (status != VME_OK) {
        if (holds_session)
            atomic_store(&session->busy, false);
        return status;
    }
    vme_thread_options options = session->options;
    options.kernels = model->kernels;
    const vme_thread_options before = vme_thread_options_set(options);
    VME_FLUSHING_IF(session->options.flags);
    const char *const outer_activity = vme_context_do(context, "model");
    void (*const ended)(int64_t) =
        outer_activity == NULL ? atomic_load_explicit(&run_ended, memory_order_acquire) : NULL;
    int64_t run_began_ns = ended == NULL ? 0 : atomic_load_explicit(&run_now_ns, memory_order_relaxed)();
    if (model->outside_count > 0)
        status = outside_begin(context, model, inputs, outputs, arena);
    for (int s = 0, count; status == VME_OK && s < model->steps; s += count) {
        const model_step *step = &model->step[s];
        uint64_t began_ns = ns == NULL ? 0 : model_now_ns();
        count = step->chain.steps > 0 ? step->chain.steps : 1;
        if (step->idle || (step->guard >= 0 && !model_guard_holds(model, step->guard, arena)))
            continue;
        atomic_fetch_add_explicit(&context->operators, (uint64_t)count, memory_order_relaxed);
        vme_context_do(context, model_step_kind(step));
        if (step->chain.steps > 0)
            status = chain_run(context, model, s, arena, inputs, ns == NULL ? NULL : ns + s);
        else
            status = step_run(context, model, step, arena,
                              step->kind == STEP_IMPORT   ? inputs[step->port]
                              : step->kind == STEP_EXPORT ? outputs[step->port]
                                                          : NULL);
        if (status == VME_OK && step->fills_outside > 0)
            outside_entry_of(arena, step->fills_outside)->filled = true;
        if (status == VME_OK && vme_stopping(context)) /* the last pieces may have ended early */
            status = vme_stopped_here(context);
        if (ns != NULL && step->chain.steps == 0)
            ns[s] = model_now_ns() - began_ns;
    }
    if (status == VME_OK && model->outside_count > 0)
        outside_end(model, outputs, arena);
    vme_context_do(context, outer_activity);
    if (ended != NULL)
        ended(run_began_ns);
    vme_thread_options_set(before);
    if (holds_session)
        atomic_store(&session->busy, false);
    else
        vme_scratch_free(context, arena, model->arena_bytes);
    return status;
}

static vme_status run(vme_session *session, const vme_tensor *const *inputs, const vme_tensor *const *outputs,
                      uint64_t *ns)
{
    vme_model *plan;
    vme_status status = vme_session_plan(session, inputs, &plan);
    if (status != VME_OK)
        return status;
    status = run_plan(session, plan, inputs, outputs, ns);
    vme_model_unref(plan);
    return status;
}

vme_status vme_session_run(vme_session *session, const vme_tensor *const *inputs, const vme_tensor *const *outputs)
{
    return run(session, inputs, outputs, NULL);
}

vme_status vme_session_profile(vme_session *session, const vme_tensor *const *inputs, const vme_tensor *const *outputs,
                               uint64_t *ns)
{
    return run(session, inputs, outputs, ns);
}
