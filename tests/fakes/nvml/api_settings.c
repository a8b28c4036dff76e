/* What can be set. Every try is logged, whether it worked or not. */
#include "call.h"

#include <string.h>
#include <unistd.h>

typedef nvmlReturn_t (*change_t)(gpu_t *gpu, unsigned int first, unsigned int second);

static void log_setting(const call_t *call, const char *function, unsigned int first, unsigned int second)
{
    scenario_t *scenario = call->scenario;
    setting_t *entry = &scenario->settings[scenario->setting_count++ % MAX_SETTINGS];
    memset(entry, 0, sizeof *entry);
    strncpy(entry->function, function, NAME_SIZE - 1);
    entry->t_ns = call->now_ns;
    entry->pid = getpid();
    entry->gpu = call->gpu ? (int32_t)gpu_index(call) : ALL_GPUS;
    entry->code = (int32_t)call->code;
    entry->first = first;
    entry->second = second;
}

static nvmlReturn_t change(const char *function, nvmlDevice_t device, change_t apply, unsigned int first,
                           unsigned int second)
{
    call_t call __attribute__((cleanup(end_call))) = begin_gpu_call(function, device);
    NEEDS(call.scenario, call.code);
    if (call.code == NVML_SUCCESS && !call.scenario->privileged)
        call.code = NVML_ERROR_NO_PERMISSION;
    if (call.code == NVML_SUCCESS)
        call.code = apply(call.gpu, first, second);
    if (call.code == NVML_SUCCESS)
        settle_from_now(call.gpu, call.now_ns);
    log_setting(&call, function, first, second);
    return call.code;
}

static nvmlReturn_t power_limit(gpu_t *gpu, unsigned int mw, unsigned int unused)
{
    (void)unused;
    NEEDS(mw >= gpu->power_limit_min_mw && mw <= gpu->power_limit_max_mw, NVML_ERROR_INVALID_ARGUMENT);
    gpu->power_limit_mw = mw;
    return NVML_SUCCESS;
}

static nvmlReturn_t lock_sm(gpu_t *gpu, unsigned int min_mhz, unsigned int max_mhz)
{
    NEEDS(min_mhz <= max_mhz && max_mhz > 0, NVML_ERROR_INVALID_ARGUMENT);
    gpu->sm_lock_min_mhz = min_mhz;
    gpu->sm_lock_max_mhz = max_mhz;
    return NVML_SUCCESS;
}

static nvmlReturn_t unlock_sm(gpu_t *gpu, unsigned int unused, unsigned int unused_too)
{
    (void)unused, (void)unused_too;
    gpu->sm_lock_min_mhz = gpu->sm_lock_max_mhz = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t lock_memory(gpu_t *gpu, unsigned int min_mhz, unsigned int max_mhz)
{
    NEEDS(min_mhz <= max_mhz && max_mhz > 0, NVML_ERROR_INVALID_ARGUMENT);
    gpu->memory_lock_min_mhz = min_mhz;
    gpu->memory_lock_max_mhz = max_mhz < gpu->memory_max_mhz ? max_mhz : gpu->memory_max_mhz;
    return NVML_SUCCESS;
}

static nvmlReturn_t unlock_memory(gpu_t *gpu, unsigned int unused, unsigned int unused_too)
{
    (void)unused, (void)unused_too;
    gpu->memory_lock_min_mhz = gpu->memory_lock_max_mhz = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t application_clocks(gpu_t *gpu, unsigned int memory_mhz, unsigned int sm_mhz)
{
    NEEDS(memory_mhz == gpu->memory_max_mhz, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(sm_mhz >= gpu->sm_idle_mhz && sm_mhz <= gpu->sm_max_mhz, NVML_ERROR_INVALID_ARGUMENT);
    gpu->memory_application_mhz = memory_mhz;
    gpu->sm_application_mhz = sm_mhz;
    return NVML_SUCCESS;
}

static nvmlReturn_t default_clocks(gpu_t *gpu, unsigned int unused, unsigned int unused_too)
{
    (void)unused, (void)unused_too;
    gpu->memory_application_mhz = gpu->sm_application_mhz = 0;
    return NVML_SUCCESS;
}

static nvmlReturn_t persistence(gpu_t *gpu, unsigned int mode, unsigned int unused)
{
    (void)unused;
    NEEDS(mode <= 1, NVML_ERROR_INVALID_ARGUMENT);
    gpu->persistence = (int32_t)mode;
    return NVML_SUCCESS;
}

NVML nvmlDeviceSetPowerManagementLimit(nvmlDevice_t device, unsigned int mw)
{
    return change(__func__, device, power_limit, mw, 0);
}

NVML nvmlDeviceSetPowerManagementLimit_v2(nvmlDevice_t device, nvmlPowerValue_v2_t *value)
{
    NEEDS(value && value->version == NVML_POWER_VALUE_V2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    return change(__func__, device, power_limit, value->powerValueMw, 0);
}

NVML nvmlDeviceSetGpuLockedClocks(nvmlDevice_t device, unsigned int min_mhz, unsigned int max_mhz)
{
    return change(__func__, device, lock_sm, min_mhz, max_mhz);
}

NVML nvmlDeviceResetGpuLockedClocks(nvmlDevice_t device) { return change(__func__, device, unlock_sm, 0, 0); }

NVML nvmlDeviceSetMemoryLockedClocks(nvmlDevice_t device, unsigned int min_mhz, unsigned int max_mhz)
{
    return change(__func__, device, lock_memory, min_mhz, max_mhz);
}

NVML nvmlDeviceResetMemoryLockedClocks(nvmlDevice_t device) { return change(__func__, device, unlock_memory, 0, 0); }

NVML nvmlDeviceSetApplicationsClocks(nvmlDevice_t device, unsigned int memory_mhz, unsigned int sm_mhz)
{
    return change(__func__, device, application_clocks, memory_mhz, sm_mhz);
}

NVML nvmlDeviceResetApplicationsClocks(nvmlDevice_t device) { return change(__func__, device, default_clocks, 0, 0); }

NVML nvmlDeviceSetPersistenceMode(nvmlDevice_t device, unsigned int mode)
{
    return change(__func__, device, persistence, mode, 0);
}
