/* Two threads count on pages that are evicted meanwhile; no increment may be lost. */
#include "far.h"
#include <pthread.h>

enum { PAGES = 32 * MIB_PAGES, INCREMENTS = 400000, THREADS = 2 };
static char *counters;

static uint64_t *counter(size_t page) { return (uint64_t *)(counters + page * PAGE + page % WORDS * 8); }

static void *count(void *argument) {
    uint64_t state = (uint64_t)argument;
    for (int i = 0; i < INCREMENTS; i++) {
        state = far_mix(state);
        __atomic_fetch_add(counter(state % PAGES), 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

int main(void) {
    counters = far_map(PAGES);
    pthread_t threads[THREADS];
    for (size_t i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, count, (void *)(i + 1)))
            far_fail("pthread_create");
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    uint64_t sum = 0;
    for (size_t page = 0; page < PAGES; page++)
        sum += *counter(page);
    if (sum != (uint64_t)THREADS * INCREMENTS)
        far_fail("%ld updates are lost", THREADS * INCREMENTS - (long)sum);
    puts("ok");
}
