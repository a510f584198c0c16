/* Which processes use a GPU. Lists follow NVML's two-call protocol: ask for the size, then for the rows. */
#include "fake.h"

struct process_info {
    u32 pid;
    u64 bytes;
    u32 gpu_instance, compute_instance;
};
_Static_assert(sizeof(struct process_info) == 24, "nvmlProcessInfo_t");

/* A MIG handle shows its own processes only, the GPU's handle shows all. */
static int belongs(const struct process *process, int mig_index)
{
    return mig_index == NO_MIG || process->mig == mig_index;
}

static struct process_info describe(const struct gpu *gpu, const struct process *process)
{
    int in_mig = process->mig != NO_MIG && process->mig < (int)gpu->mig_count;
    return (struct process_info){
        .pid = process->pid,
        .bytes = process->bytes,
        .gpu_instance = in_mig ? gpu->mig[process->mig].gpu_instance : NO_INSTANCE,
        .compute_instance = in_mig ? gpu->mig[process->mig].compute_instance : NO_INSTANCE,
    };
}

API result nvmlDeviceGetComputeRunningProcesses_v3(handle device, u32 *count, struct process_info *out)
{
    struct target t;
    u32 found = 0, room = *count;
    result outcome = enter_device(device, &t);
    if (outcome != OK)
        return leave(outcome);
    for (u32 i = 0; i < t.gpu->process_count; i++)
        found += (u32)belongs(&t.gpu->processes[i], t.mig_index);
    *count = found;
    if (found && (!out || room < found))
        return leave(INSUFFICIENT_SIZE);
    for (u32 i = 0, row = 0; i < t.gpu->process_count; i++)
        if (belongs(&t.gpu->processes[i], t.mig_index))
            out[row++] = describe(t.gpu, &t.gpu->processes[i]);
    return leave(OK);
}

API result nvmlDeviceGetComputeRunningProcesses_v2(handle device, u32 *count, struct process_info *out)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, out);
}

static result no_processes(handle device, u32 *count)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK)
        *count = 0;
    return leave(outcome);
}

API result nvmlDeviceGetGraphicsRunningProcesses_v3(handle device, u32 *count, struct process_info *out)
{
    (void)out;
    return no_processes(device, count);
}

API result nvmlDeviceGetMPSComputeRunningProcesses_v3(handle device, u32 *count, struct process_info *out)
{
    (void)out;
    return no_processes(device, count);
}
