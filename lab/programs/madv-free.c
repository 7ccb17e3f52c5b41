/* MADV_FREE: a freed page reads as before or as zeros, never as anything else; a write ends that. */
#include "far.h"

static const char zeros[PAGE];

int main(void) {
    char *far = far_make(FAR_PAGES);
    for (size_t page = 0; page < FAR_PAGES; page += 8)
        far_must(madvise(far + page * PAGE, 4 * PAGE, MADV_FREE));
    for (size_t page = 0; page < FAR_PAGES; page++) {
        char *at = far + page * PAGE;
        if (page % 8 >= 4 || memcmp(at, zeros, PAGE))
            far_check_at(at, page, 1, "after MADV_FREE");
        far_write_page(far, page, 2);
    }
    far_check(far, FAR_PAGES, 2, "written after MADV_FREE");
    puts("ok");
}
