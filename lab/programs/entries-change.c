/* Page table entries change while their pages leave: a thread makes a page cold and touches it, over and over,
 * until it leaves. Linux 6.18's UFFDIO_MOVE begins anew with a page whose entry changed, moves it, and says
 * that it could not be moved. */
#include "far.h"
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* The first page of every 64 is touched in between; the others make it leave. */
enum { PAGES = 24 * MIB_PAGES, STRIDE = 64, SECONDS = 6 };

static char *heap;
static atomic_int done;

static void *walks(void *unused) {
    (void)unused;
    for (uint64_t generation = 1; !done; generation++)
        for (size_t page = 0; page < PAGES && !done; page++)
            if (page % STRIDE) {
                far_check_at(heap + page * PAGE, page, generation, "in a walk");
                far_write_page(heap, page, generation + 1);
            }
    return NULL;
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* The call itself, as fast as can be: its entry should change in any move of the page. */
static long make_cold(volatile char *page) {
    long result = SYS_madvise;
    __asm__ volatile("syscall"
                     : "+a"(result)
                     : "D"(page), "S"((long)PAGE), "d"((long)MADV_COLD)
                     : "rcx", "r11", "memory");
    return result;
}

/* Touches one page until that takes as long as to bring it in. */
static void touch_until_gone(size_t page) {
    volatile char *at = heap + page * PAGE;
    for (int tries = 0; tries < 1000000; tries++) {
        far_must(make_cold(at));
        uint64_t began_ns = now_ns();
        (void)*at;
        if (now_ns() - began_ns > 8000)
            return;
    }
}

int main(void) {
    pthread_t walker;
    heap = far_make(PAGES);
    far_must(-pthread_create(&walker, NULL, walks, NULL));
    uint64_t end_ns = now_ns() + SECONDS * 1000000000ull;
    for (size_t step = 0; now_ns() < end_ns; step++) {
        size_t page = far_mix(step) % (PAGES / STRIDE) * STRIDE;
        far_check_at(heap + page * PAGE, page, 1, "before it leaves");
        touch_until_gone(page);
        far_check_at(heap + page * PAGE, page, 1, "after it left");
    }
    done = 1;
    far_must(-pthread_join(walker, NULL));
    puts("ok");
}
