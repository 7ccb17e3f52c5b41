/* The main thread calls pthread_exit; another goes on. */
#include "far.h"
#include <pthread.h>

static void *far;

static void *go_on(void *unused) {
    usleep(200000); /* main is a zombie by now */
    far_check(far, FAR_PAGES, 1, "without the main thread");
    far_write(far, FAR_PAGES, 2);
    far_check(far, FAR_PAGES, 2, "without the main thread, written");
    puts("ok");
    return unused;
}

int main(void) {
    far = far_make(FAR_PAGES);
    pthread_t thread;
    if (pthread_create(&thread, NULL, go_on, NULL))
        far_fail("pthread_create");
    pthread_exit(NULL);
}
