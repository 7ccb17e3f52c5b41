/* Far pages become inaccessible, read-only and writable again. */
#include "far.h"

int main(void) {
    enum { CHUNK = 64 };
    char *far = far_make(FAR_PAGES);
    static const int protections[] = {PROT_NONE, PROT_READ};
    uint64_t generation = 1;
    for (int round = 0; round < 4; round++) {
        int protection = protections[round % 2];
        /* Every second chunk, so that mappings split and join. */
        for (size_t page = 0; page < FAR_PAGES; page += 2 * CHUNK)
            far_must(mprotect(far + page * PAGE, CHUNK * PAGE, protection));
        /* The other chunks push the protected ones out. */
        for (size_t page = CHUNK; page < FAR_PAGES; page += 2 * CHUNK)
            for (size_t i = 0; i < CHUNK; i++) {
                far_check_at(far + (page + i) * PAGE, page + i, generation, "beside protected pages");
                far_write_page(far, page + i, generation + 1);
            }
        if (protection == PROT_READ)
            for (size_t page = 0; page < FAR_PAGES; page += 2 * CHUNK)
                for (size_t i = 0; i < CHUNK; i++)
                    far_check_at(far + (page + i) * PAGE, page + i, generation, "read-only");
        for (size_t page = 0; page < FAR_PAGES; page += 2 * CHUNK)
            far_must(mprotect(far + page * PAGE, CHUNK * PAGE, PROT_READ | PROT_WRITE));
        for (size_t page = 0; page < FAR_PAGES; page += 2 * CHUNK)
            for (size_t i = 0; i < CHUNK; i++) {
                far_check_at(far + (page + i) * PAGE, page + i, generation, "writable again");
                far_write_page(far, page + i, generation + 1);
            }
        generation++;
    }
    far_check(far, FAR_PAGES, generation, "after all");
    puts("ok");
}
