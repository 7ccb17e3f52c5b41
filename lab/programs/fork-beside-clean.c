/* A thread forks whose control block lies between pages that were only read, while another keeps the processor
 * busy: the kernel writes to the block in the child as soon as that was interrupted, before anybody answers
 * faults there. */
#include "far.h"
#include <pthread.h>
#include <sched.h>
#include <time.h>

enum { FORKS = 300, WINDOW = 64, BEFORE = 16, STACK = 32, DEADLINE_SECONDS = 20 };

static char *heap, *window;
static volatile int over;

static void *spin(void *unused) {
    (void)unused;
    while (!over)
        ;
    return NULL;
}

static void check_around(const char *when) {
    for (size_t page = 0; page < WINDOW; page++)
        if (page < BEFORE || page >= BEFORE + STACK)
            far_check_at(window + page * PAGE, (size_t)(window - heap) / PAGE + page, 1, when);
}

static void wait_for(pid_t child) {
    int status;
    for (time_t end = time(NULL) + DEADLINE_SECONDS; time(NULL) < end; usleep(100)) {
        pid_t ended = waitpid(child, &status, WNOHANG);
        far_must(ended);
        if (ended == child) {
            if (status)
                far_fail("the child ended with %#x", status);
            return;
        }
    }
    kill(child, SIGKILL);
    far_fail("a child did not run");
}

static void *forks(void *unused) {
    (void)unused;
    for (int round = 0; round < FORKS; round++) {
        check_around("in the parent");
        pid_t child = fork();
        far_must(child);
        if (child == 0) {
            check_around("in the child");
            _exit(0);
        }
        wait_for(child);
    }
    return NULL;
}

int main(void) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    far_must(sched_setaffinity(0, sizeof one, &one));
    heap = far_make(FAR_PAGES);
    /* Windows are aligned, and this one left long ago. */
    window = (char *)(((uintptr_t)heap + 8 * WINDOW * PAGE) / (WINDOW * PAGE) * (WINDOW * PAGE));
    pthread_t spinner, forker;
    pthread_attr_t attributes;
    far_must(-pthread_attr_init(&attributes));
    far_must(-pthread_attr_setstack(&attributes, window + BEFORE * PAGE, STACK * PAGE));
    far_must(-pthread_create(&spinner, NULL, spin, NULL));
    far_must(-pthread_create(&forker, &attributes, forks, NULL));
    far_must(-pthread_join(forker, NULL));
    over = 1;
    far_must(-pthread_join(spinner, NULL));
    puts("ok");
}
