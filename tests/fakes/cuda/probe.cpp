// probe N BYTES: what the headers of native/ say of an n and of so much free memory, computed without taking any of it.

#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "matrix_file.h"
#include "sizes.h"
#include "values.h"

int main(int, char** argv) {
    const uint64_t n = std::strtoull(argv[1], nullptr, 10), last = elements(n) - 1;
    std::printf("{\"elements\": %" PRIu64 ", \"needed\": %" PRIu64 ", \"file\": %" PRIu64 ", \"flop\": %.17g, ",
                elements(n), needed_bytes(n), file_bytes(n), product_flop(n));
    std::printf("\"last\": %.9g, \"wrapped\": %.9g, \"largest\": %" PRIu64 "}\n", value_at(0, last),
                value_at(0, uint32_t(last)), largest_that_fits(std::strtoull(argv[2], nullptr, 10)));
    return 0;
}
