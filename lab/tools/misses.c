/* misses MIB HOT ACCESSES: how long accesses to far pages of so much memory take, with the eviction of another page and without.
 * HOT of a hundred accesses go to the same tenth of the pages, the others to any; which page is next, nobody can foresee.
 *
 * First all accesses find local memory full. Then the program gives back all pages that are local, and touches each page that is
 * far once: there is room for them. Prints a JSON object: mean times in nanoseconds and how many misses they come from. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MISS_NS = 600 };

static long now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000l + time.tv_nsec;
}

/* xorshift64*: the same pages in each run. */
static unsigned long random_next(unsigned long *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ul >> 16;
}

struct misses {
    long ns, count, wrong;
};

/* Reads a page and writes to it; a quick access found it local. */
static void touch(volatile uint64_t *memory, size_t page, struct misses *misses) {
    volatile uint64_t *words = memory + page * WORDS;
    long before = now_ns();
    uint64_t word = *words;
    long took = now_ns() - before;
    words[1]++;
    misses->wrong += word != page + 1;
    if (took > MISS_NS) {
        misses->ns += took;
        misses->count++;
    }
}

int main(int argc, char **argv) {
    size_t pages = argc == 4 ? strtoul(argv[1], NULL, 10) * (1 << 20) / PAGE : 0;
    unsigned long hot = argc == 4 ? strtoul(argv[2], NULL, 10) : 0, accesses = argc == 4 ? strtoul(argv[3], NULL, 10) : 0;
    if (pages < 10 || hot > 100 || accesses == 0)
        return 2;
    uint64_t *memory = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t *entries = malloc(pages * sizeof(*entries));
    size_t *far = malloc(pages * sizeof(*far));
    int pagemap = open("/proc/self/pagemap", O_RDONLY);
    if (memory == MAP_FAILED || !entries || !far || pagemap < 0) {
        perror("misses");
        return 2;
    }
    for (size_t page = 0; page < pages; page++)
        memory[page * WORDS] = page + 1;

    unsigned long state = 88172645463325252ul;
    struct misses full = {0}, room = {0}, warming = {0};
    for (unsigned long access = 0; access < accesses + accesses / 4; access++) {
        int is_hot = random_next(&state) % 100 < hot;
        size_t page = random_next(&state) % (is_hot ? pages / 10 : pages);
        touch(memory, page, access < accesses / 4 ? &warming : &full);
    }

    size_t bytes = pages * sizeof(*entries);
    if (pread(pagemap, entries, bytes, (uintptr_t)memory / PAGE * sizeof(*entries)) != (ssize_t)bytes) {
        perror("misses: /proc/self/pagemap");
        return 2;
    }
    size_t count = 0;
    for (size_t page = 0; page < pages; page++) {
        if (entries[page] >> 63)
            madvise(memory + page * WORDS, PAGE, MADV_DONTNEED);
        else
            far[count++] = page;
    }
    for (size_t left = count; left > 1; left--) {
        size_t other = random_next(&state) % left, page = far[left - 1];
        far[left - 1] = far[other];
        far[other] = page;
    }
    /* No more of them than surely fit. */
    size_t fit = (pages - count) * 3 / 4;
    for (size_t at = 0; at < count && at < fit; at++)
        touch(memory, far[at], &room);

    if (full.wrong || room.wrong || warming.wrong) {
        fprintf(stderr, "misses: a page is wrong\n");
        return 1;
    }
    printf("{\"full_ns\": %.1f, \"full\": %ld, \"room_ns\": %.1f, \"room\": %ld}\n", full.count ? (double)full.ns / full.count : 0.0,
           full.count, room.count ? (double)room.ns / room.count : 0.0, room.count);
    return 0;
}
