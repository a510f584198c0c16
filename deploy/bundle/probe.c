/* bin/probe of the SSH bundle: says which GPUs a container really sees, as one line of JSON on stdout.
 *
 *   {"source":"nvml","devices":["GPU-..."],"driver":"570.86.15"}            NVML answered
 *   {"source":"proc1_environ","devices":["GPU-..."],"error":"why no NVML"}  NVIDIA_VISIBLE_DEVICES of PID 1
 *   {"source":"none","devices":[],"error":"..."}                            neither; exit status 3
 *
 * Runs on the bundle's own C library, so that it works in any image. NVML comes from where the driver's container
 * runtime puts it; a GPU in MIG mode is listed by its MIG devices.
 */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 256
#define UUID_SIZE 96
#define NOT_FOUND 6
#define SUCCESS 0

typedef void *device;

static struct {
    int (*init)(void);
    int (*count)(unsigned *);
    int (*by_index)(unsigned, device *);
    int (*uuid)(device, char *, unsigned);
    int (*driver)(char *, unsigned);
    int (*mig_mode)(device, unsigned *, unsigned *);
    int (*mig_count)(device, unsigned *);
    int (*mig_by_index)(device, unsigned, device *);
} nvml;

static char devices[MAX_DEVICES][UUID_SIZE];
static int device_count;
static char failure[256];

static int fail(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(failure, sizeof failure, format, arguments);
    va_end(arguments);
    return 0;
}

/* Finds `name=` among the variables of PID 1; the value is the caller's to keep until the next call. */
static const char *variable_of_pid1(const char *name)
{
    static char environment[1 << 17];
    size_t length = strlen(name);
    FILE *file = fopen("/proc/1/environ", "re");
    if (!file)
        return NULL;
    size_t size = fread(environment, 1, sizeof environment - 1, file);
    fclose(file);
    environment[size] = 0;
    for (char *entry = environment; entry < environment + size; entry += strlen(entry) + 1)
        if (!strncmp(entry, name, length) && entry[length] == '=')
            return entry + length + 1;
    return NULL;
}

static void *open_in(const char *directory, size_t length)
{
    char path[1024];
    if (!length || length > sizeof path - 32 || directory[0] != '/')
        return NULL;
    snprintf(path, sizeof path, "%.*s/libnvidia-ml.so.1", (int)length, directory);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_library(void)
{
    static const char *const usual[] = { "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/lib/x86_64-linux-gnu", "/lib64",
                                         "/usr/lib", "/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", NULL };
    void *library = NULL;
    for (int i = 0; usual[i] && !library; i++)
        library = open_in(usual[i], strlen(usual[i]));
    const char *path = library ? NULL : variable_of_pid1("LD_LIBRARY_PATH");
    while (path && *path && !library) {
        size_t length = strcspn(path, ":");
        library = open_in(path, length);
        path += length + (path[length] == ':');
    }
    return library;
}

static int load_nvml(void)
{
    void *library = open_library();
    if (!library)
        return fail("libnvidia-ml.so.1 was not found");
    *(void **)&nvml.init = dlsym(library, "nvmlInit_v2");
    *(void **)&nvml.count = dlsym(library, "nvmlDeviceGetCount_v2");
    *(void **)&nvml.by_index = dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
    *(void **)&nvml.uuid = dlsym(library, "nvmlDeviceGetUUID");
    *(void **)&nvml.driver = dlsym(library, "nvmlSystemGetDriverVersion");
    *(void **)&nvml.mig_mode = dlsym(library, "nvmlDeviceGetMigMode");
    *(void **)&nvml.mig_count = dlsym(library, "nvmlDeviceGetMaxMigDeviceCount");
    *(void **)&nvml.mig_by_index = dlsym(library, "nvmlDeviceGetMigDeviceHandleByIndex");
    if (!nvml.init || !nvml.count || !nvml.by_index || !nvml.uuid || !nvml.driver)
        return fail("libnvidia-ml.so.1 lacks functions");
    int code = nvml.init();
    return code == SUCCESS ? 1 : fail("nvmlInit failed with code %d", code);
}

static int add_device(device found, const char *what, unsigned index)
{
    if (device_count == MAX_DEVICES)
        return fail("more than %d devices", MAX_DEVICES);
    int code = nvml.uuid(found, devices[device_count], UUID_SIZE);
    if (code != SUCCESS)
        return fail("%s %u: nvmlDeviceGetUUID failed with code %d", what, index, code);
    device_count++;
    return 1;
}

static int in_mig_mode(device gpu)
{
    unsigned current = 0, pending = 0;
    return nvml.mig_mode && nvml.mig_count && nvml.mig_by_index && nvml.mig_mode(gpu, &current, &pending) == SUCCESS &&
           current;
}

static int add_mig_devices(device gpu)
{
    unsigned most = 0;
    int code = nvml.mig_count(gpu, &most);
    if (code != SUCCESS)
        return fail("nvmlDeviceGetMaxMigDeviceCount failed with code %d", code);
    for (unsigned i = 0; i < most; i++) {
        device mig;
        code = nvml.mig_by_index(gpu, i, &mig);
        if (code == NOT_FOUND) /* the places of a GPU need not be filled from the first on */
            continue;
        if (code != SUCCESS)
            return fail("MIG device %u: code %d", i, code);
        if (!add_device(mig, "MIG device", i))
            return 0;
    }
    return 1;
}

static int list_devices(void)
{
    unsigned count = 0;
    int code = nvml.count(&count);
    if (code != SUCCESS)
        return fail("nvmlDeviceGetCount failed with code %d", code);
    for (unsigned i = 0; i < count; i++) {
        device gpu;
        code = nvml.by_index(i, &gpu);
        if (code != SUCCESS)
            return fail("GPU %u: nvmlDeviceGetHandleByIndex failed with code %d", i, code);
        if (!(in_mig_mode(gpu) ? add_mig_devices(gpu) : add_device(gpu, "GPU", i)))
            return 0;
    }
    return 1;
}

static int list_from_pid1(void)
{
    const char *names = variable_of_pid1("NVIDIA_VISIBLE_DEVICES");
    if (!names || !*names || !strcmp(names, "void") || !strcmp(names, "none"))
        return 0;
    while (*names && device_count < MAX_DEVICES) {
        size_t length = strcspn(names, ",");
        if (length)
            snprintf(devices[device_count++], UUID_SIZE, "%.*s", (int)length, names);
        names += length + (names[length] == ',');
    }
    return device_count > 0;
}

static void print_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 0x20 || (unsigned char)*text > 0x7e)
            printf("\\u%04x", (unsigned char)*text);
        else
            putchar(*text);
    putchar('"');
}

static void print_result(const char *source, const char *extra_key, const char *extra)
{
    printf("{\"source\":\"%s\",\"devices\":[", source);
    for (int i = 0; i < device_count; i++) {
        if (i)
            putchar(',');
        print_string(devices[i]);
    }
    printf("],\"%s\":", extra_key);
    print_string(extra);
    puts("}");
}

int main(void)
{
    char driver[96] = "";
    if (load_nvml() && list_devices()) {
        nvml.driver(driver, sizeof driver);
        print_result("nvml", "driver", driver);
        return 0;
    }
    device_count = 0;
    if (list_from_pid1()) {
        print_result("proc1_environ", "error", failure);
        return 0;
    }
    print_result("none", "error", failure);
    return 3;
}
