// The file that gen_data writes and sgemm reads: a header, then the matrices A and B, column after column.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <cstdio>

#include "sizes.h"
#include "words.h"

struct FileHeader {
    char magic[8];
    uint32_t version;
    uint32_t dtype;
    uint64_t n;
    uint64_t matrices;
};
static_assert(sizeof(FileHeader) == 32, "the header is 32 bytes on disk");

constexpr char FILE_MAGIC[8] = {'A', 'S', 'S', 'A', 'Y', 'M', 'A', 'T'};
constexpr uint32_t FILE_VERSION = 1, FILE_FLOAT32 = 1;
constexpr uint64_t FILE_MATRICES = 2;

constexpr uint64_t file_bytes(uint64_t n) { return sizeof(FileHeader) + FILE_MATRICES * matrix_bytes(n); }

// Open a file of matrices of this n, its place behind the header; whatever else it is ends the program.
inline std::FILE* open_matrices(const char* program, const char* path, uint64_t n) {
    std::FILE* file = std::fopen(path, "rb");
    if (!file) end(BAD_INPUT, "%s: %s cannot be opened: %s.", program, path, std::strerror(errno));
    struct stat about {};
    if (fstat(fileno(file), &about) != 0 || !S_ISREG(about.st_mode))
        end(BAD_INPUT, "%s: %s is not a file.", program, path);
    FileHeader header{};
    if (std::fread(&header, sizeof header, 1, file) != 1 || std::memcmp(header.magic, FILE_MAGIC, 8) != 0)
        end(BAD_INPUT, "%s: %s is not a file of gen_data.", program, path);
    if (header.version != FILE_VERSION || header.dtype != FILE_FLOAT32 || header.matrices != FILE_MATRICES)
        end(BAD_INPUT, "%s: %s is of another version or type: write it anew with gen_data.", program, path);
    if (header.n != n)
        end(BAD_INPUT, "%s: %s holds matrices of n = %llu, not of %llu.", program, path, (unsigned long long)header.n,
            (unsigned long long)n);
    if (uint64_t(about.st_size) != file_bytes(n))
        end(BAD_INPUT, "%s: %s is %s: it has %llu bytes where n = %llu takes %llu.", program, path,
            uint64_t(about.st_size) < file_bytes(n) ? "truncated" : "too long", (unsigned long long)about.st_size,
            (unsigned long long)n, (unsigned long long)file_bytes(n));
    return file;
}
