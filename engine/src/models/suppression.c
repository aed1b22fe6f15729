/* Non-maximum suppression: of boxes that overlap by more than a bound, keeps the one with the highest score, for each
 * class of each image.
 *
 * Operands: 0 boxes [images, count, 4], float32; 1 scores [images, classes, count], float32; 2 int64 [1], the maximum
 * number of boxes of a class; 3 float32 [1], the bound of intersection over union; 4 float32 [1] or absent: only boxes
 * with higher scores are considered. All are dense. The result is int64 [1 + rows, 3]: the number of boxes, then image,
 * class and box index of each, ordered by image, class and descending score, followed by zeros. There is room for the
 * maximum number of boxes of each class of each image. Of equal scores the first box is chosen first. A box with a NaN
 * coordinate overlaps none; one with a NaN score is not considered if there is a score bound. */
#include "models/file.h"
#include "models/makers.h"
#include "models/model.h"
#include "models/preparation.h"
#include "models/step.h"
#include "models/tensors.h"
#include "models/value.h"
#include "runtime/internal.h"
#include "runtime/numbers.h"

#include <math.h>
#include <string.h>

enum { COORDINATES = 4, COLUMNS = 3, STOP_INTERVAL = 1 << 12 /* boxes between two checks of the stop flag */ };

typedef struct suppression {
    vme_context *context;
    const float *boxes, *scores;
    int64_t *rows, *selected; /* selected: number of boxes, for each class of each image */
    int64_t classes, count, max_rows, max_boxes;
    float max_overlap, min_score;
    bool has_min_score, centers; /* centers: boxes are centre x, centre y, width and height */
} suppression;

typedef struct candidate {
    float score;
    int32_t box;
} candidate;

typedef struct corners {
    float left, top, right, bottom, area;
} corners;

static bool comes_before(candidate a, candidate b)
{
    return a.score > b.score || (a.score == b.score && a.box < b.box);
}

/* Moves element `index` down to its position in the heap. */
static void sift(candidate *heap, int64_t count, int64_t index)
{
    const candidate moved = heap[index];
    for (int64_t child = 2 * index + 1; child < count; child = 2 * index + 1) {
        if (child + 1 < count && comes_before(heap[child + 1], heap[child]))
            child++;
        if (!comes_before(heap[child], moved))
            break;
        heap[index] = heap[child];
        index = child;
    }
    heap[index] = moved;
}

static corners corners_of(const suppression *job, const float *box)
{
    corners result;
    if (job->centers) {
        result = (corners){box[0] - box[2] / 2, box[1] - box[3] / 2, box[0] + box[2] / 2, box[1] + box[3] / 2, 0};
    } else {
        result =
            (corners){fminf(box[1], box[3]), fminf(box[0], box[2]), fmaxf(box[1], box[3]), fmaxf(box[0], box[2]), 0};
    }
    result.area = (result.right - result.left) * (result.bottom - result.top);
    return result;
}

static bool overlaps(const corners *a, const corners *b, float bound)
{
    const float width = fminf(a->right, b->right) - fmaxf(a->left, b->left),
                height = fminf(a->bottom, b->bottom) - fmaxf(a->top, b->top);
    if (!(width > 0 && height > 0 && a->area > 0 && b->area > 0))
        return false;
    const float intersection = width * height;
    return intersection / (a->area + b->area - intersection) > bound;
}

/* Selects boxes of one class of one image, numbered through all images; returns their number. */
static int64_t select_boxes(const suppression *job, int64_t class_number, candidate *heap, corners *selected_corners)
{
    const float *scores = job->scores + class_number * job->count,
                *boxes = job->boxes + class_number / job->classes * job->count * 4;
    int64_t candidates = 0, selected = 0, compared = 0;
    for (int64_t i = 0; i < job->count; i++)
        if (!isnan(scores[i]) && (!job->has_min_score || scores[i] > job->min_score))
            heap[candidates++] = (candidate){scores[i], (int32_t)i};
    for (int64_t i = candidates / 2 - 1; i >= 0; i--)
        sift(heap, candidates, i);
    int64_t *row = job->rows + class_number * job->max_rows * COLUMNS;
    while (candidates > 0 && selected < job->max_boxes) {
        const int32_t box = heap[0].box;
        const corners box_corners = corners_of(job, boxes + (int64_t)box * COORDINATES);
        heap[0] = heap[--candidates];
        sift(heap, candidates, 0);
        bool keep = true;
        for (int64_t i = 0; i < selected && keep; i++)
            keep = !overlaps(&box_corners, &selected_corners[i], job->max_overlap);
        if (keep) {
            selected_corners[selected] = box_corners;
            memcpy(row + selected * COLUMNS, (int64_t[]){class_number / job->classes, class_number % job->classes, box},
                   COLUMNS * sizeof *row);
            selected++;
        }
        compared += selected + 1;
        if (compared > STOP_INTERVAL && vme_stopping(job->context))
            break;
        compared = compared > STOP_INTERVAL ? 0 : compared;
    }
    return selected;
}

