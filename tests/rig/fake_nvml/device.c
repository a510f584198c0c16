/* What one GPU (or MIG device) says about itself: identity, memory, load, health. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

/* A function that answers with one number, on whole GPUs and MIG devices alike. */
#define NUMBER_GETTER(function, expression)                                                                           \
    API result function(handle device, u32 *out)                                                                      \
    {                                                                                                                 \
        struct target t;                                                                                              \
        result outcome = enter_device(device, &t);                                                                    \
        if (outcome == OK)                                                                                            \
            *out = (expression);                                                                                      \
        return leave(outcome);                                                                                        \
    }

NUMBER_GETTER(nvmlDeviceGetPowerUsage, t.gpu->power_mw)
NUMBER_GETTER(nvmlDeviceGetEnforcedPowerLimit, t.gpu->power_limit_mw)
NUMBER_GETTER(nvmlDeviceGetPowerManagementLimit, t.gpu->power_limit_mw)
NUMBER_GETTER(nvmlDeviceGetPersistenceMode, t.gpu->persistence)
NUMBER_GETTER(nvmlDeviceGetComputeMode, t.gpu->compute_mode)
NUMBER_GETTER(nvmlDeviceGetMinorNumber, t.gpu->minor)
NUMBER_GETTER(nvmlDeviceGetNumaNodeId, t.gpu->numa)
NUMBER_GETTER(nvmlDeviceGetPerformanceState, t.gpu->util_gpu ? 0 : 8)
NUMBER_GETTER(nvmlDeviceGetIndex, t.mig ? (u32)t.mig_index : (u32)(t.gpu - fleet.gpus))

/* enter_device for what NVML answers only about a whole GPU. */
static result enter_whole(handle device, struct target *t)
{
    result outcome = enter_device(device, t);
    return outcome == OK && t->mig ? NOT_SUPPORTED : outcome;
}

API result nvmlDeviceGetName(handle device, char *out, u32 size)
{
    struct target t;
    char name[200];
    result outcome = enter_device(device, &t);
    if (outcome != OK)
        return leave(outcome);
    if (t.mig)
        snprintf(name, sizeof name, "%s MIG %s", t.gpu->name, t.mig->profile);
    else
        snprintf(name, sizeof name, "%s", t.gpu->name);
    return leave(put_string(out, size, name));
}

API result nvmlDeviceGetUUID(handle device, char *out, u32 size)
{
    struct target t;
    result outcome = enter_device(device, &t);
    return leave(outcome == OK ? put_string(out, size, t.mig ? t.mig->uuid : t.gpu->uuid) : outcome);
}

API result nvmlDeviceGetSerial(handle device, char *out, u32 size)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK)
        outcome = *t.gpu->serial ? put_string(out, size, t.gpu->serial) : NOT_SUPPORTED;
    return leave(outcome);
}

struct memory {
    u64 total, free, used;
};

struct memory_v2 {
    u32 version;
    u64 total, reserved, free, used;
};
_Static_assert(sizeof(struct memory_v2) == 40, "nvmlMemory_v2_t");

/* The first version counts what the driver keeps for itself as used, the second shows it apart. */
API result nvmlDeviceGetMemoryInfo(handle device, struct memory *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome != OK)
        return leave(outcome);
    out->total = t.mig ? (u64)t.mig->memory_mb << 20 : t.gpu->memory_total;
    out->used = t.mig ? (u64)t.mig->used_mb << 20 : t.gpu->memory_used + t.gpu->memory_reserved;
    out->free = out->total - out->used;
    return leave(OK);
}

API result nvmlDeviceGetMemoryInfo_v2(handle device, struct memory_v2 *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK && out->version != (sizeof *out | 2u << 24))
        outcome = VERSION_MISMATCH;
    if (outcome != OK)
        return leave(outcome);
    out->total = t.mig ? (u64)t.mig->memory_mb << 20 : t.gpu->memory_total;
    out->used = t.mig ? (u64)t.mig->used_mb << 20 : t.gpu->memory_used;
    out->reserved = t.mig ? 0 : t.gpu->memory_reserved;
    out->free = out->total - out->used - out->reserved;
    return leave(OK);
}

API result nvmlDeviceGetTemperature(handle device, int sensor, u32 *out)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK && sensor)
        outcome = INVALID_ARGUMENT;
    if (outcome == OK)
        *out = t.gpu->temperature;
    return leave(outcome);
}

