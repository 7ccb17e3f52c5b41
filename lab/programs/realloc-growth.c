/* One block grows to 96 MiB by realloc, with small blocks between, and shrinks again. */
#include "far.h"

int main(void) {
    enum { SMALL = 20000 };
    static char *small[SMALL];
    char *block = NULL;
    size_t pages = 0, made = 0;
    while (pages < FAR_PAGES) {
        size_t grown = pages + 1 + pages / 8;
        if (grown > FAR_PAGES)
            grown = FAR_PAGES;
        block = realloc(block, grown * PAGE);
        for (size_t page = pages; page < grown; page++)
            far_write_page(block, page, 1);
        pages = grown;
        for (int i = 0; i < 200 && made < SMALL; i++, made++) {
            small[made] = malloc(40 + made % 400);
            memset(small[made], made % 251, 40 + made % 400);
        }
    }
    far_check(block, pages, 1, "after growth");
    for (pages /= 2; pages; pages /= 2) {
        block = realloc(block, pages * PAGE);
        far_check(block, pages, 1, "after shrinking");
    }
    free(block);
    for (size_t i = 0; i < made; i++) {
        for (size_t j = 0; j < 40 + i % 400; j++)
            if ((unsigned char)small[i][j] != i % 251)
                far_fail("small block %zu changed", i);
        free(small[i]);
    }
    char *zeroed = calloc(FAR_PAGES, PAGE);
    for (size_t i = 0; i < (size_t)FAR_PAGES * PAGE; i++)
        if (zeroed[i])
            far_fail("calloc's memory is not zero");
    puts("ok");
}
