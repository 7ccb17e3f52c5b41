// A program of a guest that means ill: it has the agent lend it a window, writes what it likes into it, and asks for another when
// the host has closed it.
//
//     window-fuzz SECONDS [SEED]     says how many windows it had

#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define WINDOW (2 << 20)
#define QUEUE 4096
#define DATA (WINDOW - 3 * 4096)

static uint64_t state;

static uint64_t any(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// A window, or none; `peer` is the socket that it came over.
static uint8_t *window(int *peer) {
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "/run/spillway-agent/socket"};
    *peer = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(*peer, (void *)&address, sizeof address)) return NULL;
    uint8_t hello[16] = "spillrng\1\0\100";
    uint32_t data = DATA;
    memcpy(hello + 12, &data, 4);
    if (write(*peer, hello, sizeof hello) != sizeof hello) return NULL;
    uint8_t welcome[32];
    char control[CMSG_SPACE(sizeof(int))];
    struct iovec part = {welcome, sizeof welcome};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    if (recvmsg(*peer, &message, MSG_WAITALL) != sizeof welcome || !CMSG_FIRSTHDR(&message)) return NULL;
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    uint8_t *base = mmap(NULL, WINDOW, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    // Now and then it empties the file under the agent's feet: what it sees from then on is another page than the host's.
    if (any() % 8 == 0 && (ftruncate(file, 0) || ftruncate(file, any() % 2 ? WINDOW : 4 * WINDOW))) perror("ftruncate");
    close(file);
    return base == MAP_FAILED ? NULL : base;
}

// A command that is nearly one, so that it gets far.
static void command(uint8_t *at) {
    uint64_t words[8];
    for (int i = 0; i < 8; i++) words[i] = any();
    uint8_t *bytes = (uint8_t *)words;
    static const uint8_t codes[] = {1, 2, 5, 6, 16, 20, 0xc0, 0xc4, 0xc5, 0xc8, 0xc9, 0xca, 0xcb, 0xcc};
    if (any() % 8) bytes[0] = codes[any() % sizeof codes], bytes[1] = 0x40;
    if (any() % 2) words[0] = (words[0] & 0xffffffff) | (any() % 4) << 32;
    if (any() % 2) words[3] = any() % (2 * DATA), words[4] = (any() % DATA) | 1ull << 56;
    memcpy(at, words, sizeof words);
}

int main(int count, char **arguments) {
    double end = now() + (count > 1 ? atof(arguments[1]) : 1);
    state = count > 2 ? strtoull(arguments[2], NULL, 0) : 88172645463325252ull;
    unsigned long windows = 0, refused = 0;
    while (now() < end) {
        int peer;
        uint8_t *base = window(&peer);
        if (!base) {
            refused++;
            close(peer);
            usleep(20000);
            continue;
        }
        windows++;
        volatile uint32_t *doorbell = (void *)base;
        uint32_t rung = 0;
        int left = 20000;
        for (struct pollfd closed = {.fd = peer, .events = POLLIN}; left > 0 && now() < end; left--) {
            for (int i = any() % 8; i >= 0; i--) command(base + QUEUE + (any() % 64) * 64);
            if (any() % 64 == 0) base[any() % WINDOW] = any();
            if (any() % 4 == 0) memset(base + 2 * QUEUE, any(), QUEUE);
            rung = any() % 4096 ? rung + any() % 8 : any();
            __atomic_store_n(doorbell, rung, __ATOMIC_SEQ_CST);
            if (any() % 16 == 0 && send(peer, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 && errno != EAGAIN) break;
            if (any() % 16 == 0 && poll(&closed, 1, 0) > 0) {
                char bytes[64];
                if (recv(peer, bytes, sizeof bytes, MSG_DONTWAIT) == 0) break;
            }
        }
        munmap(base, WINDOW);
        close(peer);
    }
    printf("%lu windows, %lu refused\n", windows, refused);
    return windows == 0;
}
