/* The kernels of networks: elementwise operations, reductions, softmax of rows. */
#ifndef VME_CUDA_KERNELS_H
#define VME_CUDA_KERNELS_H

#include "device.h"

struct kernel_operand {
    float *at;
    int64_t strides[VME_CUDA_RANK];
};
/* A step as kernels take it: kept dimensions first, then reduced ones. */
struct kernel_step {
    int32_t rank, kept;
    int64_t shape[VME_CUDA_RANK];
    int64_t count, reduced_count; /* number of results; terms of each result */
    int32_t instruction_count, before, reduction;
    float scale;
    kernel_operand operands[VME_CUDA_OPERANDS];
    vme_cuda_instruction instructions[VME_CUDA_INSTRUCTIONS];
};

cudaError_t launch_map(cudaStream_t stream, const kernel_step &step);
/* Runs `count` steps in one launch. `steps` are in GPU memory, with at most `count_max` elements each. */
cudaError_t launch_maps(cudaStream_t stream, const kernel_step *steps, int count, int64_t count_max);
cudaError_t launch_reduce(cudaStream_t stream, const kernel_step &step);
cudaError_t launch_softmax(cudaStream_t stream, const kernel_step &step);

#endif
