/* Trials of attention, which break the search's ties: of values that lie in any order, backwards and repeated; with
 * every allocation made to fail once. Their memory is released. There are none of large steps. */
#include <string.h>

#include "../check.h"
#include "models/attention.h"
#include "models/rates.h"
#include "models/tuning.h"

enum { VALUES = 5, Q = 0, K, V, ADDEND, OUT };
enum { LARGE = 16 << 20 }; /* numbers */
static vme_context *context;
static model_value values[VALUES];
static model_step step;

static void lies(int number, int rank, const int64_t shape[], const int64_t strides[])
{
    values[number] = (model_value){.kind = number < ADDEND ? MODEL_VIEW : MODEL_COMPUTED,
                                   .dtype = VME_FLOAT32,
                                   .rank = rank,
                                   .container = number < ADDEND ? OUT : -1,
                                   .offset = 12345};
    for (int d = 0; d < rank; d++) {
        values[number].shape[d] = shape[d];
        values[number].strides[d] = strides[d] * (int64_t)sizeof(float);
    }
}

/* q's rows lie backwards, each key's numbers side by side, v is the same for all items, and the result's rows are its
 * last dimension but one. */
static void attention(int64_t items, int64_t rows, int64_t keys, int64_t depth, int64_t width)
{
    lies(Q, 3, (int64_t[]){items, rows, depth}, (int64_t[]){rows * depth, -depth, 1});
    lies(K, 3, (int64_t[]){items, depth, keys}, (int64_t[]){depth, 1, items * depth});
    lies(V, 2, (int64_t[]){keys, width}, (int64_t[]){width, 1});
    lies(ADDEND, 1, (int64_t[]){keys}, (int64_t[]){1});
    lies(OUT, 3, (int64_t[]){items, rows, width}, (int64_t[]){width, items * width, 1});
    step = (model_step){.kind = STEP_TENSOR,
                        .guard = -1,
                        .op = MODEL_ATTENTION,
                        .run = attention_run,
                        .in = -1,
                        .addend = -1,
                        .out = OUT,
                        .scratch = -1};
    for (int i = 0; i < MODEL_STEP_OPERANDS; i++)
        step.operand[i] = i < OUT ? i : -1;
}

static vme_statistics statistics(void)
{
    vme_statistics told;
    vme_context_statistics(context, &told);
    return told;
}

static int64_t live(void) { return (int64_t)statistics().live_bytes; }

static vme_status try_both(const vme_kernels *kernels)
{
    algorithm_trial trials[2];
    int begun = 0;
    vme_status status = VME_OK;
    while (status == VME_OK && begun < 2) {
        CHECK(trial_lay_out(&trials[begun], context, kernels, values, &step,
                            begun == 0 ? ATTENTION_FUSED : ATTENTION_APART)
              > 0);
        status = trial_begin(&trials[begun++]);
    }
    if (status == VME_OK)
        status = trials_run(trials, begun);
    for (int i = 0; i < begun; i++) {
        CHECK(status != VME_OK || trials[i].best_ns > 0);
        trial_end(&trials[i]);
    }
    return status;
}

static vme_model model_of_the_step(void)
{
    return (vme_model){.context = context,
                       .kernels = vme_kernels_current(),
                       .value = values,
                       .values = VALUES,
                       .step = &step,
                       .steps = 1};
}

int main(void)
{
    CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
    for (int backend = 0; backend < vme_backend_count(); backend++) {
        if (!vme_backend_available(backend))
            continue;
        const vme_kernels *kernels = vme_kernels_of(backend);
        for (int64_t rows = 1; rows < 40; rows += 6) {
            attention(3, rows, 17, 5, 9);
            CHECK(try_both(kernels) == VME_OK && live() == 0);
        }
        attention(2, 40, 1, 64, 1); /* q is larger than all else */
        CHECK(try_both(kernels) == VME_OK && live() == 0);
        attention(2, 20, 70, 33, 40);
        for (long after = 0;; after++) {
            vme_context_unref(context); /* with the blocks that are kept for it */
            CHECK(vme_context_new(NULL, 0, &context) == VME_OK);
            failing_malloc(after);
            const vme_status status = try_both(kernels);
            if (failing_malloc(-1) == 0) {
                CHECK(status == VME_OK && after > 2);
                break;
            }
            CHECK(status == VME_NO_MEMORY && live() == 0);
        }
    }
    double rates[VME_RATES]; /* some of these are near ties by the built-in rates; whatever comes out is what comes out
                                again */
    vme_rates_fixed(rates);
    CHECK(vme_rates_set(rates) == VME_OK);
    for (int64_t rows = 20; rows < 130; rows += 2) {
        attention(4, rows, 64, 16, 16);
        vme_model model = model_of_the_step();
        int64_t scratch[2] = {0};
        model_algorithm chosen[2];
        for (int i = 0; i < 2; i++) {
            CHECK(algorithm_choose(&model, &step, NULL, &scratch[i]) == VME_OK && live() == 0);
            chosen[i] = step.algorithm;
        }
        CHECK(chosen[0] == chosen[1] && chosen[0] >= ATTENTION_FUSED && scratch[0] == scratch[1] && scratch[0] > 0);
    }
    const int64_t peak = (int64_t)statistics().peak_bytes;
    CHECK(peak < LARGE);
    for (int64_t rows = 20; rows < 130; rows += 2) { /* the same, so large that the expected costs alone decide */
        attention(LARGE / rows / 16, rows, 64, 16, 16);
        vme_model model = model_of_the_step();
        int64_t scratch;
        CHECK(algorithm_choose(&model, &step, NULL, &scratch) == VME_OK && step.algorithm >= ATTENTION_FUSED);
    }
    CHECK((int64_t)statistics().peak_bytes == peak);
    vme_context_unref(context);
    puts("trials: ok");
    return 0;
}
