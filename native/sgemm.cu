// sgemm N REPS GPU: so many products of N × N matrices in float32 by cuBLAS, back to back, each with its own time.
//
// Standard output has JSON lines: a header, one line for each kernel as it ends, a summary. README.md says what is in them.

#include <csignal>
#include <ctime>

#include "matrices.h"

namespace {

constexpr char ME[] = "sgemm";
constexpr char USAGE[] =
    "usage: sgemm N REPS GPU [--data FILE] [--warmup COUNT]\n"
    "Multiplies two N × N matrices of float32 REPS times on a GPU by cuBLAS, TF32 off, and prints JSON lines.\n"
    "The matrices are made on the GPU, or read from a FILE of gen_data. COUNT untimed products come first (2).";
constexpr uint64_t MOST_REPETITIONS = 10000000;
volatile std::sig_atomic_t stop_asked = 0;

struct Options {
    uint64_t n = 0, repetitions = 0, gpu = 0, warmup = 2;
    const char* data = nullptr;
};

Options read_options(int argc, char** argv) {
    Options options;
    std::vector<const char*> words;
    for (int i = 1; i < argc; ++i) {
        const std::string word = argv[i];
        if (word.rfind("--", 0) != 0) {
            words.push_back(argv[i]);
            continue;
        }
        if (word == "--help") std::exit(std::puts(USAGE) < 0 ? MACHINE_CANNOT : DONE);
        const bool known = word == "--data" || word == "--warmup";
        if (!known || i + 1 == argc) end(BAD_INPUT, "%s", USAGE);
        if (word == "--data") options.data = argv[++i];
        else options.warmup = whole_number(ME, "COUNT", argv[++i], 1, MOST_REPETITIONS);
    }
    if (words.size() != 3) end(BAD_INPUT, "%s", USAGE);
    options.n = whole_number(ME, "N", words[0], 1, LARGEST_N);
    options.repetitions = whole_number(ME, "REPS", words[1], 1, MOST_REPETITIONS);
    options.gpu = whole_number(ME, "GPU", words[2], 0, 1023);
    return options;
}

cudaDeviceProp open_gpu(uint64_t gpu) {
    setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID", 0);  // number GPUs as nvidia-smi does, unless the user wants otherwise
    int count = 0;
    CUDA(cudaGetDeviceCount(&count));
    if (gpu >= uint64_t(count))
        end(MACHINE_CANNOT, "sgemm: there is no GPU %llu; CUDA sees %d.", (unsigned long long)gpu, count);
    CUDA(cudaSetDevice(int(gpu)));
    cudaDeviceProp about{};
    CUDA(cudaGetDeviceProperties(&about, int(gpu)));
    return about;
}

// Tell what the matrices take and what there is, and end here where that is too little.
uint64_t make_sure_it_fits(const Options& options) {
    size_t free_bytes = 0, total = 0;
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    const unsigned long long n = options.n, gpu = options.gpu;
    if (needed_bytes(n) > free_bytes)
        end(MACHINE_CANNOT,
            "sgemm: n = %llu needs %.1f GiB (%llu bytes), and %.1f GiB (%llu bytes) are free on GPU %llu: the largest n "
            "that fits is %llu.",
            n, gib(needed_bytes(n)), (unsigned long long)needed_bytes(n), gib(free_bytes),
            (unsigned long long)free_bytes, gpu, (unsigned long long)largest_that_fits(free_bytes));
    std::fprintf(stderr, "sgemm: n = %llu takes %.1f GiB of the %.1f GiB that are free on GPU %llu.\n", n,
                 gib(needed_bytes(n)), gib(free_bytes), gpu);
    return free_bytes;
}

std::string uuid_of(const cudaDeviceProp& about) {
    std::string text = "GPU-";
    for (int i = 0; i < 16; ++i) {
        char hex[3];
        std::snprintf(hex, sizeof hex, "%02x", (unsigned char)about.uuid.bytes[i]);
        text += i == 4 || i == 6 || i == 8 || i == 10 ? std::string("-") + hex : hex;
    }
    return text;
}

long long now_ns(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000ll + now.tv_nsec;
}

struct Zero {  // the moment that starts are counted from, by the host's clocks
    long long unix_ns = 0, monotonic_ns = 0;
};

void print_header(const Options& options, const cudaDeviceProp& about, cublasHandle_t cublas, uint64_t free_bytes,
                  const Zero& zero) {
    int driver = 0, runtime = 0, library = 0;
    CUDA(cudaDriverGetVersion(&driver));
    CUDA(cudaRuntimeGetVersion(&runtime));
    CUBLAS(cublasGetVersion(cublas, &library));
    std::printf("{\"program\": \"sgemm\", \"gpu\": %llu, \"name\": %s, \"uuid\": \"%s\", \"capability\": \"%d.%d\", ",
                (unsigned long long)options.gpu, quoted(about.name).c_str(), uuid_of(about).c_str(), about.major,
                about.minor);
    std::printf("\"multiprocessors\": %d, \"cuda_driver\": \"%d.%d\", \"cuda_runtime\": \"%d.%d\", \"cublas\": %d, ",
                about.multiProcessorCount, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
                library);
    std::printf("\"n\": %llu, \"repetitions\": %llu, \"warmup\": %llu, \"dtype\": \"float32\", \"flop\": %.17g, ",
                (unsigned long long)options.n, (unsigned long long)options.repetitions,
                (unsigned long long)options.warmup, product_flop(options.n));
    std::printf("\"math\": \"CUBLAS_DEFAULT_MATH, TF32 off\", \"data\": %s, ",
                options.data ? quoted(options.data).c_str() : "\"made in place\"");
    std::printf("\"needed_bytes\": %llu, \"free_bytes\": %llu, \"zero_unix_ns\": %lld, \"zero_monotonic_ns\": %lld}\n",
                (unsigned long long)needed_bytes(options.n), (unsigned long long)free_bytes, zero.unix_ns,
                zero.monotonic_ns);
}

void multiply(cublasHandle_t cublas, const Matrices& matrices, uint64_t n) {
    const float one = 1, zero = 0;
    const int side = int(n);
    CUBLAS(cublasSgemm(cublas, CUBLAS_OP_N, CUBLAS_OP_N, side, side, side, &one, matrices.a, side, matrices.b, side,
                       &zero, matrices.c, side));
}

std::string number(double value) {
    char text[32];
    std::snprintf(text, sizeof text, "%.9g", value);
    return std::isfinite(value) ? text : "null";
}

double gflops(uint64_t n, double us) { return us > 0 ? product_flop(n) / us / 1000 : NAN; }

float between_ms(cudaEvent_t from, cudaEvent_t to) {
    float ms = 0;
    CUDA(cudaEventElapsedTime(&ms, from, to));
    return ms;
}

// Time the kernels by events in the stream. While one runs the next is already queued, so that the GPU never waits for
// the host; starts are summed from one to the next, as a single float would lose microseconds after minutes.
class Timed {
public:
    Timed(cudaStream_t stream, uint64_t n) : stream_(stream), n_(n) {
        for (Pair& pair : pairs_) {
            CUDA(cudaEventCreate(&pair.begin));
            CUDA(cudaEventCreate(&pair.end));
        }
        CUDA(cudaEventRecord(pairs_[DEPTH - 1].begin, stream_));
        CUDA(cudaEventSynchronize(pairs_[DEPTH - 1].begin));
        zero = {now_ns(CLOCK_REALTIME), now_ns(CLOCK_MONOTONIC)};
    }

