/* The only process of a network holder: it makes itself a network namespace of its own and sleeps. On SIGHUP it moves on
   to a new one, and leaves the old one to whoever is still in it. The agent puts an interface into the namespace; a
   lease's container joins it.

   With the argument "nest" it only sleeps: that container owns the empty network from which holders set out, so that a
   holder that failed to leave it has no network at all instead of the machine's. */

#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    sigset_t hang_up;
    int received;

    if (count > 1 && strcmp(arguments[1], "nest") == 0)
        for (;;)
            pause();
    sigemptyset(&hang_up);
    sigaddset(&hang_up, SIGHUP);
    sigprocmask(SIG_BLOCK, &hang_up, NULL);
    for (;;) {
        if (unshare(CLONE_NEWNET) != 0) {
            perror("holder: no network namespace");
            return 1;
        }
        sigwait(&hang_up, &received);
    }
}
