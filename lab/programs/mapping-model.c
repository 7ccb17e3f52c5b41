/* Random sequences of mmap, munmap, mremap, mprotect and madvise over far memory, some of which the kernel
 * refuses, compared with a model of each page. Two threads, each over an arena of its own: mapping-model [SEED] */
#include "far.h"
#include <pthread.h>

enum { ARENA = 32 * MIB_PAGES, MOST = 1024, STEPS = 800, UNMAPPED = -1, FIXED = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED };

struct page {
    int32_t origin;     /* which page it was when it was written */
    int32_t generation; /* 0: zeros; UNMAPPED */
    int access;
};

struct arena {
    char *base;
    struct page pages[ARENA];
    uint64_t random;
    int generation;
};

static uint64_t draw(struct arena *arena, uint64_t below) {
    arena->random = far_mix(arena->random);
    return arena->random % below;
}

static char *at(struct arena *arena, size_t page) { return arena->base + page * PAGE; }

static void check(struct arena *arena, size_t first, size_t count, const char *when) {
    static const char zeros[PAGE];
    for (size_t page = first; page < first + count; page++) {
        struct page *model = &arena->pages[page];
        if (model->generation == UNMAPPED || !(model->access & PROT_READ))
            continue;
        if (model->generation)
            far_check_at(at(arena, page), model->origin, model->generation, when);
        else if (memcmp(at(arena, page), zeros, PAGE))
            far_fail("%s: page %zu is not zero", when, page);
    }
}

static void become(struct arena *arena, size_t first, size_t count, int generation, int access) {
    for (size_t page = first; page < first + count; page++)
        arena->pages[page] = (struct page){0, generation, access};
}

static int is_mapped(struct arena *arena, size_t page) {
    unsigned char there;
    return mincore(at(arena, page), PAGE, &there) == 0;
}

static void write_some(struct arena *arena, size_t first, size_t count) {
    arena->generation++;
    for (size_t page = first; page < first + count; page++)
        if (arena->pages[page].generation != UNMAPPED && arena->pages[page].access & PROT_WRITE) {
            far_write_page(arena->base, page, arena->generation);
            arena->pages[page].origin = page;
            arena->pages[page].generation = arena->generation;
        }
}

/* What a refused call with a fixed target may have unmapped of it is unmapped; the rest is as it was. */
static void look_again(struct arena *arena, size_t first, size_t count) {
    for (size_t page = first; page < first + count; page++)
        if (!is_mapped(arena, page))
            arena->pages[page].generation = UNMAPPED;
    check(arena, first, count, "after a call that was refused");
}

/* Moves the pages from `first` on that are alike. */
static void move(struct arena *arena, size_t first, size_t most) {
    struct page *from = &arena->pages[first];
    size_t count = 1;
    while (count < most && from[count].access == from->access &&
           (from[count].generation == UNMAPPED) == (from->generation == UNMAPPED))
        count++;
    size_t to = draw(arena, ARENA - MOST), now = draw(arena, 3) ? count : 1 + draw(arena, MOST);
    int flags = MREMAP_MAYMOVE | MREMAP_FIXED | (draw(arena, 3) ? 0 : MREMAP_DONTUNMAP);
    flags |= draw(arena, 8) ? 0 : 64; /* no flag of the kernel's */
    char *moved = mremap(at(arena, first), count * PAGE, now * PAGE, flags, at(arena, to));
    if (moved == MAP_FAILED) {
        /* Linux 6.17 moves one mapping after the other, and may stop. */
        for (size_t page = 0; page < count && page < now && !is_mapped(arena, first + page); page++)
            if (arena->pages[first + page].generation != UNMAPPED)
                arena->pages[to + page] = arena->pages[first + page];
        look_again(arena, to, now);
        look_again(arena, first, count);
        return;
    }
    if (moved != at(arena, to))
        far_fail("mremap moved elsewhere");
    become(arena, to, now, 0, from->access);
    memcpy(&arena->pages[to], from, (count < now ? count : now) * sizeof *from);
    if (flags & MREMAP_DONTUNMAP)
        become(arena, first, count, 0, from->access);
    else
        become(arena, first, count, UNMAPPED, 0);
    check(arena, to, now, "moved");
    check(arena, first, count, "moved away");
}

static void step(struct arena *arena) {
    static const int accesses[] = {PROT_READ | PROT_WRITE, PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    size_t count = 1 + draw(arena, draw(arena, 2) ? MOST : 16), first = draw(arena, ARENA - MOST);
    int access = accesses[draw(arena, 4)];
    switch (draw(arena, 12)) {
    case 0: /* over what is there */
    case 1:
        if (mmap(at(arena, first), count * PAGE, access, FIXED, -1, 0) != at(arena, first))
            far_fail("mmap: %s", strerror(errno));
        become(arena, first, count, 0, access);
        break;
    case 2: /* refused */
        if (mmap(at(arena, first), count * PAGE, access, MAP_PRIVATE | MAP_FIXED, 9999, 0) != MAP_FAILED)
            far_fail("a mapping of no file");
        check(arena, first, count, "after a mapping that was refused");
        break;
    case 3:
        far_must(munmap(at(arena, first), count * PAGE));
        become(arena, first, count, UNMAPPED, 0);
        break;
    case 4:
    case 5:
    case 6:
        move(arena, first, count);
        break;
    case 7:
        /* Stops at the first hole, after what lies before it. */
        if (mprotect(at(arena, first), count * PAGE, access) && errno != ENOMEM)
            far_fail("mprotect: %s", strerror(errno));
        for (size_t page = first; page < first + count; page++) {
            if (arena->pages[page].generation == UNMAPPED)
                break;
            arena->pages[page].access = access;
        }
        break;
    case 8:
        if (madvise(at(arena, first), count * PAGE, MADV_DONTNEED) && errno != ENOMEM)
            far_fail("madvise: %s", strerror(errno));
        for (size_t page = first; page < first + count; page++)
            if (arena->pages[page].generation > 0)
                arena->pages[page].generation = 0;
        break;
    default:
        write_some(arena, first, count);
    }
    first = draw(arena, ARENA - MOST);
    check(arena, first, MOST, "anywhere");
}

static void *life(void *argument) {
    struct arena *arena = argument;
    arena->base = far_map(ARENA);
    become(arena, 0, ARENA, 0, PROT_READ | PROT_WRITE);
    write_some(arena, 0, ARENA);
    for (int k = 0; k < STEPS; k++)
        step(arena);
    check(arena, 0, ARENA, "at the end");
    return NULL;
}

int main(int count, char **arguments) {
    static struct arena arenas[2];
    pthread_t threads[2];
    for (int k = 0; k < 2; k++) {
        arenas[k].random = 2 * (count > 1 ? atoi(arguments[1]) : 1) + k;
        far_must(-pthread_create(&threads[k], NULL, life, &arenas[k]));
    }
    for (int k = 0; k < 2; k++)
        far_must(-pthread_join(threads[k], NULL));
    puts("ok");
}
