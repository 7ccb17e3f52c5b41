/* The kernel reads and writes far pages: O_DIRECT files, pipes, vmsplice, sockets, readv and writev. */
#include "far.h"
#include <pthread.h>
#include <sys/socket.h>
#include <sys/uio.h>

static int file;
static char *far, *back;

/* All of `back` is made far and wrong, so that what is checked came from the kernel. */
static void spoil(void) { far_write(back, FAR_PAGES, 77); }

static void through_file(uint64_t generation) {
    enum { CHUNK = 256 };
    far_write(far, FAR_PAGES, generation);
    spoil();
    for (size_t page = 0; page < FAR_PAGES; page += CHUNK)
        if (pwrite(file, far + page * PAGE, CHUNK * PAGE, page * PAGE) != CHUNK * PAGE)
            far_fail("direct write: %s", strerror(errno));
    for (size_t page = 0; page < FAR_PAGES; page += CHUNK)
        if (pread(file, back + page * PAGE, CHUNK * PAGE, page * PAGE) != CHUNK * PAGE)
            far_fail("direct read: %s", strerror(errno));
    far_check(back, FAR_PAGES, generation, "read directly from a file");
}

static void through_vectors(uint64_t generation) {
    enum { PARTS = 32 };
    far_write(far, FAR_PAGES, generation);
    spoil();
    for (size_t page = 0; page < FAR_PAGES; page += PARTS) {
        struct iovec from[PARTS], to[PARTS];
        for (int i = 0; i < PARTS; i++) {
            /* Backwards, so that neighbours in the file are not neighbours in memory. */
            from[i] = (struct iovec){far + (FAR_PAGES - 1 - page - i) * PAGE, PAGE};
            to[i] = (struct iovec){back + (FAR_PAGES - 1 - page - i) * PAGE, PAGE};
        }
        if (pwritev(file, from, PARTS, page * PAGE) != PARTS * PAGE ||
            preadv(file, to, PARTS, page * PAGE) != PARTS * PAGE)
            far_fail("vectors: %s", strerror(errno));
    }
    far_check(back, FAR_PAGES, generation, "read by vectors");
}

static void read_all(int fd, char *to, size_t length) {
    while (length) {
        ssize_t got = read(fd, to, length);
        if (got <= 0)
            far_fail("read: %s", strerror(errno));
        to += got;
        length -= got;
    }
}

static void write_all(int fd, const char *from, size_t length) {
    while (length) {
        ssize_t put = write(fd, from, length);
        if (put <= 0)
            far_fail("write: %s", strerror(errno));
        from += put;
        length -= put;
    }
}

static void splice_all(int fd, const char *from, size_t length) {
    while (length) {
        struct iovec part = {(void *)from, length};
        ssize_t put = vmsplice(fd, &part, 1, 0);
        if (put <= 0)
            far_fail("vmsplice: %s", strerror(errno));
        from += put;
        length -= put;
    }
}

struct transfer {
    int fd;
    void (*send)(int, const char *, size_t);
};

static void *send_all(void *argument) {
    struct transfer *transfer = argument;
    transfer->send(transfer->fd, far, (size_t)FAR_PAGES * PAGE);
    return NULL;
}

/* What one thread sends, the other receives, both on far pages. */
static void through_descriptors(int in, struct transfer transfer, uint64_t generation, const char *how) {
    far_write(far, FAR_PAGES, generation);
    spoil();
    pthread_t sender;
    if (pthread_create(&sender, NULL, send_all, &transfer))
        far_fail("pthread_create");
    read_all(in, back, (size_t)FAR_PAGES * PAGE);
    pthread_join(sender, NULL);
    far_check(back, FAR_PAGES, generation, how);
    close(in);
    close(transfer.fd);
}

int main(void) {
    far = far_map(FAR_PAGES);
    back = far_map(FAR_PAGES);
    const char *directory = getenv("LAB_DISK") ? getenv("LAB_DISK") : "/var/tmp";
    char path[256];
    snprintf(path, sizeof path, "%s/spillway-lab-direct.XXXXXX", directory);
    file = mkstemp(path);
    far_must(file);
    unlink(path);
    far_must(fcntl(file, F_SETFL, O_DIRECT));
    through_file(1);
    through_vectors(2);

    int ends[2];
    far_must(pipe(ends));
    through_descriptors(ends[0], (struct transfer){ends[1], write_all}, 3, "through a pipe");
    far_must(pipe(ends));
    through_descriptors(ends[0], (struct transfer){ends[1], splice_all}, 4, "spliced into a pipe");
    far_must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
    through_descriptors(ends[0], (struct transfer){ends[1], write_all}, 5, "through a socket");
    puts("ok");
}
