// What the fake CUDA is told by its environment.
//
//     FAKE_CUDA_FAIL=cudaMalloc:2      the second call of that name fails
//     FAKE_CUDA_FREE=BYTES             so much memory is free
//     FAKE_CUDA_DEVICES=COUNT          so many GPUs are there
//     FAKE_CUBLAS_WRONG=1.0001         results are this many times what they should be
//     FAKE_CUBLAS_MS=MILLISECONDS      so long a product takes at least
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

inline double told(const char* name, double otherwise) {
    const char* text = std::getenv(name);
    return text ? std::strtod(text, nullptr) : otherwise;
}

// Whether this call is the one that is to fail.
inline bool fails(const char* name) {
    static std::map<std::string, int> calls;
    const int call = ++calls[name];
    const char* text = std::getenv("FAKE_CUDA_FAIL");
    const char* colon = text ? std::strchr(text, ':') : nullptr;
    return colon && std::string(text, colon) == name && std::atoi(colon + 1) == call;
}
