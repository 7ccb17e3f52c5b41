/* Forks by a system call instruction, which nobody can prepare: the child gets the memory whole or ends by
 * SIGSEGV at its first touch, and never reads anything else; in a parent that has forked and in its child. */
#include "far.h"

static long bare_fork(void) {
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "0"(SYS_fork) : "rcx", "r11", "memory");
    return answer;
}

static void must_not_read_wrong(void *far, const char *when) {
    int status;
    pid_t child = bare_fork();
    if (child == 0) {
        far_check(far, FAR_PAGES, 1, when);
        __asm__ volatile("syscall" : : "a"(SYS_exit_group), "D"(0) : "rcx", "r11");
    }
    far_must(waitpid(child, &status, 0));
    if (status && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV))
        far_fail("%s ended with %#x", when, status);
    far_check(far, FAR_PAGES, 1, when);
}

int main(void) {
    void *far = far_make(FAR_PAGES);
    must_not_read_wrong(far, "a child of a process that never forked");
    pid_t child = fork();
    if (child == 0) {
        must_not_read_wrong(far, "a child of a child");
        _exit(0);
    }
    far_wait(child, "a child");
    must_not_read_wrong(far, "a child of a process that has forked");
    puts("ok");
}
