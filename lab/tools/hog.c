/* hog MIB: fills so much memory, half of each page random, then verifies it in order and in random order. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static uint64_t word(size_t page, int i) {
    return i < 256 ? mixed(page * 512 + i) : page;
}

static size_t wrong(const uint64_t *memory, size_t page) {
    for (int i = 0; i < 512; i++)
        if (memory[page * 512 + i] != word(page, i))
            return 1;
    return 0;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    size_t pages = argc == 2 ? strtoul(argv[1], NULL, 10) * 256 : 0, bad = 0;
    if (!pages)
        return 2;
    uint64_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("hog");
        return 2;
    }
    double start = now();
    for (size_t page = 0; page < pages; page++)
        for (int i = 0; i < 512; i++)
            memory[page * 512 + i] = word(page, i);
    double filled = now();
    for (size_t page = 0; page < pages; page++)
        bad += wrong(memory, page);
    for (size_t i = 0; i < pages / 8; i++)
        bad += wrong(memory, mixed(i) % pages);
    printf("hog: %zu pages, filled in %.1f s, verified in %.1f s, %zu wrong\n", pages, filled - start, now() - filled, bad);
    return bad != 0;
}
