/* The kernels of networks. Indices have 32 bits, because plans limit a step to 2^31 - 1 elements. */
#include "kernels.h"

enum { THREADS = 256, REDUCE_BY_BLOCK = 512 };

static __device__ __forceinline__ float curve(int function, float x)
{
    switch (function) {
    case VME_CUDA_RELU: return x > 0 || isnan(x) ? x : 0;
    case VME_CUDA_GELU: return x * (1 + erff(x * 0.70710678118654752f)) * 0.5f;
    case VME_CUDA_GELU_TANH: return 0.5f * x * (1 + tanhf(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    case VME_CUDA_SIGMOID: return 1 / (1 + expf(-x));
    case VME_CUDA_SILU: return x / (1 + expf(-x));
    case VME_CUDA_MISH: return x * tanhf(x > 20 ? x : log1pf(expf(x)));
    case VME_CUDA_HARD_SIGMOID: return fminf(fmaxf(x / 6 + 0.5f, 0), 1);
    default: /* VME_CUDA_HARD_SWISH */ return x * fminf(fmaxf(x / 6 + 0.5f, 0), 1);
    }
}

static __device__ __forceinline__ float greater_of(float x, float y) { return x > y || isnan(x) ? x : y; }
static __device__ __forceinline__ float lesser_of(float x, float y) { return x < y || isnan(x) ? x : y; }

static __device__ __forceinline__ float computed(const vme_cuda_instruction &instruction, float x, float y)
{
    switch (instruction.function) {
    case VME_CUDA_LOAD: return y;
    case VME_CUDA_ADD: return x + y;
    case VME_CUDA_SUBTRACT: return x - y;
    case VME_CUDA_SUBTRACT_FROM: return y - x;
    case VME_CUDA_MULTIPLY: return x * y;
    case VME_CUDA_DIVIDE: return x / y;
    case VME_CUDA_DIVIDE_BY: return y / x;
    case VME_CUDA_MAXIMUM: return greater_of(x, y);
    case VME_CUDA_MINIMUM: return lesser_of(x, y);
    case VME_CUDA_CLIP: return lesser_of(greater_of(x, instruction.low), instruction.high);
    case VME_CUDA_NEGATIVE: return -x;
    case VME_CUDA_ABSOLUTE: return fabsf(x);
    case VME_CUDA_SQUARE: return x * x;
    case VME_CUDA_SQRT: return sqrtf(x);
    case VME_CUDA_RECIPROCAL: return 1 / x;
    case VME_CUDA_EXP: return expf(x);
    case VME_CUDA_LOG: return logf(x);
    case VME_CUDA_TANH: return tanhf(x);
    case VME_CUDA_ERF: return erff(x);
    default: return curve(instruction.function, x);
    }
}

/* Offset of an operand's element. `index` is the C-order index over dimensions `first` to `last` - 1. */
static __device__ __forceinline__ int64_t place_of(const kernel_step &step, const kernel_operand &operand,
                                                   uint32_t index, int first, int last)
{
    int64_t at = 0;
    for (int d = last - 1; d > first; d--) {
        const uint32_t size = (uint32_t)step.shape[d], next = index / size;
        at += (int64_t)(index - next * size) * operand.strides[d];
        index = next;
    }
    return last > first ? at + (int64_t)index * operand.strides[first] : at;
}

static __device__ __forceinline__ float chain(const kernel_step &step, int begin, int end, float x, uint32_t kept,
                                              uint32_t reduced)
{
    for (int i = begin; i < end; i++) {
        const vme_cuda_instruction &instruction = step.instructions[i];
        float y = 0;
        if (instruction.operand >= 0) {
            const kernel_operand &operand = step.operands[instruction.operand];
            int64_t at = place_of(step, operand, kept, 0, step.kept);
            if (step.kept < step.rank)
                at += place_of(step, operand, reduced, step.kept, step.rank);
            y = operand.at[at];
        }
        x = computed(instruction, x, y);
    }
    return x;
}

static __device__ __forceinline__ void map_one(const kernel_step &step, uint32_t index)
{
    const float x = chain(step, 0, step.instruction_count, 0, index, 0);
    step.operands[0].at[place_of(step, step.operands[0], index, 0, step.rank)] = x;
}

static __global__ void map_kernel(const __grid_constant__ kernel_step step)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < step.count; i += (int64_t)gridDim.x * THREADS)
        map_one(step, (uint32_t)i);
}

static __global__ void maps_kernel(const kernel_step *steps)
{
    __shared__ kernel_step step;
    const uint32_t *from = reinterpret_cast<const uint32_t *>(steps + blockIdx.y);
    uint32_t *to = reinterpret_cast<uint32_t *>(&step);
    for (uint32_t i = threadIdx.x; i < sizeof step / sizeof *to; i += THREADS)
        to[i] = from[i];
    __syncthreads();
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < step.count; i += (int64_t)gridDim.x * THREADS)
        map_one(step, (uint32_t)i);
}

