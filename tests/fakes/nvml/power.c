/* The true power of each GPU: a piecewise constant function of time, and its integral. */
#include "scenario.h"

#include <math.h>
#include <string.h>

static double seconds(int64_t ns)
{
    return (double)ns * 1e-9;
}

/* Index of the segment that holds at t_ns; the first also holds before itself. */
static uint32_t index_at(const gpu_t *gpu, int64_t t_ns)
{
    uint32_t low = 0, high = gpu->segment_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (gpu->segments[middle].t_ns <= t_ns)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const segment_t *power_at(const gpu_t *gpu, int64_t t_ns)
{
    return &gpu->segments[index_at(gpu, t_ns)];
}

double energy_until(const gpu_t *gpu, int64_t t_ns)
{
    const segment_t *segment = power_at(gpu, t_ns);
    return segment->energy_j + segment->power_w * seconds(t_ns - segment->t_ns);
}

int64_t capped_until(const gpu_t *gpu, int64_t t_ns)
{
    const segment_t *segment = power_at(gpu, t_ns);
    return segment->capped_ns + (segment->capped && t_ns > segment->t_ns ? t_ns - segment->t_ns : 0);
}

/* The highest clock that a lock or an application clock leaves. */
static double ceiling_mhz(const gpu_t *gpu)
{
    double ceiling = gpu->sm_max_mhz;
    if (gpu->sm_application_mhz)
        ceiling = fmin(ceiling, gpu->sm_application_mhz);
    if (gpu->sm_lock_max_mhz)
        ceiling = fmin(ceiling, gpu->sm_lock_max_mhz);
    return ceiling;
}

static uint32_t on_the_grid(const gpu_t *gpu, double mhz)
{
    uint32_t step = gpu->sm_step_mhz ? gpu->sm_step_mhz : 1;
    uint32_t clock = (uint32_t)(mhz + 1e-6) / step * step;
    return clock > gpu->sm_idle_mhz ? clock : gpu->sm_idle_mhz;
}

static void settle_idle(const gpu_t *gpu, segment_t *segment)
{
    double clock = fmax(gpu->sm_idle_mhz, gpu->sm_lock_min_mhz);
    segment->power_w = segment->demand_w;
    segment->sm_mhz = (uint32_t)fmin(clock, ceiling_mhz(gpu));
    segment->capped = 0;
}

/* Fill in what the demand comes to: power is idle + load × (clock / highest clock)^exponent, held under the limit
 * by lowering the clock. */
static void settle(const gpu_t *gpu, segment_t *segment)
{
    double load = segment->demand_w - gpu->idle_w, limit = gpu->power_limit_mw * 1e-3;
    if (load <= 0) {
        settle_idle(gpu, segment);
        return;
    }
    double clock = ceiling_mhz(gpu);
    double power = gpu->idle_w + load * pow(clock / gpu->sm_max_mhz, gpu->clock_exponent);
    segment->capped = power > limit;
    if (segment->capped) {
        double share = fmax(0, limit - gpu->idle_w) / load;
        clock = gpu->sm_max_mhz * pow(share, 1 / gpu->clock_exponent);
        power = limit;
    }
    segment->power_w = power;
    segment->sm_mhz = on_the_grid(gpu, clock);
}

/* Bring the running integrals after segment `index` up to date. */
static void accumulate(gpu_t *gpu, uint32_t index)
{
    for (uint32_t next = index + 1; next < gpu->segment_count; next++) {
        int64_t t_ns = gpu->segments[next].t_ns;
        const segment_t *before = &gpu->segments[next - 1];
        int64_t length_ns = t_ns - before->t_ns;
        gpu->segments[next].energy_j = before->energy_j + before->power_w * seconds(length_ns);
        gpu->segments[next].capped_ns = before->capped_ns + (before->capped ? length_ns : 0);
    }
}

/* Forget the oldest quarter. What the counter had counted until then is kept as its base. */
static void drop_oldest(gpu_t *gpu)
{
    uint32_t drop = MAX_SEGMENTS / 4;
    sensor_t *sensor = &gpu->sensor;
    int64_t kept_from = gpu->segments[drop].t_ns;
    if (sensor->counter_since_ns < kept_from) {
        double joules = energy_until(gpu, kept_from) - energy_until(gpu, sensor->counter_since_ns);
        sensor->counter_base_mj += sensor->gain * joules * 1e3;
        sensor->counter_since_ns = kept_from;
    }
    gpu->segment_count -= drop;
    gpu->segments_dropped += drop;
    memmove(gpu->segments, gpu->segments + drop, gpu->segment_count * sizeof(segment_t));
}

/* Make a segment begin at t_ns, with the power that already held there; return its index. */
static uint32_t split(gpu_t *gpu, int64_t t_ns)
{
    if (gpu->segment_count == MAX_SEGMENTS)
        drop_oldest(gpu);
    uint32_t index = index_at(gpu, t_ns);
    segment_t *segment = &gpu->segments[index];
    if (segment->t_ns == t_ns)
        return index;
    segment_t fresh = *segment;
    fresh.energy_j = energy_until(gpu, t_ns);
    fresh.capped_ns = capped_until(gpu, t_ns);
    fresh.t_ns = t_ns;
    uint32_t at = t_ns < segment->t_ns ? index : index + 1;
    memmove(&gpu->segments[at + 1], &gpu->segments[at], (gpu->segment_count - at) * sizeof(segment_t));
    gpu->segments[at] = fresh;
    gpu->segment_count++;
    return at;
}

static gpu_t *gpu_by_index(scenario_t *scenario, int gpu)
{
    return gpu >= 0 && gpu < (int)scenario->gpu_count ? &scenario->gpus[gpu] : NULL;
}

int assay_fake_set_power(scenario_t *scenario, int gpu_index, int64_t t_ns, double demand_w)
{
    gpu_t *gpu = gpu_by_index(scenario, gpu_index);
    if (!gpu)
        return -1;
    assay_fake_lock(scenario);
    uint32_t index = split(gpu, t_ns);
    gpu->segments[index].demand_w = demand_w;
    settle(gpu, &gpu->segments[index]);
    accumulate(gpu, index);
    assay_fake_unlock(scenario);
    return 0;
}

int assay_fake_add_load(scenario_t *scenario, int gpu_index, int64_t from_ns, int64_t until_ns, double extra_w)
{
    gpu_t *gpu = gpu_by_index(scenario, gpu_index);
    if (!gpu || until_ns <= from_ns)
        return -1;
    assay_fake_lock(scenario);
    split(gpu, from_ns);
    uint32_t end = split(gpu, until_ns);
    uint32_t begin = index_at(gpu, from_ns);
    for (uint32_t index = begin; index < end; index++) {
        gpu->segments[index].demand_w += extra_w;
        settle(gpu, &gpu->segments[index]);
    }
    accumulate(gpu, begin);
    assay_fake_unlock(scenario);
    return 0;
}

/* A limit or a clock changed: what is past stays, what is to come settles anew. */
void settle_from_now(gpu_t *gpu, int64_t now_ns)
{
    uint32_t begin = split(gpu, now_ns);
    for (uint32_t index = begin; index < gpu->segment_count; index++)
        settle(gpu, &gpu->segments[index]);
    accumulate(gpu, begin);
}

int assay_fake_settle(scenario_t *scenario, int gpu_index)
{
    gpu_t *gpu = gpu_by_index(scenario, gpu_index);
    if (!gpu)
        return -1;
    assay_fake_lock(scenario);
    settle_from_now(gpu, scenario_now(scenario));
    assay_fake_unlock(scenario);
    return 0;
}
