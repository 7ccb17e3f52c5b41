/* The program leaves namespaces; a new user namespace only a single thread may enter. */
#include "far.h"
#include <sched.h>

int main(void) {
    static const struct {
        int flag;
        const char *name;
    } spaces[] = {
        {CLONE_NEWUSER, "user"}, {CLONE_NEWNS, "mount"},   {CLONE_NEWUTS, "uts"}, {CLONE_NEWIPC, "ipc"},
        {CLONE_NEWNET, "net"},   {CLONE_FILES, "files"},   {CLONE_FS, "fs"},      {CLONE_NEWPID, "pid"},
    };
    void *far = far_make(FAR_PAGES);
    uint64_t generation = 1;
    for (size_t i = 0; i < sizeof spaces / sizeof *spaces; i++) {
        if (unshare(spaces[i].flag) < 0)
            far_fail("unshare %s: %s", spaces[i].name, strerror(errno));
        far_check(far, FAR_PAGES, generation, spaces[i].name);
        far_write(far, FAR_PAGES, ++generation);
    }
    /* The first child in the new pid namespace is its init. */
    pid_t child = fork();
    if (child == 0) {
        far_check(far, FAR_PAGES, generation, "in a child of the new namespaces");
        _exit(0);
    }
    far_wait(child, "fork into the new namespaces");
    far_check(far, FAR_PAGES, generation, "after the child");
    puts("ok");
}
