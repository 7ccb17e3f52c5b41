/* beat MS: keeps a processor busy for so long and says what came of it: the longest time between two loops (us), and how many
 * loops the worst and the median stretch of 100 ms had. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { STRETCH_NS = 100000000, STRETCHES_MAX = 1000 };

static uint64_t loops[STRETCHES_MAX];

static uint64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static int ascending(const void *one, const void *other) {
    uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;
    return (a > b) - (a < b);
}

int main(int argc, char **argv) {
    uint64_t wanted = argc == 2 ? strtoul(argv[1], NULL, 10) * 1000000 / STRETCH_NS : 0, longest = 0;
    if (!wanted || wanted > STRETCHES_MAX)
        return 2;
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("waits");
    uint64_t start = now(), last = start, at, done;
    while ((done = ((at = now()) - start) / STRETCH_NS) < wanted) {
        loops[done]++;
        longest = at - last > longest ? at - last : longest;
        last = at;
    }
    qsort(loops, wanted, sizeof *loops, ascending);
    printf("%llu %llu %llu\n", (unsigned long long)longest / 1000, (unsigned long long)loops[0],
           (unsigned long long)loops[wanted / 2]);
}
