/* All there is in the test image from scratch: a static program that sleeps until it is told to end. */
#include <signal.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

int main(void)
{
    signal(SIGTERM, end);
    signal(SIGINT, end);
    for (;;)
        pause();
}
