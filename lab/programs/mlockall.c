/* mlockall, now and for the future. */
#include "far.h"

int main(void) {
    void *far = far_make(FAR_PAGES);
    far_must(mlockall(MCL_CURRENT | MCL_FUTURE));
    far_check(far, FAR_PAGES, 1, "after mlockall");
    void *later = far_make(FAR_PAGES);
    far_check(later, FAR_PAGES, 1, "mapped after mlockall");
    far_write(far, FAR_PAGES, 2);
    far_must(munlockall());
    far_check(far, FAR_PAGES, 2, "after munlockall");
    far_check(later, FAR_PAGES, 1, "after munlockall");
    puts("ok");
}
