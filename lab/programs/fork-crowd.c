/* Threads that fork at the same time: a child that was made while others were about to fork is as sound as
 * any. It sets every signal to its default, as servers do, and some of them fork too. */
#include "far.h"
#include <pthread.h>

enum { THREADS = 6, ROUNDS = 200, KEPT = 24 * MIB_PAGES };

static void *heap;

static void check(size_t page, const char *when) {
    far_check_at((char *)heap + page * PAGE, page, 1, when);
}

static void child_goes_on(size_t page) {
    alarm(20); /* a child that hangs is seen */
    check(page, "in a child");
    for (int number = 1; number < NSIG; number++)
        if (number != SIGALRM)
            signal(number, SIG_DFL);
    if (page % 8)
        _exit(0);
    pid_t child = fork();
    if (child == 0) {
        check(page, "in a child's child");
        _exit(0);
    }
    far_wait(child, "a child's child");
    _exit(0);
}

static void *forks(void *seed) {
    for (size_t round = 0; round < ROUNDS; round++) {
        size_t page = far_mix((size_t)seed + round * THREADS) % KEPT;
        pid_t child = fork();
        if (child == 0)
            child_goes_on(page);
        far_wait(child, "a child");
    }
    return NULL;
}

int main(void) {
    pthread_t threads[THREADS];
    heap = far_make(FAR_PAGES);
    /* A fork takes less time with less memory. */
    far_must(munmap((char *)heap + (size_t)KEPT * PAGE, (size_t)(FAR_PAGES - KEPT) * PAGE));
    for (size_t k = 0; k < THREADS; k++)
        far_must(-pthread_create(&threads[k], NULL, forks, (void *)k));
    for (size_t k = 0; k < THREADS; k++)
        far_must(-pthread_join(threads[k], NULL));
    far_check(heap, KEPT, 1, "at the end");
    puts("ok");
}
