/* Memory that is readable, writable and executable, such as a compiler at run time makes. */
#include "far.h"

int main(void) {
    char *far = mmap(NULL, (size_t)FAR_PAGES * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (far == MAP_FAILED)
        far_fail("mmap: %s", strerror(errno));
    far_write(far, FAR_PAGES, 1);
    /* mov eax, imm32; ret: in every page's first eight bytes. */
    for (uint32_t page = 0; page < FAR_PAGES; page++) {
        char code[8] = {(char)0xb8, 0, 0, 0, 0, (char)0xc3};
        memcpy(code + 1, &page, 4);
        memcpy(far + (size_t)page * PAGE, code, sizeof code);
    }
    void *other = far_make(FAR_PAGES);
    for (uint32_t page = 0; page < FAR_PAGES; page++) {
        uint32_t (*function)(void) = (uint32_t (*)(void))(far + (size_t)page * PAGE);
        if (function() != page)
            far_fail("the code in page %u is wrong", page);
        far_write_page(far, page, 1);
    }
    far_check(far, FAR_PAGES, 1, "executable memory");
    far_check(other, FAR_PAGES, 1, "beside executable memory");
    puts("ok");
}
