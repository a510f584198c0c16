/* Start and end, versions, and the ways to a device handle. */
#include "fake.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int users;

#define HANDLE_MARK 0x10000u

handle make_handle(const struct gpu *gpu, int mig_index)
{
    return (handle)(uintptr_t)(HANDLE_MARK | gpu->minor << 4 | (u32)(mig_index + 1));
}

result enter(void)
{
    pthread_mutex_lock(&lock);
    return users ? config_load() : UNINITIALIZED;
}

result leave(result outcome)
{
    pthread_mutex_unlock(&lock);
    return outcome;
}

result enter_device(handle device, struct target *target)
{
    u32 bits = (u32)(uintptr_t)device;
    result outcome = enter();
    if (outcome != OK)
        return outcome;
    if (!(bits & HANDLE_MARK))
        return INVALID_ARGUMENT;
    for (u32 i = 0; i < fleet.count; i++) {
        struct gpu *gpu = &fleet.gpus[i];
        if (gpu->minor != (bits >> 4 & 0xfff))
            continue;
        target->gpu = gpu;
        target->mig_index = (int)(bits & 0xf) - 1;
        if (target->mig_index >= (int)gpu->mig_count)
            return INVALID_ARGUMENT;
        target->mig = target->mig_index == NO_MIG ? NULL : &gpu->mig[target->mig_index];
        return (result)gpu->error;
    }
    return GPU_IS_LOST;
}

result put_string(char *out, u32 size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(out, text);
    return OK;
}

/* Bus ids come with a domain of four or of eight digits; the last twelve characters say the same. */
int same_pci(const char *left, const char *right)
{
    size_t left_length = strlen(left), right_length = strlen(right);
    return left_length >= 12 && right_length >= 12 && !strcasecmp(left + left_length - 12, right + right_length - 12);
}

u64 now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000ULL + (u64)now.tv_nsec / 1000;
}

API result nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    result outcome = config_load();
    if (outcome == OK)
        users++;
    return leave(outcome);
}

API result nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

API result nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

API result nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    if (!users)
        return leave(UNINITIALIZED);
    users--;
    return leave(OK);
}

API const char *nvmlErrorString(result code)
{
    switch (code) {
    case OK: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Argument version mismatch";
    default: return "Unknown Error";
    }
}

API result nvmlSystemGetDriverVersion(char *out, u32 size)
{
    result outcome = enter();
    return leave(outcome == OK ? put_string(out, size, fleet.driver) : outcome);
}

API result nvmlSystemGetNVMLVersion(char *out, u32 size)
{
    result outcome = enter();
    return leave(outcome == OK ? put_string(out, size, fleet.nvml) : outcome);
}

API result nvmlSystemGetCudaDriverVersion(int *out)
{
    result outcome = enter();
    if (outcome == OK)
        *out = (int)fleet.cuda;
    return leave(outcome);
}

API result nvmlSystemGetCudaDriverVersion_v2(int *out)
{
    return nvmlSystemGetCudaDriverVersion(out);
}

API result nvmlSystemGetProcessName(u32 pid, char *out, u32 size)
{
    char path[64], name[256] = "";
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return NOT_FOUND;
    if (!fgets(name, sizeof name, file))
        name[0] = 0;
    fclose(file);
    snprintf(out, size, "%s", name);
    return OK;
}

API result nvmlDeviceGetCount_v2(u32 *out)
{
    result outcome = enter();
    if (outcome == OK)
        *out = fleet.count;
    return leave(outcome);
}

API result nvmlDeviceGetCount(u32 *out)
{
    return nvmlDeviceGetCount_v2(out);
}

API result nvmlDeviceGetHandleByIndex_v2(u32 index, handle *out)
{
    result outcome = enter();
    if (outcome == OK && index >= fleet.count)
        outcome = INVALID_ARGUMENT;
    if (outcome == OK)
        *out = make_handle(&fleet.gpus[index], NO_MIG);
    return leave(outcome);
}

API result nvmlDeviceGetHandleByIndex(u32 index, handle *out)
{
    return nvmlDeviceGetHandleByIndex_v2(index, out);
}

static result handle_by_uuid(const char *uuid, handle *out)
{
    for (u32 i = 0; i < fleet.count; i++) {
        struct gpu *gpu = &fleet.gpus[i];
        if (!strcmp(uuid, gpu->uuid)) {
            *out = make_handle(gpu, NO_MIG);
            return OK;
        }
        for (u32 j = 0; j < gpu->mig_count; j++)
            if (!strcmp(uuid, gpu->mig[j].uuid)) {
                *out = make_handle(gpu, (int)j);
                return OK;
            }
    }
    return NOT_FOUND;
}

API result nvmlDeviceGetHandleByUUID(const char *uuid, handle *out)
{
    result outcome = enter();
    return leave(outcome == OK ? handle_by_uuid(uuid, out) : outcome);
}

static result handle_by_text(const char *text, int by_serial, handle *out)
{
    for (u32 i = 0; i < fleet.count; i++) {
        struct gpu *gpu = &fleet.gpus[i];
        if (by_serial ? *text && !strcmp(text, gpu->serial) : same_pci(text, gpu->pci)) {
            *out = make_handle(gpu, NO_MIG);
            return OK;
        }
    }
    return NOT_FOUND;
}

API result nvmlDeviceGetHandleBySerial(const char *serial, handle *out)
{
    result outcome = enter();
    return leave(outcome == OK ? handle_by_text(serial, 1, out) : outcome);
}

API result nvmlDeviceGetHandleByPciBusId_v2(const char *pci, handle *out)
{
    result outcome = enter();
    return leave(outcome == OK ? handle_by_text(pci, 0, out) : outcome);
}