static vme_status select_of_classes(void *argument, int64_t begin, int64_t end)
{
    const suppression *job = argument;
    const size_t heap_bytes = (size_t)job->count * sizeof(candidate),
                 bytes = heap_bytes + (size_t)job->max_rows * sizeof(corners);
    char *scratch = vme_scratch_new(job->context, bytes);
    if (scratch == NULL)
        return VME_NO_MEMORY;
    for (int64_t class_number = begin; class_number < end && !vme_stopping(job->context); class_number++)
        job->selected[class_number] =
            select_boxes(job, class_number, (candidate *)(void *)scratch, (corners *)(void *)(scratch + heap_bytes));
    vme_scratch_free(job->context, scratch, bytes);
    return VME_OK;
}

static vme_status suppression_run(vme_context *context, const vme_model *model, const model_step *step, char *arena)
{
    const model_value *scores = &model->value[step->operand[1]], *out = &model->value[step->out];
    int64_t *rows = (int64_t *)(void *)model_tensor(model, step->out, arena).data;
    suppression job = {
        .context = context,
        .boxes = (const float *)(const void *)model_tensor(model, step->operand[0], arena).data,
        .scores = (const float *)(const void *)model_tensor(model, step->operand[1], arena).data,
        .rows = rows + COLUMNS,
        .classes = scores->shape[1],
        .count = scores->shape[2],
        .centers = step->p[SUPPRESS_CENTERS] != 0,
        .max_overlap = *(const float *)(const void *)model_tensor(model, step->operand[3], arena).data,
        .has_min_score = step->operand[4] >= 0,
    };
    const int64_t all_classes = scores->shape[0] * job.classes;
    if (all_classes * job.count == 0 || out->shape[0] == 1) { /* no boxes to choose from, or no room for one */
        memset(rows, 0, (size_t)out->shape[0] * COLUMNS * sizeof *rows);
        return VME_OK;
    }
    job.max_rows = (out->shape[0] - 1) / all_classes;
    job.max_boxes = *(const int64_t *)(const void *)model_tensor(model, step->operand[2], arena).data;
    job.max_boxes = max(0, min(job.max_boxes, job.max_rows));
    if (job.has_min_score)
        job.min_score = *(const float *)(const void *)model_tensor(model, step->operand[4], arena).data;
    job.selected = vme_scratch_new(context, (size_t)all_classes * sizeof *job.selected);
    if (job.selected == NULL)
        return VME_NO_MEMORY;
    vme_status status = vme_parallel(context, all_classes, 1, select_of_classes, &job);
    int64_t total = 0;
    for (int64_t class_number = 0; status == VME_OK && !vme_stopping(context) && class_number < all_classes;
         class_number++) {
        memmove(job.rows + total * COLUMNS, job.rows + class_number * job.max_rows * COLUMNS,
                (size_t)job.selected[class_number] * COLUMNS * sizeof *rows);
        total += job.selected[class_number];
    }
    memcpy(rows, (int64_t[]){total, 0, 0}, COLUMNS * sizeof *rows);
    memset(job.rows + total * COLUMNS, 0, (size_t)(out->shape[0] - 1 - total) * COLUMNS * sizeof *rows);
    vme_scratch_free(context, job.selected, (size_t)all_classes * sizeof *job.selected);
    return status;
}

static bool is_number(model_preparation *preparation, int tensor, int dtype)
{
    const model_value *value = &preparation->model->value[tensor];
    return value->rank == 1 && value->shape[0] == 1 && model_require_dense(preparation, tensor, dtype);
}

vme_status model_make_suppression(model_preparation *preparation, uint32_t number, const model_node_record *node,
                                  const uint32_t *operands, model_step *step, int step_number)
{
    (void)operands, (void)step_number;
    const vme_model *model = preparation->model;
    step->run = suppression_run;
    if (node->inputs < 4 || node->inputs > 5 || step->operand[1] < 0 || step->operand[2] < 0 || step->operand[3] < 0)
        return MODEL_WRONG(number, "has %u operands, expected boxes, scores, a count and bounds", node->inputs);
    const model_value *boxes = &model->value[step->operand[0]], *scores = &model->value[step->operand[1]],
                      *out = &model->value[step->out];
    const bool fits =
        boxes->rank == 3 && scores->rank == 3 && out->rank == 2 && boxes->shape[2] == COORDINATES
        && boxes->shape[0] == scores->shape[0] && boxes->shape[1] == scores->shape[2] && boxes->shape[1] <= INT32_MAX
        && out->shape[1] == COLUMNS && (out->shape[0] - 1) % (scores->shape[0] * scores->shape[1]) == 0
        && model_require_dense(preparation, step->operand[0], VME_FLOAT32)
        && model_require_dense(preparation, step->operand[1], VME_FLOAT32)
        && is_number(preparation, step->operand[2], VME_INT64) && is_number(preparation, step->operand[3], VME_FLOAT32)
        && (step->operand[4] < 0 || is_number(preparation, step->operand[4], VME_FLOAT32))
        && model_require_dense(preparation, step->out, VME_INT64);
    if (!fits)
        return MODEL_WRONG(number, "has operands whose shapes or dtypes do not match");
    return model_check_no_overlap(preparation, number, step);
}
