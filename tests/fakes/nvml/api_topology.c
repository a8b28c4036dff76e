/* How GPUs, links and cores lie to each other. */
#include "call.h"

static nvmlReturn_t find_link(const call_t *call, unsigned int number, const link_t **link)
{
    NEEDS(call->gpu->link_count, NVML_ERROR_NOT_SUPPORTED);
    NEEDS(number < call->gpu->link_count, NVML_ERROR_INVALID_ARGUMENT);
    *link = &call->gpu->links[number];
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int number, unsigned int *active)
{
    GPU_CALL(device);
    const link_t *link;
    nvmlReturn_t code = find_link(&call, number, &link);
    if (code == NVML_SUCCESS)
        *active = link->active;
    return code;
}

NVML nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int number, unsigned int *version)
{
    GPU_CALL(device);
    const link_t *link;
    nvmlReturn_t code = find_link(&call, number, &link);
    if (code == NVML_SUCCESS)
        *version = link->version;
    return code;
}

NVML nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int number, unsigned int *type)
{
    GPU_CALL(device);
    const link_t *link;
    nvmlReturn_t code = find_link(&call, number, &link);
    NEEDS(code != NVML_SUCCESS || link->active, NVML_ERROR_NOT_SUPPORTED);
    if (code == NVML_SUCCESS)
        *type = link->remote_type;
    return code;
}

NVML nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned int number, unsigned int capability,
                                   unsigned int *result)
{
    GPU_CALL(device);
    const link_t *link;
    nvmlReturn_t code = find_link(&call, number, &link);
    NEEDS(capability < 32, NVML_ERROR_INVALID_ARGUMENT);
    if (code == NVML_SUCCESS)
        *result = link->capabilities >> capability & 1;
    return code;
}

NVML nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t device, nvmlDevice_t other, unsigned int *level)
{
    GPU_CALL(device);
    uint32_t index;
    nvmlReturn_t code = lookup_gpu(&call, other, &index);
    if (code == NVML_SUCCESS)
        *level = (unsigned int)call.scenario->topology[gpu_index(&call) * MAX_GPUS + index];
    return code;
}

NVML nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, unsigned int level, unsigned int *count,
                                      nvmlDevice_t *devices)
{
    GPU_CALL(device);
    uint32_t self = gpu_index(&call);
    unsigned int room = devices ? *count : 0, found = 0;
    for (uint32_t index = 0; index < call.scenario->gpu_count; index++) {
        if (index == self || call.scenario->topology[self * MAX_GPUS + index] != (int32_t)level)
            continue;
        if (found < room)
            give_handle(&call, index, -1, &devices[found]);
        found++;
    }
    *count = found;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetP2PStatus(nvmlDevice_t device, nvmlDevice_t other, unsigned int capability, unsigned int *status)
{
    GPU_CALL(device);
    uint32_t index;
    nvmlReturn_t code = lookup_gpu(&call, other, &index);
    (void)capability;
    if (code == NVML_SUCCESS)
        *status = (unsigned int)call.scenario->p2p[gpu_index(&call) * MAX_GPUS + index];
    return code;
}

NVML nvmlDeviceGetNumaNodeId(nvmlDevice_t device, unsigned int *node)
{
    GPU_CALL(device);
    NEEDS(call.gpu->numa_node != UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED);
    *node = (unsigned int)call.gpu->numa_node;
    return NVML_SUCCESS;
}

static nvmlReturn_t cpu_affinity(const gpu_t *gpu, unsigned int words, unsigned long *set)
{
    NEEDS(words > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (unsigned int i = 0; i < words; i++)
        set[i] = i < CPU_WORDS ? gpu->cpu_affinity[i] : 0;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetCpuAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set)
{
    GPU_CALL(device);
    return cpu_affinity(call.gpu, words, set);
}

NVML nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t device, unsigned int words, unsigned long *set,
                                         unsigned int scope)
{
    GPU_CALL(device);
    NEEDS(scope <= 1, NVML_ERROR_INVALID_ARGUMENT);
    return cpu_affinity(call.gpu, words, set);
}

NVML nvmlDeviceGetMemoryAffinity(nvmlDevice_t device, unsigned int words, unsigned long *set, unsigned int scope)
{
    GPU_CALL(device);
    NEEDS(words > 0 && scope <= 1, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(call.gpu->host_numa_node != UNSUPPORTED, NVML_ERROR_NOT_SUPPORTED);
    for (unsigned int i = 0; i < words; i++)
        set[i] = i == (unsigned int)call.gpu->host_numa_node / 64 ? 1ul << call.gpu->host_numa_node % 64 : 0;
    return NVML_SUCCESS;
}
