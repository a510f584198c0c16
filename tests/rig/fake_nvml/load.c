/* How busy a GPU is: by process, by the card's ring of samples, and over the last period. None of it once MIG is on. */
#include "fake.h"

#include <string.h>

struct process_utilization {
    u32 pid;
    u64 timestamp;
    u32 sm, memory, encoder, decoder;
};
_Static_assert(sizeof(struct process_utilization) == 32, "nvmlProcessUtilizationSample_t");

struct sample {
    u64 timestamp, value;
};
_Static_assert(sizeof(struct sample) == 16, "nvmlSample_t");

enum { GPU_UTILIZATION_SAMPLES = 1, VALUE_IS_U32 = 1 };

static result enter_measured(handle device, struct target *t)
{
    result outcome = enter_device(device, t);
    return outcome == OK && (t->mig || t->gpu->mig_mode) ? NOT_SUPPORTED : outcome;
}

API result nvmlDeviceGetUtilizationRates(handle device, u32 *out)
{
    struct target t;
    result outcome = enter_measured(device, &t);
    if (outcome == OK)
        outcome = (result)t.gpu->load_error;
    if (outcome == OK) {
        out[0] = t.gpu->util_gpu;
        out[1] = t.gpu->util_memory;
    }
    return leave(outcome);
}

static struct process_utilization *row_of(struct process_utilization *rows, u32 *found, u32 pid)
{
    for (u32 i = 0; i < *found; i++)
        if (rows[i].pid == pid)
            return &rows[i];
    rows[*found] = (struct process_utilization){ .pid = pid };
    return &rows[(*found)++];
}

/* One row for each process that did something after `since`: the mean of its samples, stamped with the newest. */
static u32 busy_processes(const struct gpu *gpu, u64 since, u64 now, struct process_utilization *rows)
{
    u32 found = 0, counts[MAX_PROCESSES + MAX_SAMPLES] = { 0 };
    for (u32 i = 0; i < gpu->sample_count; i++) {
        const struct load_sample *sample = &gpu->samples[i];
        if (!sample->pid || sample->at_us <= since)
            continue;
        struct process_utilization *row = row_of(rows, &found, sample->pid);
        u32 seen = counts[row - rows]++;
        row->sm = (row->sm * seen + sample->percent) / (seen + 1);
        row->timestamp = sample->at_us > row->timestamp ? sample->at_us : row->timestamp;
    }
    for (u32 i = 0; since < now && i < gpu->process_count; i++) {
        const struct process *process = &gpu->processes[i];
        if (!process->sm_percent && !process->memory_percent)
            continue;
        struct process_utilization *row = row_of(rows, &found, process->pid);
        *row = (struct process_utilization){ .pid = process->pid, .timestamp = now, .sm = process->sm_percent,
                                             .memory = process->memory_percent };
    }
    return found;
}

/* Nothing of idle processes: then the real library says "not found". */
API result nvmlDeviceGetProcessUtilization(handle device, struct process_utilization *out, u32 *count, u64 since)
{
    struct target t;
    struct process_utilization rows[MAX_PROCESSES + MAX_SAMPLES];
    u32 room = *count;
    result outcome = enter_measured(device, &t);
    if (outcome == OK)
        outcome = (result)t.gpu->process_load_error;
    if (outcome != OK)
        return leave(outcome);
    *count = busy_processes(t.gpu, since, now_us(), rows);
    if (!*count)
        return leave(NOT_FOUND);
    if (!out || room < *count)
        return leave(INSUFFICIENT_SIZE);
    memcpy(out, rows, *count * sizeof *rows);
    return leave(OK);
}

/* The ring of the config, and always what the card does now. Asked for the size, it tells what the ring could hold. */
API result nvmlDeviceGetSamples(handle device, int kind, u64 since, int *type, u32 *count, struct sample *out)
{
    struct target t;
    u32 found = 0, room = *count;
    u64 now = now_us();
    result outcome = enter_measured(device, &t);
    if (outcome == OK)
        outcome = kind == GPU_UTILIZATION_SAMPLES ? (result)t.gpu->card_load_error : NOT_SUPPORTED;
    if (outcome != OK)
        return leave(outcome);
    *type = VALUE_IS_U32;
    *count = MAX_SAMPLES + 1;
    if (!out)
        return leave(OK);
    for (u32 i = 0; i < t.gpu->sample_count && found < room; i++)
        if (!t.gpu->samples[i].pid && t.gpu->samples[i].at_us > since)
            out[found++] = (struct sample){ t.gpu->samples[i].at_us, t.gpu->samples[i].percent };
    if (since < now && found < room)
        out[found++] = (struct sample){ now, t.gpu->util_gpu };
    *count = found;
    return leave(found ? OK : NOT_FOUND);
}
