/* Who runs on a GPU. */
#include "call.h"

static int is_listed(const call_t *call, const process_t *process, uint32_t graphics)
{
    int here = !call->mig || process->gpu_instance_id == call->mig->gpu_instance_id;
    return here && process->graphics == graphics;
}

/* NVML's habit: too small a buffer is answered with the count that is needed. */
static nvmlReturn_t list(const char *function, nvmlDevice_t device, uint32_t graphics, unsigned int *count,
                         nvmlProcessInfo_t *infos)
{
    BEGIN(begin_device_call(function, device));
    unsigned int room = infos ? *count : 0, found = 0;
    for (uint32_t i = 0; i < call.gpu->process_count; i++) {
        const process_t *process = &call.gpu->processes[i];
        if (!is_listed(&call, process, graphics))
            continue;
        if (found < room)
            infos[found] = (nvmlProcessInfo_t){process->pid, process->memory_bytes, process->gpu_instance_id,
                                               process->compute_instance_id};
        found++;
    }
    *count = found;
    return found > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

#define LISTING(function, graphics)                                                                                    \
    NVML function(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)                                  \
    {                                                                                                                  \
        return list(__func__, device, graphics, count, infos);                                                         \
    }

LISTING(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LISTING(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v2, 1)
LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, 1)

NVML nvmlDeviceGetMPSComputeRunningProcesses_v3(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos)
{
    DEVICE_CALL(device);
    (void)infos;
    *count = 0;
    return NVML_SUCCESS;
}
