/* The scenario: everything the fake driver knows, in one file that every process maps.
 *
 * tests/fakes/nvml_layout.py describes the same bytes for Python; the build asserts that both agree.
 * Times are nanoseconds on the scenario's clock: CLOCK_MONOTONIC, or `virtual_ns` when time is virtual.
 */
#ifndef ASSAY_FAKE_SCENARIO_H
#define ASSAY_FAKE_SCENARIO_H

#include <pthread.h>
#include <stdint.h>

#define SCENARIO_MAGIC 0x4c4d564e59415341ull /* "ASAYNVML" */
#define SCENARIO_VERSION 1

enum {
    MAX_GPUS = 8,
    MAX_MIG = 7,
    MAX_LINKS = 18,
    MAX_PROCESSES = 64,
    MAX_FIELDS = 64,
    MAX_FAILURES = 256,
    MAX_FUNCTIONS = 256,
    MAX_SETTINGS = 1024,
    MAX_SEGMENTS = 16384,
    CPU_WORDS = 16,
    NAME_SIZE = 64,
    TEXT_SIZE = 96,
};

#define ANY_SCOPE 0xffffffffu
#define ALL_GPUS (-1)
#define UNSUPPORTED (-1) /* in a signed setting: the GPU does not have it */

/* Power from `t_ns` until the next segment begins. The first segment also holds for all time before it. */
typedef struct {
    int64_t t_ns;
    double demand_w;   /* what the load would draw at the highest clock */
    double power_w;    /* what it draws under the limit and clocks of its time */
    double energy_j;   /* running integral of power_w up to t_ns */
    int64_t capped_ns; /* running time under the power cap up to t_ns */
    uint32_t sm_mhz;
    uint32_t capped;
} segment_t;

/* How the sensor sees the power: what is published at a tick describes the world `lag_ns` before it. */
typedef struct {
    int64_t period_ns; /* 0: no ticks, every read is fresh */
    int64_t phase_ns;
    int64_t lag_ns;
    int64_t usage_window_ns; /* of nvmlDeviceGetPowerUsage */
    int64_t average_window_ns;
    int64_t instant_window_ns;
    int64_t counter_period_ns;
    int64_t counter_phase_ns;
    int64_t counter_quantum_mj;
    double gain;
    double counter_base_mj; /* what the counter had counted at counter_since_ns */
    int64_t counter_since_ns;
} sensor_t;

typedef struct {
    char uuid[TEXT_SIZE];
    char name[TEXT_SIZE];
    uint64_t memory_total_bytes;
    uint64_t memory_used_bytes;
    uint32_t gpu_instance_id;
    uint32_t compute_instance_id;
    uint32_t multiprocessors;
    uint32_t slices;
} mig_t;

typedef struct {
    uint32_t pid;
    uint32_t graphics;
    uint64_t memory_bytes; /* UINT64_MAX: not available */
    uint32_t gpu_instance_id;
    uint32_t compute_instance_id;
} process_t;

typedef struct {
    char remote_bus_id[NAME_SIZE];
    uint32_t active;
    uint32_t version;
    uint32_t remote_type; /* 0 GPU, 2 switch */
    uint32_t capabilities; /* bit per nvmlNvLinkCapability */
} link_t;

/* A field of nvmlDeviceGetFieldValues that counts from `base` at `since_ns` with `rate_per_s`. */
typedef struct {
    uint32_t field;
    uint32_t scope;
    uint32_t value_type;
    int32_t code;
    double base;
    double rate_per_s;
    int64_t since_ns;
} field_t;

