/* Class probabilities from pairwise ones, for support vector machines: T.-F. Wu, C.-J. Lin and R. C. Weng, "Probability
 * Estimates for Multi-class Classification by Pairwise Coupling", JMLR 5 (2004), algorithm 2, with the stopping rule of
 * LIBSVM and ONNX Runtime. */
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"

#include <math.h>

enum {
    CLASSES_MAX = 256,
    ROUNDS_MIN = 100,        /* the limit of rounds is this or the number of classes, whichever is larger */
    STORED_CLASSES_MAX = 24, /* with more classes, the matrix is not stored */
};
/* the algorithm ends when the gradient is below this, divided by the number of classes */
#define GRADIENT_BOUND  0.005
#define PROBABILITY_MIN 1e-7

typedef struct coupling {
    vme_context *context;
    vme_tensor pairs, out;
    int64_t classes;
} coupling;

/* The probability of class i given that it is i or j; pairs are those with i < j, in order. */
static double pair_probability(const float *pairs, int64_t classes, int64_t i, int64_t j)
{
    const int64_t a = i < j ? i : j, b = i < j ? j : i;
    const double p =
        fmin(fmax((double)pairs[a * classes - a * (a + 1) / 2 + b - a - 1], PROBABILITY_MIN), 1 - PROBABILITY_MIN);
    return i < j ? p : 1 - p;
}

/* Element (t, j) of the matrix whose quadratic form is minimized. */
static double matrix_element(const float *pairs, int64_t classes, int64_t t, int64_t j)
{
    if (t != j)
        return -pair_probability(pairs, classes, j, t) * pair_probability(pairs, classes, t, j);
    double sum = 0;
    for (int64_t other = 0; other < classes; other++)
        if (other != t)
            sum += pair_probability(pairs, classes, other, t) * pair_probability(pairs, classes, other, t);
    return sum;
}

/* The matrix: stored for few classes, otherwise each element is computed on demand. */
typedef struct matrix {
    const float *pairs;
    int64_t classes;
    double elements[STORED_CLASSES_MAX * STORED_CLASSES_MAX];
} matrix;

static inline double matrix_at(const matrix *q, int64_t t, int64_t j)
{
    return q->classes <= STORED_CLASSES_MAX ? q->elements[t * q->classes + j]
                                            : matrix_element(q->pairs, q->classes, t, j);
}

/* Computes the class probabilities of one row; false: the context was stopped. */
static bool couple_row(const coupling *job, const float *pairs, float *out)
{
    const int64_t classes = job->classes, rounds = classes > ROUNDS_MIN ? classes : ROUNDS_MIN;
    double p[CLASSES_MAX], gradient[CLASSES_MAX];
    matrix q;
    q.pairs = pairs;
    q.classes = classes;
    for (int64_t i = 0; classes <= STORED_CLASSES_MAX && i < classes * classes; i++)
        q.elements[i] = matrix_element(pairs, classes, i / classes, i % classes);
    for (int64_t t = 0; t < classes; t++)
        p[t] = 1.0 / (double)classes;
    for (int64_t round = 0; round < rounds; round++) {
        double objective = 0, largest_residual = 0;
        for (int64_t t = 0; t < classes; t++) {
            gradient[t] = 0;
            for (int64_t j = 0; j < classes; j++)
                gradient[t] += matrix_at(&q, t, j) * p[j];
            objective += p[t] * gradient[t];
        }
        for (int64_t t = 0; t < classes; t++)
            largest_residual = fmax(largest_residual, fabs(gradient[t] - objective));
        if (largest_residual < GRADIENT_BOUND / (double)classes)
            break;
        for (int64_t t = 0; t < classes; t++) {
            const double diagonal = matrix_at(&q, t, t), change = (objective - gradient[t]) / diagonal;
            p[t] += change;
            objective = (objective + change * (change * diagonal + 2 * gradient[t])) / (1 + change) / (1 + change);
            for (int64_t j = 0; j < classes; j++) {
                gradient[j] = (gradient[j] + change * matrix_at(&q, t, j)) / (1 + change);
                p[j] /= 1 + change;
            }
            if (vme_stopping(job->context))
                return false;
        }
    }
    for (int64_t t = 0; t < classes; t++)
        out[t] = (float)p[t];
    return true;
}

static vme_status couple_rows(void *argument, int64_t begin, int64_t end)
{
    const coupling *job = argument;
    for (int64_t i = begin; i < end; i++)
        if (!couple_row(job, (const float *)((const char *)job->pairs.data + i * job->pairs.strides[0]),
                        (float *)((char *)job->out.data + i * job->out.strides[0])))
            break;
    return VME_OK;
}

static vme_status run_couple(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    coupling job = {.context = context,
                    .pairs = model_tensor(model, step->operand[0], arena),
                    .out = model_tensor(model, step->out, arena)};
    job.classes = job.out.shape[1];
    return vme_parallel(context, job.out.shape[0], 16, couple_rows, &job);
}

vme_status model_make_couple(model_preparation *preparation, uint32_t number, const model_node_record *node,
                             const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const model_value *pairs = &preparation->model->value[step->operand[0]],
                      *out = &preparation->model->value[step->out];
    step->run = run_couple;
    if (node->inputs != 1 || pairs->rank != 2 || out->rank != 2 || pairs->dtype != VME_FLOAT32
        || out->dtype != VME_FLOAT32 || out->kind == MODEL_VIEW || pairs->shape[0] != out->shape[0] || out->shape[1] < 2
        || out->shape[1] > CLASSES_MAX || pairs->shape[1] != out->shape[1] * (out->shape[1] - 1) / 2
        || (pairs->shape[1] > 1 && pairs->strides[1] != (int64_t)sizeof(float)))
        return MODEL_WRONG(number, "has a result that is not [rows, classes] for operands [rows, pairs of classes]");
    return VME_OK;
}
