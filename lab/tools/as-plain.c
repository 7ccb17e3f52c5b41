/* as-plain CASE [SIGNAL]: what programs do with the C library and the kernel that a pager could get wrong. Each case prints the same
 * paged as plain: what it prints plain is right by definition. */
#define _GNU_SOURCE
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#define MADV_GUARD_REMOVE 103
#endif

extern void *__libc_malloc(size_t);
extern void *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);

enum { PAGE = 4096, BYTES = 48 << 20 };

/* Pages that a guard takes the place of are gone when the guard is. The others stay. */
static void guards(void) {
    char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), text[32];
    for (size_t at = 0; at < BYTES; at += PAGE)
        sprintf(memory + at, "page %zu", at);
    /* Some are in memory, and were only read since they came back. */
    for (size_t at = 0; at < BYTES / 4; at += PAGE)
        if (!memory[at])
            exit(1);
    printf("install %d\n", madvise(memory, BYTES / 2, MADV_GUARD_INSTALL));
    printf("remove %d\n", madvise(memory, BYTES / 2, MADV_GUARD_REMOVE));
    size_t kept = 0, lost = 0;
    for (size_t at = 0; at < BYTES; at += PAGE) {
        sprintf(text, "page %zu", at);
        kept += at < BYTES / 2 && memory[at];
        lost += at >= BYTES / 2 && strcmp(memory + at, text);
    }
    printf("%zu kept, %zu lost\n", kept, lost);
}

static volatile int is_ready;

static void *block_all(void *unused) {
    sigset_t all;
    memset(&all, 0xff, sizeof all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    is_ready = 1;
    for (;;)
        pause();
    return unused;
}

/* The C library needs two signals of its own, whatever a thread blocks. */
static void blocked(void) {
    pthread_t thread;
    pthread_create(&thread, NULL, block_all, NULL);
    while (!is_ready)
        usleep(1000);
    printf("setgid %d\n", setgid(getgid()));
    pthread_cancel(thread);
    printf("join %d\n", pthread_join(thread, NULL));
}

static void again(int number) { signal(number, again); }

/* A handler that interrupts system calls still does after it was set anew. */
static void interrupted(void) {
    int pipes[2];
    char byte;
    if (pipe(pipes))
        exit(1);
    siginterrupt(SIGALRM, 1);
    signal(SIGALRM, again);
    for (int round = 0; round < 2; round++) {
        ualarm(100000, 0);
        ssize_t bytes = read(pipes[0], &byte, 1);
        int reason = errno;
        printf("read %zd, %s\n", bytes, strerror(reason));
    }
}

#define SHOW(call)                                                                                                     \
    do {                                                                                                               \
        errno = 0;                                                                                                     \
        void *block = (void *)(call);                                                                                  \
        int reason = errno;                                                                                            \
        printf("%s: %s, errno %d\n", #call, block ? "a block" : "null", block ? 0 : reason);                            \
    } while (0)

static void *reserved(size_t bytes, int protection, int flags) {
    void *made = mmap(NULL, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    return made == MAP_FAILED ? NULL : made;
}

static void allocator(void) {
    volatile size_t large = (size_t)1 << 62, largest = SIZE_MAX;
    SHOW(malloc(large));
    SHOW(malloc(largest));
    SHOW(calloc(large, 16));
    SHOW(realloc(malloc(10), large));
    SHOW(reallocarray(malloc(10), large, 16));
    SHOW(pvalloc(largest));
    SHOW(memalign(100, 10));
    SHOW(aligned_alloc(64, large));
    /* More than all memory, which the kernel refuses unless vm.overcommit_memory is 1. */
    volatile size_t beyond_all = (size_t)32 << 40;
    SHOW(malloc(beyond_all));
    SHOW(calloc(beyond_all, 1));
    SHOW(realloc(malloc(10), beyond_all));
    SHOW(memalign(4096, beyond_all));
    printf("posix_memalign %d\n", posix_memalign(&(void *){0}, 64, beyond_all));
    SHOW(reserved(beyond_all, PROT_READ | PROT_WRITE, 0));
    /* What is only reserved may be as large. */
    SHOW(reserved(beyond_all, PROT_NONE, 0));
    SHOW(reserved(beyond_all, PROT_READ | PROT_WRITE, MAP_NORESERVE));
    SHOW(malloc(0));
    SHOW(realloc(malloc(5), 0));
    SHOW(realloc(NULL, 0));
    /* Blocks come by one name and go by the other. */
    free(__libc_malloc(100));
    __libc_free(realloc(__libc_realloc(malloc(100), 200), 300));
    free(__libc_memalign(64, 100));
}

/* What is free goes back on demand, and what is in use is counted. */
static void trim(void) {
    enum { COUNT = 40000, BYTES_EACH = 1000 };
    static void *blocks[COUNT];
    for (size_t i = 0; i < COUNT; i++)
        memset(blocks[i] = malloc(BYTES_EACH), 1, BYTES_EACH);
    printf("in use %d, %d\n", mallinfo2().uordblks >= (size_t)COUNT * BYTES_EACH, mallinfo().uordblks >= COUNT * BYTES_EACH);
    for (size_t i = 0; i < COUNT - 1; i++)
        free(blocks[i]);
    printf("trim %d\n", malloc_trim(0));
    printf("the last block has %d\n", ((char *)blocks[COUNT - 1])[BYTES_EACH - 1]);
}

static volatile int caught;

static void count(int number) {
    (void)number;
    caught++;
}

/* A signal to the own process group arrives once. */
static void group(int number) {
    signal(number, count);
    kill(0, number);
    usleep(300000);
    printf("caught %d\n", caught);
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!strcmp(name, "guards"))
        guards();
    else if (!strcmp(name, "blocked"))
        blocked();
    else if (!strcmp(name, "interrupted"))
        interrupted();
    else if (!strcmp(name, "allocator"))
        allocator();
    else if (!strcmp(name, "trim"))
        trim();
    else if (!strcmp(name, "group") && argc > 2)
        group(atoi(argv[2]));
    else
        return 2;
    return 0;
}
