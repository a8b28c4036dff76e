// The three matrices on the GPU: set aside, filled in place or from a file, and judged by samples of the result.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "checked.h"
#include "matrix_file.h"
#include "sizes.h"
#include "values.h"

constexpr uint64_t READ_AT_ONCE = 1ull << 24;
constexpr int SAMPLED = 16;            // rows and columns; every crossing of them is an entry that is checked
constexpr double TOLERANCE = 3e-5;     // float32 sums reach 1e-5 at n = 100000, TF32 no better than 3e-4

// Element by element, each thread in strides of the whole grid: n² may be more than a grid has threads.
__global__ void fill(float* out, uint64_t matrix, uint64_t count) {
    const uint64_t stride = uint64_t(gridDim.x) * blockDim.x;
    for (uint64_t i = uint64_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride) out[i] = value_at(matrix, i);
}

struct Judged {
    double error;
    int entries;
    bool passed() const { return error <= TOLERANCE; }  // NaN does not pass
};

class Matrices {
public:
    explicit Matrices(uint64_t n) : n_(n) {
        for (float** matrix : {&a, &b, &c}) CUDA(cudaMalloc(matrix, matrix_bytes(n)));
        CUDA(cudaMemset(c, 0xff, matrix_bytes(n)));  // NaN: a result that nobody wrote is wrong
    }

    void make_in_place() {
        uint64_t number = 0, count = elements(n_);
        for (float* matrix : {a, b}) {
            void* given[] = {&matrix, &number, &count};
            const unsigned blocks = unsigned(std::min<uint64_t>((count + 255) / 256, 65536));
            CUDA(cudaLaunchKernel(fill, dim3(blocks), dim3(256), given, 0, nullptr));
            CUDA(cudaDeviceSynchronize());
            ++number;
        }
        made_ = true;
    }

    void read(std::FILE* file, const char* path) {
        std::vector<float> part(std::min(READ_AT_ONCE, elements(n_)));
        for (float* matrix : {a, b})
            for (uint64_t first = 0; first < elements(n_); first += part.size()) {
                const uint64_t count = std::min<uint64_t>(part.size(), elements(n_) - first);
                if (std::fread(part.data(), sizeof(float), count, file) != count)
                    end(BAD_INPUT, "sgemm: %s ends before its matrices do.", path);
                CUDA(cudaMemcpy(matrix + first, part.data(), count * sizeof(float), cudaMemcpyHostToDevice));
            }
        std::fclose(file);
    }

    // The relative error of sampled entries of C against dot products in double on the host.
    Judged judged() const {
        const uint64_t count = std::min<uint64_t>(SAMPLED, n_);
        std::vector<std::vector<float>> rows(count, std::vector<float>(n_));
        for (uint64_t down = 0; down < count; ++down) copy_row(rows[down], a, sampled(down, count, 2));
        std::vector<float> column(n_), result(n_);
        double difference = 0, norm = 0;
        for (uint64_t across = 0; across < count; ++across) {
            const uint64_t j = sampled(across, count, 1);
            copy_column(column, b, j), copy_column(result, c, j);
            for (uint64_t down = 0; down < count; ++down) {
                const uint64_t i = sampled(down, count, 2);
                const std::vector<float>& row = rows[down];
                if (made_ && !(row[j] == value_at(0, j * n_ + i) && column[i] == value_at(1, j * n_ + i)))
                    return {NAN, 0};  // what was made in place is not what the same formula gives here
                double right = 0;
                for (uint64_t k = 0; k < n_; ++k) right += double(row[k]) * double(column[k]);
                difference += (right - double(result[i])) * (right - double(result[i]));
                norm += right * right;
            }
        }
        return {norm > 0 ? std::sqrt(difference / norm) : difference, int(count * count)};
    }

    float *a = nullptr, *b = nullptr, *c = nullptr;

private:
    // One place in each of so many equal bands, the first and the last place among them.
    uint64_t sampled(uint64_t band, uint64_t bands, uint64_t salt) const {
        if (band == 0 || band == bands - 1) return band == 0 ? 0 : n_ - 1;
        const uint64_t low = band * n_ / bands, high = (band + 1) * n_ / bands;
        return low + uint64_t((value_at(salt, band) + 1) / 2 * float(high - low - 1));
    }

    void copy_column(std::vector<float>& into, const float* matrix, uint64_t j) const {
        CUDA(cudaMemcpy(into.data(), matrix + j * n_, n_ * sizeof(float), cudaMemcpyDeviceToHost));
    }

    void copy_row(std::vector<float>& into, const float* matrix, uint64_t i) const {
        CUDA(cudaMemcpy2D(into.data(), sizeof(float), matrix + i, n_ * sizeof(float), sizeof(float), n_,
                          cudaMemcpyDeviceToHost));
    }

    uint64_t n_;
    bool made_ = false;
};
