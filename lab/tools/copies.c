/* copies MIB: GB/s of memcpy from cold to cold memory, as a store whose pages lie apart can do it: page by page (`pages`), and
 * page by page into memory that the process has from the kernel for the first time (`fresh`). */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { PAGE = 4096 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned char *memory(size_t bytes) {
    void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (made == MAP_FAILED) {
        perror("copies: mmap");
        exit(1);
    }
    return made;
}

/* A call for each page, as a store makes it: the compiler may not join them. */
static void *(*volatile copy)(void *, const void *, size_t) = memcpy;

static double rate(unsigned char *to, const unsigned char *from, size_t bytes) {
    double start = now();
    for (size_t at = 0; at < bytes; at += PAGE)
        copy(to + at, from + at, PAGE);
    return bytes / (now() - start) / 1e9;
}

int main(int count, char **arguments) {
    size_t bytes = count == 2 ? strtoul(arguments[1], NULL, 10) << 20 : 0;
    if (!bytes) {
        fprintf(stderr, "usage: copies MIB\n");
        return 2;
    }
    unsigned char *from = memory(bytes), *to = memory(bytes);
    for (size_t at = 0; at < bytes; at++)
        from[at] = at * 2654435761u >> 13;
    double fresh = rate(to, from, bytes), pages = rate(to, from, bytes);
    printf("{\"pages\": %f, \"fresh\": %f}\n", pages, fresh);
}
