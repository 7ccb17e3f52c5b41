/* Memory that can be checked: every page differs from every other and from itself in another
 * generation, none is zero, and half of each does not compress. */
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, MIB_PAGES = 256 };
/* Six times the 16 MiB that self-checking programs are given. */
enum { FAR_PAGES = 96 * MIB_PAGES };

/* splitmix64's finaliser. */
static inline uint64_t far_mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static inline uint64_t far_word(size_t page, uint64_t generation, int word) {
    uint64_t seed = generation << 40 | (uint64_t)page << 9;
    return word < WORDS / 2 ? far_mix(seed + word) : seed + 1;
}

static inline void far_write_page(void *base, size_t page, uint64_t generation) {
    uint64_t *words = (uint64_t *)((char *)base + page * PAGE);
    for (int i = 0; i < WORDS; i++)
        words[i] = far_word(page, generation, i);
}

static inline void far_write(void *base, size_t pages, uint64_t generation) {
    for (size_t page = 0; page < pages; page++)
        far_write_page(base, page, generation);
}

/* Says what went wrong and ends the program. */
#define far_fail(...)                                                                              \
    do {                                                                                           \
        char line_[256];                                                                           \
        int length_ = snprintf(line_, sizeof line_ - 1, __VA_ARGS__);                              \
        line_[length_++] = '\n';                                                                   \
        if (write(2, line_, length_)) {}                                                           \
        _exit(1);                                                                                  \
    } while (0)

/* The page that lies at `at` must be page `page` of `generation`. */
static inline void far_check_at(const void *at, size_t page, uint64_t generation, const char *when) {
    const uint64_t *words = at;
    for (int i = 0; i < WORDS; i++)
        if (words[i] != far_word(page, generation, i))
            far_fail("%s: page %zu word %d is %s (%#lx)", when, page, i,
                     words[i] ? "wrong" : "zero", words[i]);
}

static inline void far_check(const void *base, size_t pages, uint64_t generation, const char *when) {
    for (size_t page = 0; page < pages; page++)
        far_check_at((const char *)base + page * PAGE, page, generation, when);
}

static inline void *far_map(size_t pages) {
    void *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        far_fail("mmap: %s", strerror(errno));
    return base;
}

/* Pages of which most are far, in generation 1. */
static inline void *far_make(size_t pages) {
    void *base = far_map(pages);
    far_write(base, pages, 1);
    return base;
}

/* `call` must not answer a negative number. */
#define far_must(call)                                                                             \
    do {                                                                                           \
        if ((long)(call) < 0)                                                                      \
            far_fail("%s: %s", #call, strerror(errno));                                            \
    } while (0)

/* The child must end with status 0. */
static inline void far_wait(pid_t child, const char *what) {
    int status;
    if (child < 0)
        far_fail("%s: %s", what, strerror(errno));
    if (waitpid(child, &status, 0) < 0)
        far_fail("%s: waitpid: %s", what, strerror(errno));
    if (status)
        far_fail("%s: the child ended with %s %d", what, WIFSIGNALED(status) ? "signal" : "status",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
}
