/* Networks: weights in GPU memory, and plans. A plan is a network at one set of sizes, with its arena, pinned buffers
 * and graph. engine/cuda/programs.py derives the steps from a model file. */
#include "kernels.h"
#include "tables.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

enum { WORKSPACE_MAX = 8 << 20, ALGORITHMS = 8 };

struct vme_cuda_weights {
    std::atomic<int> references{1};
    device_memory memory;
};

vme_cuda_status vme_cuda_weights_new(vme_cuda_device *device, const void *bytes, int64_t size,
                                     vme_cuda_weights **weights)
{
    *weights = nullptr;
    VME_TRY(cuda_enter(device));
    vme_cuda_weights *made = new (std::nothrow) vme_cuda_weights;
    if (made == nullptr)
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    vme_cuda_status status = made->memory.take(device, size);
    if (status == VME_CUDA_OK && size > 0) {
        status = cuda_write(device->copies, made->memory.at, bytes, size);
    }
    if (status != VME_CUDA_OK) {
        delete made;
        return status;
    }
    cuda_device_ref(device);
    *weights = made;
    return VME_CUDA_OK;
}

void vme_cuda_weights_unref(vme_cuda_weights *weights)
{
    if (weights == nullptr || weights->references.fetch_sub(1) != 1)
        return;
    vme_cuda_device *device = weights->memory.device;
    delete weights;
    vme_cuda_device_unref(device);
}

/* ---- products */
struct product {
    cublasLtMatmulDesc_t desc = nullptr;
    cublasLtMatrixLayout_t a = nullptr, b = nullptr, out = nullptr;
    cublasLtMatmulAlgo_t algorithm{};
    size_t workspace = 0;
    const void *at_a = nullptr, *at_b = nullptr;
    void *at_out = nullptr;
    kernel_step rest{}; /* bias and activation, as far as the product does not include them; may be empty */
    bool apart = false; /* each instruction of `rest` is a separate launch */
};

/* One operand of a product, in cuBLAS's column-major view. */
struct side {
    bool transposed;
    int64_t rows, columns, leading, batch_stride;
};

/* `row` and `column` are strides. False: neither of them is 1 or belongs to a dimension of size 1, or rows overlap. */
static bool side_of(int64_t rows, int64_t columns, int64_t row, int64_t column, int64_t batch_stride, side *found)
{
    if (column == 1 || columns == 1) { /* contiguous rows are the columns of cuBLAS's matrix */
        *found = {false, columns, rows, std::max(rows == 1 ? columns : row, columns), batch_stride};
        return columns == 1 || rows == 1 || row >= columns;
    }
    if (row == 1 || rows == 1) {
        *found = {true, rows, columns, std::max(columns == 1 ? rows : column, rows), batch_stride};
        return rows == 1 || column >= rows;
    }
    return false;
}

static void end_product(const cublas_functions &cublas, product *one)
{
    if (one->desc != nullptr)
        cublas.desc_destroy(one->desc);
    for (cublasLtMatrixLayout_t layout : {one->a, one->b, one->out})
        if (layout != nullptr)
            cublas.layout_destroy(layout);
}

struct launch {
    int op = VME_CUDA_MAP;
    int number = 0, count = 1; /* number: index of the product, or of the first step in plan->steps; count: steps */
    int64_t numbers = 0;       /* maximum elements of one of the steps */
};

struct vme_cuda_plan {
    vme_cuda_device *device = nullptr;
    vme_cuda_stream *stream = nullptr;
    vme_cuda_weights *weights = nullptr;
    int flags = 0;
    device_memory arena, workspace, together, lookup_memory, views;
    pinned_memory staged_in, staged_out;
    std::vector<int64_t> input_offsets, input_bytes, output_offsets, output_bytes;
    int64_t inputs_end = 0, outputs_begin = 0, outputs_end = 0;
    std::vector<launch> launches;
    std::vector<product> products;
    std::vector<kernel_step> steps;
    /* lookups: their offsets, weights and ids are consecutive in `staged_in`, after the inputs, and in lookup_memory */
    std::vector<vme_cuda_lookup> lookups;
    std::vector<vme_cuda_table *> tables; /* unique, ordered by address */
    int64_t bags = 0, weights_at = 0, ids_at = 0, ids_room = 0;
    bool weighted = false;
    int lanes_max = 1;
    cudaEvent_t copied = nullptr, done = nullptr;
    cudaGraphExec_t graph = nullptr;
};

