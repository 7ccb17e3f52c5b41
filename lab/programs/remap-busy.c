/* Ranges that move while pages leave, and small native mappings that take the places they left:
 * nobody's pages may leave with the range's. */
#include "far.h"
#include <pthread.h>

enum { MOVING = 12 * MIB_PAGES, ROUNDS = 150, SMALL = 8, SMALLS = 64 };

static volatile int done;

/* Keeps the evictor at work. */
static void *crowd(void *unused) {
    (void)unused;
    size_t pages = 24 * MIB_PAGES;
    char *far = far_map(pages);
    for (uint64_t generation = 1; !done; generation++) {
        far_write(far, pages, generation);
        far_check(far, pages, generation, "the crowd");
    }
    return NULL;
}

/* Native memory, which nobody may touch; it lies where the kernel finds room first. */
static void *take_places(void *unused) {
    (void)unused;
    char *small[SMALLS];
    for (uint64_t generation = 1; !done; generation++) {
        for (int i = 0; i < SMALLS; i++) {
            small[i] = far_map(SMALL);
            far_write(small[i], SMALL, generation);
        }
        for (int i = 0; i < SMALLS; i++) {
            far_check(small[i], SMALL, generation, "a native mapping");
            far_must(munmap(small[i], SMALL * PAGE));
        }
    }
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, crowd, NULL) || pthread_create(&threads[1], NULL, take_places, NULL))
        far_fail("no threads");
    char *far = far_map(MOVING);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        far_write(far, MOVING, round);
        /* Grown, it has to move, and its old place is the first that the kernel finds. */
        far = mremap(far, MOVING * PAGE, 2 * MOVING * PAGE, MREMAP_MAYMOVE);
        if (far == MAP_FAILED)
            far_fail("mremap: %s", strerror(errno));
        far_check(far, MOVING, round, "grown");
        far = mremap(far, 2 * MOVING * PAGE, MOVING * PAGE, 0);
        if (round % 2 == 0) {
            far_must(munmap(far, MOVING * PAGE));
            far = far_map(MOVING);
        }
    }
    done = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    puts("ok");
}
