/* What all parts of the fake libnvidia-ml share: the fleet as the config describes it, and how a call reaches it.
 *
 * The library exists so that unmodified nvidia-ml-py (and our static probe) can be tested on machines without a GPU.
 * Structures that cross the interface are laid out as NVIDIA's public header has them; the sizes are checked at
 * compile time where a wrong one would corrupt the caller's memory.
 */
#ifndef FAKE_H
#define FAKE_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))
#define MAX_GPUS 16
#define MAX_LINKS 18
#define MAX_PROCESSES 64
#define MAX_SAMPLES 128
#define MAX_MIG 8
#define MAX_EVENTS 32
#define NO_MIG (-1)
#define NO_INSTANCE 0xFFFFFFFFu

typedef unsigned int u32;
typedef unsigned long long u64;

typedef enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
} result;

/* Error counters in the order of NVML's nvmlNvLinkErrorCounter_t. */
enum { LINK_REPLAY, LINK_RECOVERY, LINK_CRC_FLIT, LINK_CRC_DATA, LINK_COUNTERS };

struct nvlink {
    u32 present, active, version;
    char remote_pci[32];
    u64 errors[LINK_COUNTERS];
};

struct process {
    u32 pid, sm_percent, memory_percent;
    u64 bytes;
    int mig; /* index into gpu.mig, or NO_MIG */
};

struct load_sample {
    u64 at_us;
    u32 pid, percent; /* pid 0: of the whole card */
};

struct mig {
    char uuid[96], profile[64];
    u32 gpu_instance, compute_instance, profile_id;
    u32 sms, gpu_slices, compute_slices, memory_mb, used_mb;
};

struct event {
    u64 number;
    u32 xid;
};

struct gpu {
    char uuid[96], name[96], pci[32], serial[32];
    u64 memory_total, memory_used, memory_reserved;
    u64 ecc_volatile[2], ecc_aggregate[2]; /* [corrected, uncorrected] */
    u32 minor, error, cc_major, cc_minor, numa;
    u32 util_gpu, util_memory, temperature, power_mw, power_limit_mw, sm_clock;
    u32 ecc_mode, retired_pages, mig_mode, persistence, compute_mode;
    u32 remap_corrected, remap_uncorrected, remap_pending, remap_failed;
    u32 process_load_error, card_load_error, load_error; /* what the ways to ask for load answer */
    u32 process_count, mig_count, sample_count, event_count;
    struct nvlink links[MAX_LINKS];
    struct process processes[MAX_PROCESSES];
    struct mig mig[MAX_MIG];
    struct event events[MAX_EVENTS];
    struct load_sample samples[MAX_SAMPLES];
};

struct fleet {
    char driver[80], nvml[80];
    u32 cuda, init_error, require_device_nodes, count;
    struct gpu gpus[MAX_GPUS];
};

/* A handle names its GPU by minor number, not by place in the config: when a test takes a GPU out of the config under
 * a program that holds its handle, the program gets "GPU is lost" and never another card's data. */
typedef void *handle;

struct target {
    struct gpu *gpu;
    struct mig *mig; /* NULL for a whole GPU */
    int mig_index;   /* NO_MIG for a whole GPU */
};

extern struct fleet fleet;

/* config.c: reads the file again; OK, or what nvmlInit would answer. */
result config_load(void);

/* system.c: every exported function is enter, work, leave. enter takes the lock and reloads the config; leave gives
 * the lock back and passes its argument on. */
result enter(void);
result enter_device(handle device, struct target *target);
result leave(result outcome);
handle make_handle(const struct gpu *gpu, int mig_index);
result put_string(char *out, u32 size, const char *text);
int same_pci(const char *left, const char *right);
u64 now_us(void);

#endif
