/* inherited-io hand-down COMMAND...: opens a file with O_DIRECT and an io_uring, and executes COMMAND, which inherits both.
 * inherited-io direct|ring|fixed: transfers between pageable memory and the file, by descriptors that it did not open,
 * while other pages force evictions: by direct reads and writes of threads, by the ring, or by the ring with registered
 * buffers. Checks every byte. */
#include "../programs/far.h"
#include "../programs/uring.h"
#include <pthread.h>

enum { FILE_FD = 40, RING_FD, PARAMS_FD };
enum { THREADS = 3, BUFFER_PAGES = 512, PRESSURE_PAGES = 32 * MIB_PAGES, ROUNDS = 100, READS = 5 };
#define BUFFER_BYTES ((size_t)BUFFER_PAGES * PAGE)

static volatile int over;

static void inherit(int fd, int number) {
    far_must(fd);
    /* The new descriptor survives an exec. */
    far_must(dup2(fd, number));
    close(fd);
}

static void hand_down(char **command) {
    const char *directory = getenv("LAB_DISK") ? getenv("LAB_DISK") : "/var/tmp";
    char path[256];
    snprintf(path, sizeof path, "%s/spillway-lab-inherited.XXXXXX", directory);
    int file = mkostemp(path, O_DIRECT);
    far_must(file);
    unlink(path);
    inherit(file, FILE_FD);
    struct io_uring_params params = {0};
    inherit(syscall(SYS_io_uring_setup, DEPTH, &params), RING_FD);
    inherit(memfd_create("params", 0), PARAMS_FD);
    if (pwrite(PARAMS_FD, &params, sizeof params, 0) != sizeof params)
        far_fail("the ring's parameters: %s", strerror(errno));
    execvp(command[0], command);
    far_fail("%s: %s", command[0], strerror(errno));
}

static void ring_inherit(void) {
    struct io_uring_params params;
    if (pread(PARAMS_FD, &params, sizeof params, 0) != sizeof params)
        far_fail("no ring was handed down");
    ring_map(RING_FD, params);
}

/* Rewrites six times the local memory that is left beside the buffers. */
static void *press(void *unused) {
    char *far = far_make(PRESSURE_PAGES);
    for (uint64_t generation = 1; !over; generation++)
        for (size_t page = 0; page < PRESSURE_PAGES && !over; page++) {
            far_check_at(far + page * PAGE, page, generation, "beside pinned pages");
            far_write_page(far, page, generation + 1);
        }
    return unused;
}

/* All of a buffer is wrong, so that what is checked came from the kernel. */
static void spoil(char *buffer) { memset(buffer, 0xa5, BUFFER_BYTES); }

/* Writes a generation from a buffer to the file, and reads it into the same buffer. */
static void *direct(void *number) {
    off_t offset = (size_t)number * BUFFER_BYTES;
    char *buffer = far_map(BUFFER_PAGES);
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        far_write(buffer, BUFFER_PAGES, round);
        if (pwrite(FILE_FD, buffer, BUFFER_BYTES, offset) != (ssize_t)BUFFER_BYTES)
            far_fail("direct write: %s", strerror(errno));
        for (int read = 0; read < READS; read++) {
            spoil(buffer);
            if (pread(FILE_FD, buffer, BUFFER_BYTES, offset) != (ssize_t)BUFFER_BYTES)
                far_fail("direct read: %s", strerror(errno));
            far_check(buffer, BUFFER_PAGES, round, "read by an inherited descriptor");
        }
    }
    return NULL;
}

static void direct_by_threads(void) {
    pthread_t threads[THREADS];
    for (size_t number = 0; number < THREADS; number++)
        far_must(-pthread_create(&threads[number], NULL, direct, (void *)number));
    for (int number = 0; number < THREADS; number++)
        pthread_join(threads[number], NULL);
}

static void through_ring(int write_by, int read_by, const char *how) {
    char *buffer = far_map(BUFFER_PAGES);
    far_write(buffer, BUFFER_PAGES, 0);
    struct iovec registered = {buffer, BUFFER_BYTES};
    int fixed = read_by == IORING_OP_READ_FIXED;
    if (fixed)
        far_must(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &registered, 1));
    for (uint64_t round = 1; round <= ROUNDS; round++) {
        far_write(buffer, BUFFER_PAGES, round);
        transfer(write_by, FILE_FD, buffer, BUFFER_PAGES, 0, "write");
        for (int read = 0; read < READS; read++) {
            spoil(buffer);
            transfer(read_by, FILE_FD, buffer, BUFFER_PAGES, 0, "read");
            far_check(buffer, BUFFER_PAGES, round, how);
        }
    }
    if (fixed)
        far_must(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0));
    far_check(buffer, BUFFER_PAGES, ROUNDS, "at the end");
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    if (!strcmp(what, "hand-down") && argc > 2)
        hand_down(argv + 2);
    far_must(fcntl(FILE_FD, F_GETFD));
    pthread_t presses;
    far_must(-pthread_create(&presses, NULL, press, NULL));
    if (!strcmp(what, "direct")) {
        direct_by_threads();
    } else if (!strcmp(what, "ring")) {
        ring_inherit();
        through_ring(IORING_OP_WRITE, IORING_OP_READ, "read by an inherited ring");
    } else if (!strcmp(what, "fixed")) {
        ring_inherit();
        through_ring(IORING_OP_WRITE_FIXED, IORING_OP_READ_FIXED, "read into a fixed buffer by an inherited ring");
    } else {
        far_fail("usage: inherited-io hand-down COMMAND... | direct | ring | fixed");
    }
    over = 1;
    pthread_join(presses, NULL);
    puts("ok");
}
