/* Ranges that move while pages leave, and mappings of other threads that take the places they left:
 * nobody's pages may leave with the range's, and the range keeps its own. */
#include "far.h"
#include <pthread.h>

/* Every other is native, below 64 KiB. */
enum { MOVING = 12 * MIB_PAGES, ROUNDS = 150, SMALL = 8, LARGE = 40, TAKEN = 64 };

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

/* Mappings of others, which lie where the kernel finds room first. */
static void *take_places(void *unused) {
    (void)unused;
    char *taken[TAKEN];
    for (uint64_t generation = 1; !done; generation++) {
        for (int i = 0; i < TAKEN; i++) {
            size_t pages = i % 2 ? LARGE : SMALL;
            taken[i] = far_map(pages);
            far_write(taken[i], pages, generation);
        }
        for (int i = 0; i < TAKEN; i++) {
            size_t pages = i % 2 ? LARGE : SMALL;
            far_check(taken[i], pages, generation, i % 2 ? "a managed mapping" : "a native mapping");
            far_must(munmap(taken[i], pages * PAGE));
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
