// gen_data N [FILE]: write the matrices that sgemm can read in place of making them. Needs neither a GPU nor CUDA.

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "matrix_file.h"
#include "sizes.h"
#include "values.h"
#include "words.h"

namespace {

constexpr char ME[] = "gen_data";
constexpr uint64_t AT_ONCE = 1ull << 22;
std::string partial;  // the file while it is written, under another name, so that no half of one is ever read

[[noreturn]] void give_up(const std::string& what) {
    const std::string why = std::strerror(errno);
    if (!partial.empty()) unlink(partial.c_str());
    end(MACHINE_CANNOT, "%s: %s: %s.", ME, what.c_str(), why.c_str());
}

void check_plain(const std::string& path) {
    struct stat there {};
    if (stat(path.c_str(), &there) == 0 && !S_ISREG(there.st_mode))
        end(BAD_INPUT, "%s: %s is there already and is no plain file.", ME, path.c_str());
}

void check_space(const std::string& path, uint64_t n) {
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    struct statvfs disk {};
    if (statvfs(folder.c_str(), &disk) != 0)
        end(BAD_INPUT, "%s: the folder %s cannot be written to: %s.", ME, folder.c_str(), std::strerror(errno));
    const uint64_t free_bytes = uint64_t(disk.f_bavail) * disk.f_frsize;
    if (file_bytes(n) > free_bytes)
        end(MACHINE_CANNOT, "%s: the matrices of n = %llu take %.1f GiB, and %.1f GiB are free in %s.", ME,
            (unsigned long long)n, gib(file_bytes(n)), gib(free_bytes), folder.c_str());
}

void write(std::FILE* file, uint64_t n) {
    FileHeader header{};
    std::memcpy(header.magic, FILE_MAGIC, sizeof header.magic);
    header.version = FILE_VERSION, header.dtype = FILE_FLOAT32, header.n = n, header.matrices = FILE_MATRICES;
    if (std::fwrite(&header, sizeof header, 1, file) != 1) give_up(partial + " cannot be written");
    std::vector<float> part(std::min(AT_ONCE, elements(n)));
    for (uint64_t matrix = 0; matrix < FILE_MATRICES; ++matrix)
        for (uint64_t first = 0; first < elements(n); first += part.size()) {
            const uint64_t count = std::min<uint64_t>(part.size(), elements(n) - first);
            for (uint64_t i = 0; i < count; ++i) part[i] = value_at(matrix, first + i);
            if (std::fwrite(part.data(), sizeof(float), count, file) != count)
                give_up(partial + " cannot be written");
        }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2 || argc > 3 || argv[1][0] == '-')
        end(BAD_INPUT, "usage: gen_data N [FILE]\nWrites two N × N matrices of float32 to FILE (sgemm_N.bin).");
    const uint64_t n = whole_number(ME, "N", argv[1], 1, LARGEST_N);
    const std::string path = argc == 3 ? argv[2] : "sgemm_" + std::to_string(n) + ".bin";
    check_plain(path);
    check_space(path, n);
    partial = path + ".partial";
    std::FILE* file = std::fopen(partial.c_str(), "wb");
    if (!file) end(BAD_INPUT, "%s: %s cannot be written: %s.", ME, partial.c_str(), std::strerror(errno));
    write(file, n);
    if (std::fflush(file) != 0 || fsync(fileno(file)) != 0 || std::fclose(file) != 0)
        give_up(partial + " cannot be written");
    if (std::rename(partial.c_str(), path.c_str()) != 0) give_up(path + " cannot be written");
    std::printf("{\"file\": %s, \"n\": %llu, \"dtype\": \"float32\", \"bytes\": %llu}\n", quoted(path.c_str()).c_str(),
                (unsigned long long)n, (unsigned long long)file_bytes(n));
    return DONE;
}
