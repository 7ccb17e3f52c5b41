/* Forks and clones that go past libc, with memory of their own and with shared memory. */
#include "far.h"
#include <linux/sched.h>
#include <sched.h>

static void *far;

static int in_shared_memory(void *unused) {
    (void)unused;
    far_check(far, FAR_PAGES, 1, "in a CLONE_VM child");
    far_write(far, FAR_PAGES, 2);
    return 0;
}

static void child_goes_on(const char *what) {
    far_check(far, FAR_PAGES, 2, what);
    far_write(far, FAR_PAGES, 3);
    far_check(far, FAR_PAGES, 3, what);
    _exit(0);
}

int main(void) {
    far = far_make(FAR_PAGES);
    char *stack = malloc(256 << 10);
    far_wait(clone(in_shared_memory, stack + (256 << 10), CLONE_VM | SIGCHLD, NULL), "CLONE_VM");
    far_check(far, FAR_PAGES, 2, "after the CLONE_VM child");

    pid_t child = syscall(SYS_fork);
    if (child == 0)
        child_goes_on("in a raw fork");
    far_wait(child, "raw fork");
    far_check(far, FAR_PAGES, 2, "after the raw fork");

    child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0)
        child_goes_on("in a raw clone");
    far_wait(child, "raw clone");
    far_check(far, FAR_PAGES, 2, "after the raw clone");

    struct clone_args arguments = {.exit_signal = SIGCHLD};
    child = syscall(SYS_clone3, &arguments, sizeof arguments);
    if (child == 0)
        child_goes_on("in a raw clone3");
    far_wait(child, "raw clone3");
    far_check(far, FAR_PAGES, 2, "after the raw clone3");
    puts("ok");
}
