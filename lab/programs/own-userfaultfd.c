/* The program has a userfaultfd of its own, on memory of its own. */
#include "far.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>

enum { OWN_PAGES = 1024 };
static int own;

static void *answer(void *unused) {
    static char page[PAGE] __attribute__((aligned(PAGE)));
    for (;;) {
        struct uffd_msg message;
        if (read(own, &message, sizeof message) != sizeof message)
            far_fail("read of the own userfaultfd: %s", strerror(errno));
        memset(page, 0xa5, PAGE);
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~(PAGE - 1ul),
                                   .src = (unsigned long)page,
                                   .len = PAGE};
        if (ioctl(own, UFFDIO_COPY, &copy) < 0 && errno != EEXIST)
            far_fail("UFFDIO_COPY: %s", strerror(errno));
    }
    return unused;
}

int main(void) {
    void *far = far_make(FAR_PAGES);
    own = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);
    far_must(own);
    struct uffdio_api api = {.api = UFFD_API};
    far_must(ioctl(own, UFFDIO_API, &api));
    volatile char *watched = far_map(OWN_PAGES);
    struct uffdio_register registration = {
        .range = {(unsigned long)watched, OWN_PAGES * PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    far_must(ioctl(own, UFFDIO_REGISTER, &registration));
    pthread_t thread;
    if (pthread_create(&thread, NULL, answer, NULL))
        far_fail("pthread_create");
    for (int i = 0; i < OWN_PAGES; i++)
        if (watched[(size_t)i * PAGE + i % PAGE] != (char)0xa5)
            far_fail("page %d was not answered by the program's own handler", i);
    far_check(far, FAR_PAGES, 1, "beside an own userfaultfd");
    puts("ok");
}
