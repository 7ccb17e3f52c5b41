// Load for key-value servers that speak RESP or memcached's text protocol, or the module's commands (spill): batches of `depth` requests on each of so many
// connections, each with a key by chance. Prints a JSON object: requests, seconds, and the processor time of this program.
//
//     kvload unix:PATH|tcp:PORT resp|spill|memcached get|set|fill CONNECTIONS DEPTH VALUE_BYTES KEYS SECONDS
//
// fill sets every key once. Values differ: each is another part of one random buffer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, PARTS = 3, ROOM = 1 << 20, SPREAD = 1 << 20 };

struct request {
    char head[128];
    size_t head_bytes, value_at;
};

struct connection {
    int fd;
    struct request requests[DEPTH_MAX];
    int count;         // of this batch
    size_t sent;       // bytes of the batch
    size_t received;   // bytes of its replies
    int waits_to_send; // what epoll was told
};

static int memcached, spill, sets, depth, waiting_connections;
static size_t value_bytes;
static unsigned long keys, next_key, fills, done;
static char *values, *room;
static unsigned long long chance = 88172645463325252ull;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned long long random64(void) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance;
}

// Bytes of a reply.
static size_t reply_bytes(void) {
    char head[64];
    if (sets)
        return memcached ? strlen("STORED\r\n") : strlen("+OK\r\n");
    if (memcached)
        return snprintf(head, sizeof head, "VALUE key:%012lu 0 %zu\r\n", 0ul, value_bytes) + value_bytes + strlen("\r\nEND\r\n");
    return snprintf(head, sizeof head, "$%zu\r\n", value_bytes) + value_bytes + 2;
}

static void fill_request(struct request *request) {
    unsigned long key = fills ? next_key++ : random64() % keys;
    request->value_at = key * 4099 % SPREAD;
    const char *form = memcached ? (sets ? "set key:%012lu 0 0 %zu\r\n" : "get key:%012lu\r\n")
                       : spill ? (sets ? "*3\r\n$9\r\nSPILL.SET\r\n$16\r\nkey:%012lu\r\n$%zu\r\n"
                                       : "*2\r\n$9\r\nSPILL.GET\r\n$16\r\nkey:%012lu\r\n")
                                 : (sets ? "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012lu\r\n$%zu\r\n" : "*2\r\n$3\r\nGET\r\n$16\r\nkey:%012lu\r\n");
    request->head_bytes = snprintf(request->head, sizeof request->head, form, key, value_bytes);
}

static void begin(struct connection *connection) {
    connection->count = 0;
    while (connection->count < depth && !(fills && next_key == keys))
        fill_request(&connection->requests[connection->count++]);
    connection->sent = connection->received = 0;
}

// Sends what is left of the batch; whether all has left.
static int push(struct connection *connection) {
    for (;;) {
        struct iovec parts[DEPTH_MAX * PARTS];
        int used = 0;
        size_t skip = connection->sent;
        for (int at = 0; at < connection->count; at++) {
            struct request *request = &connection->requests[at];
            struct iovec its[PARTS] = {{request->head, request->head_bytes}, {values + request->value_at, value_bytes}, {"\r\n", 2}};
            for (int part = 0; part < (sets ? PARTS : 1); part++) {
                size_t passed = skip < its[part].iov_len ? skip : its[part].iov_len;
                skip -= passed;
                if (passed < its[part].iov_len)
                    parts[used++] = (struct iovec){(char *)its[part].iov_base + passed, its[part].iov_len - passed};
            }
        }
        if (!used)
            return 1;
        ssize_t sent = writev(connection->fd, parts, used);
        if (sent < 0 && errno == EAGAIN)
            return 0;
        if (sent < 0)
            fail("send");
        connection->sent += sent;
    }
}

