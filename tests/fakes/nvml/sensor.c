/* What the sensor shows of the true power.
 *
 *            tick                tick                tick
 *    ─────────┼───────────────────┼───────────────────┼────────▶ time
 *                           [wnd] │ lag               │  now
 *                                 └── shown until the next tick
 */
#include "scenario.h"

#include <math.h>

int64_t last_tick(int64_t now_ns, int64_t phase_ns, int64_t period_ns)
{
    if (period_ns <= 0)
        return now_ns;
    int64_t into = (now_ns - phase_ns) % period_ns;
    return now_ns - (into < 0 ? into + period_ns : into);
}

/* Mean power over the window that ended at the last tick; without a window, the power at that moment. */
uint32_t sensed_power_mw(const gpu_t *gpu, int64_t now_ns, int64_t window_ns)
{
    const sensor_t *sensor = &gpu->sensor;
    int64_t end = last_tick(now_ns, sensor->phase_ns, sensor->period_ns) - sensor->lag_ns;
    double watts = power_at(gpu, end)->power_w;
    if (window_ns > 0)
        watts = (energy_until(gpu, end) - energy_until(gpu, end - window_ns)) / ((double)window_ns * 1e-9);
    return (uint32_t)llround(fmax(0, sensor->gain * watts * 1e3));
}

/* The counter as of its last tick, in whole quanta. The small term keeps 9.9999999 quanta of rounding at 10. */
uint64_t sensed_energy_mj(const gpu_t *gpu, int64_t now_ns)
{
    const sensor_t *sensor = &gpu->sensor;
    int64_t seen = last_tick(now_ns, sensor->counter_phase_ns, sensor->counter_period_ns) - sensor->lag_ns;
    double joules = fmax(0, energy_until(gpu, seen) - energy_until(gpu, sensor->counter_since_ns));
    double quantum = sensor->counter_quantum_mj > 0 ? (double)sensor->counter_quantum_mj : 1;
    double quanta = floor((sensor->counter_base_mj + sensor->gain * joules * 1e3) / quantum + 1e-6);
    return (uint64_t)(fmax(0, quanta) * quantum);
}
