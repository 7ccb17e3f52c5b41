/* dropped CASE: gives most of its memory back to the kernel, takes as much anew, and checks both. The cases:
 *   libc, syscall   by madvise, and by syscall(SYS_madvise)
 *   forked          in a child, of memory that it shares with its parent
 *   beside          while another thread writes to the same pages, and checks them
 *   race            some pages, very often, while another thread touches them: neither waits for ever
 *   read            and then reads a file into it */
#include "../programs/far.h"
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { LIVE = 8 * MIB_PAGES, GIVEN = 40 * MIB_PAGES, CHUNK = MIB_PAGES, CHUNKS = 32, ROUNDS = 12 };

static const char zeros[PAGE];

static void drop(char *from, size_t pages, int raw) {
    far_must(raw ? syscall(SYS_madvise, from, pages * PAGE, MADV_DONTNEED) : madvise(from, pages * PAGE, MADV_DONTNEED));
}

/* Takes `pages` pages elsewhere, and reads them and those that stayed. */
static void take_others(const char *live, size_t pages) {
    char *others = far_map(pages);
    far_write(others, pages, 2);
    for (int round = 0; round < 3; round++) {
        far_check(live, LIVE, 1, "pages that stayed");
        far_check(others, pages, 2, "pages taken anew");
    }
}

static void give_and_take(size_t pages, int raw, int in_child) {
    char *live = far_make(LIVE + pages), *given = live + LIVE * PAGE;
    pid_t child = in_child ? fork() : 0;
    if (!child) {
        drop(given, pages, raw);
        take_others(live, pages);
        for (size_t page = 0; page < pages; page += 16)
            if (memcmp(given + page * PAGE, zeros, PAGE))
                far_fail("dropped page %zu does not read as zeros", page);
        if (in_child)
            _exit(0);
    } else {
        far_wait(child, "the child that drops");
        far_check(live, LIVE + pages, 1, "what the child dropped, in its parent");
    }
}

static char *far;
/* The call that is under way, 1 and so on, and the last one that is done. */
static atomic_ulong begun, done, seen;
static uint64_t last[CHUNKS * CHUNK], zeroed[CHUNKS * CHUNK];

/* Fills pages that turned to zero, and checks that each did so at most once for each call. */
static void fill(size_t first, uint64_t call) {
    for (size_t page = first; page < first + CHUNK; page++) {
        volatile uint64_t *words = (uint64_t *)(far + page * PAGE);
        uint64_t found = words[0];
        if (found == last[page])
            continue;
        if (found)
            far_fail("page %zu holds %lu, last written was %lu", page, found, last[page]);
        if (zeroed[page] == call)
            far_fail("page %zu lost what was written to it after it was dropped", page);
        zeroed[page] = call;
        last[page] = call << 32 | page;
        words[0] = words[WORDS - 1] = last[page];
    }
}

static void *write_beside(void *unused) {
    for (uint64_t call = 1; call <= CHUNKS * ROUNDS; call++) {
        while (atomic_load(&begun) != call)
            sched_yield();
        size_t first = call % CHUNKS * CHUNK;
        do
            fill(first, call);
        while (atomic_load(&done) != call);
        fill(first, call);
        atomic_store(&seen, call);
    }
    return unused;
}

static void beside(void) {
    far = far_map(CHUNKS * CHUNK);
    pthread_t writer;
    far_must(-pthread_create(&writer, NULL, write_beside, NULL));
    for (uint64_t call = 1; call <= CHUNKS * ROUNDS; call++) {
        atomic_store(&begun, call);
        drop(far + call % CHUNKS * CHUNK * PAGE, CHUNK, call % 2);
        atomic_store(&done, call);
        while (atomic_load(&seen) != call)
            sched_yield();
    }
    pthread_join(writer, NULL);
    for (size_t page = 0; page < CHUNKS * CHUNK; page++) {
        uint64_t *words = (uint64_t *)(far + page * PAGE);
        if (words[0] != last[page] || words[WORDS - 1] != last[page])
            far_fail("at the end page %zu holds %lu and %lu, last written was %lu", page, words[0], words[WORDS - 1], last[page]);
    }
}

/* A system call writes to pages that were dropped. */
static void read_into(void) {
    char *buffer = far_make(CHUNK);
    int file = open("/dev/zero", O_RDONLY);
    for (int round = 0; round < 3; round++) {
        drop(buffer, CHUNK, round % 2);
        ssize_t bytes = read(file, buffer, CHUNK * PAGE);
        if (bytes != CHUNK * PAGE)
            far_fail("read gives %zd: %s", bytes, strerror(errno));
        far_write(buffer, CHUNK, 3);
        far_check(buffer, CHUNK, 3, "after a read into dropped pages");
    }
}

enum { TOUCHED = 64, DROPS = 30000 };

static void *touch(void *pages) {
    for (size_t page = 0; !atomic_load(&done); page = (page + 7) % TOUCHED)
        ((volatile char *)pages)[page * PAGE] = 1;
    return NULL;
}

/* The pages lie within 2 MiB that are aligned, but not at their beginning. */
static void race(void) {
    char *pages = (char *)(((uintptr_t)far_map(4 * MIB_PAGES) + 2 * MIB_PAGES * PAGE) / (2 * MIB_PAGES * PAGE) * (2 * MIB_PAGES * PAGE)) + 3 * TOUCHED * PAGE;
    pthread_t toucher;
    far_must(-pthread_create(&toucher, NULL, touch, pages));
    for (int call = 0; call < DROPS; call++)
        drop(pages, TOUCHED, call % 2);
    atomic_store(&done, 1);
    pthread_join(toucher, NULL);
}

int main(int argc, char **argv) {
    const char *name = argc == 2 ? argv[1] : "";
    if (!strcmp(name, "libc"))
        give_and_take(GIVEN, 0, 0);
    else if (!strcmp(name, "syscall"))
        give_and_take(GIVEN, 1, 0);
    else if (!strcmp(name, "forked"))
        give_and_take(24 * MIB_PAGES, 0, 1);
    else if (!strcmp(name, "beside"))
        beside();
    else if (!strcmp(name, "race"))
        race();
    else if (!strcmp(name, "read"))
        read_into();
    else
        far_fail("usage: dropped libc|syscall|forked|beside|race|read");
    /* `puts` can't be served with `--faults signal`. */
    far_must(write(1, "ok\n", 3));
}
