/* Reads the text file that describes the fleet. One `key value` a line, `#` starts a comment:
 *
 *   driver 570.86.15 | nvml 12.570.86.15 | cuda 12080      versions
 *   init_error 9                        nvmlInit and every call fail with this code (9 = driver not loaded)
 *   require_device_nodes 1              a GPU is visible only where /dev/nvidia<minor> exists, a MIG device only where
 *                                       its /dev/nvidia-caps nodes exist: how a container sees just its own
 *   gpu <uuid>                          starts a GPU; everything below belongs to it
 *   error <code>                        every query of this GPU answers with the code (15 = GPU is lost)
 *   nvlink <link> <active> <remote pci> <crc flit> <crc data> <replay> <recovery> [version]
 *   proc <pid> <bytes> <sm %> <memory %> [index of a mig line]
 *   sample <time in us> <pid, 0 for the whole card> <percent>       what the driver has measured and still keeps
 *   event <number> <xid>                an event (events.c); numbers grow over the whole file
 *   mig <uuid> <gpu instance> <compute instance> <profile id> <SMs> <gpu slices> <compute slices> <MB> <used MB> <profile>
 *
 * and the scalar keys of the tables below. A line that cannot be read is said on stderr, so that a typo in a test shows.
 */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct field {
    const char *key;
    size_t offset, size; /* size: of a text field */
};

#define NUMBER(key, member) { key, offsetof(struct gpu, member), 0 }
#define TEXT(key, member) { key, offsetof(struct gpu, member), sizeof(((struct gpu *)0)->member) }

static const struct field texts[] = { TEXT("name", name), TEXT("pci", pci), TEXT("serial", serial) };

static const struct field longs[] = {
    NUMBER("memory_total", memory_total),
    NUMBER("memory_used", memory_used),
    NUMBER("memory_reserved", memory_reserved),
    NUMBER("ecc_corrected_volatile", ecc_volatile[0]),
    NUMBER("ecc_uncorrected_volatile", ecc_volatile[1]),
    NUMBER("ecc_corrected_aggregate", ecc_aggregate[0]),
    NUMBER("ecc_uncorrected_aggregate", ecc_aggregate[1]),
};

static const struct field ints[] = {
    NUMBER("minor", minor),
    NUMBER("error", error),
    NUMBER("cc_major", cc_major),
    NUMBER("cc_minor", cc_minor),
    NUMBER("numa", numa),
    NUMBER("util_gpu", util_gpu),
    NUMBER("util_memory", util_memory),
    NUMBER("temperature", temperature),
    NUMBER("power_mw", power_mw),
    NUMBER("power_limit_mw", power_limit_mw),
    NUMBER("sm_clock", sm_clock),
    NUMBER("ecc_mode", ecc_mode),
    NUMBER("retired_pages", retired_pages),
    NUMBER("mig_mode", mig_mode),
    NUMBER("persistence", persistence),
    NUMBER("compute_mode", compute_mode),
    NUMBER("remap_corrected", remap_corrected),
    NUMBER("remap_uncorrected", remap_uncorrected),
    NUMBER("remap_pending", remap_pending),
    NUMBER("remap_failed", remap_failed),
    NUMBER("process_load_error", process_load_error),
    NUMBER("card_load_error", card_load_error),
    NUMBER("load_error", load_error),
};

struct fleet fleet;

#define LENGTH(table) (sizeof(table) / sizeof((table)[0]))

static const struct field *find(const struct field *table, size_t length, const char *key)
{
    for (size_t i = 0; i < length; i++)
        if (!strcmp(table[i].key, key))
            return &table[i];
    return NULL;
}

static int parse_link(struct gpu *gpu, const char *value)
{
    struct nvlink link = { .present = 1, .version = 4 };
    u32 number;
    int read = sscanf(value, "%u %u %31s %llu %llu %llu %llu %u", &number, &link.active, link.remote_pci,
                      &link.errors[LINK_CRC_FLIT], &link.errors[LINK_CRC_DATA], &link.errors[LINK_REPLAY],
                      &link.errors[LINK_RECOVERY], &link.version);
    if (read < 7 || number >= MAX_LINKS)
        return 0;
    gpu->links[number] = link;
    return 1;
}

static int parse_process(struct gpu *gpu, const char *value)
{
    struct process process = { .mig = NO_MIG };
    int read = sscanf(value, "%u %llu %u %u %d", &process.pid, &process.bytes, &process.sm_percent,
                      &process.memory_percent, &process.mig);
    if (read < 2 || gpu->process_count == MAX_PROCESSES)
        return 0;
    gpu->processes[gpu->process_count++] = process;
    return 1;
}

static int parse_sample(struct gpu *gpu, const char *value)
{
    struct load_sample sample;
    int read = sscanf(value, "%llu %u %u", &sample.at_us, &sample.pid, &sample.percent);
    if (read != 3 || gpu->sample_count == MAX_SAMPLES)
        return 0;
    gpu->samples[gpu->sample_count++] = sample;
    return 1;
}

static int parse_mig(struct gpu *gpu, const char *value)
{
    struct mig mig = { .used_mb = 0 };
    int read = sscanf(value, "%95s %u %u %u %u %u %u %u %u %63s", mig.uuid, &mig.gpu_instance, &mig.compute_instance,
                      &mig.profile_id, &mig.sms, &mig.gpu_slices, &mig.compute_slices, &mig.memory_mb, &mig.used_mb,
                      mig.profile);
    if (read != 10 || gpu->mig_count == MAX_MIG)
        return 0;
    gpu->mig[gpu->mig_count++] = mig;
    return 1;
}