    void run(cublasHandle_t cublas, const Matrices& matrices, uint64_t repetitions) {
        uint64_t queued = 0;
        for (; queued < repetitions && !stop_asked; ++queued) {
            CUDA(cudaEventRecord(pairs_[queued % DEPTH].begin, stream_));
            multiply(cublas, matrices, n_);
            CUDA(cudaEventRecord(pairs_[queued % DEPTH].end, stream_));
            if (queued > 0) report(queued - 1);
        }
        if (queued > 0) report(queued - 1);
    }

    Zero zero;
    std::vector<double> took_us;

private:
    static constexpr uint64_t DEPTH = 3;
    struct Pair {
        cudaEvent_t begin, end;
    };

    void report(uint64_t kernel) {
        const Pair &pair = pairs_[kernel % DEPTH], &before = pairs_[(kernel + DEPTH - 1) % DEPTH];
        CUDA(cudaEventSynchronize(pair.end));
        start_us_ += 1000.0 * between_ms(before.begin, pair.begin);
        const double us = 1000.0 * between_ms(pair.begin, pair.end);
        took_us.push_back(us);
        std::printf("{\"kernel\": %llu, \"start_us\": %.3f, \"duration_us\": %.3f, \"gflops\": %s}\n",
                    (unsigned long long)kernel, start_us_, us, number(gflops(n_, us)).c_str());
    }

