/* Eight TiB of address space that are reserved and hardly used, as MariaDB does for its buffer pool: what that takes
 * depends on what is used, not on what is reserved. */
#include "far.h"
#include <time.h>

static double processor_s(void) {
    struct timespec now;
    far_must(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now));
    return now.tv_sec + now.tv_nsec / 1e9;
}

int main(void) {
    const size_t bytes = (size_t)8 << 40;
    char *base = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        far_fail("mmap: %s", strerror(errno));
    far_must(mprotect(base, FAR_PAGES * PAGE, PROT_READ | PROT_WRITE));
    far_write(base, FAR_PAGES, 1);
    char *last = base + bytes - MIB_PAGES * PAGE;
    far_must(mprotect(last, MIB_PAGES * PAGE, PROT_READ | PROT_WRITE));
    far_write(last, MIB_PAGES, 2);
    for (size_t page = 0; page < FAR_PAGES; page++)
        far_check_at(base + page * PAGE, page, 1, "at the start of the reservation");
    for (size_t page = 0; page < MIB_PAGES; page++)
        far_check_at(last + page * PAGE, page, 2, "at its end");
    far_must(madvise(base + FAR_PAGES * PAGE, bytes - FAR_PAGES * PAGE, MADV_DONTNEED));
    if (*last)
        far_fail("a dropped page is not zero");
    pid_t child = fork();
    if (child == 0) {
        far_check_at(base, 0, 1, "in a child");
        far_must(munmap(base, bytes));
        _exit(0);
    }
    int status;
    far_must(waitpid(child, &status, 0));
    if (status != 0)
        far_fail("the child ended with %#x", status);
    far_must(munmap(base, bytes));
    /* It was 5 s and more where every page of the reservation was asked for. */
    if (processor_s() > 2.5)
        far_fail("it took %.1f s of a processor", processor_s());
    puts("ok");
}