static int64_t rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

static vme_cuda_status operand_of(const vme_cuda_plan *plan, const vme_cuda_operand &from, kernel_operand *to)
{
    *to = kernel_operand{};
    if (from.space == VME_CUDA_ABSENT)
        return VME_CUDA_OK;
    const device_memory &memory = from.space == VME_CUDA_WEIGHTS ? plan->weights->memory : plan->arena;
    if (from.offset < 0 || from.offset >= memory.bytes || from.offset % 4 != 0)
        return cuda_fail(VME_CUDA_BAD_VALUE, "an operand lies beyond its memory");
    to->at = reinterpret_cast<float *>(memory.as<char>() + from.offset);
    memcpy(to->strides, from.strides, sizeof to->strides);
    return VME_CUDA_OK;
}

/* Whether all elements of the operand that the step accesses are within its memory. */
static bool within(const vme_cuda_plan *plan, const vme_cuda_step &step, const vme_cuda_operand &operand)
{
    if (operand.space == VME_CUDA_ABSENT)
        return true;
    const device_memory &memory = operand.space == VME_CUDA_WEIGHTS ? plan->weights->memory : plan->arena;
    int64_t last = 0;
    for (int d = 0; d < step.rank; d++) {
        if (operand.strides[d] < 0)
            return false;
        last += (step.shape[d] - 1) * operand.strides[d];
    }
    return operand.offset + (last + 1) * 4 <= memory.bytes;
}

static vme_cuda_status check_step(const vme_cuda_plan *plan, const vme_cuda_step &step)
{
    int64_t count = 1;
    bool right = step.rank >= 0 && step.rank <= VME_CUDA_RANK && step.operand_count >= 1
                 && step.operand_count <= VME_CUDA_OPERANDS && step.instruction_count >= 0
                 && step.instruction_count <= VME_CUDA_INSTRUCTIONS && step.before >= 0
                 && step.before <= step.instruction_count && step.op >= 0 && step.op < VME_CUDA_OPS
                 && step.operands[0].space == VME_CUDA_ARENA;
    for (int d = 0; right && d < step.rank; d++) {
        right = step.shape[d] >= 1 && step.shape[d] <= INT32_MAX;
        count *= right ? step.shape[d] : 1;
        right = right && count <= INT32_MAX;
    }
    for (int i = 0; right && i < step.instruction_count; i++)
        right = step.instructions[i].function >= 0 && step.instructions[i].function < VME_CUDA_FUNCTIONS
                && step.instructions[i].operand < step.operand_count
                && (step.instructions[i].operand >= 0 || step.instructions[i].function >= VME_CUDA_CLIP);
    if (!right)
        return cuda_fail(VME_CUDA_BAD_VALUE, "a step is damaged, or too large for a GPU's kernel");
    if (step.op != VME_CUDA_PRODUCT)
        for (int i = 0; i < step.operand_count; i++)
            if (!within(plan, step, step.operands[i]))
                return cuda_fail(VME_CUDA_BAD_VALUE, "an operand lies beyond its memory");
    return VME_CUDA_OK;
}

static vme_cuda_status kernel_step_of(const vme_cuda_plan *plan, const vme_cuda_step &from, kernel_step *to)
{
    *to = kernel_step{};
    to->rank = from.rank;
    to->instruction_count = from.instruction_count;
    to->before = from.before;
    to->reduction = from.reduction;
    to->scale = from.low;
    memcpy(to->instructions, from.instructions, sizeof to->instructions);
    int order[VME_CUDA_RANK], next = 0;
    const uint32_t reduced = from.op == VME_CUDA_SOFTMAX && from.rank > 0 ? 1u << (from.rank - 1)
                             : from.op == VME_CUDA_REDUCE                 ? (uint32_t)from.reduced
                                                                          : 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int d = 0; d < from.rank; d++)
            if ((int)(reduced >> d & 1) == pass)
                order[next++] = d;
        if (pass == 0)
            to->kept = next;
    }
    to->count = to->reduced_count = 1;
    for (int d = 0; d < from.rank; d++) {
        to->shape[d] = from.shape[order[d]];
        (d < to->kept ? to->count : to->reduced_count) *= to->shape[d];
    }
    for (int i = 0; i < from.operand_count; i++) {
        VME_TRY(operand_of(plan, from.operands[i], &to->operands[i]));
        for (int d = 0; d < from.rank; d++)
            to->operands[i].strides[d] = from.operands[i].strides[order[d]];
    }
    return VME_CUDA_OK;
}

