#!/bin/sh
# What the Makefile asks: `detect.sh arch` and `detect.sh cublas` print flags for nvcc, or say what is missing and fail.
# NVCC names the compiler; ARCH and CUBLAS_HOME, where they are set, are taken as they are.

NVCC=${NVCC:-nvcc}

fail() {
    echo "native: $*" >&2
    exit 1
}

command -v "$NVCC" >/dev/null 2>&1 ||
    fail "nvcc is not here ($NVCC): install the CUDA toolkit, put its bin on the PATH, or give NVCC=/path/to/nvcc."

arch() {
    if [ -n "$ARCH" ]; then
        echo "-arch=$ARCH"
        return
    fi
    said=$("$NVCC" -arch=native -E -x cu /dev/null 2>&1 >/dev/null) && case $said in
        *"Cannot find valid GPU"*) ;;
        *) echo "-arch=native"; return ;;
    esac
    capabilities=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -d '. ' | sort -u)
    flags=
    for each in $capabilities; do
        case $each in
            *[!0-9]*) ;;
            *) flags="$flags -gencode arch=compute_$each,code=sm_$each" ;;
        esac
    done
    [ -n "$flags" ] || fail "no GPU is seen here to build for: give its architecture, as in make ARCH=sm_90."
    echo "$flags"
}

# The toolkit's own cuBLAS, one that was named, or the one that came with a Python package such as PyTorch's.
cublas() {
    if [ -z "$CUBLAS_HOME" ] && echo '#include <cublas_v2.h>' | "$NVCC" -x cu -E - >/dev/null 2>&1; then
        echo "-lcublas"
        return
    fi
    for home in ${CUBLAS_HOME:-$(wheels)}; do
        for lib in "$home"/lib64 "$home"/lib; do
            for file in "$lib"/libcublas.so "$lib"/libcublas.so.[0-9]*; do
                if [ -f "$home/include/cublas_v2.h" ] && [ -f "$file" ]; then
                    echo "-I$home/include -L$lib -l:${file##*/} -Xlinker -rpath=$lib -Xlinker -rpath-link=$lib"
                    return
                fi
            done
        done
    done
    fail "cuBLAS is not here (cublas_v2.h and libcublas.so): install it with the CUDA toolkit, or give CUBLAS_HOME=/path."
}

wheels() {
    python3 - 2>/dev/null <<'PYTHON'
import glob
import os
import sys

for folder in sys.path:
    for header in sorted(glob.glob(os.path.join(folder, "nvidia", "*", "include", "cublas_v2.h"))):
        print(os.path.dirname(os.path.dirname(header)))
PYTHON
}

case $1 in
    arch) arch ;;
    cublas) cublas ;;
    *) fail "usage: detect.sh arch|cublas" ;;
esac
