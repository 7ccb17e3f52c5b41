/* work MIB SECONDS: a server's load over a table of so much memory, for so long. Each piece of work is a look at a page of it,
 * four in five at the same fifth of the pages, and then some computing. Prints how many there were in all, and in each second. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

enum { WORDS = 512, ROUNDS = 8, SECONDS_MAX = 3600 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* xorshift64*: the same pages in each run. */
static unsigned long next(unsigned long *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ul >> 16;
}

int main(int argc, char **argv) {
    size_t pages = argc == 3 ? strtoul(argv[1], NULL, 10) * 256 : 0;
    double seconds = argc == 3 ? strtod(argv[2], NULL) : 0;
    if (pages < 5 || seconds <= 0 || seconds > SECONDS_MAX)
        return 2;
    unsigned long *table = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED) {
        perror("work");
        return 2;
    }
    madvise(table, pages * 4096, MADV_NOHUGEPAGE);
    static unsigned long each[SECONDS_MAX + 1];
    unsigned long state = 88172645463325252ul, sum = 0, count = 0;
    double start = now(), at = 0;
    while ((at = now() - start) < seconds) {
        unsigned long chance = next(&state);
        size_t page = next(&state) % (chance % 5 ? pages / 5 : pages);
        unsigned long *words = table + page * WORDS;
        for (int round = 0; round < ROUNDS; round++)
            for (int word = 0; word < WORDS; word += 8)
                sum += words[word] * 31 + round;
        words[count % WORDS] = sum;
        each[(int)at]++;
        count++;
    }
    printf("%lu", count);
    for (int second = 0; second < (int)seconds; second++)
        printf(" %lu", each[second]);
    printf("\n");
    return 0;
}
