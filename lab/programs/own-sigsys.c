/* Programs that use what a fork uses: they block SIGSYS, handle it, have a seccomp filter that raises it,
 * or a syscall user dispatch of their own. Each finds it as it was after a fork. */
#include "far.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#endif

static void *heap;
static volatile sig_atomic_t caught;
/* Thread-local data may be far, which the kernel's look at it must bear. */
static volatile char selector;

/* Answers every system call that raised SIGSYS with 4242. */
static void on_sigsys(int signal, siginfo_t *info, void *context) {
    (void)signal;
    (void)info;
    selector = 0;
    caught++;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4242;
}

static void fork_and_check(const char *when) {
    far_write(heap, FAR_PAGES, 1);
    pid_t child = fork();
    if (child == 0) {
        far_check(heap, FAR_PAGES, 1, when);
        _exit(0);
    }
    far_wait(child, when);
}

static void handle(void) {
    struct sigaction action = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO}, seen;
    sigfillset(&action.sa_mask);
    far_must(sigaction(SIGSYS, &action, NULL));
    fork_and_check("with a handler");
    far_must(sigaction(SIGSYS, NULL, &seen));
    if (seen.sa_sigaction != on_sigsys)
        far_fail("the handler is not the program's");
    raise(SIGSYS);
    if (caught != 1)
        far_fail("the handler did not run");
}

static void block(void) {
    sigset_t blocked, seen;
    sigfillset(&blocked);
    far_must(sigprocmask(SIG_BLOCK, &blocked, NULL));
    fork_and_check("with all signals blocked");
    far_must(sigprocmask(SIG_SETMASK, NULL, &seen));
    for (int number = 1; number < 32; number++)
        if (number != SIGKILL && number != SIGSTOP && !sigismember(&seen, number))
            far_fail("signal %d is not blocked any more", number);
    sigemptyset(&blocked);
    far_must(sigprocmask(SIG_SETMASK, &blocked, NULL));
    fork_and_check("with no signal blocked");
    far_must(sigprocmask(SIG_SETMASK, NULL, &seen));
    for (int number = 1; number < 32; number++)
        if (sigismember(&seen, number) == 1)
            far_fail("signal %d is blocked", number);
}

static void dispatch(void) {
    far_must(prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, 0, 0, (unsigned long)&selector));
    fork_and_check("with a dispatch");
    caught = 0;
    selector = 1;
    long answer = syscall(SYS_getppid);
    if (answer != 4242 || caught != 1)
        far_fail("the dispatch is not the program's any more: %ld", answer);
    far_must(prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0));
}

/* Where the C library's code lies. */
static void find_libc(unsigned long *start, unsigned long *end) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512], executable;
    while (fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*c%*c%c", start, end, &executable) == 3 && executable == 'x' &&
            (unsigned long)getppid - *start < *end - *start) {
            fclose(maps);
            return;
        }
    far_fail("no C library");
}

/* A dispatch that lets the C library's system calls through. */
static void dispatch_but_libc(void) {
    unsigned long start, end;
    find_libc(&start, &end);
    long parent = getppid();
    far_must(prctl(PR_SET_SYSCALL_USER_DISPATCH, 1, start, end - start, (unsigned long)&selector));
    caught = 0;
    selector = 1;
    long answer = syscall(SYS_getppid);
    selector = 0;
    far_must(prctl(PR_SET_SYSCALL_USER_DISPATCH, 0, 0, 0, 0));
    if (answer != parent || caught)
        far_fail("a system call of the C library was dispatched: %ld", answer);
}

/* A filter that raises SIGSYS for getsid and forbids acct. */
static void filter(void) {
    struct sock_filter lines[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_acct, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof lines / sizeof *lines, lines};
    far_must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    far_must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
    fork_and_check("with a filter");
    caught = 0;
    if (getsid(0) != 4242 || caught != 1)
        far_fail("the filter's signal did not come");
}

int main(void) {
    heap = far_map(FAR_PAGES);
    handle();
    block();
    dispatch();
    dispatch_but_libc();
    filter();
    puts("ok");
}
