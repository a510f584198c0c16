/* Event sets. An event of the config (`event <number> <xid>` below a GPU) is told once by every set that the GPU was
 * registered with and that existed when it appeared. Numbers grow over the whole config. */
#include "fake.h"

#include <stdlib.h>
#include <unistd.h>

#define XID 8ULL
#define POLL_US 50000

struct set {
    u64 told;   /* number of the newest event told */
    u32 minors; /* a bit for each GPU that was registered */
};

struct event_data {
    handle device;
    u64 type, data;
    u32 gpu_instance, compute_instance;
};

_Static_assert(sizeof(struct event_data) == 32, "nvmlEventData_t");

static u64 newest(void)
{
    u64 number = 0;
    for (u32 i = 0; i < fleet.count; i++)
        for (u32 j = 0; j < fleet.gpus[i].event_count; j++)
            if (fleet.gpus[i].events[j].number > number)
                number = fleet.gpus[i].events[j].number;
    return number;
}

API result nvmlEventSetCreate(struct set **out)
{
    result outcome = enter();
    if (outcome == OK) {
        *out = calloc(1, sizeof **out);
        (*out)->told = newest();
    }
    return leave(outcome);
}

API result nvmlEventSetFree(struct set *set)
{
    free(set);
    return OK;
}

API result nvmlDeviceGetSupportedEventTypes(handle device, u64 *out)
{
    struct target target;
    result outcome = enter_device(device, &target);
    if (outcome == OK)
        *out = XID;
    return leave(outcome);
}

API result nvmlDeviceRegisterEvents(handle device, u64 types, struct set *set)
{
    struct target target;
    result outcome = enter_device(device, &target);
    if (outcome == OK && types & XID)
        set->minors |= 1u << target.gpu->minor;
    return leave(outcome);
}

static int tell_next(struct set *set, struct event_data *out)
{
    struct gpu *found = NULL;
    struct event *next = NULL;
    for (u32 i = 0; i < fleet.count; i++)
        for (u32 j = 0; j < fleet.gpus[i].event_count; j++) {
            struct event *event = &fleet.gpus[i].events[j];
            if (!(set->minors >> fleet.gpus[i].minor & 1) || event->number <= set->told)
                continue;
            if (!next || event->number < next->number) {
                found = &fleet.gpus[i];
                next = event;
            }
        }
    if (!next)
        return 0;
    set->told = next->number;
    *out = (struct event_data){ make_handle(found, NO_MIG), XID, next->xid, NO_INSTANCE, NO_INSTANCE };
    return 1;
}

API result nvmlEventSetWait_v2(struct set *set, struct event_data *out, u32 timeout_ms)
{
    u64 end = now_us() + timeout_ms * 1000ULL;
    for (;;) {
        result outcome = enter();
        int told = outcome == OK && tell_next(set, out);
        leave(outcome);
        if (outcome != OK || told)
            return outcome;
        if (now_us() >= end)
            return TIMEOUT;
        usleep(POLL_US);
    }
}

API result nvmlEventSetWait(struct set *set, struct event_data *out, u32 timeout_ms)
{
    return nvmlEventSetWait_v2(set, out, timeout_ms);
}
