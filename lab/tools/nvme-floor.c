/* nvme-floor PORT MIB: the least that a plain target in user space does for the kernel's NVMe/TCP host: one namespace over plain
 * memory, a thread a connection that sleeps in read, two system calls for all commands that came at once, no copy but the
 * kernel's for reads. No checks, no digests, no discovery, no errors: what is left between it and the kernel's own target is
 * the price of being a process that sleeps. For measurements in guests only. */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

enum { BLOCK_SHIFT = 12, INPUT = 1 << 20, PARTS = 1024, ENTRIES = 128, CAPSULE = 8192 };
enum { SUCCESS = 0, INVALID_OPCODE = 1, INVALID_FIELD = 2 };
static char *memory;
static uint64_t memory_bytes;
static uint32_t configuration;
static uint16_t controllers;

struct queue {
    int socket;
    uint16_t number, head, entries, controller;
    int has_head;
    struct iovec parts[PARTS];
    int count;
    char small[PARTS][32];
    char page[4096];
};

static uint16_t u16(const char *at) { uint16_t it; memcpy(&it, at, 2); return it; }
static uint32_t u32(const char *at) { uint32_t it; memcpy(&it, at, 4); return it; }
static uint64_t u64(const char *at) { uint64_t it; memcpy(&it, at, 8); return it; }
static void put(char *at, uint64_t value, size_t bytes) { memcpy(at, &value, bytes); }

static int send_all(struct queue *queue) {
    struct iovec *part = queue->parts, *end = part + queue->count;
    while (part < end) {
        ssize_t sent = writev(queue->socket, part, end - part);
        if (sent <= 0)
            return 0;
        for (; part < end && (size_t)sent >= part->iov_len; part++)
            sent -= part->iov_len;
        if (part < end) {
            part->iov_base = (char *)part->iov_base + sent;
            part->iov_len -= sent;
        }
    }
    queue->count = 0;
    return 1;
}

static char *part(struct queue *queue, size_t bytes) {
    char *at = queue->small[queue->count];
    memset(at, 0, bytes);
    queue->parts[queue->count++] = (struct iovec){at, bytes};
    return at;
}

static void header(char *at, int type, int flags, int length, size_t data) {
    at[0] = type, at[1] = flags, at[2] = length, at[3] = data ? length : 0;
    put(at + 4, length + data, 4);
}

static void complete(struct queue *queue, const char *command, uint64_t result, int status) {
    char *at = part(queue, 24);
    header(at, 5, 0, 24, 0);
    put(at + 8, result, 8);
    put(at + 16, queue->has_head ? queue->head : 0xffff, 2);
    put(at + 18, queue->number, 2);
    put(at + 20, u16(command + 2), 2);
    put(at + 22, status << 1, 2);
}

static void data(struct queue *queue, const char *command, char *from, uint32_t bytes) {
    int succeeds = !queue->has_head;
    char *at = part(queue, 24);
    header(at, 7, 4 | (succeeds ? 8 : 0), 24, bytes);
    put(at + 8, u16(command + 2), 2);
    put(at + 16, bytes, 4);
    queue->parts[queue->count++] = (struct iovec){from, bytes};
    if (!succeeds)
        complete(queue, command, 0, SUCCESS);
}

static void fabrics(struct queue *queue, const char *command, const char *in) {
    switch (command[4]) {
    case 1: /* Connect */
        queue->number = u16(command + 42);
        queue->entries = u16(command + 44) + 1;
        queue->has_head = !(command[46] & 4);
        queue->controller = queue->number ? u16(in + 16) : ++controllers;
        return complete(queue, command, queue->controller, SUCCESS);
    case 0: /* Property Set */
        configuration = u32(command + 48);
        return complete(queue, command, 0, SUCCESS);
    case 4: /* Property Get */
        switch (u32(command + 44)) {
        case 0x00: return complete(queue, command, (ENTRIES - 1) | 1 << 16 | 10 << 24 | 1ull << 37, SUCCESS);
        case 0x08: return complete(queue, command, 0x10300, SUCCESS);
        case 0x14: return complete(queue, command, configuration, SUCCESS);
        case 0x1c: return complete(queue, command, (configuration & 1) | (configuration & 0xc000 ? 8 : 0), SUCCESS);
        }
    }
    complete(queue, command, 0, INVALID_FIELD);
}