static int parse_event(struct gpu *gpu, const char *value)
{
    struct event event;
    if (sscanf(value, "%llu %u", &event.number, &event.xid) != 2 || gpu->event_count == MAX_EVENTS)
        return 0;
    gpu->events[gpu->event_count++] = event;
    return 1;
}

static int parse_scalar(struct gpu *gpu, const char *key, const char *value)
{
    const struct field *field;
    if ((field = find(texts, LENGTH(texts), key)))
        snprintf((char *)gpu + field->offset, field->size, "%s", value);
    else if ((field = find(longs, LENGTH(longs), key)))
        *(u64 *)((char *)gpu + field->offset) = strtoull(value, NULL, 0);
    else if ((field = find(ints, LENGTH(ints), key)))
        *(u32 *)((char *)gpu + field->offset) = (u32)strtoul(value, NULL, 0);
    else
        return 0;
    return 1;
}

static int start_gpu(const char *uuid)
{
    if (fleet.count == MAX_GPUS)
        return 0;
    struct gpu *gpu = &fleet.gpus[fleet.count];
    snprintf(gpu->uuid, sizeof gpu->uuid, "%s", uuid);
    snprintf(gpu->name, sizeof gpu->name, "Fake GPU");
    snprintf(gpu->pci, sizeof gpu->pci, "00000000:%02X:00.0", 0x10 + fleet.count);
    gpu->minor = fleet.count++;
    gpu->cc_major = 8;
    gpu->memory_total = 24ULL << 30;
    gpu->power_limit_mw = 300000;
    gpu->temperature = 30;
    gpu->persistence = 1;
    return 1;
}

static int parse_global(const char *key, const char *value)
{
    if (!strcmp(key, "driver"))
        snprintf(fleet.driver, sizeof fleet.driver, "%s", value);
    else if (!strcmp(key, "nvml"))
        snprintf(fleet.nvml, sizeof fleet.nvml, "%s", value);
    else if (!strcmp(key, "cuda"))
        fleet.cuda = (u32)strtoul(value, NULL, 0);
    else if (!strcmp(key, "init_error"))
        fleet.init_error = (u32)strtoul(value, NULL, 0);
    else if (!strcmp(key, "require_device_nodes"))
        fleet.require_device_nodes = (u32)strtoul(value, NULL, 0);
    else
        return 0;
    return 1;
}

static int parse_line(const char *key, const char *value)
{
    if (!strcmp(key, "gpu"))
        return start_gpu(value);
    if (!fleet.count)
        return parse_global(key, value);
    struct gpu *gpu = &fleet.gpus[fleet.count - 1];
    if (!strcmp(key, "nvlink"))
        return parse_link(gpu, value);
    if (!strcmp(key, "proc"))
        return parse_process(gpu, value);
    if (!strcmp(key, "sample"))
        return parse_sample(gpu, value);
    if (!strcmp(key, "mig"))
        return parse_mig(gpu, value);
    if (!strcmp(key, "event"))
        return parse_event(gpu, value);
    return parse_scalar(gpu, key, value);
}

static int node_exists(const char *format, u32 number)
{
    char path[64];
    snprintf(path, sizeof path, format, number);
    return access(path, F_OK) == 0;
}

/* The driver numbers capability nodes with room for 15 GPU instances of 8 compute instances on each GPU. */
static int mig_nodes_exist(const struct gpu *gpu, const struct mig *mig)
{
    u32 instance = 3 + gpu->minor * 135 + mig->gpu_instance * 9;
    return node_exists("/dev/nvidia-caps/nvidia-cap%u", instance) &&
           node_exists("/dev/nvidia-caps/nvidia-cap%u", instance + 1 + mig->compute_instance);
}

static void keep_reachable_mig(struct gpu *gpu)
{
    u32 kept = 0;
    for (u32 i = 0; i < gpu->mig_count; i++)
        if (mig_nodes_exist(gpu, &gpu->mig[i]))
            gpu->mig[kept++] = gpu->mig[i];
    gpu->mig_count = kept;
}

static void keep_reachable(void)
{
    u32 kept = 0;
    for (u32 i = 0; i < fleet.count; i++) {
        if (!node_exists("/dev/nvidia%u", fleet.gpus[i].minor))
            continue;
        fleet.gpus[kept] = fleet.gpus[i];
        keep_reachable_mig(&fleet.gpus[kept++]);
    }
    fleet.count = kept;
}

result config_load(void)
{
    const char *path = getenv("FAKE_NVML_CONF");
    char line[512], key[64], value[400];
    memset(&fleet, 0, sizeof fleet);
    snprintf(fleet.driver, sizeof fleet.driver, "570.86.15");
    snprintf(fleet.nvml, sizeof fleet.nvml, "12.570.86.15");
    fleet.cuda = 12080;
    FILE *file = fopen(path ? path : "/etc/fake-nvml.conf", "re");
    if (!file)
        return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        int read = sscanf(line, " %63s %399[^\n]", key, value);
        if (read < 1 || *key == '#')
            continue;
        if (read != 2 || !parse_line(key, value))
            fprintf(stderr, "fake nvml: cannot read this line of the config: %s", line);
    }
    fclose(file);
    if (fleet.require_device_nodes)
        keep_reachable();
    return (result)fleet.init_error;
}
