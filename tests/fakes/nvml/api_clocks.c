/* Clocks, and why they are not higher. */
#include "call.h"

static unsigned int sm_clock(const call_t *call)
{
    const gpu_t *gpu = call->gpu;
    return gpu->sm_forced_mhz ? gpu->sm_forced_mhz : power_at(gpu, call->now_ns)->sm_mhz;
}

static unsigned int memory_clock(const gpu_t *gpu)
{
    if (gpu->memory_forced_mhz)
        return gpu->memory_forced_mhz;
    if (gpu->memory_lock_max_mhz)
        return gpu->memory_lock_max_mhz;
    return gpu->memory_application_mhz ? gpu->memory_application_mhz : gpu->memory_max_mhz;
}

static nvmlReturn_t current_clock(const call_t *call, unsigned int type, unsigned int *mhz)
{
    NEEDS(type <= NVML_CLOCK_VIDEO, NVML_ERROR_INVALID_ARGUMENT);
    *mhz = type == NVML_CLOCK_MEM ? memory_clock(call->gpu) : sm_clock(call);
    return NVML_SUCCESS;
}

static nvmlReturn_t highest_clock(const gpu_t *gpu, unsigned int type, unsigned int *mhz)
{
    NEEDS(type <= NVML_CLOCK_VIDEO, NVML_ERROR_INVALID_ARGUMENT);
    *mhz = type == NVML_CLOCK_MEM ? gpu->memory_max_mhz : gpu->sm_max_mhz;
    return NVML_SUCCESS;
}

static nvmlReturn_t application_clock(const gpu_t *gpu, unsigned int type, unsigned int *mhz)
{
    nvmlReturn_t code = highest_clock(gpu, type, mhz);
    unsigned int asked = type == NVML_CLOCK_MEM ? gpu->memory_application_mhz : gpu->sm_application_mhz;
    if (code == NVML_SUCCESS && asked)
        *mhz = asked;
    return code;
}

NVML nvmlDeviceGetClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    GPU_CALL(device);
    return current_clock(&call, type, mhz);
}

NVML nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    GPU_CALL(device);
    return highest_clock(call.gpu, type, mhz);
}

NVML nvmlDeviceGetMaxCustomerBoostClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    GPU_CALL(device);
    return highest_clock(call.gpu, type, mhz);
}

NVML nvmlDeviceGetApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    GPU_CALL(device);
    return application_clock(call.gpu, type, mhz);
}

NVML nvmlDeviceGetDefaultApplicationsClock(nvmlDevice_t device, unsigned int type, unsigned int *mhz)
{
    GPU_CALL(device);
    return highest_clock(call.gpu, type, mhz);
}

NVML nvmlDeviceGetClock(nvmlDevice_t device, unsigned int type, unsigned int id, unsigned int *mhz)
{
    GPU_CALL(device);
    NEEDS(id <= NVML_CLOCK_ID_BOOST_MAX, NVML_ERROR_INVALID_ARGUMENT);
    if (id == NVML_CLOCK_ID_CURRENT)
        return current_clock(&call, type, mhz);
    if (id == NVML_CLOCK_ID_APP_CLOCK_TARGET)
        return application_clock(call.gpu, type, mhz);
    return highest_clock(call.gpu, type, mhz);
}

NVML nvmlDeviceGetSupportedMemoryClocks(nvmlDevice_t device, unsigned int *count, unsigned int *clocks)
{
    GPU_CALL(device);
    int fits = clocks && *count >= 1;
    *count = 1;
    NEEDS(fits, NVML_ERROR_INSUFFICIENT_SIZE);
    clocks[0] = call.gpu->memory_max_mhz;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetSupportedGraphicsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int *count,
                                          unsigned int *clocks)
{
    GPU_CALL(device);
    const gpu_t *gpu = call.gpu;
    NEEDS(memory_mhz == gpu->memory_max_mhz, NVML_ERROR_NOT_FOUND);
    unsigned int step = gpu->sm_step_mhz ? gpu->sm_step_mhz : 1;
    unsigned int has = (gpu->sm_max_mhz - gpu->sm_idle_mhz) / step + 1;
    int fits = clocks && *count >= has;
    *count = has;
    NEEDS(fits, NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned int i = 0; i < has; i++)
        clocks[i] = gpu->sm_max_mhz - i * step;
    return NVML_SUCCESS;
}

/* What the model itself does to the clock: idle, capped, or set by somebody. */
static unsigned long long reasons(const call_t *call)
{
    const gpu_t *gpu = call->gpu;
    const segment_t *segment = power_at(gpu, call->now_ns);
    if (gpu->clocks_event_reasons >= 0)
        return (unsigned long long)gpu->clocks_event_reasons;
    if (segment->demand_w <= gpu->idle_w)
        return REASON_GPU_IDLE;
    int set = gpu->sm_application_mhz || gpu->sm_lock_max_mhz;
    return (segment->capped ? REASON_SW_POWER_CAP : 0u) | (set ? REASON_CLOCKS_SETTING : 0u);
}

NVML nvmlDeviceGetCurrentClocksThrottleReasons(nvmlDevice_t device, unsigned long long *mask)
{
    GPU_CALL(device);
    *mask = reasons(&call);
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCurrentClocksEventReasons(nvmlDevice_t device, unsigned long long *mask)
{
    GPU_CALL(device);
    *mask = reasons(&call);
    return NVML_SUCCESS;
}
