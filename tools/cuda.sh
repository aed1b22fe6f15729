#!/bin/sh
# Builds engine/libvme_cuda.so, the engine's part for NVIDIA GPUs, with nvcc: $NVCC, on the path, in /usr/local/cuda, or
# from the packages nvidia-cuda-nvcc and nvidia-cublas in .venv. The build machine needs no GPU.
# ARCHITECTURES: compute capabilities to build machine code for ("80 90"); newer GPUs use the last one's PTX.
set -eu
cd "$(dirname "$0")/.."

packages=$(find -L .venv/lib -maxdepth 5 -type d -path '*/nvidia/cu13' 2>/dev/null | head -n 1)
for found in "${NVCC:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc "$packages/bin/nvcc"; do
    if [ -n "$found" ] && [ -x "$found" ]; then nvcc=$found; break; fi
done
if [ -z "${nvcc:-}" ]; then
    cat >&2 <<'TEXT'
cuda: there is no nvcc. Install the CUDA toolkit (13.0 or newer; its bin on the path, or NVCC=/path/to/nvcc), or its
packages into .venv: nvidia-cuda-nvcc, nvidia-cuda-runtime, nvidia-cuda-cccl, nvidia-cuda-crt, nvidia-nvvm,
nvidia-cublas, all of 13. Nothing but device="cuda" needs this library.
TEXT
    exit 1
fi
toolkit=$(dirname "$(dirname "$nvcc")")
include="-I$toolkit/include"
if ! echo '#include <cublasLt.h>' | "$nvcc" $include -x cu -E - >/dev/null 2>&1; then
    include="$include -I$packages/include"
    if ! echo '#include <cublasLt.h>' | "$nvcc" $include -x cu -E - >/dev/null 2>&1; then
        echo "cuda: $nvcc finds no cublasLt.h: install cuBLAS beside it (the package nvidia-cublas)" >&2
        exit 1
    fi
fi
major=$(printf '#include <cublasLt.h>\nversion CUBLAS_VER_MAJOR\n' | "$nvcc" $include -x cu -E - 2>/dev/null | sed -n 's/^version //p')
targets=
last=
for one in ${ARCHITECTURES:-80 90}; do
    targets="$targets -gencode arch=compute_$one,code=sm_$one"
    last=$one
done
targets="$targets -gencode arch=compute_$last,code=compute_$last"

folder=build/cuda
mkdir -p "$folder"
# Updates of tables must equal the CPU's results, so no multiply-add is fused there. Other code may fuse.
compile() {
    "$nvcc" -O3 -std=c++17 $targets -lineinfo -Xcompiler -fPIC,-fvisibility=hidden,-Wall,-Wextra ${2:-} $include \
        -Iengine/include -Iengine/src/cuda "-DVME_CUDA_CUBLAS=\"$major\"" -c "engine/src/cuda/$1.cu" -o "$folder/$1.o"
}
running=
compile device & running="$running $!"
compile kernels & running="$running $!"
compile network & running="$running $!"
compile tables --fmad=false & running="$running $!"
for one in $running; do wait "$one"; done
"$nvcc" -shared -cudart static -L"$toolkit/lib" -L"$toolkit/lib64" -Xlinker -soname=libvme_cuda.so -Xlinker --exclude-libs=ALL -Xcompiler -static-libstdc++,-static-libgcc \
    -o "$folder/libvme_cuda.so" "$folder/device.o" "$folder/kernels.o" "$folder/network.o" "$folder/tables.o"
mv "$folder/libvme_cuda.so" engine/libvme_cuda.so
echo "engine/libvme_cuda.so, for compute capabilities ${ARCHITECTURES:-80 90}, with cuBLAS $major"
