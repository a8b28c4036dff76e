/* What a GPU is and how it stands: identity, memory, clocks, PCIe, temperature. */
#include "call.h"

#include <time.h>

/* A getter of one number that every whole GPU has. */
#define GETTER(function, type, expression)                                                                             \
    NVML function(nvmlDevice_t device, type *value)                                                                    \
    {                                                                                                                  \
        GPU_CALL(device);                                                                                              \
        const gpu_t *gpu = call.gpu;                                                                                   \
        *value = (type)(expression);                                                                                   \
        return NVML_SUCCESS;                                                                                           \
    }

GETTER(nvmlDeviceGetMinorNumber, unsigned int, gpu - call.scenario->gpus)
GETTER(nvmlDeviceGetArchitecture, unsigned int, gpu->architecture)
GETTER(nvmlDeviceGetPersistenceMode, unsigned int, gpu->persistence)
GETTER(nvmlDeviceGetComputeMode, unsigned int, gpu->compute_mode)
GETTER(nvmlDeviceGetPerformanceState, unsigned int, gpu->performance_state)
GETTER(nvmlDeviceGetPowerState, unsigned int, gpu->performance_state)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned int, gpu->pcie_generation)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned int, gpu->pcie_max_generation)
GETTER(nvmlDeviceGetGpuMaxPcieLinkGeneration, unsigned int, gpu->pcie_max_generation)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned int, gpu->pcie_width)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned int, gpu->pcie_max_width)
GETTER(nvmlDeviceGetSupportedClocksThrottleReasons, unsigned long long, gpu->supported_event_reasons)
GETTER(nvmlDeviceGetSupportedClocksEventReasons, unsigned long long, gpu->supported_event_reasons)

NVML nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    DEVICE_CALL(device);
    *index = call.mig ? (unsigned int)(call.mig - call.gpu->mig) : gpu_index(&call);
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int size)
{
    DEVICE_CALL(device);
    return copy_text(name, size, call.mig ? call.mig->name : call.gpu->name);
}

NVML nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int size)
{
    DEVICE_CALL(device);
    return copy_text(uuid, size, call.mig ? call.mig->uuid : call.gpu->uuid);
}

NVML nvmlDeviceGetVbiosVersion(nvmlDevice_t device, char *version, unsigned int size)
{
    GPU_CALL(device);
    return copy_text(version, size, call.gpu->vbios);
}

NVML nvmlDeviceGetBrand(nvmlDevice_t device, unsigned int *brand)
{
    GPU_CALL(device);
    (void)brand;
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML nvmlDeviceGetBoardId(nvmlDevice_t device, unsigned int *board)
{
    GPU_CALL(device);
    (void)board;
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML nvmlDeviceGetBoardPartNumber(nvmlDevice_t device, char *text, unsigned int size)
{
    GPU_CALL(device);
    (void)text, (void)size;
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned int size)
{
    GPU_CALL(device);
    (void)serial, (void)size;
    return NVML_ERROR_NOT_SUPPORTED;
}

NVML nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE_CALL(device);
    *major = (int)call.gpu->compute_major;
    *minor = (int)call.gpu->compute_minor;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetEccMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    GPU_CALL(device);
    NEEDS(call.gpu->ecc != UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED);
    *current = *pending = (unsigned int)call.gpu->ecc;
    return NVML_SUCCESS;
}

/* Total, reserved and used bytes of a GPU or a MIG instance; listed processes count as used. */
static void weigh(const call_t *call, nvmlMemory_v2_t *memory)
{
    const gpu_t *gpu = call->gpu;
    memory->total = call->mig ? call->mig->memory_total_bytes : gpu->memory_total_bytes;
    memory->reserved = call->mig ? 0 : gpu->memory_reserved_bytes;
    memory->used = call->mig ? call->mig->memory_used_bytes : gpu->memory_used_bytes;
    for (uint32_t i = 0; i < gpu->process_count; i++) {
        const process_t *process = &gpu->processes[i];
        int here = !call->mig || process->gpu_instance_id == call->mig->gpu_instance_id;
        if (here && process->memory_bytes != UINT64_MAX)
            memory->used += process->memory_bytes;
    }
    unsigned long long taken = memory->reserved + memory->used;
    memory->free = taken < memory->total ? memory->total - taken : 0;
}

/* The first version counts what is reserved as used. */
NVML nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE_CALL(device);
    nvmlMemory_v2_t weighed;
    weigh(&call, &weighed);
    memory->total = weighed.total;
    memory->free = weighed.free;
    memory->used = weighed.used + weighed.reserved;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE_CALL(device);
    NEEDS(memory->version == NVML_MEMORY_V2, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    weigh(&call, memory);
    return NVML_SUCCESS;
}

/* As on real cards, a GPU in MIG mode does not say how busy it is. */
NVML nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *utilization)
{
    GPU_CALL(device);
    NEEDS(call.gpu->mig_mode != 1, NVML_ERROR_NOT_SUPPORTED);
    utilization->gpu = call.gpu->utilisation_percent;
    utilization->memory = call.gpu->memory_utilisation_percent;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetTemperature(nvmlDevice_t device, unsigned int sensor, unsigned int *celsius)
{
    GPU_CALL(device);
    NEEDS(sensor == 0, NVML_ERROR_INVALID_ARGUMENT);
    *celsius = call.gpu->temperature_c;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetTemperatureV(nvmlDevice_t device, nvmlTemperature_v1_t *temperature)
{
    GPU_CALL(device);
    NEEDS(temperature->version == NVML_TEMPERATURE_V1, NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    NEEDS(temperature->sensorType == 0, NVML_ERROR_INVALID_ARGUMENT);
    temperature->temperature = (int)call.gpu->temperature_c;
    return NVML_SUCCESS;
}

static nvmlReturn_t read_pcie(nvmlDevice_t device, unsigned int counter, unsigned int *kb_per_s, int64_t *block_ns)
{
    BEGIN(begin_gpu_call("nvmlDeviceGetPcieThroughput", device));
    NEEDS(counter < 2, NVML_ERROR_INVALID_ARGUMENT);
    *kb_per_s = counter == 0 ? call.gpu->pcie_tx_kb_per_s : call.gpu->pcie_rx_kb_per_s;
    *block_ns = call.scenario->is_virtual ? 0 : call.gpu->pcie_block_ns;
    if (call.scenario->is_virtual)
        __atomic_add_fetch(&call.scenario->virtual_ns, call.gpu->pcie_block_ns, __ATOMIC_SEQ_CST);
    return NVML_SUCCESS;
}

/* Blocks as the real one does: it sleeps, or lets virtual time pass. */
NVML nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *kb_per_s)
{
    int64_t block_ns = 0;
    nvmlReturn_t code = read_pcie(device, counter, kb_per_s, &block_ns);
    struct timespec pause = {.tv_sec = block_ns / 1000000000, .tv_nsec = block_ns % 1000000000};
    if (block_ns > 0)
        nanosleep(&pause, NULL);
    return code;
}
