/* Versions, counts and handles. */
#include "call.h"

#include <stdio.h>
#include <string.h>

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "The operation was successful";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_LIB_RM_VERSION_MISMATCH: return "RM has detected an NVML/RM version mismatch.";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

NVML nvmlSystemGetDriverVersion(char *version, unsigned int size)
{
    SYSTEM_CALL();
    return copy_text(version, size, call.scenario->driver_version);
}

NVML nvmlSystemGetNVMLVersion(char *version, unsigned int size)
{
    SYSTEM_CALL();
    return copy_text(version, size, call.scenario->nvml_version);
}

NVML nvmlSystemGetCudaDriverVersion(int *version)
{
    SYSTEM_CALL();
    *version = (int)call.scenario->cuda_version;
    return NVML_SUCCESS;
}

NVML nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    SYSTEM_CALL();
    *version = (int)call.scenario->cuda_version;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCount_v2(unsigned int *count)
{
    SYSTEM_CALL();
    *count = call.scenario->gpu_count;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    SYSTEM_CALL();
    NEEDS(index < call.scenario->gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    return give_handle(&call, index, -1, device);
}

static int find_mig(const gpu_t *gpu, const char *uuid)
{
    for (int mig = 0; mig < (int)gpu->mig_count; mig++)
        if (strcmp(gpu->mig[mig].uuid, uuid) == 0)
            return mig;
    return -1;
}

NVML nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    SYSTEM_CALL();
    NEEDS(uuid, NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t index = 0; index < call.scenario->gpu_count; index++) {
        const gpu_t *gpu = &call.scenario->gpus[index];
        int mig = find_mig(gpu, uuid);
        if (mig >= 0 || strcmp(gpu->uuid, uuid) == 0)
            return give_handle(&call, index, mig, device);
    }
    return NVML_ERROR_NOT_FOUND;
}

static int read_bus_id(const char *text, unsigned int parts[4])
{
    return sscanf(text, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) >= 3;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device)
{
    SYSTEM_CALL();
    unsigned int asked[4], has[4];
    NEEDS(bus_id && read_bus_id(bus_id, asked), NVML_ERROR_INVALID_ARGUMENT);
    for (uint32_t index = 0; index < call.scenario->gpu_count; index++)
        if (read_bus_id(call.scenario->gpus[index].pci_bus_id, has) && memcmp(asked, has, 3 * sizeof asked[0]) == 0)
            return give_handle(&call, index, -1, device);
    return NVML_ERROR_NOT_FOUND;
}

static void fill_pci(const char *bus_id, uint32_t device_id, nvmlPciInfo_t *pci)
{
    unsigned int parts[4] = {0};
    read_bus_id(bus_id, parts);
    memset(pci, 0, sizeof *pci);
    pci->domain = parts[0];
    pci->bus = parts[1];
    pci->device = parts[2];
    pci->pciDeviceId = device_id;
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", parts[0] & 0xffff, parts[1] & 0xff,
             parts[2] & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", parts[0], parts[1] & 0xff, parts[2] & 0xff);
}

NVML nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    DEVICE_CALL(device);
    fill_pci(call.gpu->pci_bus_id, call.gpu->pci_device_id, pci);
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link, nvmlPciInfo_t *pci)
{
    GPU_CALL(device);
    NEEDS(call.gpu->link_count, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(link < call.gpu->link_count, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(call.gpu->links[link].active, NVML_ERROR_NOT_SUPPORTED);
    fill_pci(call.gpu->links[link].remote_bus_id, 0, pci);
    return NVML_SUCCESS;
}
