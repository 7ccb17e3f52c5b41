/* Far ranges are locked and unlocked; a locked page is resident when mlock returns. */
#include "far.h"

int main(void) {
    enum { LOCKED = 512 };
    char *far = far_make(FAR_PAGES);
    char *locked = far + 3000 * PAGE;
    far_must(mlock(locked, LOCKED * PAGE));
    far_write(far, FAR_PAGES, 2);
    far_check(far, FAR_PAGES, 2, "with a locked range");
    unsigned char resident[LOCKED];
    far_must(mincore(locked, LOCKED * PAGE, resident));
    for (int i = 0; i < LOCKED; i++)
        if (!(resident[i] & 1))
            far_fail("page %d of a locked range is not resident", i);
    far_must(munlock(locked, LOCKED * PAGE));
    far_write(far, FAR_PAGES, 3);
    far_check(far, FAR_PAGES, 3, "after munlock");
    puts("ok");
}
