"""What ncu prints, as it was seen of several versions: tables in both forms, and every way to refuse."""

from __future__ import annotations

ELEMENTWISE = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
    "std::array<char *, (unsigned long)1>>(int, T2, T3)"
)
SOFTMAX = (
    "void at::native::<unnamed>::cunn_SoftMaxForward<4, float, float, float, "
    "at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
)
GEMM = "nvjet_tst_128x64_64x10_1x2_h_bz_coopB_TNT"

WIDE = f'''==PROF== Connected to process 4711 (/opt/venv/bin/python3.12)
==PROF== Profiling "cunn_SoftMaxForward" - 0: 0%....50%....100% - 4 passes
==PROF== Profiling "{GEMM}" - 1: 0%....50%....100% - 4 passes
==PROF== Profiling "vectorized_elementwise_kernel" - 2: 0%....50%....100% - 4 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC",\
"dram__throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum",\
"lts__t_sector_hit_rate.pct","lts__t_sectors_aperture_sysmem_op_read.sum",\
"lts__t_sectors_aperture_sysmem_op_write.sum","sm__warps_active.avg.pct_of_peak_sustained_active",\
"smsp__cycles_active.avg.pct_of_peak_sustained_elapsed"
"","","","","","","","","","","","%","nsecond","%","sector","sector","%","%"
"0","4711","python3.12","localhost","{SOFTMAX}","1","7","(1024, 1, 1)","(4096, 1, 1)","0","9.0",\
"81.52","41,184","52.28","1,024","4","86.31","97.05"
"1","4711","python3.12","localhost","{GEMM}","1","7","(384, 1, 1)","(132, 1, 1)","0","9.0",\
"12.40","23,232","91.10","0","0","18.02","99.41"
"2","4711","python3.12","localhost","{ELEMENTWISE}","1","7","(128, 1, 1)","(4096, 1, 1)","0","9.0",\
"n/a","9,504","(!) n/a","0","0","70.00","88.00"
'''
"""The raw page: a row for each kernel, units in a row of their own."""


_LINES = WIDE.splitlines()
TWICE = "\n".join([*_LINES[5:9], *(f'"{2 + n}"{line[3:]}' for n, line in enumerate(_LINES[7:9]))])
"""Two calls of a softmax and a product."""


def _long(number: int, kernel: str, metric: str, unit: str, value: str) -> str:
    return (
        f'"{number}","4711","python3.12","localhost","{kernel}","1","7","(1024, 1, 1)","(4096, 1, 1)","0","9.0",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}"'
    )


_HEADING = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",'
    '"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"'
)
LONG = "\n".join(
    [
        "the program's own output, before",
        "==PROF== Connected to process 4711 (/opt/venv/bin/python3.12)",
        _HEADING,
        _long(0, SOFTMAX, "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "81.52"),
        _long(0, SOFTMAX, "gpu__time_duration.sum", "usecond", "41.18"),
        _long(0, SOFTMAX, "lts__t_sectors_aperture_sysmem_op_read.sum", "Ksector", "1.02"),
        _long(0, SOFTMAX, "launch__registers_per_thread", "register/thread", "32"),
        _long(1, GEMM, "dram__throughput.avg.pct_of_peak_sustained_elapsed", "%", "n/a"),
        _long(1, GEMM, "sm__warps_active.avg.pct_of_peak_sustained_active", "%", "18.02"),
        "==PROF== Disconnected from process 4711",
    ]
)
"""The details page: a row for each metric, in units that read well."""

VERSION = """NVIDIA (R) Nsight Compute Command Line Profiler
Copyright (c) 2018-2025 NVIDIA Corporation
Version 2025.3.1.0 (build 36398880) (public-release)
"""
OLD_VERSION = VERSION.replace("2025.3.1.0 (build 36398880)", "2019.5.0 (Build 27346997)")

PERMISSION = """==PROF== Connected to process 113001 (/usr/bin/python3)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target \
device 0. For instructions on enabling permissions and to get more information see \
https://developer.nvidia.com/ERR_NVGPUCTRPERM
==PROF== Disconnected from process 113001
==WARNING== No kernels were profiled.
==WARNING== Profiling kernels launched by child processes requires the --target-processes all option.
"""
HELD = """==PROF== Connected to process 20 (/usr/bin/python3)
==ERROR== Profiling failed because a driver resource was unavailable. Ensure that no other tool (like DCGM) is \
concurrently collecting profiling data. See https://docs.nvidia.com/nsight-compute/ProfilingGuide/index.html#faq for \
more details.
==ERROR== Failed to profile "ampere_fp16_s16816gemm_fp16_2..." in process 20
==PROF== Trying to shutdown target application
==ERROR== The application returned an error code (9).
"""
UNKNOWN_CHIP = """==PROF== Connected to process 4613 (/usr/bin/python3)
==ERROR== Profiling is not supported on device 0. To find out supported GPUs refer --list-chips option.
==PROF== Disconnected from process 4613
==WARNING== No kernels were profiled.
"""
UNKNOWN_OPTION = "==ERROR== unrecognised option '--clock-control'. Use --help for further details.\n"
UNKNOWN_METRIC = r"""==PROF== Connected to process 20101 (/usr/bin/python3.10)
==ERROR== Failed to find metric regex:^dram__throughput\.(avg|max|min|sum).*$
==PROF== Disconnected from process 20101
==WARNING== No kernels were profiled.
"""
UNKNOWN_METRICS = (
    "==ERROR== Failed to access the following 2 metrics: lts__t_sectors_aperture_sysmem_op_read.sum, "
    "lts__t_sectors_aperture_sysmem_op_write.sum\n==ERROR== Failed to profile kernel in process 7\n"
)
NOT_LOADED = "==ERROR== Failed to initialize the profiler: LibraryNotLoaded\n"
NOTHING = "==PROF== Connected to process 9 (/usr/bin/python3)\n==WARNING== No kernels were profiled.\n"
OTHER = "==PROF== Connected to process 9\n==ERROR== The application returned an error code (1).\n"
