/* Where a GPU sits: PCI, NVLink and the paths between GPUs. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

struct pci {
    char legacy_id[16];
    u32 domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
};
_Static_assert(sizeof(struct pci) == 68, "nvmlPciInfo_t");

static void fill_pci(struct pci *out, const char *text)
{
    memset(out, 0, sizeof *out);
    sscanf(text, "%x:%x:%x", &out->domain, &out->bus, &out->device);
    out->device_id = 0x233010DE;
    snprintf(out->bus_id, sizeof out->bus_id, "%08X:%02X:%02X.0", out->domain, out->bus & 255, out->device & 255);
    snprintf(out->legacy_id, sizeof out->legacy_id, "%04X:%02X:%02X.0", out->domain & 0xffff, out->bus & 255,
             out->device & 255);
}

API result nvmlDeviceGetPciInfo_v3(handle device, struct pci *out)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome == OK && t.mig)
        outcome = NOT_SUPPORTED;
    if (outcome == OK)
        fill_pci(out, t.gpu->pci);
    return leave(outcome);
}

static result enter_link(handle device, u32 number, struct nvlink **link)
{
    struct target t;
    result outcome = enter_device(device, &t);
    if (outcome != OK)
        return outcome;
    if (number >= MAX_LINKS)
        return INVALID_ARGUMENT;
    if (t.mig || !t.gpu->links[number].present)
        return NOT_SUPPORTED;
    *link = &t.gpu->links[number];
    return OK;
}

API result nvmlDeviceGetNvLinkState(handle device, u32 number, u32 *out)
{
    struct nvlink *link;
    result outcome = enter_link(device, number, &link);
    if (outcome == OK)
        *out = link->active;
    return leave(outcome);
}

API result nvmlDeviceGetNvLinkVersion(handle device, u32 number, u32 *out)
{
    struct nvlink *link;
    result outcome = enter_link(device, number, &link);
    if (outcome == OK)
        *out = link->version;
    return leave(outcome);
}

API result nvmlDeviceGetNvLinkRemotePciInfo_v2(handle device, u32 number, struct pci *out)
{
    struct nvlink *link;
    result outcome = enter_link(device, number, &link);
    if (outcome == OK)
        fill_pci(out, link->remote_pci);
    return leave(outcome);
}

API result nvmlDeviceGetNvLinkRemoteDeviceType(handle device, u32 number, int *out)
{
    enum { GPU = 0, SWITCH = 2 };
    struct nvlink *link;
    result outcome = enter_link(device, number, &link);
    if (outcome != OK)
        return leave(outcome);
    *out = SWITCH;
    for (u32 i = 0; i < fleet.count; i++)
        if (same_pci(link->remote_pci, fleet.gpus[i].pci))
            *out = GPU;
    return leave(OK);
}

API result nvmlDeviceGetNvLinkErrorCounter(handle device, u32 number, u32 counter, u64 *out)
{
    struct nvlink *link;
    result outcome = enter_link(device, number, &link);
    if (outcome == OK && counter >= LINK_COUNTERS)
        outcome = INVALID_ARGUMENT;
    if (outcome == OK)
        *out = link->errors[counter];
    return leave(outcome);
}

API result nvmlDeviceResetNvLinkErrorCounters(handle device, u32 number)
{
    (void)device;
    (void)number;
    return NO_PERMISSION;
}

API result nvmlDeviceGetTopologyCommonAncestor(handle left, handle right, int *out)
{
    struct target t;
    (void)right;
    result outcome = enter_device(left, &t);
    if (outcome == OK)
        *out = 30; /* NVML_TOPOLOGY_HOSTBRIDGE */
    return leave(outcome);
}

/* Another GPU is reachable peer to peer when an active link leads to it. */
static int linked(const struct gpu *from, const struct gpu *to)
{
    for (u32 i = 0; i < MAX_LINKS; i++)
        if (from->links[i].present && from->links[i].active && same_pci(from->links[i].remote_pci, to->pci))
            return 1;
    return 0;
}

API result nvmlDeviceGetP2PStatus(handle left, handle right, int capability, int *out)
{
    enum { P2P_OK = 0, P2P_NOT_SUPPORTED = 5 };
    struct target t;
    (void)capability;
    result outcome = enter_device(left, &t);
    if (outcome != OK)
        return leave(outcome);
    *out = P2P_NOT_SUPPORTED;
    for (u32 i = 0; i < fleet.count; i++)
        if (make_handle(&fleet.gpus[i], NO_MIG) == right && linked(t.gpu, &fleet.gpus[i]))
            *out = P2P_OK;
    return leave(OK);
}
