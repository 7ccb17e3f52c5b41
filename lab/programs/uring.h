/* An io_uring set up by hand, without liburing, and transfers through it that must complete in full. */
#pragma once
#include "far.h"
#include <linux/io_uring.h>
#include <sys/uio.h>

enum { DEPTH = 8, PART_PAGES = 32 };

static struct ring {
    int fd;
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *entries;
    struct io_uring_cqe *completions;
} ring;

/* Maps a ring that is open already. */
static inline void ring_map(int fd, struct io_uring_params params) {
    ring.fd = fd;
    int protection = PROT_READ | PROT_WRITE, flags = MAP_SHARED | MAP_POPULATE;
    size_t sq_bytes = params.sq_off.array + params.sq_entries * sizeof(unsigned);
    size_t cq_bytes = params.cq_off.cqes + params.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(NULL, sq_bytes, protection, flags, ring.fd, IORING_OFF_SQ_RING);
    char *cq = mmap(NULL, cq_bytes, protection, flags, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(NULL, params.sq_entries * sizeof(struct io_uring_sqe), protection, flags,
                        ring.fd, IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || ring.entries == MAP_FAILED)
        far_fail("mapping the ring: %s", strerror(errno));
    ring.sq_tail = (unsigned *)(sq + params.sq_off.tail);
    ring.sq_mask = (unsigned *)(sq + params.sq_off.ring_mask);
    ring.sq_array = (unsigned *)(sq + params.sq_off.array);
    ring.cq_head = (unsigned *)(cq + params.cq_off.head);
    ring.cq_tail = (unsigned *)(cq + params.cq_off.tail);
    ring.cq_mask = (unsigned *)(cq + params.cq_off.ring_mask);
    ring.completions = (struct io_uring_cqe *)(cq + params.cq_off.cqes);
}

static inline void ring_open(void) {
    struct io_uring_params params = {0};
    int fd = syscall(SYS_io_uring_setup, DEPTH, &params);
    far_must(fd);
    ring_map(fd, params);
}

static inline void queue(int opcode, int file, void *at, size_t bytes, off_t offset, int buffer) {
    unsigned tail = *ring.sq_tail, slot = tail & *ring.sq_mask;
    ring.entries[slot] = (struct io_uring_sqe){
        .opcode = opcode, .fd = file, .addr = (unsigned long)at, .len = bytes, .off = offset,
        .buf_index = buffer, .user_data = bytes};
    ring.sq_array[slot] = slot;
    __atomic_store_n(ring.sq_tail, tail + 1, __ATOMIC_RELEASE);
}

static inline void submit_and_wait(unsigned count, const char *what) {
    far_must(syscall(SYS_io_uring_enter, ring.fd, count, count, IORING_ENTER_GETEVENTS, NULL, 0));
    while (count--) {
        unsigned head = *ring.cq_head;
        if (head == __atomic_load_n(ring.cq_tail, __ATOMIC_ACQUIRE))
            far_fail("%s: a completion is missing", what);
        struct io_uring_cqe *done = &ring.completions[head & *ring.cq_mask];
        if (done->res < 0 || (uint64_t)done->res != done->user_data)
            far_fail("%s: answered %d", what, done->res);
        __atomic_store_n(ring.cq_head, head + 1, __ATOMIC_RELEASE);
    }
}

/* Moves `pages` between memory and file, DEPTH parts at a time. */
static inline void transfer(int opcode, int file, char *at, size_t pages, int buffer, const char *what) {
    unsigned queued = 0;
    for (size_t page = 0; page < pages; page += PART_PAGES) {
        queue(opcode, file, at + page * PAGE, PART_PAGES * PAGE, page * PAGE, buffer);
        if (++queued == DEPTH || page + PART_PAGES >= pages) {
            submit_and_wait(queued, what);
            queued = 0;
        }
    }
}
