/* Initialisation, handles, requested failures and the count of calls. */
#include "call.h"

#include <stdlib.h>
#include <string.h>

static pthread_rwlock_t mapping_lock = PTHREAD_RWLOCK_INITIALIZER;
static scenario_t *mapping;
static char mapped_path[4096];
static unsigned int users;

/* A handle is a number: tag, GPU + 1, MIG instance + 1 (0: the whole GPU). It outlives a new nvmlInit. */
#define HANDLE_TAG 0xA55A0000u

static nvmlDevice_t make_handle(uint32_t gpu, int mig)
{
    return (nvmlDevice_t)(uintptr_t)(HANDLE_TAG | (gpu + 1) << 8 | (uint32_t)(mig + 1));
}

/* 1 when `function` is `name` or `name` with a version, as in nvmlDeviceGetCount_v2. */
static int is_named(const char *function, const char *name)
{
    size_t length = strlen(name);
    if (strncmp(function, name, length) != 0)
        return 0;
    return function[length] == '\0' || strncmp(function + length, "_v", 2) == 0;
}

static nvmlReturn_t requested_failure(const call_t *call, int32_t gpu)
{
    for (uint32_t i = 0; i < call->scenario->failure_count; i++) {
        const failure_t *failure = &call->scenario->failures[i];
        int here = failure->gpu == ALL_GPUS || failure->gpu == gpu;
        int due = failure->from_ns <= call->now_ns && call->now_ns < failure->until_ns;
        if (here && due && is_named(call->function, failure->function))
            return (nvmlReturn_t)failure->code;
    }
    return NVML_SUCCESS;
}

static void count_call(scenario_t *scenario, const char *function)
{
    for (uint32_t i = 0; i < MAX_FUNCTIONS; i++) {
        function_t *counted = &scenario->functions[i];
        if (counted->function[0] == '\0')
            strncpy(counted->function, function, NAME_SIZE - 1);
        if (strncmp(counted->function, function, NAME_SIZE) == 0) {
            counted->count++;
            return;
        }
    }
}

static call_t begin(const char *function)
{
    call_t call = {.code = NVML_ERROR_UNINITIALIZED, .function = function};
    pthread_rwlock_rdlock(&mapping_lock);
    if (!mapping) {
        pthread_rwlock_unlock(&mapping_lock);
        return call;
    }
    assay_fake_lock(mapping);
    call.scenario = mapping;
    call.now_ns = scenario_now(mapping);
    call.code = NVML_SUCCESS;
    count_call(mapping, function);
    return call;
}

void end_call(call_t *call)
{
    if (!call->scenario)
        return;
    assay_fake_unlock(call->scenario);
    pthread_rwlock_unlock(&mapping_lock);
}

call_t begin_system_call(const char *function)
{
    call_t call = begin(function);
    if (call.code == NVML_SUCCESS)
        call.code = requested_failure(&call, ALL_GPUS);
    return call;
}

static nvmlReturn_t resolve(call_t *call, nvmlDevice_t device)
{
    uintptr_t number = (uintptr_t)device;
    uint32_t gpu = (number >> 8 & 0xff) - 1, mig = (number & 0xff) - 1;
    NEEDS((number & ~(uintptr_t)0xffff) == HANDLE_TAG, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(gpu < call->scenario->gpu_count, NVML_ERROR_INVALID_ARGUMENT);
    call->gpu = &call->scenario->gpus[gpu];
    NEEDS(call->now_ns < call->gpu->lost_at_ns, NVML_ERROR_GPU_IS_LOST);
    if ((number & 0xff) == 0)
        return NVML_SUCCESS;
    NEEDS(mig < call->gpu->mig_count, NVML_ERROR_INVALID_ARGUMENT);
    call->mig = &call->gpu->mig[mig];
    return NVML_SUCCESS;
}

call_t begin_device_call(const char *function, nvmlDevice_t device)
{
    call_t call = begin(function);
    if (call.code == NVML_SUCCESS)
        call.code = resolve(&call, device);
    if (call.code == NVML_SUCCESS)
        call.code = requested_failure(&call, (int32_t)gpu_index(&call));
    return call;
}

call_t begin_gpu_call(const char *function, nvmlDevice_t device)
{
    call_t call = begin_device_call(function, device);
    if (call.code == NVML_SUCCESS && call.mig)
        call.code = NVML_ERROR_NOT_SUPPORTED;
    return call;
}

uint32_t gpu_index(const call_t *call)
{
    return (uint32_t)(call->gpu - call->scenario->gpus);
}

/* The index of another GPU than the call's own. */
nvmlReturn_t lookup_gpu(const call_t *call, nvmlDevice_t device, uint32_t *index)
{
    call_t other = *call;
    nvmlReturn_t code = resolve(&other, device);
    if (code == NVML_SUCCESS)
        *index = gpu_index(&other);
    return code;
}

nvmlReturn_t give_handle(const call_t *call, uint32_t gpu, int mig, nvmlDevice_t *device)
{
    NEEDS(device, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(call->now_ns < call->scenario->gpus[gpu].lost_at_ns, NVML_ERROR_GPU_IS_LOST);
    *device = make_handle(gpu, mig);
    return requested_failure(call, (int32_t)gpu);
}

nvmlReturn_t copy_text(char *target, unsigned int size, const char *text)
{
    size_t length = strlen(text) + 1;
    NEEDS(target, NVML_ERROR_INVALID_ARGUMENT);
    NEEDS(length <= size, NVML_ERROR_INSUFFICIENT_SIZE);
    memcpy(target, text, length);
    return NVML_SUCCESS;
}

static void forget_mapping(void)
{
    if (mapping)
        scenario_unmap(mapping);
    mapping = NULL;
    users = 0;
}

/* Map the scenario of the environment, unless it is the one that is mapped. */
static nvmlReturn_t remap(void)
{
    const char *path = getenv("ASSAY_FAKE_NVML");
    int code;
    if (mapping && path && strcmp(path, mapped_path) == 0)
        return NVML_SUCCESS;
    forget_mapping();
    mapping = scenario_map(path, &code);
    if (mapping)
        strncpy(mapped_path, path, sizeof mapped_path - 1);
    return (nvmlReturn_t)code;
}

static nvmlReturn_t initialise(const char *function)
{
    pthread_rwlock_wrlock(&mapping_lock);
    nvmlReturn_t code = remap();
    if (code == NVML_SUCCESS) {
        call_t call = {.scenario = mapping, .function = "nvmlInit", .now_ns = scenario_now(mapping)};
        assay_fake_lock(mapping);
        count_call(mapping, function);
        code = requested_failure(&call, ALL_GPUS);
        assay_fake_unlock(mapping);
    }
    if (code == NVML_SUCCESS)
        users++;
    else if (users == 0)
        forget_mapping();
    pthread_rwlock_unlock(&mapping_lock);
    return code;
}

NVML nvmlInit(void) { return initialise(__func__); }
NVML nvmlInit_v2(void) { return initialise(__func__); }

NVML nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    return initialise(__func__);
}

NVML nvmlShutdown(void)
{
    pthread_rwlock_wrlock(&mapping_lock);
    nvmlReturn_t code = users ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users && --users == 0)
        forget_mapping();
    pthread_rwlock_unlock(&mapping_lock);
    return code;
}
