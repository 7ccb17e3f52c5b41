/* MREMAP_DONTUNMAP: the moved pages keep their bytes; the old range reads as zeros, and what is written to
 * it later leaves local memory like any other. */
#include "far.h"

enum { PAGES = 48 * MIB_PAGES };

static size_t resident(char *base) {
    static unsigned char there[PAGES];
    size_t count = 0;
    far_must(mincore(base, PAGES * PAGE, there));
    for (size_t page = 0; page < PAGES; page++)
        count += there[page] & 1;
    return count;
}

int main(void) {
    char *old = far_make(PAGES);
    for (int generation = 2; generation < 5; generation++) {
        char *moved = mremap(old, PAGES * PAGE, PAGES * PAGE, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, NULL);
        if (moved == MAP_FAILED)
            far_fail("mremap: %s", strerror(errno));
        for (size_t byte = 0; byte < PAGES * PAGE; byte += 64)
            if (old[byte])
                far_fail("byte %zu of the old range is %d, expected 0", byte, old[byte]);
        far_write(old, PAGES, generation);
        far_check(moved, PAGES, generation - 1, "moved");
        far_check(old, PAGES, generation, "the old range");
        far_check(moved, PAGES, generation - 1, "moved, again");
        if (getenv("SPILLWAY_TREE") && resident(old) > PAGES / 4)
            far_fail("%zu pages of the old range did not leave", resident(old));
        far_must(munmap(moved, PAGES * PAGE));
    }
    far_must(munmap(old, PAGES * PAGE));
    puts("ok");
}