struct temperature {
    u32 version;
    int sensor, value;
};

API result nvmlDeviceGetTemperatureV(handle device, struct temperature *out)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK)
        out->value = (int)t.gpu->temperature;
    return leave(outcome);
}

API result nvmlDeviceGetClockInfo(handle device, int clock, u32 *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK)
        *out = clock == 2 ? 1593 : t.gpu->sm_clock; /* 2: the memory clock */
    return leave(outcome);
}

API result nvmlDeviceGetCudaComputeCapability(handle device, int *major, int *minor)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK) {
        *major = (int)t.gpu->cc_major;
        *minor = (int)t.gpu->cc_minor;
    }
    return leave(outcome);
}

API result nvmlDeviceGetEccMode(handle device, u32 *current, u32 *pending)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK)
        *current = *pending = t.gpu->ecc_mode;
    return leave(outcome);
}

/* kind: 0 corrected, 1 uncorrected; scope: 0 since the driver loaded, 1 over the board's life. */
static result ecc_count(struct target *t, int kind, int scope, u64 *out)
{
    if (!t->gpu->ecc_mode)
        return NOT_SUPPORTED;
    if ((kind | scope) & ~1)
        return INVALID_ARGUMENT;
    *out = scope ? t->gpu->ecc_aggregate[kind] : t->gpu->ecc_volatile[kind];
    return OK;
}

API result nvmlDeviceGetTotalEccErrors(handle device, int kind, int scope, u64 *out)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    return leave(outcome == OK ? ecc_count(&t, kind, scope, out) : outcome);
}

API result nvmlDeviceGetMemoryErrorCounter(handle device, int kind, int scope, int location, u64 *out)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK)
        outcome = ecc_count(&t, kind, scope, out);
    if (outcome == OK && location != 2) /* 2: device memory, where all our errors are */
        *out = 0;
    return leave(outcome);
}

API result nvmlDeviceGetRetiredPages(handle device, int cause, u32 *count, u64 *pages)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome != OK)
        return leave(outcome);
    u32 retired = cause ? 0 : t.gpu->retired_pages; /* cause 0: several single-bit errors */
    u32 room = *count;
    *count = retired;
    if (retired && (!pages || room < retired))
        return leave(INSUFFICIENT_SIZE);
    for (u32 i = 0; i < retired; i++)
        pages[i] = 0x1000ULL * (i + 1);
    return leave(OK);
}

API result nvmlDeviceGetRemappedRows(handle device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    struct target t;
    result outcome = enter_whole(device, &t);
    if (outcome == OK) {
        *corrected = t.gpu->remap_corrected;
        *uncorrected = t.gpu->remap_uncorrected;
        *pending = t.gpu->remap_pending;
        *failed = t.gpu->remap_failed;
    }
    return leave(outcome);
}

struct field_value {
    u32 id, scope;
    long long timestamp, latency;
    u32 type;
    result status;
    union {
        u32 as_u32;
        u64 as_u64;
    } value;
};
_Static_assert(sizeof(struct field_value) == 40, "nvmlFieldValue_t");

/* The few fields a monitoring agent asks for; any other answers "not supported" for itself alone. */
static void fill_field(const struct gpu *gpu, struct field_value *field)
{
    enum { AS_U32 = 1, AS_U64 = 3 };
    field->status = OK;
    field->timestamp = (long long)now_us();
    field->type = field->id >= 3 && field->id <= 6 ? AS_U64 : AS_U32;
    field->value.as_u64 = 0;
    switch (field->id) {
    case 1: field->value.as_u32 = gpu->ecc_mode; break;
    case 3: field->value.as_u64 = gpu->ecc_volatile[0]; break;
    case 4: field->value.as_u64 = gpu->ecc_volatile[1]; break;
    case 5: field->value.as_u64 = gpu->ecc_aggregate[0]; break;
    case 6: field->value.as_u64 = gpu->ecc_aggregate[1]; break;
    case 186: field->value.as_u32 = gpu->power_mw; break;
    default: field->status = NOT_SUPPORTED;
    }
}

API result nvmlDeviceGetFieldValues(handle device, int count, struct field_value *fields)
{
    struct target t;
    result outcome = enter_device(device, &t);
    for (int i = 0; outcome == OK && i < count; i++)
        fill_field(t.gpu, &fields[i]);
    return leave(outcome);
}
