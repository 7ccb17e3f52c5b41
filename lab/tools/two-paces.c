/* two-paces MIB SECONDS [READS]: one thread reads far pages at random and checks them, for so long and so many at least; a
 * second one touches a fresh page every 5 ms: one that it has just dropped, so that it needs no more memory. Says "ready"
 * when the memory is filled, and at the end how long each of them waited at most, and how many pages were read. */
#include "../programs/far.h"
#include <pthread.h>
#include <time.h>

static volatile int over;
static double worst_fresh_s;

static double now_s(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static void *touch_fresh_pages(void *base) {
    char *page = base;
    while (!over) {
        double began_s = now_s();
        far_must(madvise(page, PAGE, MADV_DONTNEED));
        if (*page)
            far_fail("a fresh page is not zero");
        *page = 1;
        double took_s = now_s() - began_s;
        if (took_s > worst_fresh_s)
            worst_fresh_s = took_s;
        usleep(5000);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3 && argc != 4)
        far_fail("usage: two-paces MIB SECONDS [READS]");
    size_t pages = (size_t)atol(argv[1]) * MIB_PAGES;
    double seconds = atof(argv[2]), worst_far_s = 0;
    char *far = far_make(pages);
    pthread_t other;
    far_must(-pthread_create(&other, NULL, touch_fresh_pages, far_map(MIB_PAGES)));
    puts("ready");
    fflush(stdout);
    uint64_t state = 1, read = 0, reads = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    for (double end_s = now_s() + seconds; now_s() < end_s || read < reads; read++) {
        size_t page = far_mix(state++) % pages;
        double began_s = now_s();
        (void)*(volatile char *)(far + page * PAGE);
        double took_s = now_s() - began_s;
        if (took_s > worst_far_s)
            worst_far_s = took_s;
        far_check_at(far + page * PAGE, page, 1, "read at random");
    }
    over = 1;
    pthread_join(other, NULL);
    printf("{\"worst_far_ms\": %.0f, \"worst_fresh_ms\": %.0f, \"read\": %lu}\n", worst_far_s * 1e3, worst_fresh_s * 1e3, read);
}
