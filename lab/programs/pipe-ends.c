/* A child's pager keeps no descriptor of the program's open: whoever reads a pipe sees its end once the
 * child has closed the other, though the child goes on. */
#include "far.h"
#include <poll.h>

enum { PIPES = 8, FIRST = 600 };

/* The free numbers, lowest, are `gap` apart when the child is made; pipes are on all others around. */
static void with_gap(void *far, int gap) {
    int readers[PIPES], writers[PIPES], go_on[2], status, next = 3;
    far_must(pipe(go_on));
    for (int i = 0; i < 2; i++) {
        far_must(fcntl(go_on[i], F_DUPFD, FIRST));
        close(go_on[i]);
    }
    go_on[0] = FIRST, go_on[1] = FIRST + 1;
    for (int i = 0; i < PIPES; i++) {
        int ends[2];
        far_must(pipe(ends));
        readers[i] = fcntl(ends[0], F_DUPFD, FIRST);
        writers[i] = fcntl(ends[1], F_DUPFD, FIRST);
        close(ends[0]);
        close(ends[1]);
    }
    /* Writers on the lowest numbers, but for two of them. */
    for (int i = 0; i < PIPES; i++, next++) {
        if (i == 1)
            next++;
        if (i == 1 + gap)
            next++;
        far_must(dup2(writers[i], next));
        close(writers[i]);
        writers[i] = next;
    }
    pid_t child = fork();
    if (child == 0) {
        char byte;
        for (int i = 0; i < PIPES; i++)
            close(writers[i]);
        close(go_on[1]);
        if (read(go_on[0], &byte, 1) != 0)
            far_fail("the parent wrote");
        far_check(far, FAR_PAGES, 1, "in the child");
        _exit(0);
    }
    far_must(child);
    for (int i = 0; i < PIPES; i++) {
        close(writers[i]);
        struct pollfd end = {readers[i], POLLIN, 0};
        if (poll(&end, 1, 5000) != 1 || !(end.revents & POLLHUP))
            far_fail("somebody keeps descriptor %d open, with a gap of %d", writers[i], gap);
        close(readers[i]);
    }
    close(go_on[1]);
    close(go_on[0]);
    far_must(waitpid(child, &status, 0));
    if (status)
        far_fail("the child ended with %#x", status);
}

int main(void) {
    void *far = far_make(FAR_PAGES);
    /* What was open before is the launcher's. */
    far_must(syscall(SYS_close_range, 3, ~0u, 0));
    for (int gap = 0; gap < 4; gap++)
        with_gap(far, gap);
    puts("ok");
}
