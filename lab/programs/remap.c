/* mremap grows, moves and shrinks far ranges, munmap cuts holes, MAP_FIXED maps over them; through
 * libc in even rounds, by system call in odd ones. */
#include "far.h"

enum { START = 32 * MIB_PAGES, ROUNDS = 6 };

static int raw;

static char *remap(char *at, size_t old_pages, size_t new_pages, int flags, char *to) {
    char *moved = raw ? (char *)syscall(SYS_mremap, at, old_pages * PAGE, new_pages * PAGE, flags, to)
                      : mremap(at, old_pages * PAGE, new_pages * PAGE, flags, to);
    if (moved == MAP_FAILED)
        far_fail("mremap: %s", strerror(errno));
    return moved;
}

static void unmap(char *at, size_t pages) {
    far_must(raw ? syscall(SYS_munmap, at, pages * PAGE) : munmap(at, pages * PAGE));
}

static void map_over(char *at, size_t pages) {
    int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    char *mapped = raw ? (char *)syscall(SYS_mmap, at, pages * PAGE, protection, flags, -1, 0L)
                       : mmap(at, pages * PAGE, protection, flags, -1, 0);
    if (mapped != at)
        far_fail("mmap over %p: %s", (void *)at, strerror(errno));
}

static void must_be_zero(const char *at, size_t pages, const char *when) {
    for (size_t i = 0; i < pages * PAGE; i++)
        if (at[i])
            far_fail("%s: byte %zu is %d, expected 0", when, i, at[i]);
}

static void round_of(uint64_t generation) {
    size_t pages = START;
    char *far = far_map(pages);
    far_write(far, pages, generation);

    far = remap(far, pages, 2 * pages, MREMAP_MAYMOVE, NULL);
    far_check(far, pages, generation, "grown");
    must_be_zero(far + pages * PAGE, 16, "the new part");
    for (size_t page = pages; page < 2 * pages; page++)
        far_write_page(far, page, generation);
    pages *= 2;

    char *target = far_map(pages);
    far_write_page(target, 5, 99);
    far = remap(far, pages, pages, MREMAP_MAYMOVE | MREMAP_FIXED, target);
    far_check(far, pages, generation, "moved over a mapping");

    far = remap(far, pages, pages - 777, 0, NULL);
    pages -= 777;
    far_check(far, pages, generation, "shrunk");

    /* A hole, mapped anew: zeros in it, all else as before. */
    char *hole = far + 1000 * PAGE;
    unmap(hole, 500);
    map_over(hole, 500);
    must_be_zero(hole, 500, "a hole mapped anew");
    far_check(far, 1000, generation, "below a hole");
    for (size_t page = 1500; page < pages; page++)
        far_check_at(far + page * PAGE, page, generation, "above a hole");

    /* Mapping over far pages without unmapping them first. */
    map_over(far + 3000 * PAGE, 700);
    must_be_zero(far + 3000 * PAGE, 700, "mapped over far pages");
    for (size_t page = 3700; page < pages; page++)
        far_check_at(far + page * PAGE, page, generation, "above a mapping");

    /* A piece from the middle moves elsewhere and the place it left faults no more. */
    char *piece = remap(far + 4000 * PAGE, 300, 300, MREMAP_MAYMOVE | MREMAP_FIXED, far_map(300));
    for (size_t page = 0; page < 300; page++)
        far_check_at(piece + page * PAGE, 4000 + page, generation, "a piece moved away");
    char vector[1];
    if (mincore(far + 4000 * PAGE, PAGE, (void *)vector) == 0)
        far_fail("a piece that moved away is still mapped");
    unmap(piece, 300);
    unmap(far, pages);
}

int main(void) {
    char *bystander = far_make(START);
    for (int round = 0; round < ROUNDS; round++) {
        raw = round % 2;
        round_of(round + 1);
        far_check(bystander, START, 1, "a bystander");
    }
    puts("ok");
}
