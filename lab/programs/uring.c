/* io_uring reads into registered buffers on pageable memory while that memory is under pressure:
 * every read must land where the program sees it. */
#include "far.h"
#include "uring.h"

enum { BUFFER_PAGES = 1024, BUFFERS = 2 };

int main(void) {
    const char *directory = getenv("LAB_DISK") ? getenv("LAB_DISK") : "/var/tmp";
    char path[256];
    snprintf(path, sizeof path, "%s/spillway-lab-uring.XXXXXX", directory);
    int file = mkstemp(path);
    far_must(file);
    unlink(path);
    far_must(fcntl(file, F_SETFL, O_DIRECT));
    ring_open();

    /* Plain buffers: far pages out, far pages in. */
    char *far = far_make(FAR_PAGES), *back = far_map(FAR_PAGES);
    far_write(back, FAR_PAGES, 77);
    transfer(IORING_OP_WRITE, file, far, FAR_PAGES, 0, "write");
    transfer(IORING_OP_READ, file, back, FAR_PAGES, 0, "read");
    far_check(back, FAR_PAGES, 1, "read by io_uring");

    /* Registered buffers are pinned: pressure must not part them from what the program sees. */
    struct iovec buffers[BUFFERS];
    for (int i = 0; i < BUFFERS; i++) {
        buffers[i] = (struct iovec){far_map(BUFFER_PAGES), BUFFER_PAGES * PAGE};
        far_write(buffers[i].iov_base, BUFFER_PAGES, 50 + i);
    }
    far_write(far, FAR_PAGES, 2);
    far_must(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, buffers, BUFFERS));
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < BUFFERS; i++)
            far_check(buffers[i].iov_base, BUFFER_PAGES, 50 + i + round * 10, "a registered buffer");
        far_write(far, FAR_PAGES, 3 + round); /* pressure */
        transfer(IORING_OP_WRITE, file, far, BUFFER_PAGES, 0, "write");
        for (int i = 0; i < BUFFERS; i++) {
            transfer(IORING_OP_READ_FIXED, file, buffers[i].iov_base, BUFFER_PAGES, i, "fixed read");
            far_check(buffers[i].iov_base, BUFFER_PAGES, 3 + round, "read into a registered buffer");
            far_write(buffers[i].iov_base, BUFFER_PAGES, 50 + i + (round + 1) * 10);
        }
        far_check(far, FAR_PAGES, 3 + round, "beside registered buffers");
        for (int i = 0; i < BUFFERS; i++) {
            transfer(IORING_OP_WRITE_FIXED, file, buffers[i].iov_base, BUFFER_PAGES, i, "fixed write");
            transfer(IORING_OP_READ, file, back, BUFFER_PAGES, 0, "read back");
            far_check(back, BUFFER_PAGES, 50 + i + (round + 1) * 10, "written from a registered buffer");
        }
    }
    far_must(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
    far_write(far, FAR_PAGES, 20);
    for (int i = 0; i < BUFFERS; i++)
        far_check(buffers[i].iov_base, BUFFER_PAGES, 50 + i + 40, "after unregistering");
    puts("ok");
}
