/* press PERCENT: takes memory, 100 MiB a second, until the kernel swaps onto an NBD disk. Prints the milliseconds from the
 * moment when PERCENT of all memory was in use (MemTotal less MemAvailable) to the disk among the swaps, and to the first
 * page on it. Gives up after a minute.
 * press out MIB: takes so much, has the kernel swap it out, says "out" and waits to be killed.
 * press grow MIB: takes so much, 20 MiB a second at most, says "grown" and waits to be killed. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MIB = 1 << 20, MOST_MIB = 4096, STEP_US = 10000, GROW_US = 50000 };

static double now_ms(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

static const char *text(const char *path) {
    static char text[8192];
    int file = open(path, O_RDONLY);
    ssize_t count = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    text[count < 0 ? 0 : count] = 0;
    return text;
}

static double field(const char *in, const char *name) {
    const char *at = strstr(in, name);
    return at ? atof(at + strlen(name)) : 0;
}

/* KiB on an NBD disk; less than 0 if the kernel swaps onto none. */
static long swapped(void) {
    const char *line = strstr(text("/proc/swaps"), "/dev/nbd");
    long used = -1;
    return line && sscanf(line, "%*s %*s %*s %ld", &used) == 1 ? used : -1;
}

static void take(char *memory, size_t mib) {
    for (size_t at = 0; at < MIB; at += sizeof(long))
        *(long *)(memory + mib * MIB + at) = random();
}

static int hold(const char *what) {
    puts(what);
    fflush(stdout);
    pause();
    return 0;
}

static int out(char *memory, size_t mibs) {
    for (size_t mib = 0; mib < mibs; mib++)
        take(memory, mib);
    return madvise(memory, mibs * MIB, MADV_PAGEOUT) ? 1 : hold("out");
}

static int grow(char *memory, size_t mibs) {
    for (size_t mib = 0; mib < mibs; mib++) {
        take(memory, mib);
        usleep(GROW_US);
    }
    return hold("grown");
}

int main(int argc, char **argv) {
    double percent = argc == 2 ? atof(argv[1]) : 0, crossed = 0, on = 0, end = now_ms() + 60e3, next = now_ms();
    char *memory = mmap(NULL, (size_t)MOST_MIB * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return 2;
    if (argc == 3) {
        size_t mibs = strtoul(argv[2], NULL, 10);
        return strcmp(argv[1], "out") ? grow(memory, mibs) : out(memory, mibs);
    }
    if (percent <= 0)
        return 2;
    for (size_t mib = 0; mib < MOST_MIB && now_ms() < end;) {
        // A few at once at most: else it would not look while the kernel swaps, or late.
        for (int left = crossed ? 4 : 1; left && mib < MOST_MIB && next <= now_ms(); left--, next += STEP_US / 1e3)
            take(memory, mib++);
        usleep(500);
        const char *info = text("/proc/meminfo");
        double total = field(info, "MemTotal:"), available = field(info, "MemAvailable:");
        if (!crossed && (total - available) * 100 >= total * percent)
            crossed = now_ms();
        long used = crossed ? swapped() : -1;
        if (!on && used >= 0)
            on = now_ms();
        if (used > 0) {
            printf("%.0f %.0f\n", on - crossed, now_ms() - crossed);
            return 0;
        }
    }
    printf("nothing was swapped\n");
    return 1;
}