#define CUBLAS_TRY(call) \
    do { \
        const cublasStatus_t error_ = (call); \
        if (error_ != CUBLAS_STATUS_SUCCESS) \
            return cuda_fail(VME_CUDA_FAILED, "cuBLAS error %d in a product (%.40s)", (int)error_, #call); \
    } while (0)

static vme_cuda_status layout_of(const cublas_functions &cublas, const side &from, int64_t batch,
                                 cublasLtMatrixLayout_t *layout)
{
    CUBLAS_TRY(cublas.layout_create(layout, CUDA_R_32F, (uint64_t)from.rows, (uint64_t)from.columns, from.leading));
    if (batch > 1) {
        const int32_t count = (int32_t)batch;
        CUBLAS_TRY(cublas.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count));
        CUBLAS_TRY(cublas.layout_set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &from.batch_stride,
                                     sizeof from.batch_stride));
    }
    return VME_CUDA_OK;
}

/* Takes the best algorithm of cuBLAS's heuristic. False: there is none. */
static bool choose(const vme_cuda_device *device, product *one)
{
    const cublas_functions &cublas = device->cublas;
    cublasLtMatmulPreference_t preference = nullptr;
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    const size_t workspace_max = WORKSPACE_MAX;
    int count = 0;
    bool chosen = false;
    if (cublas.preference_create(&preference) != CUBLAS_STATUS_SUCCESS)
        return false;
    if (cublas.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_max,
                              sizeof workspace_max)
            == CUBLAS_STATUS_SUCCESS
        && cublas.heuristic(device->products, one->desc, one->a, one->b, one->out, one->out, preference, ALGORITHMS,
                            found, &count)
               == CUBLAS_STATUS_SUCCESS)
        for (int i = 0; i < count && !chosen; i++)
            if (found[i].state == CUBLAS_STATUS_SUCCESS) {
                one->algorithm = found[i].algo;
                one->workspace = found[i].workspaceSize;
                chosen = true;
            }
    cublas.preference_destroy(preference);
    return chosen;
}

