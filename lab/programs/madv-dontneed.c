/* MADV_DONTNEED: dropped pages read as zeros, their neighbours do not; by libc and by system call. */
#include "far.h"

static const char zeros[PAGE];

static void drop_and_check(char *far, int raw, uint64_t generation) {
    /* Runs of four pages out of every eight. */
    for (size_t page = 0; page < FAR_PAGES; page += 8)
        far_must(raw ? syscall(SYS_madvise, far + page * PAGE, 4 * PAGE, MADV_DONTNEED)
                     : madvise(far + page * PAGE, 4 * PAGE, MADV_DONTNEED));
    for (size_t page = 0; page < FAR_PAGES; page++) {
        if (page % 8 >= 4)
            far_check_at(far + page * PAGE, page, generation, "beside dropped pages");
        else if (memcmp(far + page * PAGE, zeros, PAGE))
            far_fail("dropped page %zu does not read as zeros", page);
    }
}

int main(void) {
    char *far = far_make(FAR_PAGES);
    drop_and_check(far, 0, 1);
    far_write(far, FAR_PAGES, 2);
    drop_and_check(far, 1, 2);
    far_write(far, FAR_PAGES, 3);
    far_check(far, FAR_PAGES, 3, "written again");
    puts("ok");
}
