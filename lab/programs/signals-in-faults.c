/* A timer's signals arrive while pages are fetched; the handler touches far memory too. */
#include "far.h"
#include <sys/time.h>

static char *far;
static volatile sig_atomic_t signals;

static void on_alarm(int signal) {
    (void)signal;
    int saved = errno;
    size_t page = far_mix(++signals) % FAR_PAGES;
    if (*(uint64_t *)(far + page * PAGE) >> 1 == 0)
        far_fail("page %zu reads as zero in a signal handler", page);
    errno = saved;
}

int main(void) {
    far = far_make(FAR_PAGES);
    struct sigaction action = {.sa_handler = on_alarm};
    far_must(sigaction(SIGALRM, &action, NULL));
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    far_must(setitimer(ITIMER_REAL, &timer, NULL));
    for (uint64_t generation = 1; generation < 4 || signals < 100; generation++) {
        for (size_t page = 0; page < FAR_PAGES; page++) {
            errno = 123;
            far_check_at(far + page * PAGE, page, generation, "under a timer");
            far_write_page(far, page, generation + 1);
            if (errno != 123)
                far_fail("a fault changed errno to %d", errno);
        }
    }
    puts("ok");
}
