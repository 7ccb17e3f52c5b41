/* burst MIB [SECONDS [RATE]]: touches so much memory as fast as it can, or so many MiB a second; says how fast, holds it for
 * so long, and verifies it. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

int main(int argc, char **argv) {
    size_t pages = argc > 1 ? strtoul(argv[1], NULL, 10) * 256 : 0, bad = 0;
    if (!pages)
        return 2;
    volatile size_t *memory = mmap(NULL, pages * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        perror("burst");
        return 2;
    }
    /* Page by page: a huge page would be touched at once. */
    madvise((void *)memory, pages * 4096, MADV_NOHUGEPAGE);
    double start = now(), rate = argc > 3 ? strtod(argv[3], NULL) * 256 : 0;
    for (size_t page = 0; page < pages; page++) {
        memory[page * 512] = ~page;
        /* What a pause took too long is made up for, so that the rate is that which was asked for. */
        double early = rate ? page / rate - (now() - start) : 0;
        if (early > 0.001)
            usleep(early * 1e6);
    }
    double took = now() - start;
    printf("burst: %zu MiB at %.0f MiB/s\n", pages / 256, pages / 256 / took);
    fflush(stdout);
    sleep(argc > 2 ? strtoul(argv[2], NULL, 10) : 0);
    for (size_t page = 0; page < pages; page++)
        bad += memory[page * 512] != ~page;
    if (bad)
        printf("burst: %zu pages are wrong\n", bad);
    return bad != 0;
}
