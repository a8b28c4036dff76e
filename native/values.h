// The values of the matrices: the same for one matrix and place on every machine, on the host and on a GPU.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define EVERYWHERE __host__ __device__
#else
#define EVERYWHERE
#endif

// A value spread evenly over -1 to 1, by the mixing function of splitmix64. It has 24 bits, so float32 holds it exactly.
EVERYWHERE inline float value_at(uint64_t matrix, uint64_t index) {
    uint64_t bits = (matrix << 56) + index + 0x9e3779b97f4a7c15ull;
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebull;
    bits ^= bits >> 31;
    return float(int64_t(bits >> 40) - (int64_t(1) << 23)) / float(1 << 23);
}