static __device__ __forceinline__ float start_of(int reduction)
{
    return reduction == VME_CUDA_SUM    ? 0.0f
           : reduction == VME_CUDA_PROD ? 1.0f
           : reduction == VME_CUDA_MAX  ? -INFINITY
                                        : INFINITY;
}
static __device__ __forceinline__ float reduced_of(int reduction, float x, float y)
{
    return reduction == VME_CUDA_SUM    ? x + y
           : reduction == VME_CUDA_PROD ? x * y
           : reduction == VME_CUDA_MAX  ? greater_of(x, y)
                                        : lesser_of(x, y);
}
static __device__ __forceinline__ void reduced_to(const kernel_step &step, uint32_t index, float x)
{
    x = chain(step, step.before, step.instruction_count, x, index, 0);
    step.operands[0].at[place_of(step, step.operands[0], index, 0, step.kept)] = x;
}

/* One result for each thread. */
static __global__ void reduce_kernel(const __grid_constant__ kernel_step step)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < step.count; i += (int64_t)gridDim.x * THREADS) {
        float x = start_of(step.reduction);
        for (uint32_t k = 0; k < (uint32_t)step.reduced_count; k++)
            x = reduced_of(step.reduction, x, chain(step, 0, step.before, 0, (uint32_t)i, k));
        reduced_to(step, (uint32_t)i, x);
    }
}

/* Reduces the values of a block's threads; the result is valid in thread 0. */
static __device__ float block_reduced(int reduction, float x)
{
    __shared__ float parts[THREADS / 32];
    for (int step = 16; step > 0; step /= 2)
        x = reduced_of(reduction, x, __shfl_down_sync(~0u, x, (unsigned)step));
    __syncthreads(); /* the parts of an earlier call have been read */
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < THREADS / 32; i++)
            x = reduced_of(reduction, x, parts[i]);
    return x;
}

/* One result for each block. */
static __global__ void reduce_by_block_kernel(const __grid_constant__ kernel_step step)
{
    for (int64_t i = blockIdx.x; i < step.count; i += gridDim.x) {
        float x = start_of(step.reduction);
        for (uint32_t k = threadIdx.x; k < (uint32_t)step.reduced_count; k += THREADS)
            x = reduced_of(step.reduction, x, chain(step, 0, step.before, 0, (uint32_t)i, k));
        x = block_reduced(step.reduction, x);
        if (threadIdx.x == 0)
            reduced_to(step, (uint32_t)i, x);
    }
}

/* One row for each warp. Operands: result, x, addend (may be absent). */
static __global__ void softmax_kernel(const __grid_constant__ kernel_step step)
{
    const uint32_t lane = threadIdx.x % 32, size = (uint32_t)step.reduced_count;
    for (int64_t row = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32; row < step.count;
         row += (int64_t)gridDim.x * (THREADS / 32)) {
        int64_t at[3];
        for (int i = 0; i < 3; i++)
            at[i] = place_of(step, step.operands[i], (uint32_t)row, 0, step.kept);
        const int64_t last[3] = {step.operands[0].strides[step.kept], step.operands[1].strides[step.kept],
                                 step.operands[2].strides[step.kept]};
        auto x_of = [&](uint32_t i) {
            const float x = step.operands[1].at[at[1] + (int64_t)i * last[1]] * step.scale;
            return step.operands[2].at == nullptr ? x : x + step.operands[2].at[at[2] + (int64_t)i * last[2]];
        };
        float largest = -INFINITY, sum = 0;
        for (uint32_t i = lane; i < size; i += 32)
            largest = greater_of(largest, x_of(i));
        for (int other = 16; other > 0; other /= 2)
            largest = greater_of(largest, __shfl_xor_sync(~0u, largest, other));
        for (uint32_t i = lane; i < size; i += 32)
            sum += expf(x_of(i) - largest);
        for (int other = 16; other > 0; other /= 2)
            sum += __shfl_xor_sync(~0u, sum, other);
        for (uint32_t i = lane; i < size; i += 32)
            step.operands[0].at[at[0] + (int64_t)i * last[0]] = expf(x_of(i) - largest) / sum;
    }
}

/* Blocks for `count` items, `each` per block; at most 16 for each of an H100's 132 multiprocessors. */
static unsigned blocks_of(int64_t count, int64_t each)
{
    const int64_t blocks = (count + each - 1) / each;
    return (unsigned)(blocks < 1 ? 1 : blocks > 132 * 16 ? 132 * 16 : blocks);
}

cudaError_t launch_map(cudaStream_t stream, const kernel_step &step)
{
    map_kernel<<<blocks_of(step.count, THREADS), THREADS, 0, stream>>>(step);
    return cudaGetLastError();
}

cudaError_t launch_maps(cudaStream_t stream, const kernel_step *steps, int count, int64_t count_max)
{
    maps_kernel<<<dim3(blocks_of(count_max, THREADS), (unsigned)count), THREADS, 0, stream>>>(steps);
    return cudaGetLastError();
}

cudaError_t launch_reduce(cudaStream_t stream, const kernel_step &step)
{
    if (step.reduced_count >= REDUCE_BY_BLOCK)
        reduce_by_block_kernel<<<blocks_of(step.count, 1), THREADS, 0, stream>>>(step);
    else
        reduce_kernel<<<blocks_of(step.count, THREADS), THREADS, 0, stream>>>(step);
    return cudaGetLastError();
}

cudaError_t launch_softmax(cudaStream_t stream, const kernel_step &step)
{
    softmax_kernel<<<blocks_of(step.count, THREADS / 32), THREADS, 0, stream>>>(step);
    return cudaGetLastError();
}
