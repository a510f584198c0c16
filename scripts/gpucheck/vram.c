/* vram: writes a marker into a GPU's memory, looks for one that somebody else left, or works for a moment.
 *
 *   vram write MARKER     fills nearly all free memory with the marker and keeps it until it is killed
 *   vram burst MARKER     as write, and keeps the GPU busy for some seconds before it says so
 *   vram read MARKER      allocates nearly all free memory and counts the marker's words, without writing first
 *
 * One JSON line on stdout. Used by scripts/gpu-check on a machine with real GPUs: two leases after each other on one card.
 * The CUDA driver is loaded at run time, so the program needs no CUDA toolkit to be built and runs from any image.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long long devptr;
static int (*cu_init)(unsigned);
static int (*cu_device)(int *, int);
static int (*cu_retain)(void **, int);
static int (*cu_current)(void *);
static int (*cu_info)(size_t *, size_t *);
static int (*cu_alloc)(devptr *, size_t);
static int (*cu_fill)(devptr, unsigned, size_t);
static int (*cu_read)(void *, devptr, size_t);
static int (*cu_sync)(void);

#define CHUNK ((size_t)64 << 20)
#define KEEP_FREE ((size_t)512 << 20)
#define BURST_S 5

static int fail(const char *what, int code) {
    printf("{\"ok\":false,\"error\":\"%s\",\"code\":%d}\n", what, code);
    return 1;
}

static int load(void) {
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);
    const struct { const char *name; void *slot; } symbols[] = {
        {"cuInit", &cu_init}, {"cuDeviceGet", &cu_device}, {"cuDevicePrimaryCtxRetain", &cu_retain},
        {"cuCtxSetCurrent", &cu_current}, {"cuMemGetInfo_v2", &cu_info}, {"cuMemAlloc_v2", &cu_alloc},
        {"cuMemsetD32_v2", &cu_fill}, {"cuMemcpyDtoH_v2", &cu_read}, {"cuCtxSynchronize", &cu_sync},
    };
    if (!lib) return fail("libcuda.so.1 cannot be loaded", -1);
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *found = dlsym(lib, symbols[i].name);
        if (!found) return fail(symbols[i].name, -2);
        memcpy(symbols[i].slot, &found, sizeof found);
    }
    return 0;
}

static int open_first_gpu(void) {
    int device, code;
    void *context;
    if ((code = cu_init(0))) return fail("cuInit", code);
    if ((code = cu_device(&device, 0))) return fail("cuDeviceGet", code);
    if ((code = cu_retain(&context, device))) return fail("cuDevicePrimaryCtxRetain", code);
    if ((code = cu_current(context))) return fail("cuCtxSetCurrent", code);
    return 0;
}

static unsigned long long count_words(devptr at, unsigned marker, uint32_t *buffer, int *code) {
    unsigned long long hits = 0;
    *code = cu_read(buffer, at, CHUNK);
    for (size_t i = 0; !*code && i < CHUNK / 4; i++) hits += buffer[i] == marker;
    return hits;
}

int main(int argc, char **argv) {
    if (argc != 3 || (strcmp(argv[1], "write") && strcmp(argv[1], "burst") && strcmp(argv[1], "read"))) {
        fprintf(stderr, "usage: vram write|burst|read MARKER (8 hex digits)\n");
        return 2;
    }
    int writing = strcmp(argv[1], "read"), working = !strcmp(argv[1], "burst"), code = 0;
    unsigned marker = (unsigned)strtoul(argv[2], NULL, 16);
    size_t free_bytes, total;
    unsigned long long hits = 0, bytes = 0;
    uint32_t *buffer = malloc(CHUNK);
    if (!buffer || load() || open_first_gpu()) return 1;
    if ((code = cu_info(&free_bytes, &total))) return fail("cuMemGetInfo", code);
    devptr at = 0;
    for (; free_bytes > KEEP_FREE + CHUNK && !cu_alloc(&at, CHUNK); free_bytes -= CHUNK, bytes += CHUNK) {
        if (writing) code = cu_fill(at, marker, CHUNK / 4);
        else hits += count_words(at, marker, buffer, &code);
        if (code) return fail(writing ? "cuMemsetD32" : "cuMemcpyDtoH", code);
    }
    for (time_t end = time(NULL) + BURST_S; working && at && !code && time(NULL) < end; code = cu_sync())
        if ((code = cu_fill(at, marker, CHUNK / 4))) return fail("cuMemsetD32", code);
    if (code || (code = cu_sync())) return fail("cuCtxSynchronize", code);
    printf("{\"ok\":true,\"bytes\":%llu,\"total\":%zu,\"marker_words\":%llu}\n", bytes, total, hits);
    fflush(stdout);
    while (writing) pause();
    return 0;
}
