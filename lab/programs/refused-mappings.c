/* Mapping calls that the kernel refuses leave far memory as it was, also while another thread reads it. */
#include "far.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/resource.h>

enum { PAGES = 16 * MIB_PAGES, MAPS_MOST = 300000 };

static char *far, *room;
static size_t arena_pages;
static atomic_int over;

/* `answer`, an address or a status, must say that the call was refused; then everything must be there. */
static void refused(const char *what, long answer) {
    if (answer != -1)
        far_fail("%s was not refused", what);
    far_check(far, PAGES, 1, what);
}

static void *read_all(void *unused) {
    while (!over)
        for (size_t page = 0; page < PAGES; page += 3)
            far_check_at(far + page * PAGE, page, 1, "another thread");
    return unused;
}

static long over_it(int protection, int flags, int file, long offset) {
    return (long)mmap(far, PAGES * PAGE, protection, flags | MAP_FIXED, file, offset);
}

static void files(void) {
    int read_only = open("/etc/passwd", O_RDONLY), directory = open("/tmp", O_RDONLY);
    int write_only = open("/dev/zero", O_WRONLY), sealed = memfd_create("sealed", MFD_ALLOW_SEALING);
    far_must(ftruncate(sealed, PAGES * PAGE));
    far_must(fcntl(sealed, F_ADD_SEALS, F_SEAL_WRITE));
    int both = PROT_READ | PROT_WRITE;
    refused("a descriptor that is not open", over_it(both, MAP_PRIVATE, 9999, 0));
    refused("no descriptor", over_it(both, MAP_PRIVATE, -1, 0));
    refused("a bad offset", over_it(both, MAP_PRIVATE, read_only, 17));
    refused("a read-only file", over_it(both, MAP_SHARED, read_only, 0));
    refused("a write-only file", over_it(PROT_READ, MAP_PRIVATE, write_only, 0));
    refused("a directory", over_it(PROT_READ, MAP_PRIVATE, directory, 0));
    refused("a sealed memfd", over_it(both, MAP_SHARED, sealed, 0));
    refused("no type", over_it(both, MAP_ANONYMOUS, -1, 0));
    refused("huge pages of a size that there is not", over_it(both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | 63 << 26, -1, 0));
    refused("a bad address", (long)mmap(far + 1, PAGE, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    refused("no bytes", (long)mmap(far, 0, both, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
    for (int file = directory; file <= sealed; file++)
        close(file);
    close(read_only);
}

static void remaps(void) {
    size_t bytes = PAGES * PAGE;
    int fixed = MREMAP_MAYMOVE | MREMAP_FIXED;
    refused("mremap of nothing", (long)mremap((void *)0x10000, PAGE, PAGE, fixed, far));
    refused("mremap with unknown flags", (long)mremap(room, bytes, bytes, fixed | 64, far));
    refused("mremap that is fixed and may not move", (long)mremap(room, bytes, bytes, MREMAP_FIXED, far));
    refused("mremap of far memory that may not move", (long)mremap(far, bytes, bytes, MREMAP_FIXED, room));
    refused("mremap to a bad address", (long)mremap(far, bytes, bytes, fixed, room + 1));
    refused("mremap onto itself", (long)mremap(far, bytes, bytes, fixed, far + PAGE));
    refused("mremap to no bytes", (long)mremap(far, bytes, 0, MREMAP_MAYMOVE, NULL));
    refused("mremap out of the address space", (long)mremap(far, bytes, bytes, fixed, (void *)(1L << 47)));
    refused("mremap to too many bytes", (long)mremap(far, bytes, 1L << 47, MREMAP_MAYMOVE, NULL));
    refused("mremap that keeps the source and grows",
            (long)mremap(far, bytes, 2 * bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL));
    refused("munmap of no bytes", munmap(far, 0));
    refused("munmap at a bad address", munmap(far + 1, PAGE));
    refused("munmap over the end", munmap(far, ~0UL - (uintptr_t)far));
}

/* The arena is larger than the limit that is left. */
static void address_space(void) {
    struct rlimit before, little;
    far_must(getrlimit(RLIMIT_AS, &before));
    little = before;
    little.rlim_cur = 1 << 30;
    far_must(setrlimit(RLIMIT_AS, &little));
    long mapped = (long)mmap(far, arena_pages * PAGE, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    long grown = (long)mremap(far, PAGES * PAGE, arena_pages * PAGE, MREMAP_MAYMOVE, NULL);
    far_must(setrlimit(RLIMIT_AS, &before));
    refused("a mapping above RLIMIT_AS", mapped);
    refused("mremap above RLIMIT_AS", grown);
}

/* A hole makes a mapping more: with as many as there may be, the kernel makes none. */
static void count_of_maps(void) {
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    int most = 0;
    if (!file || fscanf(file, "%d", &most) != 1 || most > MAPS_MOST) {
        if (file)
            fclose(file);
        return;
    }
    fclose(file);
    size_t bytes = 2UL * most * PAGE, made = 0;
    char *many = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (many == MAP_FAILED)
        far_fail("mmap: %s", strerror(errno));
    while (mprotect(many + (2 * made + 1) * PAGE, PAGE, PROT_READ) == 0)
        made++;
    char *inside = far + PAGES / 2 * PAGE;
    long hole = munmap(inside, PAGE);
    long mapped = (long)mmap(inside, PAGE, PROT_READ, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    long moved = (long)mremap(inside, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    far_must(munmap(many, bytes));
    refused("a hole above max_map_count", hole);
    refused("a mapping above max_map_count", mapped);
    refused("mremap above max_map_count", moved);
}

int main(void) {
    arena_pages = PAGES + (8UL << 30) / PAGE;
    far = mmap(NULL, arena_pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    far_must(munmap(far, arena_pages * PAGE));
    if (mmap(far, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != far)
        far_fail("mmap: %s", strerror(errno));
    room = far_make(PAGES);
    char *bystander = far_make(2 * PAGES);
    far_write(far, PAGES, 1);
    pthread_t reader;
    for (int beside = 0; beside < 2; beside++) {
        if (beside)
            far_must(-pthread_create(&reader, NULL, read_all, NULL));
        files();
        remaps();
        address_space();
        count_of_maps();
    }
    over = 1;
    far_must(-pthread_join(reader, NULL));
    far_check(bystander, 2 * PAGES, 1, "a bystander");
    puts("ok");
}