/* Prepares the product of a step. Operands: result, a, b, bias (may be absent). */
static vme_cuda_status plan_product(vme_cuda_plan *plan, const vme_cuda_step &step, product *one)
{
    const cublas_functions &cublas = plan->device->cublas;
    if (step.rank != 4 || step.operand_count != 4)
        return cuda_fail(VME_CUDA_BAD_VALUE, "a product is damaged");
    const int64_t batch = step.shape[0], m = step.shape[1], n = step.shape[2], k = step.shape[3];
    kernel_operand operands[4];
    side sides[3]; /* result [m, n], a [m, k], b [k, n] */
    const int64_t rows[] = {m, m, k}, columns[] = {n, k, n};
    for (int i = 0; i < 4; i++)
        VME_TRY(operand_of(plan, step.operands[i], &operands[i]));
    for (int i = 0; i < 3; i++) {
        const int64_t *strides = operands[i].strides;
        vme_cuda_step reach{};
        reach.rank = 3;
        reach.shape[0] = batch;
        reach.shape[1] = rows[i];
        reach.shape[2] = columns[i];
        if (operands[i].at == nullptr || !within(plan, reach, step.operands[i])
            || !side_of(rows[i], columns[i], strides[1], strides[2], strides[0], &sides[i])
            || (i == 0 && sides[i].transposed))
            return cuda_fail(VME_CUDA_BAD_VALUE, "a product's operand %d has strides that products do not support", i);
    }
    one->at_out = operands[0].at;
    one->at_a = operands[2].at; /* cuBLAS is column-major: result^T = b^T a^T */
    one->at_b = operands[1].at;
    const cublasOperation_t of_b = sides[2].transposed ? CUBLAS_OP_T : CUBLAS_OP_N,
                            of_a = sides[1].transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    CUBLAS_TRY(cublas.desc_create(&one->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_TRY(cublas.desc_set(one->desc, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b));
    CUBLAS_TRY(cublas.desc_set(one->desc, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a));
    VME_TRY(layout_of(cublas, sides[2], batch, &one->a));
    VME_TRY(layout_of(cublas, sides[1], batch, &one->b));
    VME_TRY(layout_of(cublas, sides[0], batch, &one->out));
    const bool biased = operands[3].at != nullptr;
    int done = 0; /* number of instructions that the product includes; the first one is the bias, if there is one */
    bool chosen = false;
    if (plan->flags & VME_CUDA_FUSED && batch == 1 && (!biased || operands[3].strides[2] == 1 || n == 1)) {
        const int count = step.instruction_count, first = biased ? 1 : 0;
        const bool relu = count > first && step.instructions[first].function == VME_CUDA_RELU;
        const cublasLtEpilogue_t epilogue = biased ? relu ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_BIAS
                                            : relu ? CUBLASLT_EPILOGUE_RELU
                                                   : CUBLASLT_EPILOGUE_DEFAULT;
        const void *bias = operands[3].at;
        CUBLAS_TRY(cublas.desc_set(one->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        if (biased)
            CUBLAS_TRY(cublas.desc_set(one->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
        chosen = choose(plan->device, one);
        done = first + (relu ? 1 : 0);
    }
    if (!chosen) {
        const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
        CUBLAS_TRY(cublas.desc_set(one->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        done = 0;
        if (!choose(plan->device, one))
            return cuda_fail(VME_CUDA_FAILED, "cuBLAS knows no algorithm for a product [%lld, %lld] x [%lld, %lld]",
                             (long long)m, (long long)k, (long long)k, (long long)n);
    }
    one->rest = kernel_step{};
    if (done < step.instruction_count) { /* the remaining instructions run on the result in place */
        kernel_step &rest = one->rest;
        rest.rank = rest.kept = 3;
        memcpy(rest.shape, step.shape, 3 * sizeof rest.shape[0]);
        rest.count = batch * m * n;
        rest.reduced_count = 1;
        rest.operands[0] = rest.operands[1] = operands[0];
        rest.operands[2] = operands[3];
        rest.instructions[0] = {VME_CUDA_LOAD, 1, 0, 0};
        rest.instruction_count = 1;
        for (int i = done; i < step.instruction_count; i++) {
            rest.instructions[rest.instruction_count] = step.instructions[i];
            if (step.instructions[i].operand >= 0)
                rest.instructions[rest.instruction_count].operand = 2;
            rest.instruction_count++;
        }
        one->apart = !(plan->flags & VME_CUDA_FUSED);
    }
    return VME_CUDA_OK;
}

static vme_cuda_status plan_steps(vme_cuda_plan *plan, int count, const vme_cuda_step *steps)
{
    size_t workspace = 0;
    for (int i = 0; i < count; i++) {
        VME_TRY(check_step(plan, steps[i]));
        launch one;
        one.op = steps[i].op;
        if (steps[i].op == VME_CUDA_PRODUCT) {
            if (steps[i].instruction_count + 1 > VME_CUDA_INSTRUCTIONS)
                return cuda_fail(VME_CUDA_BAD_VALUE, "a product is damaged");
            one.number = (int)plan->products.size();
            plan->products.emplace_back();
            VME_TRY(plan_product(plan, steps[i], &plan->products.back()));
            workspace = std::max(workspace, plan->products.back().workspace);
            plan->launches.push_back(one);
            continue;
        }
        one.number = (int)plan->steps.size();
        one.count = steps[i].op == VME_CUDA_MAP ? std::max(steps[i].together, 1) : 1;
        if (one.count > count - i)
            return cuda_fail(VME_CUDA_BAD_VALUE, "a step is damaged");
        for (int k = 0; k < one.count; k++) {
            const vme_cuda_step &step = steps[i + k];
            VME_TRY(check_step(plan, step));
            if (step.op != steps[i].op || (step.op == VME_CUDA_SOFTMAX && (step.operand_count != 3 || step.rank < 1)))
                return cuda_fail(VME_CUDA_BAD_VALUE, "a step is damaged");
            plan->steps.emplace_back();
            VME_TRY(kernel_step_of(plan, step, &plan->steps.back()));
            one.numbers = std::max(one.numbers, plan->steps.back().count);
        }
        i += one.count - 1;
        plan->launches.push_back(one);
    }
    VME_TRY(plan->workspace.take(plan->device, (int64_t)workspace));
    VME_TRY(plan->together.take(plan->device, (int64_t)(plan->steps.size() * sizeof(kernel_step))));
    if (!plan->steps.empty())
        VME_TRY(cuda_write(plan->stream->stream, plan->together.at, plan->steps.data(),
                           (int64_t)(plan->steps.size() * sizeof(kernel_step))));
    return VME_CUDA_OK;
}

static vme_cuda_status plan_lookups(vme_cuda_plan *plan)
{
    const int64_t count = (int64_t)plan->lookups.size();
    for (const vme_cuda_lookup &one : plan->lookups) {
        const int64_t dim = one.table->options.dim;
        if (one.ids_room < 0 || one.step < dim || one.offset < 0 || one.offset % 4 != 0
            || one.offset + ((plan->bags - 1) * one.step + dim) * 4 > plan->arena.bytes || one.combiner < 0
            || one.combiner > 2 || one.table->device != plan->device)
            return cuda_fail(VME_CUDA_BAD_VALUE, "a lookup is damaged, or its table is another device's");
        plan->ids_room += one.ids_room;
        plan->weighted = plan->weighted || one.weighted;
        plan->tables.push_back(one.table);
        cuda_table_ref(one.table);
    }
    /* keeps one reference to each table */
    std::sort(plan->tables.begin(), plan->tables.end());
    for (size_t i = 1; i < plan->tables.size();)
        if (plan->tables[i] == plan->tables[i - 1]) {
            vme_cuda_table_unref(plan->tables[i]);
            plan->tables.erase(plan->tables.begin() + (ptrdiff_t)i);
        } else
            i++;
    plan->weights_at = count * (plan->bags + 1) * 8;
    plan->ids_at = plan->weights_at + (plan->weighted ? rounded(plan->ids_room * 4) : 0);
    VME_TRY(plan->lookup_memory.take(plan->device, count == 0 ? 1 : plan->ids_at + plan->ids_room * 8));
    if (count == 0)
        return VME_CUDA_OK;
    std::vector<lookup_view> views((size_t)count, lookup_view{});
    char *const base = plan->lookup_memory.as<char>();
    for (int64_t i = 0; i < count; i++) {
        const vme_cuda_lookup &one = plan->lookups[(size_t)i];
        lookup_view &view = views[(size_t)i];
        view.table = one.table->view.as<table_view>();
        view.ids = reinterpret_cast<const int64_t *>(base + plan->ids_at);
        view.offsets = reinterpret_cast<const int64_t *>(base) + i * (plan->bags + 1);
        view.weights = one.weighted ? reinterpret_cast<const float *>(base + plan->weights_at) : nullptr;
        view.out = reinterpret_cast<float *>(plan->arena.as<char>() + one.offset);
        view.step = one.step;
        view.default_id = one.default_id;
        view.combiner = one.combiner;
        cuda_lookup_shape(&view, (int)one.table->options.dim, one.table->stride);
        plan->lanes_max = std::max(plan->lanes_max, (int)view.lanes);
    }
    VME_TRY(plan->views.take(plan->device, (int64_t)(views.size() * sizeof views[0])));
    return cuda_write(plan->stream->stream, plan->views.at, views.data(), (int64_t)(views.size() * sizeof views[0]));
}

/* Enqueues lookups and steps on the stream. */
static vme_cuda_status enqueue(vme_cuda_plan *plan, cudaStream_t stream)
{
    const cublas_functions &cublas = plan->device->cublas;
    if (!plan->lookups.empty())
        CUDA_TRY(cuda_launch_lookups(stream, plan->views.as<lookup_view>(), (int)plan->lookups.size(), plan->bags,
                                     plan->lanes_max));
    for (const launch &one : plan->launches) {
        if (one.op == VME_CUDA_PRODUCT) {
            const product &of = plan->products[(size_t)one.number];
            const float factor = 1, nothing = 0;
            CUBLAS_TRY(cublas.matmul(plan->device->products, of.desc, &factor, of.at_a, of.a, of.at_b, of.b, &nothing,
                                     of.at_out, of.out, of.at_out, of.out, &of.algorithm, plan->workspace.at,
                                     of.workspace, stream));
            if (of.rest.instruction_count > 0 && !of.apart)
                CUDA_TRY(launch_map(stream, of.rest));
            for (int i = 1; of.apart && i < of.rest.instruction_count; i++) {
                kernel_step single = of.rest;
                single.instructions[1] = of.rest.instructions[i];
                single.instruction_count = 2;
                CUDA_TRY(launch_map(stream, single));
            }
        } else if (one.op == VME_CUDA_MAP && one.count > 1)
            CUDA_TRY(launch_maps(stream, plan->together.as<kernel_step>() + one.number, one.count, one.numbers));
        else if (one.op == VME_CUDA_MAP)
            CUDA_TRY(launch_map(stream, plan->steps[(size_t)one.number]));
        else if (one.op == VME_CUDA_REDUCE)
            CUDA_TRY(launch_reduce(stream, plan->steps[(size_t)one.number]));
        else
            CUDA_TRY(launch_softmax(stream, plan->steps[(size_t)one.number]));
    }
    return VME_CUDA_OK;
}

static vme_cuda_status capture(vme_cuda_plan *plan)
{
    const std::lock_guard<std::mutex> alone(plan->device->capturing);
    cudaStream_t stream = nullptr;
    CUDA_TRY(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    /* a first run without capture: cuBLAS loads its kernels then, which must not happen during a capture */
    vme_cuda_status status = enqueue(plan, stream);
    cudaError_t error = cudaStreamSynchronize(stream);
    cudaGraph_t graph = nullptr;
    if (status == VME_CUDA_OK && error == cudaSuccess)
        error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (status == VME_CUDA_OK && error == cudaSuccess) {
        status = enqueue(plan, stream);
        error = cudaStreamEndCapture(stream, &graph);
    }
    if (status == VME_CUDA_OK && error == cudaSuccess)
        error = cudaGraphInstantiate(&plan->graph, graph, 0);
    if (graph != nullptr)
        (void)cudaGraphDestroy(graph);
    (void)cudaStreamDestroy(stream);
    return status != VME_CUDA_OK ? status : error == cudaSuccess ? VME_CUDA_OK : cuda_failed(error, "capture");
}

static vme_cuda_status plan_start(vme_cuda_plan *plan, int64_t arena_bytes, int step_count, const vme_cuda_step *steps)
{
    VME_TRY(plan->arena.take(plan->device, arena_bytes));
    for (size_t i = 0; i < plan->input_offsets.size(); i++) {
        if (plan->input_bytes[i] < 1 || plan->input_offsets[i] < plan->inputs_end
            || plan->input_offsets[i] + plan->input_bytes[i] > arena_bytes)
            return cuda_fail(VME_CUDA_BAD_VALUE, "an input lies beyond the arena");
        plan->inputs_end = plan->input_offsets[i] + plan->input_bytes[i];
    }
    for (size_t i = 0; i < plan->output_offsets.size(); i++) {
        if (i == 0)
            plan->outputs_begin = plan->output_offsets[i];
        if (plan->output_bytes[i] < 1 || plan->output_offsets[i] < std::max(plan->outputs_begin, plan->outputs_end)
            || plan->output_offsets[i] + plan->output_bytes[i] > arena_bytes)
            return cuda_fail(VME_CUDA_BAD_VALUE, "an output lies beyond the arena");
        plan->outputs_end = plan->output_offsets[i] + plan->output_bytes[i];
    }
    CUDA_TRY(cudaMemsetAsync(plan->arena.at, 0, (size_t)arena_bytes, plan->stream->stream));
    VME_TRY(plan_lookups(plan));
    if (!plan->lookups.empty())
        CUDA_TRY(cudaMemsetAsync(plan->lookup_memory.at, 0, (size_t)plan->lookup_memory.bytes, plan->stream->stream));
    VME_TRY(plan_steps(plan, step_count, steps));
    VME_TRY(plan->staged_in.take(rounded(plan->inputs_end) + plan->lookup_memory.bytes));
    VME_TRY(plan->staged_out.take(plan->outputs_end - plan->outputs_begin));
    CUDA_TRY(cudaEventCreateWithFlags(&plan->copied, cudaEventDisableTiming));
    CUDA_TRY(cudaEventCreateWithFlags(&plan->done, cudaEventDisableTiming));
    CUDA_TRY(cudaStreamSynchronize(plan->stream->stream)); /* the data must be complete before the capture's stream
                                                            * reads it */
    return plan->flags & VME_CUDA_GRAPH ? capture(plan) : VME_CUDA_OK;
}

vme_cuda_status vme_cuda_plan_new(vme_cuda_device *device, vme_cuda_stream *stream, vme_cuda_weights *weights,
                                  int flags, int64_t arena_bytes, const vme_cuda_ports *ports, int step_count,
                                  const vme_cuda_step *steps, int lookup_count, const vme_cuda_lookup *lookups,
                                  int64_t bag_count, vme_cuda_plan **plan)
{
    *plan = nullptr;
    VME_TRY(cuda_enter(device));
    if (arena_bytes < 1 || bag_count < 0 || stream->device != device)
        return cuda_fail(VME_CUDA_BAD_VALUE, "a plan is damaged");
    vme_cuda_plan *made = new (std::nothrow) vme_cuda_plan;
    if (made == nullptr)
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    made->device = cuda_device_ref(device);
    made->stream = cuda_stream_ref(stream);
    made->weights = weights;
    weights->references.fetch_add(1);
    made->flags = flags;
    made->bags = bag_count;
    made->input_offsets.assign(ports->input_offsets, ports->input_offsets + ports->inputs);
    made->input_bytes.assign(ports->input_bytes, ports->input_bytes + ports->inputs);
    made->output_offsets.assign(ports->output_offsets, ports->output_offsets + ports->outputs);
    made->output_bytes.assign(ports->output_bytes, ports->output_bytes + ports->outputs);
    made->lookups.assign(lookups, lookups + lookup_count);
    const vme_cuda_status status = plan_start(made, arena_bytes, step_count, steps);
    if (status != VME_CUDA_OK) {
        vme_cuda_plan_unref(made);
        return status;
    }
    *plan = made;
    return VME_CUDA_OK;
}

void vme_cuda_plan_unref(vme_cuda_plan *plan)
{
    if (plan == nullptr)
        return;
    (void)cudaSetDevice(plan->device->number);
    if (plan->graph != nullptr)
        (void)cudaGraphExecDestroy(plan->graph);
    for (cudaEvent_t event : {plan->copied, plan->done})
        if (event != nullptr)
            (void)cudaEventDestroy(event);
    for (product &one : plan->products)
        end_product(plan->device->cublas, &one);
    for (vme_cuda_table *table : plan->tables)
        vme_cuda_table_unref(table);
    vme_cuda_weights_unref(plan->weights);
    vme_cuda_stream_unref(plan->stream);
    vme_cuda_device *device = plan->device;
    delete plan;
    vme_cuda_device_unref(device);
}

void *vme_cuda_plan_input(vme_cuda_plan *plan, int number)
{
    return plan->staged_in.as<char>() + plan->input_offsets[(size_t)number];
}

int vme_cuda_plan_launches(const vme_cuda_plan *plan)
{
    int count = plan->lookups.empty() ? 0 : 1;
    for (const launch &one : plan->launches) {
        count++;
        if (one.op == VME_CUDA_PRODUCT) {
            const product &of = plan->products[(size_t)one.number];
            count += of.apart ? of.rest.instruction_count - 1 : of.rest.instruction_count > 0;
        }
    }
    return count;
}

/* Packs the bags of all lookups into `staged_in`, after the inputs. `*ids` receives the number of ids. */
static vme_cuda_status stage_bags(vme_cuda_plan *plan, const vme_cuda_bags *bags, int64_t *ids)
{
    char *const base = plan->staged_in.as<char>() + rounded(plan->inputs_end);
    int64_t *offsets = reinterpret_cast<int64_t *>(base);
    float *weights = reinterpret_cast<float *>(base + plan->weights_at);
    int64_t *keys = reinterpret_cast<int64_t *>(base + plan->ids_at);
    *ids = 0;
    for (size_t i = 0; i < plan->lookups.size(); i++) {
        const vme_cuda_bags &of = bags[i];
        if (of.ids_count < 0 || of.ids_count > plan->ids_room - *ids)
            return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %zu: %lld ids are more than its plan has room for", i,
                             (long long)of.ids_count);
        int64_t before = 0;
        for (int64_t bag = 0; bag <= plan->bags; bag++) {
            if (of.offsets[bag] < before || of.offsets[bag] > of.ids_count || (bag == 0 && of.offsets[bag] != 0))
                return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %zu: offsets: expected 0 first, never decreasing", i);
            before = of.offsets[bag];
            *offsets++ = *ids + before;
        }
        if (before != of.ids_count)
            return cuda_fail(VME_CUDA_BAD_VALUE, "lookup %zu: offsets: expected the number of ids last", i);
        memcpy(keys + *ids, of.ids, (size_t)of.ids_count * 8);
        if (plan->lookups[i].weighted)
            for (int64_t k = 0; k < of.ids_count; k++)
                weights[*ids + k] = of.weights == nullptr ? 1.0f : of.weights[k];
        *ids += of.ids_count;
    }
    return VME_CUDA_OK;
}

static vme_cuda_status copy_in(vme_cuda_plan *plan, int64_t ids, cudaStream_t stream)
{
    const char *from = plan->staged_in.as<char>();
    char *to = plan->arena.as<char>();
    const bool merged = plan->flags & VME_CUDA_MERGED_COPIES;
    const auto copy = [&](char *target, const char *source, int64_t bytes) {
        return bytes == 0 ? cudaSuccess
                          : cudaMemcpyAsync(target, source, (size_t)bytes, cudaMemcpyHostToDevice, stream);
    };
    if (merged)
        CUDA_TRY(copy(to, from, plan->inputs_end));
    else
        for (size_t i = 0; i < plan->input_offsets.size(); i++)
            CUDA_TRY(copy(to + plan->input_offsets[i], from + plan->input_offsets[i], plan->input_bytes[i]));
    if (plan->lookups.empty())
        return VME_CUDA_OK;
    from += rounded(plan->inputs_end);
    to = plan->lookup_memory.as<char>();
    if (merged) {
        CUDA_TRY(copy(to, from, plan->ids_at + ids * 8));
        return VME_CUDA_OK;
    }
    const int64_t *offsets = reinterpret_cast<const int64_t *>(from);
    for (size_t i = 0; i < plan->lookups.size(); i++) {
        const int64_t *of = offsets + (int64_t)i * (plan->bags + 1);
        const int64_t first = of[0], count = of[plan->bags] - first, at = (int64_t)i * (plan->bags + 1) * 8;
        CUDA_TRY(copy(to + at, from + at, (plan->bags + 1) * 8));
        CUDA_TRY(copy(to + plan->ids_at + first * 8, from + plan->ids_at + first * 8, count * 8));
        if (plan->lookups[i].weighted)
            CUDA_TRY(copy(to + plan->weights_at + first * 4, from + plan->weights_at + first * 4, count * 4));
    }
    return VME_CUDA_OK;
}

static vme_cuda_status enqueue_all(vme_cuda_plan *plan, int64_t ids)
{
    cudaStream_t stream = plan->stream->stream;
    const std::lock_guard<std::mutex> whole(plan->stream->order);
    if (plan->flags & VME_CUDA_COPY_STREAM) {
        VME_TRY(copy_in(plan, ids, plan->device->copies));
        CUDA_TRY(cudaEventRecord(plan->copied, plan->device->copies));
        CUDA_TRY(cudaStreamWaitEvent(stream, plan->copied, 0));
    } else
        VME_TRY(copy_in(plan, ids, stream));
    if (plan->graph != nullptr)
        CUDA_TRY(cudaGraphLaunch(plan->graph, stream));
    else
        VME_TRY(enqueue(plan, stream));
    CUDA_TRY(cudaMemcpyAsync(plan->staged_out.at, plan->arena.as<char>() + plan->outputs_begin,
                             (size_t)(plan->outputs_end - plan->outputs_begin), cudaMemcpyDeviceToHost, stream));
    CUDA_TRY(cudaEventRecord(plan->done, stream));
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_plan_run(vme_cuda_plan *plan, const void *const *inputs, void *const *outputs,
                                  const vme_cuda_bags *bags)
{
    int64_t ids = 0;
    VME_TRY(cuda_enter(plan->device));
    for (size_t i = 0; i < plan->input_offsets.size(); i++)
        if (inputs[i] != nullptr)
            memcpy(plan->staged_in.as<char>() + plan->input_offsets[i], inputs[i], (size_t)plan->input_bytes[i]);
    if (!plan->lookups.empty())
        VME_TRY(stage_bags(plan, bags, &ids));
    for (vme_cuda_table *table : plan->tables)
        table->lock.lock_shared();
    vme_cuda_status status = enqueue_all(plan, ids);
    cudaError_t error;
    if (status == VME_CUDA_OK)
        error = cudaEventSynchronize(plan->done);
    else { /* waits, because enqueued work may still read the pinned memory */
        error = cudaSuccess;
        (void)cudaStreamSynchronize(plan->device->copies);
        (void)cudaStreamSynchronize(plan->stream->stream);
    }
    for (vme_cuda_table *table : plan->tables)
        table->lock.unlock_shared();
    if (status != VME_CUDA_OK)
        return status;
    if (error != cudaSuccess)
        return cuda_failed(error, "the network's run");
    for (size_t i = 0; i < plan->output_offsets.size(); i++)
        memcpy(outputs[i], plan->staged_out.as<char>() + (plan->output_offsets[i] - plan->outputs_begin),
               (size_t)plan->output_bytes[i]);
    return VME_CUDA_OK;
}
