/* Devices, GPU memory and its limit, streams, the functions of cuBLASLt, and errors. */
#include "device.h"

#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <new>

static thread_local char message[512] = "no error";

vme_cuda_status cuda_fail(vme_cuda_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    return status;
}

vme_cuda_status cuda_failed(cudaError_t error, const char *what)
{
    (void)cudaGetLastError(); /* clears the error, so that the next call does not report it again */
    if (error == cudaErrorMemoryAllocation)
        return cuda_fail(VME_CUDA_NO_MEMORY, "the GPU has no memory left (%.60s)", what);
    return cuda_fail(VME_CUDA_FAILED, "%s: %s (%.60s)", cudaGetErrorName(error), cudaGetErrorString(error), what);
}

int vme_cuda_abi(void) { return VME_CUDA_ABI; }
const char *vme_cuda_message(void) { return message; }

vme_cuda_status vme_cuda_count(int *devices)
{
    *devices = 0;
    const cudaError_t error = cudaGetDeviceCount(devices);
    if (error == cudaErrorNoDevice)
        return VME_CUDA_OK;
    if (error == cudaErrorInsufficientDriver) {
        (void)cudaGetLastError();
        int driver = 0;
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0)
            return cuda_fail(VME_CUDA_NO_DEVICE, "there is no NVIDIA driver (libcuda.so.1)");
        return cuda_fail(VME_CUDA_NO_DEVICE, "the NVIDIA driver is for CUDA %d.%d, this library needs CUDA %d.%d",
                         driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (error != cudaSuccess)
        return cuda_failed(error, "cudaGetDeviceCount");
    return VME_CUDA_OK;
}

static vme_cuda_status open_cublas(cublas_functions *functions)
{
    void *library = dlopen("libcublasLt.so." VME_CUDA_CUBLAS, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        return cuda_fail(VME_CUDA_NO_DEVICE, "cuBLAS is missing: %.300s", dlerror());
    bool whole = true;
    auto find = [&](auto *function, const char *name) {
        void *found = dlsym(library, name);
        whole = whole && found != nullptr;
        memcpy(function, &found, sizeof found);
    };
    find(&functions->create, "cublasLtCreate");
    find(&functions->destroy, "cublasLtDestroy");
    find(&functions->matmul, "cublasLtMatmul");
    find(&functions->desc_create, "cublasLtMatmulDescCreate");
    find(&functions->desc_destroy, "cublasLtMatmulDescDestroy");
    find(&functions->desc_set, "cublasLtMatmulDescSetAttribute");
    find(&functions->layout_create, "cublasLtMatrixLayoutCreate");
    find(&functions->layout_destroy, "cublasLtMatrixLayoutDestroy");
    find(&functions->layout_set, "cublasLtMatrixLayoutSetAttribute");
    find(&functions->preference_create, "cublasLtMatmulPreferenceCreate");
    find(&functions->preference_destroy, "cublasLtMatmulPreferenceDestroy");
    find(&functions->preference_set, "cublasLtMatmulPreferenceSetAttribute");
    find(&functions->heuristic, "cublasLtMatmulAlgoGetHeuristic");
    if (!whole)
        return cuda_fail(VME_CUDA_NO_DEVICE, "cuBLAS lacks functions of version " VME_CUDA_CUBLAS);
    return VME_CUDA_OK;
}

vme_cuda_status cuda_enter(const vme_cuda_device *device)
{
    CUDA_TRY(cudaSetDevice(device->number));
    return VME_CUDA_OK;
}

static vme_cuda_status start(vme_cuda_device *device)
{
    VME_TRY(cuda_enter(device));
    VME_TRY(open_cublas(&device->cublas));
    if (device->cublas.create(&device->products) != CUBLAS_STATUS_SUCCESS)
        return cuda_fail(VME_CUDA_FAILED, "cuBLAS does not start on GPU %d", device->number);
    CUDA_TRY(cudaStreamCreateWithFlags(&device->copies, cudaStreamNonBlocking));
    return VME_CUDA_OK;
}

vme_cuda_status vme_cuda_device_new(int number, int64_t memory_bytes, vme_cuda_device **device)
{
    int count;
    *device = nullptr;
    VME_TRY(vme_cuda_count(&count));
    if (count == 0)
        return cuda_fail(VME_CUDA_NO_DEVICE, "this machine has no NVIDIA GPU that CUDA can use");
    if (number < 0 || number >= count)
        return cuda_fail(VME_CUDA_BAD_VALUE, "there is no GPU %d; there are %d, from 0 on", number, count);
    if (memory_bytes < 0)
        return cuda_fail(VME_CUDA_BAD_VALUE, "memory: expected bytes, got %lld", (long long)memory_bytes);
    vme_cuda_device *made = new (std::nothrow) vme_cuda_device;
    if (made == nullptr)
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    made->number = number;
    made->limit = memory_bytes;
    const vme_cuda_status status = start(made);
    if (status != VME_CUDA_OK) {
        vme_cuda_device_unref(made);
        return status;
    }
    *device = made;
    return VME_CUDA_OK;
}

vme_cuda_device *cuda_device_ref(vme_cuda_device *device)
{
    device->references.fetch_add(1);
    return device;
}

void vme_cuda_device_unref(vme_cuda_device *device)
{
    if (device == nullptr || device->references.fetch_sub(1) != 1)
        return;
    (void)cudaSetDevice(device->number);
    if (device->products != nullptr)
        device->cublas.destroy(device->products);
    if (device->copies != nullptr)
        (void)cudaStreamDestroy(device->copies);
    delete device;
}

vme_cuda_status vme_cuda_device_facts_of(vme_cuda_device *device, vme_cuda_device_facts *facts)
{
    cudaDeviceProp properties;
    size_t free = 0, total = 0;
    VME_TRY(cuda_enter(device));
    CUDA_TRY(cudaGetDeviceProperties(&properties, device->number));
    CUDA_TRY(cudaMemGetInfo(&free, &total));
    *facts = vme_cuda_device_facts{};
    snprintf(facts->name, sizeof facts->name, "%s", properties.name);
    facts->memory_bytes = (int64_t)total;
    facts->free_bytes = (int64_t)free;
    facts->used_bytes = device->used.load();
    facts->limit_bytes = device->limit;
    facts->multiprocessors = properties.multiProcessorCount;
    facts->major = properties.major;
    facts->minor = properties.minor;
    return VME_CUDA_OK;
}

/* ---- memory */
vme_cuda_status cuda_memory_new(vme_cuda_device *device, int64_t bytes, void **memory)
{
    *memory = nullptr;
    bytes = bytes < 1 ? 1 : bytes;
    const int64_t before = device->used.fetch_add(bytes);
    if (device->limit != 0 && before + bytes > device->limit) {
        device->used.fetch_sub(bytes);
        return cuda_fail(VME_CUDA_NO_MEMORY, "GPU memory: %lld bytes more than %lld in use are above the limit of %lld",
                         (long long)bytes, (long long)before, (long long)device->limit);
    }
    const cudaError_t error = cudaMalloc(memory, (size_t)bytes);
    if (error != cudaSuccess) {
        *memory = nullptr;
        device->used.fetch_sub(bytes);
        return cuda_failed(error, "cudaMalloc");
    }
    return VME_CUDA_OK;
}

void cuda_memory_free(vme_cuda_device *device, void *memory, int64_t bytes)
{
    if (memory == nullptr)
        return;
    (void)cudaSetDevice(device->number);
    (void)cudaFree(memory);
    device->used.fetch_sub(bytes < 1 ? 1 : bytes);
}

vme_cuda_status cuda_write(cudaStream_t stream, void *to, const void *from, int64_t bytes)
{
    CUDA_TRY(cudaMemcpyAsync(to, from, (size_t)bytes, cudaMemcpyHostToDevice, stream));
    CUDA_TRY(cudaStreamSynchronize(stream));
    return VME_CUDA_OK;
}

vme_cuda_status cuda_pinned_new(int64_t bytes, void **memory)
{
    *memory = nullptr;
    CUDA_TRY(cudaMallocHost(memory, (size_t)(bytes < 1 ? 1 : bytes)));
    memset(*memory, 0, (size_t)(bytes < 1 ? 1 : bytes));
    return VME_CUDA_OK;
}

void cuda_pinned_free(void *memory)
{
    if (memory != nullptr)
        (void)cudaFreeHost(memory);
}

/* ---- streams */
vme_cuda_status vme_cuda_stream_new(vme_cuda_device *device, vme_cuda_stream **stream)
{
    *stream = nullptr;
    VME_TRY(cuda_enter(device));
    vme_cuda_stream *made = new (std::nothrow) vme_cuda_stream;
    if (made == nullptr)
        return cuda_fail(VME_CUDA_NO_MEMORY, "out of memory");
    const cudaError_t error = cudaStreamCreateWithFlags(&made->stream, cudaStreamNonBlocking);
    if (error != cudaSuccess) {
        delete made;
        return cuda_failed(error, "cudaStreamCreateWithFlags");
    }
    made->device = cuda_device_ref(device);
    *stream = made;
    return VME_CUDA_OK;
}

vme_cuda_stream *cuda_stream_ref(vme_cuda_stream *stream)
{
    stream->references.fetch_add(1);
    return stream;
}

void vme_cuda_stream_unref(vme_cuda_stream *stream)
{
    if (stream == nullptr || stream->references.fetch_sub(1) != 1)
        return;
    (void)cudaSetDevice(stream->device->number);
    (void)cudaStreamDestroy(stream->stream);
    vme_cuda_device_unref(stream->device);
    delete stream;
}