typedef struct {
    char name[TEXT_SIZE];
    char uuid[TEXT_SIZE];
    char pci_bus_id[NAME_SIZE];
    char vbios[NAME_SIZE];
    uint32_t pci_device_id;
    uint32_t architecture;
    uint32_t compute_major;
    uint32_t compute_minor;
    uint64_t memory_total_bytes;
    uint64_t memory_reserved_bytes;
    uint64_t memory_used_bytes; /* by nobody listed; listed processes add theirs */
    int32_t ecc;                /* 0, 1 or UNSUPPORTED */
    int32_t persistence;
    int32_t mig_mode; /* 0, 1 or UNSUPPORTED */
    int32_t numa_node;
    int32_t host_numa_node;
    uint32_t compute_mode;
    uint32_t performance_state;
    uint32_t temperature_c;
    uint32_t utilisation_percent;
    uint32_t memory_utilisation_percent;
    int64_t clocks_event_reasons; /* UNSUPPORTED here: as the model says */
    uint64_t supported_event_reasons;
    uint32_t pcie_generation;
    uint32_t pcie_width;
    uint32_t pcie_max_generation;
    uint32_t pcie_max_width;
    uint32_t pcie_tx_kb_per_s;
    uint32_t pcie_rx_kb_per_s;
    int64_t pcie_block_ns; /* how long nvmlDeviceGetPcieThroughput blocks */
    uint64_t cpu_affinity[CPU_WORDS];

    uint32_t power_limit_mw;
    uint32_t power_limit_min_mw;
    uint32_t power_limit_max_mw;
    uint32_t power_limit_default_mw;
    uint32_t sm_max_mhz;
    uint32_t sm_idle_mhz;
    uint32_t sm_step_mhz;
    uint32_t memory_max_mhz;
    uint32_t sm_forced_mhz;     /* 0: as the model says */
    uint32_t memory_forced_mhz; /* 0: as the model says */
    uint32_t sm_lock_min_mhz;   /* 0 with sm_lock_max_mhz: not locked */
    uint32_t sm_lock_max_mhz;
    uint32_t memory_lock_min_mhz;
    uint32_t memory_lock_max_mhz;
    uint32_t sm_application_mhz; /* 0: default */
    uint32_t memory_application_mhz;
    double idle_w;
    double clock_exponent; /* load power grows with the clock to this power */
    int64_t lost_at_ns;

    sensor_t sensor;
    uint32_t mig_count;
    uint32_t process_count;
    uint32_t link_count;
    uint32_t field_count;
    mig_t mig[MAX_MIG];
    process_t processes[MAX_PROCESSES];
    link_t links[MAX_LINKS];
    field_t fields[MAX_FIELDS];

    uint32_t segment_count;
    uint32_t segments_dropped;
    segment_t segments[MAX_SEGMENTS];
} gpu_t;

/* A function answers `code` instead of doing its work, on one GPU or all, for a time. */
typedef struct {
    char function[NAME_SIZE]; /* with or without its _vN */
    int32_t gpu;
    int32_t code;
    int64_t from_ns;
    int64_t until_ns;
} failure_t;

typedef struct {
    char function[NAME_SIZE];
    uint64_t count;
} function_t;

/* One call that tried to change something. */
typedef struct {
    char function[NAME_SIZE];
    int64_t t_ns;
    int32_t pid;
    int32_t gpu;
    int32_t code;
    uint32_t first;
    uint32_t second;
    uint32_t unused;
} setting_t;

typedef union {
    pthread_mutex_t mutex;
    uint8_t bytes[64];
} lock_t;

typedef struct {
    uint64_t magic;
    uint32_t version;
    uint32_t size;
    lock_t lock;
    int64_t virtual_ns;
    int32_t is_virtual;
    int32_t privileged;
    uint32_t gpu_count;
    uint32_t cuda_version;
    char driver_version[NAME_SIZE];
    char nvml_version[NAME_SIZE];
    int32_t topology[MAX_GPUS * MAX_GPUS];
    int32_t p2p[MAX_GPUS * MAX_GPUS];
    uint32_t failure_count;
    uint32_t setting_count; /* of all time; the log keeps the last MAX_SETTINGS */
    failure_t failures[MAX_FAILURES];
    function_t functions[MAX_FUNCTIONS];
    setting_t settings[MAX_SETTINGS];
    gpu_t gpus[MAX_GPUS];
} scenario_t;

#define EXPORT __attribute__((visibility("default"))) /* seen by pynvml or by tests/fakes/fake_nvml.py */

/* scenario.c */
EXPORT void assay_fake_init_lock(scenario_t *scenario);
EXPORT void assay_fake_lock(scenario_t *scenario);
EXPORT void assay_fake_unlock(scenario_t *scenario);
int64_t scenario_now(const scenario_t *scenario);
scenario_t *scenario_map(const char *path, int *code);
void scenario_unmap(scenario_t *scenario);

/* power.c: the truth. These take the lock themselves; 0, or -1 for a GPU or a time that is none. */
EXPORT int assay_fake_set_power(scenario_t *scenario, int gpu, int64_t t_ns, double demand_w);
EXPORT int assay_fake_add_load(scenario_t *scenario, int gpu, int64_t from_ns, int64_t until_ns, double extra_w);
EXPORT int assay_fake_settle(scenario_t *scenario, int gpu);

/* power.c: the truth, for callers that hold the lock. */
const segment_t *power_at(const gpu_t *gpu, int64_t t_ns);
double energy_until(const gpu_t *gpu, int64_t t_ns);
int64_t capped_until(const gpu_t *gpu, int64_t t_ns);
void settle_from_now(gpu_t *gpu, int64_t now_ns);

/* sensor.c: what can be read of it. */
int64_t last_tick(int64_t now_ns, int64_t phase_ns, int64_t period_ns);
uint32_t sensed_power_mw(const gpu_t *gpu, int64_t now_ns, int64_t window_ns);
uint64_t sensed_energy_mj(const gpu_t *gpu, int64_t now_ns);

#endif
