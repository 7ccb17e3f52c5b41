/* Root moves into an empty root directory, where there is no /proc and no library, then forks. */
#include "far.h"

int main(void) {
    void *far = far_make(FAR_PAGES);
    char path[] = "/tmp/spillway-lab-root.XXXXXX";
    if (!mkdtemp(path))
        far_fail("mkdtemp: %s", strerror(errno));
    far_must(chdir(path));
    int outside = open("/tmp", O_RDONLY | O_DIRECTORY);
    far_must(chroot("."));
    far_must(unlinkat(outside, path + sizeof "/tmp/" - 1, AT_REMOVEDIR));
    far_must(close(outside));
    far_check(far, FAR_PAGES, 1, "in an empty root");
    pid_t child = fork();
    if (child == 0) {
        far_check(far, FAR_PAGES, 1, "in a child in an empty root");
        far_write(far, FAR_PAGES, 2);
        far_check(far, FAR_PAGES, 2, "in a child in an empty root, written");
        _exit(0);
    }
    far_wait(child, "fork in an empty root");
    far_write(far, FAR_PAGES, 3);
    far_check(far, FAR_PAGES, 3, "in an empty root, written");
    puts("ok");
}
