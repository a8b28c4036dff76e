/* Power, energy and field values: what the sensor shows. */
#include "call.h"

#include <time.h>

NVML nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *mw)
{
    GPU_CALL(device);
    *mw = sensed_power_mw(call.gpu, call.now_ns, call.gpu->sensor.usage_window_ns);
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t device, unsigned long long *mj)
{
    GPU_CALL(device);
    *mj = sensed_energy_mj(call.gpu, call.now_ns);
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetPowerManagementMode(nvmlDevice_t device, unsigned int *mode)
{
    GPU_CALL(device);
    *mode = 1;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *mw)
{
    GPU_CALL(device);
    *mw = call.gpu->power_limit_mw;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *mw)
{
    GPU_CALL(device);
    *mw = call.gpu->power_limit_mw;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetPowerManagementDefaultLimit(nvmlDevice_t device, unsigned int *mw)
{
    GPU_CALL(device);
    *mw = call.gpu->power_limit_default_mw;
    return NVML_SUCCESS;
}

NVML nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t device, unsigned int *min_mw, unsigned int *max_mw)
{
    GPU_CALL(device);
    *min_mw = call.gpu->power_limit_min_mw;
    *max_mw = call.gpu->power_limit_max_mw;
    return NVML_SUCCESS;
}

/* The power cap is the only policy the model breaks; the others never do. Units as NVML documents them: µs, ns. */
NVML nvmlDeviceGetViolationStatus(nvmlDevice_t device, unsigned int policy, nvmlViolationTime_t *violation)
{
    GPU_CALL(device);
    violation->referenceTime = (unsigned long long)(call.now_ns / 1000);
    violation->violationTime =
        policy == NVML_PERF_POLICY_POWER ? (unsigned long long)capped_until(call.gpu, call.now_ns) : 0;
    return NVML_SUCCESS;
}

static void put_number(nvmlFieldValue_t *value, unsigned int type, double number)
{
    value->valueType = type;
    value->value.ullVal = 0;
    switch (type) {
    case NVML_VALUE_TYPE_DOUBLE: value->value.dVal = number; break;
    case NVML_VALUE_TYPE_UNSIGNED_INT: value->value.uiVal = (unsigned int)(unsigned long long)number; break;
    case NVML_VALUE_TYPE_SIGNED_INT: value->value.siVal = (int)number; break;
    default: value->value.ullVal = (unsigned long long)number;
    }
}

/* Fields that a test has set: constants, steady counters, or errors. */
static int put_set_field(const call_t *call, nvmlFieldValue_t *value)
{
    for (uint32_t i = 0; i < call->gpu->field_count; i++) {
        const field_t *field = &call->gpu->fields[i];
        if (field->field != value->fieldId || (field->scope != ANY_SCOPE && field->scope != value->scopeId))
            continue;
        double elapsed_s = (double)(call->now_ns - field->since_ns) * 1e-9;
        value->nvmlReturn = (nvmlReturn_t)field->code;
        put_number(value, field->value_type, field->base + field->rate_per_s * elapsed_s);
        return 1;
    }
    return 0;
}

static void put_integer(nvmlFieldValue_t *value, unsigned int type, uint64_t number)
{
    value->valueType = type;
    value->value.ullVal = number;
}

/* Fields that the model knows; returns the time the value is from. */
static int64_t put_model_field(const call_t *call, nvmlFieldValue_t *value)
{
    const gpu_t *gpu = call->gpu;
    const sensor_t *sensor = &gpu->sensor;
    int64_t now = call->now_ns, tick = last_tick(now, sensor->phase_ns, sensor->period_ns);
    value->nvmlReturn = NVML_SUCCESS;
    switch (value->fieldId) {
    case FIELD_PERF_POLICY_POWER:
        put_integer(value, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, (uint64_t)capped_until(gpu, now));
        return now;
    case FIELD_TOTAL_ENERGY:
        put_integer(value, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG, sensed_energy_mj(gpu, now));
        return last_tick(now, sensor->counter_phase_ns, sensor->counter_period_ns);
    case FIELD_POWER_AVERAGE:
        put_integer(value, NVML_VALUE_TYPE_UNSIGNED_INT, sensed_power_mw(gpu, now, sensor->average_window_ns));
        return tick;
    case FIELD_POWER_INSTANT:
        put_integer(value, NVML_VALUE_TYPE_UNSIGNED_INT, sensed_power_mw(gpu, now, sensor->instant_window_ns));
        return tick;
    default:
        put_integer(value, NVML_VALUE_TYPE_DOUBLE, 0);
        value->nvmlReturn = NVML_ERROR_NOT_SUPPORTED;
        return now;
    }
}

/* NVML stamps fields with microseconds since 1970; virtual time is its own epoch. */
static long long timestamp_us(const scenario_t *scenario, int64_t t_ns)
{
    struct timespec wall, steady;
    if (scenario->is_virtual)
        return t_ns / 1000;
    clock_gettime(CLOCK_REALTIME, &wall);
    clock_gettime(CLOCK_MONOTONIC, &steady);
    return (wall.tv_sec - steady.tv_sec) * 1000000ll + (wall.tv_nsec - steady.tv_nsec) / 1000 + t_ns / 1000;
}

NVML nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *values)
{
    GPU_CALL(device);
    NEEDS(values && count > 0, NVML_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < count; i++) {
        int64_t t_ns = call.now_ns;
        if (!put_set_field(&call, &values[i]))
            t_ns = put_model_field(&call, &values[i]);
        values[i].timestamp = timestamp_us(call.scenario, t_ns);
        values[i].latencyUsec = 0;
    }
    return NVML_SUCCESS;
}
