/* daemon(3): the parent ends, the child goes on with far memory. */
#include "far.h"

int main(void) {
    void *far = far_make(FAR_PAGES);
    far_must(daemon(1, 1));
    usleep(200000); /* the parent is gone by now */
    far_check(far, FAR_PAGES, 1, "in the daemon");
    far_write(far, FAR_PAGES, 2);
    far_check(far, FAR_PAGES, 2, "in the daemon, written");
    puts("ok");
}
