/* A daemon by hand: fork, setsid, fork, close every descriptor; each parent ends at once. */
#include "far.h"

int main(void) {
    void *far = far_make(FAR_PAGES);
    pid_t child = fork();
    far_must(child);
    if (child > 0)
        _exit(0);
    far_must(setsid());
    child = fork();
    far_must(child);
    if (child > 0)
        _exit(0);
    syscall(SYS_close_range, 3, ~0u, 0);
    far_must(chdir("/"));
    usleep(200000);
    far_check(far, FAR_PAGES, 1, "in the daemon");
    far_write(far, FAR_PAGES, 2);
    far_check(far, FAR_PAGES, 2, "in the daemon, written");
    puts("ok");
}
