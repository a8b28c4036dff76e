// The one product of cuBLAS that is needed, column-major and naive.
#pragma once

#include <cuda_runtime.h>

#include <chrono>
#include <thread>

#include "fake_world.h"

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0, CUBLAS_STATUS_EXECUTION_FAILED = 13 };
enum cublasOperation_t { CUBLAS_OP_N = 0 };
enum cublasMath_t { CUBLAS_DEFAULT_MATH = 0 };
using cublasHandle_t = void*;

#define FAKE_CUBLAS_CALL(name) \
    if (fails(name)) return CUBLAS_STATUS_EXECUTION_FAILED

inline const char* cublasGetStatusString(cublasStatus_t) { return "CUBLAS_STATUS_EXECUTION_FAILED"; }
inline cublasStatus_t cublasCreate(cublasHandle_t* handle) {
    FAKE_CUBLAS_CALL("cublasCreate");
    *handle = nullptr;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetStream(cublasHandle_t, cudaStream_t) {
    FAKE_CUBLAS_CALL("cublasSetStream");
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) {
    FAKE_CUBLAS_CALL("cublasSetMathMode");
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasGetVersion(cublasHandle_t, int* version) {
    *version = 130000;
    return CUBLAS_STATUS_SUCCESS;
}
inline cublasStatus_t cublasSgemm(cublasHandle_t, cublasOperation_t, cublasOperation_t, int m, int n, int k,
                                  const float* alpha, const float* a, int lda, const float* b, int ldb,
                                  const float* beta, float* c, int ldc) {
    FAKE_CUBLAS_CALL("cublasSgemm");
    const auto begin = std::chrono::steady_clock::now();
    for (size_t j = 0; j < size_t(n); ++j)
        for (size_t i = 0; i < size_t(m); ++i) {
            float sum = 0;
            for (size_t l = 0; l < size_t(k); ++l) sum += a[l * lda + i] * b[j * ldb + l];
            float& out = c[j * ldc + i];
            out = *alpha * sum * float(told("FAKE_CUBLAS_WRONG", 1)) + (*beta == 0 ? 0 : *beta * out);
        }
    std::this_thread::sleep_until(begin + std::chrono::duration<double, std::milli>(told("FAKE_CUBLAS_MS", 0)));
    return CUBLAS_STATUS_SUCCESS;
}
