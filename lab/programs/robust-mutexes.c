/* Threads that end holding robust mutexes in far memory, by return, pthread_exit and the bare system call, in
 * the program, right after a fork in the child, and in memory that was moved. */
#include "far.h"
#include <pthread.h>

enum { PAGES = 80 * MIB_PAGES, COUNT = 3 };

static pthread_mutex_t *mutexes[COUNT];
static pthread_barrier_t held, end;
static char *far;

static void *holder(void *number) {
    long k = (long)number;
    far_must(-pthread_mutex_lock(mutexes[k]));
    pthread_barrier_wait(&held);
    pthread_barrier_wait(&end);
    if (k == 1)
        pthread_exit(NULL);
    if (k == 2)
        syscall(SYS_exit, 0);
    return NULL;
}

static void make(char *block, int kind) {
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, kind);
    for (int k = 0; k < COUNT; k++) {
        /* The last lies across two pages. */
        mutexes[k] = (void *)(block + k * 8 * PAGE + (k == COUNT - 1 ? PAGE - 16 : 256));
        far_must(-pthread_mutex_init(mutexes[k], &attributes));
    }
}

static void end_holders(int generation, const char *when) {
    pthread_t threads[COUNT];
    pthread_barrier_init(&held, NULL, COUNT + 1);
    pthread_barrier_init(&end, NULL, COUNT + 1);
    for (long k = 0; k < COUNT; k++)
        far_must(-pthread_create(&threads[k], NULL, holder, (void *)k));
    pthread_barrier_wait(&held);
    far_write(far, PAGES, generation);
    pthread_barrier_wait(&end);
    for (int k = 0; k < COUNT; k++)
        far_must(-pthread_join(threads[k], NULL));
    for (int k = 0; k < COUNT; k++) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec += 5;
        int answer = pthread_mutex_timedlock(mutexes[k], &until);
        if (answer != EOWNERDEAD)
            far_fail("%s: mutex %d: %s", when, k, answer ? strerror(answer) : "nobody died");
        far_must(-pthread_mutex_consistent(mutexes[k]));
        far_must(-pthread_mutex_unlock(mutexes[k]));
    }
}

int main(void) {
    far = far_make(PAGES);
    char *block = far_make(64);
    make(block, PTHREAD_MUTEX_ROBUST);
    end_holders(2, "in the program");
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        end_holders(3, "in a child");
        _exit(0);
    }
    far_wait(child, "a child");
    char *moved = mremap(block, 64 * PAGE, 64 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, far_map(64));
    for (int k = 0; k < COUNT; k++)
        mutexes[k] = (void *)((char *)mutexes[k] + (moved - block));
    end_holders(4, "in memory that was moved");
    for (int k = 0; k < COUNT; k++)
        far_must(-pthread_mutex_destroy(mutexes[k]));
    make(moved, PTHREAD_MUTEX_STALLED);
    far_write(far, PAGES, 5);
    far_must(-pthread_mutex_lock(mutexes[0]));
    far_check(far, PAGES, 5, "at the end");
    puts("ok");
}
