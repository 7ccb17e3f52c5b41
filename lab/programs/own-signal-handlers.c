/* Handlers of SIGSEGV and SIGBUS: far memory raises neither, real bad accesses still do. */
#include "far.h"
#include <setjmp.h>

static sigjmp_buf back;
static volatile int last_signal;
static void *volatile last_address;

static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)context;
    last_signal = signal;
    last_address = info->si_addr;
    siglongjmp(back, 1);
}

static void must_raise(int signal, volatile char *at, const char *what) {
    last_signal = 0;
    if (sigsetjmp(back, 1) == 0)
        *at = 1;
    if (last_signal != signal || last_address != at)
        far_fail("%s raised %d at %p, expected %d at %p", what, last_signal, last_address, signal,
                 (void *)at);
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    stack_t stack = {.ss_sp = malloc(64 << 10), .ss_size = 64 << 10};
    far_must(sigaltstack(&stack, NULL));
    far_must(sigaction(SIGSEGV, &action, NULL));
    far_must(sigaction(SIGBUS, &action, NULL));
    char *far = far_make(FAR_PAGES);
    if (sigsetjmp(back, 1))
        far_fail("signal %d on far memory at %p", last_signal, last_address);
    far_check(far, FAR_PAGES, 1, "with handlers");

    must_raise(SIGSEGV, NULL, "a null pointer");
    char *gone = far_map(16);
    far_write(gone, 16, 1);
    far_must(munmap(gone, 16 * PAGE));
    must_raise(SIGSEGV, gone + PAGE, "unmapped memory");
    far_must(mprotect(far + 8 * PAGE, PAGE, PROT_READ));
    must_raise(SIGSEGV, far + 8 * PAGE, "read-only far memory");
    far_must(mprotect(far + 8 * PAGE, PAGE, PROT_READ | PROT_WRITE));

    char path[] = "/tmp/spillway-lab-file.XXXXXX";
    int fd = mkstemp(path);
    far_must(fd);
    unlink(path);
    far_must(ftruncate(fd, PAGE));
    char *file = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must_raise(SIGBUS, file + PAGE, "a page past the end of a file");

    if (sigsetjmp(back, 1))
        far_fail("signal %d on far memory at %p", last_signal, last_address);
    far_check(far, FAR_PAGES, 1, "after bad accesses");
    puts("ok");
}