// Takes replies; whether the batch is answered.
static int pull(struct connection *connection, size_t reply) {
    const char first = sets ? (memcached ? 'S' : '+') : (memcached ? 'V' : '$');
    size_t all = reply * connection->count;
    while (connection->received < all) {
        ssize_t got = read(connection->fd, room, ROOM);
        if (got < 0 && errno == EAGAIN)
            return 0;
        if (got <= 0)
            fail("receive");
        size_t to_next = (reply - connection->received % reply) % reply;
        for (size_t at = to_next; at < (size_t)got; at += reply)
            if (room[at] != first) {
                fprintf(stderr, "a reply that begins with %.40s\n", room + at);
                exit(1);
            }
        connection->received += got;
    }
    return 1;
}

static int connect_to(const char *where) {
    int fd;
    if (!strncmp(where, "unix:", 5)) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strncpy(address.sun_path, where + 5, sizeof address.sun_path - 1);
        fd = socket(AF_UNIX, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address))
            fail(where);
    } else {
        struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(where + 4))};
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (void *)&address, sizeof address))
            fail(where);
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 9)
        return fprintf(stderr, "usage: kvload WHERE resp|spill|memcached get|set|fill CONNECTIONS DEPTH VALUE_BYTES KEYS SECONDS\n"), 2;
    memcached = !strcmp(argv[2], "memcached");
    spill = !strcmp(argv[2], "spill");
    fills = !strcmp(argv[3], "fill");
    sets = fills || !strcmp(argv[3], "set");
    int count = atoi(argv[4]);
    depth = atoi(argv[5]);
    value_bytes = strtoul(argv[6], NULL, 10);
    keys = strtoul(argv[7], NULL, 10);
    double seconds = atof(argv[8]);
    if (depth < 1 || depth > DEPTH_MAX || count < 1)
        return fprintf(stderr, "a depth of 1 to %d\n", DEPTH_MAX), 2;
    values = malloc(value_bytes + SPREAD);
    room = malloc(ROOM);
    for (size_t at = 0; at + 8 <= value_bytes + SPREAD; at += 8)
        *(unsigned long long *)(values + at) = random64();
    struct connection *connections = calloc(count, sizeof *connections);
    int events = epoll_create1(0);
    for (int at = 0; at < count; at++) {
        connections[at].fd = connect_to(argv[1]);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &connections[at]};
        epoll_ctl(events, EPOLL_CTL_ADD, connections[at].fd, &event);
    }
    size_t reply = reply_bytes();
    double began = now(), end = began + seconds;
    for (int at = 0; at < count; at++) {
        begin(&connections[at]);
        waiting_connections += connections[at].count > 0;
        connections[at].waits_to_send = 0;
        if (!push(&connections[at])) {
            struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.ptr = &connections[at]};
            epoll_ctl(events, EPOLL_CTL_MOD, connections[at].fd, &event);
            connections[at].waits_to_send = 1;
        }
    }
    while (waiting_connections) {
        struct epoll_event ready[64];
        int got = epoll_wait(events, ready, 64, 10000);
        if (got == 0) {
            fprintf(stderr, "no answer for 10 s\n");
            return 1;
        }
        int over = !fills && now() >= end;
        for (int at = 0; at < got; at++) {
            struct connection *connection = ready[at].data.ptr;
            int all_sent = push(connection);
            if (pull(connection, reply)) {
                done += connection->count;
                if (!over)
                    begin(connection);
                if (over || !connection->count) {
                    // Whoever has nothing to do is always ready to send.
                    epoll_ctl(events, EPOLL_CTL_DEL, connection->fd, NULL);
                    waiting_connections--;
                    continue;
                }
                all_sent = push(connection);
            }
            if (connection->waits_to_send != !all_sent) {
                connection->waits_to_send = !all_sent;
                struct epoll_event event = {.events = EPOLLIN | (all_sent ? 0 : EPOLLOUT), .data.ptr = connection};
                epoll_ctl(events, EPOLL_CTL_MOD, connection->fd, &event);
            }
        }
    }
    double took = now() - began;
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    double cpu = used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"client_cpu_seconds\": %.6f}\n", done, took, cpu);
    return 0;
}
