// A tiny CUDA runtime on the host: memory is malloc's, a kernel is a loop over its threads, an event is a moment.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "fake_world.h"

#define __global__

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorUnknown = 999 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2 };

struct cudaUUID_t {
    char bytes[16];
};
struct cudaDeviceProp {
    char name[256];
    cudaUUID_t uuid;
    int major, minor, multiProcessorCount;
};
struct dim3 {
    unsigned x, y, z;
    explicit dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
inline dim3 gridDim, blockDim, blockIdx(0), threadIdx(0);

using Moment = std::chrono::steady_clock::time_point;
struct FakeEvent {
    Moment at;
};
using cudaEvent_t = FakeEvent*;
using cudaStream_t = void*;

#define FAKE_CALL(name) \
    if (fails(name)) return cudaErrorUnknown

inline const char* cudaGetErrorName(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaErrorUnknown";
}
inline const char* cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorMemoryAllocation ? "out of memory" : "unknown error";
}

inline cudaError_t cudaGetDeviceCount(int* count) {
    FAKE_CALL("cudaGetDeviceCount");
    *count = int(told("FAKE_CUDA_DEVICES", 1));
    return cudaSuccess;
}
inline cudaError_t cudaSetDevice(int) {
    FAKE_CALL("cudaSetDevice");
    return cudaSuccess;
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int device) {
    FAKE_CALL("cudaGetDeviceProperties");
    std::strcpy(about->name, "Fake \"GPU\" of the tests");
    for (int i = 0; i < 16; ++i) about->uuid.bytes[i] = char(0xf0 + i);
    about->uuid.bytes[15] = char(device);
    about->major = 9, about->minor = 0, about->multiProcessorCount = 4;
    return cudaSuccess;
}
inline cudaError_t cudaDriverGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
inline cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = 13000;
    return cudaSuccess;
}
inline cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    FAKE_CALL("cudaMemGetInfo");
    *total = *free_bytes = size_t(told("FAKE_CUDA_FREE", 1ull << 30));
    return cudaSuccess;
}

template <class Element>
cudaError_t cudaMalloc(Element** memory, size_t bytes) {
    *memory = fails("cudaMalloc") ? nullptr : static_cast<Element*>(std::malloc(bytes));
    return *memory ? cudaSuccess : cudaErrorMemoryAllocation;
}
inline cudaError_t cudaMemset(void* memory, int value, size_t bytes) {
    FAKE_CALL("cudaMemset");
    std::memset(memory, value, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    FAKE_CALL("cudaMemcpy");
    std::memcpy(to, from, bytes);
    return cudaSuccess;
}
inline cudaError_t cudaMemcpy2D(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                size_t height, cudaMemcpyKind) {
    FAKE_CALL("cudaMemcpy2D");
    for (size_t row = 0; row < height; ++row)
        std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch, width);
    return cudaSuccess;
}

template <class... Given, size_t... Place>
void fake_thread(void (*kernel)(Given...), void** given, std::index_sequence<Place...>) {
    kernel(*static_cast<Given*>(given[Place])...);
}
template <class... Given>
cudaError_t cudaLaunchKernel(void (*kernel)(Given...), dim3 grid, dim3 block, void** given, size_t, cudaStream_t) {
    FAKE_CALL("cudaLaunchKernel");
    gridDim = grid, blockDim = block;
    for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x)
        for (threadIdx.x = 0; threadIdx.x < block.x; ++threadIdx.x)
            fake_thread(kernel, given, std::index_sequence_for<Given...>{});
    return cudaSuccess;
}
inline cudaError_t cudaDeviceSynchronize() {
    FAKE_CALL("cudaDeviceSynchronize");
    return cudaSuccess;
}

inline cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    FAKE_CALL("cudaStreamCreate");
    *stream = nullptr;
    return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t) {
    FAKE_CALL("cudaStreamSynchronize");
    return cudaSuccess;
}
inline cudaError_t cudaEventCreate(cudaEvent_t* event) {
    FAKE_CALL("cudaEventCreate");
    *event = new FakeEvent{};
    return cudaSuccess;
}
inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
    FAKE_CALL("cudaEventRecord");
    event->at = std::chrono::steady_clock::now();
    return cudaSuccess;
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t) {
    FAKE_CALL("cudaEventSynchronize");
    return cudaSuccess;
}
inline cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t from, cudaEvent_t to) {
    FAKE_CALL("cudaEventElapsedTime");
    *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}
