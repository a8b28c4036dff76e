/* Mapping, locking and the clock of the scenario. */
#include "scenario.h"

#include "nvml_types.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A process that is killed while it holds the lock must not stop the others: hence robust. */
void assay_fake_init_lock(scenario_t *scenario)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&scenario->lock.mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

void assay_fake_lock(scenario_t *scenario)
{
    if (pthread_mutex_lock(&scenario->lock.mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&scenario->lock.mutex);
}

void assay_fake_unlock(scenario_t *scenario)
{
    pthread_mutex_unlock(&scenario->lock.mutex);
}

int64_t scenario_now(const scenario_t *scenario)
{
    if (scenario->is_virtual)
        return __atomic_load_n(&scenario->virtual_ns, __ATOMIC_SEQ_CST);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int is_scenario(const scenario_t *scenario)
{
    return scenario->magic == SCENARIO_MAGIC && scenario->version == SCENARIO_VERSION &&
           scenario->size == sizeof *scenario;
}

static scenario_t *map_descriptor(int descriptor)
{
    struct stat status;
    if (fstat(descriptor, &status) != 0 || (size_t)status.st_size != sizeof(scenario_t))
        return NULL;
    void *memory = mmap(NULL, sizeof(scenario_t), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    if (memory == MAP_FAILED)
        return NULL;
    if (is_scenario(memory))
        return memory;
    munmap(memory, sizeof(scenario_t));
    return NULL;
}

/* Without a scenario there is no driver; a scenario of another build is a driver of another version. */
scenario_t *scenario_map(const char *path, int *code)
{
    *code = NVML_ERROR_DRIVER_NOT_LOADED;
    int descriptor = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0)
        return NULL;
    scenario_t *scenario = map_descriptor(descriptor);
    close(descriptor);
    *code = scenario ? NVML_SUCCESS : NVML_ERROR_LIB_RM_VERSION_MISMATCH;
    return scenario;
}

void scenario_unmap(scenario_t *scenario)
{
    munmap(scenario, sizeof *scenario);
}
