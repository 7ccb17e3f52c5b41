/* usemem STEP MOST ROUNDS, as SmarTmem describes it (section IV): takes STEP MiB, walks over all that it has ROUNDS
 * times, checking and writing, takes another STEP, and at MOST MiB goes on walking until it is killed. Its pages can't
 * be packed. Says as lines of JSON what it takes, and how long the walks over it took. */
#include "../programs/far.h"
#include <time.h>

static double now_s(void) {
    struct timespec now;
    far_must(clock_gettime(CLOCK_MONOTONIC, &now));
    return now.tv_sec + now.tv_nsec / 1e9;
}

static uint64_t word(size_t page, uint64_t round, int at) { return far_mix((round << 40 | page << 9) + at); }

/* Each page has what the last round wrote, if there was one; then what this one writes. */
static void walk(uint64_t *words, size_t page, uint64_t round, int is_new) {
    for (int at = 0; at < WORDS; at++) {
        if (!is_new && words[at] != word(page, round, at))
            far_fail("page %zu is wrong in round %llu", page, (unsigned long long)round);
        words[at] = word(page, round + 1, at);
    }
}

int main(int argc, char **argv) {
    if (argc != 4)
        far_fail("usage: usemem STEP_MIB MOST_MIB ROUNDS");
    size_t step = (size_t)atol(argv[1]) * MIB_PAGES, most = (size_t)atol(argv[2]) * MIB_PAGES, pages = 0;
    long rounds = atol(argv[3]);
    char *base = far_map(most);
    for (uint64_t round = 0;; ) {
        size_t old = pages;
        if (pages + step <= most) {
            pages += step;
            printf("{\"event\": \"take\", \"seconds\": 0, \"result\": %zu}\n", pages / MIB_PAGES);
            fflush(stdout);
        }
        double began = now_s();
        for (long left = rounds; left > 0; left--, round++, old = pages)
            for (size_t page = 0; page < pages; page++)
                walk((uint64_t *)(base + page * PAGE), page, round, page >= old);
        printf("{\"event\": \"walk\", \"seconds\": %.3f, \"result\": %zu}\n", now_s() - began, pages / MIB_PAGES);
        fflush(stdout);
    }
}
