/* The processors on which the program's threads may run stay those that the program chose, while its pages come and go:
 * of a thread that chose none, of one that stays on one processor, and of one that moves on all the time. */
#include "far.h"
#include <pthread.h>
#include <sched.h>

enum { THREADS = 3, PAGES = FAR_PAGES / THREADS, ROUNDS = 60, READS = 300 };

static cpu_set_t inherited;

static void must_be(const cpu_set_t *expected, int thread) {
    cpu_set_t found;
    far_must(sched_getaffinity(0, sizeof found, &found));
    if (!CPU_EQUAL(&found, expected))
        far_fail("thread %d may run on %d processors, which are not the %d that it chose", thread,
                 CPU_COUNT(&found), CPU_COUNT(expected));
}

/* The processor after this one, round about, of those that the program may use. */
static int next_processor(int processor) {
    do
        processor = (processor + 1) % CPU_SETSIZE;
    while (!CPU_ISSET(processor, &inherited));
    return processor;
}

static void *read_far_pages(void *argument) {
    int thread = (long)argument, processor = -1;
    cpu_set_t chosen = inherited;
    char *far = far_make(PAGES);
    uint64_t state = thread;
    for (int round = 0; round < ROUNDS; round++) {
        if (thread == 2 || (thread == 1 && round == 0)) {
            processor = next_processor(processor);
            CPU_ZERO(&chosen);
            CPU_SET(processor, &chosen);
            far_must(sched_setaffinity(0, sizeof chosen, &chosen));
        }
        for (int read = 0; read < READS; read++) {
            size_t page = far_mix(state += THREADS) % PAGES;
            far_check_at(far + page * PAGE, page, 1, "read at random");
        }
        must_be(&chosen, thread);
    }
    return NULL;
}

int main(void) {
    far_must(sched_getaffinity(0, sizeof inherited, &inherited));
    pthread_t threads[THREADS];
    for (long thread = 0; thread < THREADS; thread++)
        far_must(-pthread_create(&threads[thread], NULL, read_far_pages, (void *)thread));
    for (int thread = 0; thread < THREADS; thread++)
        pthread_join(threads[thread], NULL);
    must_be(&inherited, THREADS);
    /* Printed, for the paged run must have inherited what the plain one did. */
    for (int processor = 0; processor < CPU_SETSIZE; processor++)
        if (CPU_ISSET(processor, &inherited))
            printf("processor %d\n", processor);
    puts("ok");
}
