/* 16 GiB of which a page in every 512 KiB is touched. */
#include "far.h"

int main(void) {
    const size_t stride = 128, pages = (size_t)16 << 18;
    char *base = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        far_fail("mmap: %s", strerror(errno));
    for (size_t page = 0; page < pages; page += stride)
        far_write_page(base, page, 1);
    for (size_t page = 0; page < pages; page += stride) {
        far_check_at(base + page * PAGE, page, 1, "in sparse memory");
        if (base[(page + stride / 2) * PAGE])
            far_fail("an untouched page is not zero");
    }
    far_must(munmap(base, pages * PAGE));
    puts("ok");
}
