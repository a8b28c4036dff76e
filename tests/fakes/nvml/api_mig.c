/* GPUs cut into instances. */
#include "call.h"

#include <string.h>

NVML nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending)
{
    GPU_CALL(device);
    NEEDS(call.gpu->mig_mode != UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED);
    *current = *pending = (unsigned int)call.gpu->mig_mode;
    return NVML_SUCCESS;
}

NVML nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_mig)
{
    DEVICE_CALL(device);
    *is_mig = call.mig != NULL;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    GPU_CALL(device);
    *count = call.gpu->mig_mode == UNSUPPORTED ? 0 : MAX_MIG;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index, nvmlDevice_t *mig)
{
    GPU_CALL(device);
    NEEDS(call.gpu->mig_mode == 1, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(index < MAX_MIG, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(index < call.gpu->mig_count, NVML_ERROR_NOT_FOUND);
    return give_handle(&call, gpu_index(&call), (int)index, mig);
}

NVML nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t mig, nvmlDevice_t *device)
{
    DEVICE_CALL(mig);
    NEEDS(call.mig, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(&call, gpu_index(&call), -1, device);
}

NVML nvmlDeviceGetGpuInstanceId(nvmlDevice_t device, unsigned int *id)
{
    DEVICE_CALL(device);
    NEEDS(call.mig, NVML_ERROR_NOT_SUPPORTED);
    *id = call.mig->gpu_instance_id;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetComputeInstanceId(nvmlDevice_t device, unsigned int *id)
{
    DEVICE_CALL(device);
    NEEDS(call.mig, NVML_ERROR_NOT_SUPPORTED);
    *id = call.mig->compute_instance_id;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetAttributes_v2(nvmlDevice_t device, nvmlDeviceAttributes_t *attributes)
{
    DEVICE_CALL(device);
    NEEDS(call.mig, NVML_ERROR_NOT_SUPPORTED);
    memset(attributes, 0, sizeof *attributes);
    attributes->multiprocessorCount = call.mig->multiprocessors;
    attributes->gpuInstanceSliceCount = call.mig->slices;
    attributes->computeInstanceSliceCount = call.mig->slices;
    attributes->memorySizeMB = call.mig->memory_total_bytes >> 20;
    return NVML_SUCCESS;
}
