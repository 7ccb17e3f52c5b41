/* 64 threads, each with far memory and something on its stack, all at once. */
#include "far.h"
#include <pthread.h>

enum { THREADS = 64, SHARE = FAR_PAGES / THREADS };
static char *far;

static void *own_part(void *argument) {
    size_t first = (size_t)argument * SHARE;
    uint64_t stack[2048];
    for (uint64_t generation = 2; generation < 6; generation++) {
        for (int i = 0; i < 2048; i++)
            stack[i] = far_mix(first + i + generation);
        for (size_t page = first; page < first + SHARE; page++) {
            far_check_at(far + page * PAGE, page, generation - 1, "in a thread");
            far_write_page(far, page, generation);
        }
        for (int i = 0; i < 2048; i++)
            if (((volatile uint64_t *)stack)[i] != far_mix(first + i + generation))
                far_fail("the stack changed");
    }
    return NULL;
}

int main(void) {
    far = far_make(FAR_PAGES);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, own_part, (void *)i))
            far_fail("pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    far_check(far, FAR_PAGES, 5, "after the threads");
    puts("ok");
}