    cudaStream_t stream_;
    uint64_t n_;
    Pair pairs_[DEPTH];
    double start_us_ = 0;
};

struct Summary {  // microseconds; NaN, which is printed as null, where there are too few kernels to say
    double median = NAN, mean = NAN, least = NAN, most = NAN, cv = NAN;
};

Summary summary_of(std::vector<double> us) {
    Summary found;
    if (us.empty()) return found;
    std::sort(us.begin(), us.end());
    const size_t count = us.size();
    double sum = 0, squares = 0;
    for (double each : us) sum += each;
    found.mean = sum / double(count);
    for (double each : us) squares += (each - found.mean) * (each - found.mean);
    if (count > 1) found.cv = std::sqrt(squares / double(count - 1)) / found.mean;
    found.median = (us[(count - 1) / 2] + us[count / 2]) / 2;
    found.least = us.front(), found.most = us.back();
    return found;
}

void print_summary(const Options& options, const std::vector<double>& us, const Judged& judged) {
    const Summary found = summary_of(us);
    const std::string median = number(found.median), least = number(found.least), most = number(found.most);
    const std::string rate = number(gflops(options.n, found.median));
    std::printf("{\"summary\": true, \"kernels\": %zu, \"asked\": %llu, \"stopped\": %s, \"median_us\": %s, ", us.size(),
                (unsigned long long)options.repetitions, us.size() < options.repetitions ? "true" : "false",
                median.c_str());
    std::printf("\"mean_us\": %s, \"min_us\": %s, \"max_us\": %s, \"cv\": %s, \"median_gflops\": %s, ",
                number(found.mean).c_str(), least.c_str(), most.c_str(), number(found.cv).c_str(), rate.c_str());
    std::printf("\"check_error\": %s, \"check_tolerance\": %s, \"check_entries\": %d, \"right\": %s}\n",
                number(judged.error).c_str(), number(TOLERANCE).c_str(), judged.entries,
                judged.passed() ? "true" : "false");
    const char* result = std::getenv("ASSAY_RESULT");
    if (!result || us.empty() || !judged.passed()) return;
    std::FILE* file = std::fopen(result, "w");
    if (!file) end(MACHINE_CANNOT, "sgemm: %s cannot be written: %s.", result, std::strerror(errno));
    std::fprintf(file, "{\"kernel_us\": %s, \"kernel_min_us\": %s, \"kernel_max_us\": %s, \"rate_gflops\": %s}\n",
                 median.c_str(), least.c_str(), most.c_str(), rate.c_str());
    std::fclose(file);
}

void stop_when_asked() {
    struct sigaction action {};
    action.sa_handler = [](int) { stop_asked = 1; };
    action.sa_flags = int(SA_RESETHAND);  // whoever asks twice does not want to wait
    for (int number : {SIGINT, SIGTERM}) sigaction(number, &action, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
    const Options options = read_options(argc, argv);
    std::setvbuf(stdout, nullptr, _IOLBF, 1 << 16);
    stop_when_asked();
    std::FILE* file = options.data ? open_matrices(ME, options.data, options.n) : nullptr;
    const cudaDeviceProp about = open_gpu(options.gpu);
    const uint64_t free_bytes = make_sure_it_fits(options);
    cudaStream_t stream;
    cublasHandle_t cublas;
    CUDA(cudaStreamCreate(&stream));
    CUBLAS(cublasCreate(&cublas));
    CUBLAS(cublasSetStream(cublas, stream));
    CUBLAS(cublasSetMathMode(cublas, CUBLAS_DEFAULT_MATH));
    Matrices matrices(options.n);
    if (file) matrices.read(file, options.data);
    else matrices.make_in_place();
    for (uint64_t i = 0; i < options.warmup && (i == 0 || !stop_asked); ++i) multiply(cublas, matrices, options.n);
    CUDA(cudaStreamSynchronize(stream));
    Timed timed(stream, options.n);
    print_header(options, about, cublas, free_bytes, timed.zero);
    timed.run(cublas, matrices, options.repetitions);
    const Judged judged = matrices.judged();
    print_summary(options, timed.took_us, judged);
    if (!judged.passed())
        end(WRONG_RESULT, "sgemm: the result is wrong: its relative error against double is %g, more than %g.",
            judged.error, TOLERANCE);
    if (timed.took_us.size() < options.repetitions)
        end(STOPPED, "sgemm: stopped after %zu of %llu kernels.", timed.took_us.size(),
            (unsigned long long)options.repetitions);
    return DONE;
}
