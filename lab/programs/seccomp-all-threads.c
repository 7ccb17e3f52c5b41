/* A seccomp filter on all threads, which kills on what the program itself has no use for. */
#include "far.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>

#define ALLOW(number)                                                                              \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_##number, 0, 1),                                       \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static void *far;
static volatile int started, filtered;

static void *go_on(void *unused) {
    started = 1;
    while (!filtered)
        usleep(1000);
    far_check(far, FAR_PAGES, 1, "in a thread under the filter");
    return unused;
}

int main(void) {
    far = far_make(FAR_PAGES);
    pthread_t thread;
    if (pthread_create(&thread, NULL, go_on, NULL))
        far_fail("pthread_create");
    while (!started)
        usleep(1000);
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        ALLOW(read), ALLOW(write), ALLOW(futex), ALLOW(madvise), ALLOW(mmap), ALLOW(munmap),
        ALLOW(mprotect), ALLOW(brk), ALLOW(nanosleep), ALLOW(clock_nanosleep), ALLOW(exit),
        ALLOW(exit_group), ALLOW(rt_sigprocmask), ALLOW(rt_sigreturn), ALLOW(rseq),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog filter = {sizeof code / sizeof *code, code};
    far_must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    far_must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &filter));
    filtered = 1;
    far_check(far, FAR_PAGES, 1, "under the filter");
    pthread_join(thread, NULL);
    far_write(far, FAR_PAGES, 2);
    far_check(far, FAR_PAGES, 2, "under the filter, written");
    far_must(write(1, "ok\n", 3));
}
