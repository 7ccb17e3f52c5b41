/* A child counts what it has from its parent as soon as the parent has ended: it comes back to its budget. */
#include "far.h"
#include <time.h>

enum { INHERITED = 32 * MIB_PAGES, OWN = 32 * MIB_PAGES, BUDGET = 16 * MIB_PAGES, SPARE = 4 * MIB_PAGES, SECONDS = 20 };

static size_t resident(void *base, size_t pages) {
    static unsigned char present[INHERITED + OWN];
    size_t count = 0;
    far_must(mincore(base, pages * PAGE, present));
    for (size_t page = 0; page < pages; page++)
        count += present[page] & 1;
    return count;
}

static void orphan(char *inherited) {
    char *own = far_map(OWN);
    size_t count = 0;
    int is_plain = getenv("LD_PRELOAD") == NULL;
    for (time_t end = time(NULL) + SECONDS; time(NULL) < end;) {
        far_write(own, OWN, 2);
        count = resident(inherited, INHERITED) + resident(own, OWN);
        if (count <= BUDGET + SPARE || is_plain) {
            far_check(inherited, INHERITED, 1, "in the orphan");
            far_check(own, OWN, 2, "in the orphan's own memory");
            return;
        }
    }
    far_fail("%zu pages of a budget of %d", count, BUDGET);
}

int main(void) {
    int ends[2];
    char word = 0;
    far_must(pipe(ends));
    pid_t parent = fork();
    far_must(parent);
    if (parent == 0) {
        char *inherited = far_make(INHERITED);
        pid_t child = fork();
        far_must(child);
        if (child > 0)
            _exit(0);
        close(ends[0]);
        orphan(inherited);
        far_must(write(ends[1], "k", 1));
        _exit(0);
    }
    close(ends[1]);
    far_wait(parent, "the parent");
    far_must(read(ends[0], &word, 1));
    if (word != 'k')
        far_fail("the orphan ended without a word");
    puts("ok");
}
