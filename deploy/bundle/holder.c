/* The only process of a network holder: it makes itself a network namespace of its own, gives every capability away and
   sleeps until it is killed. The agent puts an interface into that namespace; a lease's container joins it.

   With the argument "nest" it only sleeps: that container owns the empty network from which holders set out, so that a
   holder that failed to leave it has no network at all instead of the machine's. */

#define _GNU_SOURCE
#include <linux/capability.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = {{0}};

    if (count < 2 || strcmp(arguments[1], "nest") != 0) {
        if (unshare(CLONE_NEWNET) != 0) {
            perror("holder: no network namespace");
            return 1;
        }
    }
    if (syscall(SYS_capset, &header, none) != 0) {
        perror("holder: capabilities stay");
        return 1;
    }
    for (;;)
        pause();
}
