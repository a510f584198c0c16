/* MIG: one GPU cut into devices of their own. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

/* Boards without MIG (before Ampere, and the 8.6 consumer line) say so; A100, A30, H100 and later know it. */
static int knows_mig(const struct gpu *gpu)
{
    return gpu->cc_major > 8 || (gpu->cc_major == 8 && gpu->cc_minor == 0);
}

API result nvmlDeviceGetMigMode(handle device, u32 *current, u32 *pending)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK && (t.mig || !knows_mig(t.gpu)))
        outcome = NOT_SUPPORTED;
    if (outcome == OK)
        *current = *pending = t.gpu->mig_mode;
    return leave(outcome);
}

API result nvmlDeviceGetMaxMigDeviceCount(handle device, u32 *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK)
        *out = t.mig || !knows_mig(t.gpu) ? 0 : 7;
    return leave(outcome);
}

API result nvmlDeviceGetMigDeviceHandleByIndex(handle device, u32 index, handle *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK && t.mig)
        outcome = NOT_SUPPORTED;
    if (outcome == OK && (!t.gpu->mig_mode || index >= t.gpu->mig_count))
        outcome = NOT_FOUND;
    if (outcome == OK)
        *out = make_handle(t.gpu, (int)index);
    return leave(outcome);
}

API result nvmlDeviceIsMigDeviceHandle(handle device, u32 *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK)
        *out = t.mig != NULL;
    return leave(outcome);
}

static result enter_mig(handle device, struct target *t, result otherwise)
{
    result outcome = enter_device(device, t);
    return outcome == OK && !t->mig ? otherwise : outcome;
}

API result nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle device, handle *out)
{
    struct target t;
    result outcome = enter_mig(device, &t, INVALID_ARGUMENT);
    if (outcome == OK)
        *out = make_handle(t.gpu, NO_MIG);
    return leave(outcome);
}

API result nvmlDeviceGetGpuInstanceId(handle device, u32 *out)
{
    struct target t;
    result outcome = enter_mig(device, &t, NOT_SUPPORTED);
    if (outcome == OK)
        *out = t.mig->gpu_instance;
    return leave(outcome);
}

API result nvmlDeviceGetComputeInstanceId(handle device, u32 *out)
{
    struct target t;
    result outcome = enter_mig(device, &t, NOT_SUPPORTED);
    if (outcome == OK)
        *out = t.mig->compute_instance;
    return leave(outcome);
}

struct attributes {
    u32 sms, copy_engines, decoders, encoders, jpeg, ofa, gpu_slices, compute_slices;
    u64 memory_mb;
};
_Static_assert(sizeof(struct attributes) == 40, "nvmlDeviceAttributes_t");

API result nvmlDeviceGetAttributes_v2(handle device, struct attributes *out)
{
    struct target t;
    result outcome = enter_mig(device, &t, NOT_SUPPORTED);
    if (outcome == OK)
        *out = (struct attributes){ .sms = t.mig->sms, .copy_engines = 1, .decoders = 1, .jpeg = 1,
                                    .gpu_slices = t.mig->gpu_slices, .compute_slices = t.mig->compute_slices,
                                    .memory_mb = t.mig->memory_mb };
    return leave(outcome);
}

struct profile_info {
    u32 version, id, peer_to_peer, slices, instances, sms, copy_engines, decoders, encoders, jpeg, ofa;
    u64 memory_mb;
    char name[96];
};

/* Knows the profiles that the config has in use; any other is "not supported", as on a board without it. */
API result nvmlDeviceGetGpuInstanceProfileInfoV(handle device, u32 profile, struct profile_info *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome != OK)
        return leave(outcome);
    outcome = NOT_SUPPORTED;
    for (u32 i = 0; i < t.gpu->mig_count && !t.mig; i++) {
        const struct mig *mig = &t.gpu->mig[i];
        if (mig->profile_id != profile)
            continue;
        u32 version = out->version;
        memset(out, 0, sizeof *out);
        *out = (struct profile_info){ .version = version, .id = profile, .slices = mig->gpu_slices, .instances = 7,
                                      .sms = mig->sms, .memory_mb = mig->memory_mb };
        snprintf(out->name, sizeof out->name, "MIG %s", mig->profile);
        outcome = OK;
    }
    return leave(outcome);
}
