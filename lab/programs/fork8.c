/* Eight children check and change far memory that they share with their parent after fork, while
 * the parent changes it too; several rounds. */
#include "far.h"

enum { CHILDREN = 8, ROUNDS = 4, PAGES = 48 * MIB_PAGES };

static void child_goes_on(char *far, int child, uint64_t generation) {
    uint64_t own = generation + 1 + child;
    far_check(far, PAGES, generation, "in a child");
    /* Every child changes other pages, each of them twice. */
    for (size_t page = child; page < PAGES; page += CHILDREN)
        far_write_page(far, page, own);
    for (size_t page = 0; page < PAGES; page++)
        far_check_at(far + page * PAGE, page, page % CHILDREN == (size_t)child ? own : generation,
                     "in a child that wrote");
    _exit(0);
}

int main(void) {
    char *far = far_make(PAGES);
    uint64_t generation = 1;
    for (int round = 0; round < ROUNDS; round++) {
        pid_t children[CHILDREN];
        for (int child = 0; child < CHILDREN; child++) {
            children[child] = fork();
            if (children[child] == 0)
                child_goes_on(far, child, generation);
            far_must(children[child]);
        }
        uint64_t next = generation + CHILDREN + 1;
        for (size_t page = 0; page < PAGES; page++) {
            far_check_at(far + page * PAGE, page, generation, "in the parent");
            far_write_page(far, page, next);
        }
        for (int child = 0; child < CHILDREN; child++)
            far_wait(children[child], "a child");
        generation = next;
        far_check(far, PAGES, generation, "in the parent after its children");
    }
    /* A grandchild of a grandchild. */
    for (int depth = 0; depth < 4; depth++) {
        pid_t child = fork();
        far_must(child);
        if (child > 0) {
            far_wait(child, "a descendant");
            far_check(far, PAGES, generation, "after a descendant");
            if (depth == 0)
                puts("ok");
            fflush(stdout);
            _exit(0);
        }
        far_check(far, PAGES, generation, "in a descendant");
        far_write(far, PAGES, ++generation);
    }
    _exit(0);
}
