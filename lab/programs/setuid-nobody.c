/* Root gives its rights up, then forks. */
#include "far.h"
#include <grp.h>

enum { NOBODY = 65534 };

int main(void) {
    void *far = far_make(FAR_PAGES);
    if (getuid() == 0) {
        far_must(setgroups(0, NULL));
        far_must(setresgid(NOBODY, NOBODY, NOBODY));
        far_must(setresuid(NOBODY, NOBODY, NOBODY));
    }
    far_check(far, FAR_PAGES, 1, "as nobody");
    pid_t child = fork();
    if (child == 0) {
        far_check(far, FAR_PAGES, 1, "in nobody's child");
        far_write(far, FAR_PAGES, 2);
        far_check(far, FAR_PAGES, 2, "in nobody's child, written");
        _exit(0);
    }
    far_wait(child, "fork as nobody");
    far_write(far, FAR_PAGES, 3);
    far_check(far, FAR_PAGES, 3, "as nobody, written");
    puts("ok");
}
