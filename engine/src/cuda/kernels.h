/* The kernels of networks: element by element, reductions, rows' softmax. */
#ifndef VME_CUDA_KERNELS_H
#define VME_CUDA_KERNELS_H

#include "device.h"

struct kernel_operand {
    float *at;
    int64_t strides[VME_CUDA_RANK];
};
/* A step as kernels take it. Dimensions of a reduction: first those that are kept, then those that are reduced. */
struct kernel_step {
    int32_t rank, kept;
    int64_t shape[VME_CUDA_RANK];
    int64_t count, reduced_count; /* numbers made; that each is made of */
    int32_t instruction_count, before, reduction;
    float scale;
    kernel_operand operands[VME_CUDA_OPERANDS];
    vme_cuda_instruction instructions[VME_CUDA_INSTRUCTIONS];
};

cudaError_t launch_map(cudaStream_t stream, const kernel_step &step);
/* `steps` in GPU memory, of at most `count_max` numbers each. */
cudaError_t launch_maps(cudaStream_t stream, const kernel_step *steps, int count, int64_t count_max);
cudaError_t launch_reduce(cudaStream_t stream, const kernel_step &step);
cudaError_t launch_softmax(cudaStream_t stream, const kernel_step &step);

#endif
