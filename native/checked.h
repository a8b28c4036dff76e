// Every call of CUDA and cuBLAS goes through CUDA(…) or CUBLAS(…): one that fails ends the program and says which and why.
#pragma once

#include <cublas_v2.h>
#include <cuda_runtime.h>

#include "words.h"

#define CUDA(call) checked(call, #call)
#define CUBLAS(call) checked(call, #call)

inline void checked(cudaError_t status, const char* call) {
    if (status != cudaSuccess)
        end(MACHINE_CANNOT, "sgemm: %s failed: %s (%s).", call, cudaGetErrorString(status), cudaGetErrorName(status));
}

inline void checked(cublasStatus_t status, const char* call) {
    if (status != CUBLAS_STATUS_SUCCESS)
        end(MACHINE_CANNOT, "sgemm: %s failed: %s.", call, cublasGetStatusString(status));
}
