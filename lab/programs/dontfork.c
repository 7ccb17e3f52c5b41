/* madvise(2) says which memory children get: MADV_DONTFORK takes it from them, MADV_DOFORK gives it again. */
#include "far.h"

/* What a child that reads the far memory ends with, as waitpid(2) has it. */
static int child_reads(void *far, const char *when) {
    int status;
    pid_t child = fork();
    if (child == 0) {
        far_check(far, FAR_PAGES, 1, when);
        pid_t grandchild = fork();
        if (grandchild == 0) {
            far_check(far, FAR_PAGES, 1, when);
            _exit(0);
        }
        far_wait(grandchild, when);
        _exit(0);
    }
    far_must(child);
    far_must(waitpid(child, &status, 0));
    return status;
}

int main(void) {
    void *far = far_make(FAR_PAGES);
    far_must(madvise(far, FAR_PAGES * PAGE, MADV_DONTFORK));
    int status = child_reads(far, "in a child that does not get it");
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        far_fail("a child that does not get the memory ended with %#x", status);
    far_must(madvise(far, FAR_PAGES * PAGE, MADV_DOFORK));
    status = child_reads(far, "in a child that gets it again");
    if (status)
        far_fail("a child that gets the memory again ended with %#x", status);
    far_check(far, FAR_PAGES, 1, "in the parent");
    puts("ok");
}
