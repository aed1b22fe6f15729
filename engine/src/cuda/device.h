/* Shared by the files of engine/src/cuda: devices, their memory, streams, and error reporting. */
#ifndef VME_CUDA_DEVICE_H
#define VME_CUDA_DEVICE_H

#include <atomic>
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <mutex>

#include "vme_cuda.h"

/* The functions of cuBLASLt, which is opened (dlopen) when a device is made. */
struct cublas_functions {
    decltype(&cublasLtCreate) create;
    decltype(&cublasLtDestroy) destroy;
    decltype(&cublasLtMatmul) matmul;
    decltype(&cublasLtMatmulDescCreate) desc_create;
    decltype(&cublasLtMatmulDescDestroy) desc_destroy;
    decltype(&cublasLtMatmulDescSetAttribute) desc_set;
    decltype(&cublasLtMatrixLayoutCreate) layout_create;
    decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
    decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
    decltype(&cublasLtMatmulPreferenceCreate) preference_create;
    decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
    decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
    decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic;
};

struct vme_cuda_device {
    std::atomic<int> references{1};
    int number = 0;
    int64_t limit = 0; /* bytes; 0: none */
    std::atomic<int64_t> used{0};
    cublas_functions cublas{};
    cublasLtHandle_t products = nullptr;
    cudaStream_t copies = nullptr; /* copies of weights and inputs, lookups outside of networks */
    std::mutex capturing;          /* graphs are captured one at a time */
};
struct vme_cuda_stream {
    std::atomic<int> references{1};
    vme_cuda_device *device = nullptr;
    cudaStream_t stream = nullptr;
    std::mutex order; /* held while a run is enqueued, so that runs of plans that share the stream do not mix */
};

/* Stores the message for vme_cuda_message. */
vme_cuda_status cuda_fail(vme_cuda_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
vme_cuda_status cuda_failed(cudaError_t error, const char *what);
/* Returns CUDA's error from the calling function. */
#define CUDA_TRY(call) \
    do { \
        const cudaError_t error_ = (call); \
        if (error_ != cudaSuccess) \
            return cuda_failed(error_, #call); \
    } while (0)
#define VME_TRY(call) \
    do { \
        const vme_cuda_status status_ = (call); \
        if (status_ != VME_CUDA_OK) \
            return status_; \
    } while (0)

vme_cuda_device *cuda_device_ref(vme_cuda_device *device);
vme_cuda_stream *cuda_stream_ref(vme_cuda_stream *stream);
/* Makes the device the calling thread's current one. */
vme_cuda_status cuda_enter(const vme_cuda_device *device);
/* GPU memory within the device's limit; *memory stays NULL on failure. */
vme_cuda_status cuda_memory_new(vme_cuda_device *device, int64_t bytes, void **memory);
void cuda_memory_free(vme_cuda_device *device, void *memory, int64_t bytes);
/* Copies from host memory to GPU memory; complete when it returns. Uses a stream, because calls that synchronize the
 * whole device would invalidate captures of other threads. */
vme_cuda_status cuda_write(cudaStream_t stream, void *to, const void *from, int64_t bytes);
vme_cuda_status cuda_pinned_new(int64_t bytes, void **memory);
void cuda_pinned_free(void *memory);

/* Owns a block of GPU memory. */
struct device_memory {
    vme_cuda_device *device = nullptr;
    void *at = nullptr;
    int64_t bytes = 0;
    device_memory() = default;
    device_memory(const device_memory &) = delete;
    device_memory &operator=(const device_memory &) = delete;
    ~device_memory() { release(); }
    vme_cuda_status take(vme_cuda_device *of, int64_t count)
    {
        release();
        const vme_cuda_status status = cuda_memory_new(of, count, &at);
        if (status == VME_CUDA_OK) {
            device = of;
            bytes = count;
        }
        return status;
    }
    void release()
    {
        if (at != nullptr)
            cuda_memory_free(device, at, bytes);
        at = nullptr;
        bytes = 0;
    }
    template <typename T> T *as() const { return static_cast<T *>(at); }
};

/* Owns a block of pinned host memory. */
struct pinned_memory {
    void *at = nullptr;
    int64_t bytes = 0;
    pinned_memory() = default;
    pinned_memory(const pinned_memory &) = delete;
    pinned_memory &operator=(const pinned_memory &) = delete;
    ~pinned_memory() { cuda_pinned_free(at); }
    vme_cuda_status take(int64_t count)
    {
        cuda_pinned_free(at);
        at = nullptr;
        bytes = 0;
        VME_TRY(cuda_pinned_new(count, &at));
        bytes = count;
        return VME_CUDA_OK;
    }
    template <typename T> T *as() const { return static_cast<T *>(at); }
};

#endif