static void identify(struct queue *queue, const char *command) {
    char *page = queue->page;
    memset(page, 0, 4096);
    switch (command[40]) {
    case 0:
        put(page, memory_bytes >> BLOCK_SHIFT, 8);
        put(page + 8, memory_bytes >> BLOCK_SHIFT, 8);
        put(page + 16, memory_bytes >> BLOCK_SHIFT, 8);
        page[130] = BLOCK_SHIFT;
        break;
    case 1:
        memset(page + 4, '1', 20), memset(page + 24, 'f', 40), memset(page + 64, '1', 8);
        put(page + 78, queue->controller, 2);
        put(page + 80, 0x10300, 4);
        page[77] = 1, page[111] = 1, page[259] = 3; /* 8 KiB at once: what fits a capsule */
        put(page + 320, 10, 2);
        page[512] = 0x66, page[513] = 0x44;
        put(page + 514, ENTRIES, 2);
        put(page + 516, 1, 4);
        put(page + 536, 1 | 1 << 20, 4);
        strcpy(page + 768, "floor");
        put(page + 1792, (64 + CAPSULE) / 16, 4);
        put(page + 1796, 1, 4);
        page[1803] = 1;
        break;
    case 2:
        put(page, u32(command + 4) == 0, 4);
        break;
    case 3:
        page[0] = 3, page[1] = 16, memset(page + 4, 7, 16);
        break;
    default:
        return complete(queue, command, 0, INVALID_FIELD);
    }
    data(queue, command, page, 4096);
}

static void execute(struct queue *queue, const char *command, char *in) {
    uint32_t bytes = u32(command + 32);
    char *at = memory + (u64(command + 40) << BLOCK_SHIFT);
    queue->head = queue->entries ? (queue->head + 1) % queue->entries : 0;
    if ((uint8_t)command[0] == 0x7f)
        return fabrics(queue, command, in);
    if (queue->number) {
        switch (command[0]) {
        case 0: return complete(queue, command, 0, SUCCESS);
        case 1: memcpy(at, in, bytes); return complete(queue, command, 0, SUCCESS);
        case 2: return data(queue, command, at, bytes);
        }
    } else {
        switch (command[0]) {
        case 0x06: return identify(queue, command);
        case 0x09: return complete(queue, command, command[40] == 7 ? 0x10001 : 0, SUCCESS);
        case 0x0c: return; /* asynchronous events: there are none */
        case 0x18: return complete(queue, command, 0, SUCCESS);
        }
    }
    complete(queue, command, 0, INVALID_OPCODE);
}

static void *serve(void *argument) {
    static const int yes = 1;
    struct queue *queue = calloc(1, sizeof *queue);
    char *input = malloc(INPUT), answer[128] = {0};
    size_t start = 0, end = 0;
    queue->socket = (int)(intptr_t)argument;
    setsockopt(queue->socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    for (ssize_t got; (got = read(queue->socket, input + end, INPUT - end)) > 0;) {
        end += got;
        while (end - start >= 8 && end - start >= u32(input + start + 4)) {
            char *pdu = input + start;
            start += u32(pdu + 4);
            if (pdu[0] == 0) {
                header(answer, 1, 0, 128, 0);
                put(answer + 12, 1 << 17, 4);
                queue->parts[queue->count++] = (struct iovec){answer, 128};
            } else if (pdu[0] == 4) {
                execute(queue, pdu + 8, pdu + (uint8_t)pdu[3]);
            }
            if (queue->count > PARTS - 4 && !send_all(queue))
                break;
        }
        if (queue->count && !send_all(queue))
            break;
        memmove(input, input + start, end - start);
        end -= start, start = 0;
    }
    close(queue->socket);
    free(input);
    free(queue);
    return NULL;
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    static const int yes = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    memory_bytes = strtoull(argv[2], NULL, 10) << 20;
    memory = mmap(NULL, memory_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (memory == MAP_FAILED || bind(listener, (void *)&address, sizeof address) || listen(listener, 16)) {
        perror("nvme-floor");
        return 1;
    }
    for (;;) {
        int socket = accept(listener, NULL, NULL);
        pthread_t thread;
        if (socket < 0 || pthread_create(&thread, NULL, serve, (void *)(intptr_t)socket))
            return 1;
        pthread_detach(thread);
    }
}
