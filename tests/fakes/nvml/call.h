/* Every NVML function begins as a call: initialised? which GPU? still there? told to fail?
 *
 * A call holds the scenario's lock until its variable goes out of scope, so that each function sees one state.
 */
#ifndef ASSAY_FAKE_CALL_H
#define ASSAY_FAKE_CALL_H

#include "nvml_types.h"
#include "scenario.h"

typedef struct {
    nvmlReturn_t code;
    const char *function;
    scenario_t *scenario; /* NULL: not initialised, nothing is held */
    gpu_t *gpu;
    mig_t *mig; /* NULL for a whole GPU */
    int64_t now_ns;
} call_t;

call_t begin_system_call(const char *function);
call_t begin_device_call(const char *function, nvmlDevice_t device);
call_t begin_gpu_call(const char *function, nvmlDevice_t device);
void end_call(call_t *call);

nvmlReturn_t lookup_gpu(const call_t *call, nvmlDevice_t device, uint32_t *index);
nvmlReturn_t give_handle(const call_t *call, uint32_t gpu, int mig, nvmlDevice_t *device);
uint32_t gpu_index(const call_t *call);
nvmlReturn_t copy_text(char *target, unsigned int size, const char *text);

/* The result of a getter whose value may be missing. */
#define NEEDS(condition, code)                                                                                         \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            return code;                                                                                               \
    } while (0)

#define BEGIN(begin)                                                                                                   \
    call_t call __attribute__((cleanup(end_call))) = begin;                                                            \
    NEEDS(call.code == NVML_SUCCESS, call.code)

#define SYSTEM_CALL() BEGIN(begin_system_call(__func__))
#define DEVICE_CALL(device) BEGIN(begin_device_call(__func__, device)) /* a GPU or a MIG instance */
#define GPU_CALL(device) BEGIN(begin_gpu_call(__func__, device))       /* a whole GPU only */

#define NVML EXPORT nvmlReturn_t

#endif
