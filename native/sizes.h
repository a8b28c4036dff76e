// How large n × n matrices are. All of it in 64 bits: from n = 46341 on n² is more than 32 bits hold.
#pragma once

#include <cstdint>

constexpr uint64_t LARGEST_N = 1000000000ull;  // its bytes still fit 64 bits, and its rows cuBLAS's 32
constexpr uint64_t MATRICES = 3;
constexpr uint64_t BESIDE_BYTES = 256ull << 20;  // the library's workspace and the context's own growth

constexpr uint64_t elements(uint64_t n) { return n * n; }
constexpr uint64_t matrix_bytes(uint64_t n) { return elements(n) * sizeof(float); }
constexpr uint64_t needed_bytes(uint64_t n) { return MATRICES * matrix_bytes(n) + BESIDE_BYTES; }
constexpr double product_flop(uint64_t n) { return 2.0 * double(n) * double(n) * double(n); }

// The largest n whose matrices fit into so many free bytes; 0 where none does.
inline uint64_t largest_that_fits(uint64_t free_bytes) {
    uint64_t low = 0, high = LARGEST_N + 1;
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (needed_bytes(middle) <= free_bytes ? low : high) = middle;
    }
    return low;
}
