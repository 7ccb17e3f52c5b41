/* liar PORT SECONDS SEED: an agent that means ill, on a virtio port: random bytes, floods, half lines, lines without an end,
 * messages with numbers that can't be true and with some that could, and silence; reads now and then, or not. Says at the end
 * how much it has said. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 9, MIB = 1 << 20 };

static uint64_t state, sent_bytes, messages;

static uint64_t below(uint64_t most) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % most;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Numbers that are too large, no numbers, or what might be true. */
static const char *number(void) {
    static char text[4][32];
    static int at;
    static const char *odd[] = {"0", "1", "-1", "4503599627370496", "4503599627370497", "18446744073709551615",
                                "18446744073709551616", "1e300", "null", "\"1\"", "1.5", "[1]"};
    if (below(2))
        return odd[below(sizeof odd / sizeof *odd)];
    at = (at + 1) % 4;
    snprintf(text[at], sizeof text[at], "%llu", (unsigned long long)below(4096) * MIB);
    return text[at];
}

static void say(int port, const char *bytes, size_t count) {
    struct pollfd wait = {.fd = port, .events = POLLOUT};
    for (size_t done = 0; done < count;) {
        ssize_t sent = write(port, bytes + done, count - done);
        if (sent > 0) {
            done += sent;
            sent_bytes += sent;
        } else if (sent < 0 && errno != EAGAIN && errno != EINTR) {
            perror("liar");
            exit(1);
        } else if (poll(&wait, 1, 100) == 0)
            return; /* The host does not read: what is left unsaid makes a half line. */
    }
    messages++;
}

static void status(char *line, size_t most, const char *total, const char *available) {
    snprintf(line, most,
             "{\"status\":{\"total_bytes\":%s,\"available_bytes\":%s,\"kernel_free_bytes\":%s,\"cached_bytes\":%s,"
             "\"stalled_us\":%llu,\"refaults\":%llu,\"swap_ins\":0,\"kills\":0}}\n",
             total, available, number(), number(), (unsigned long long)below(1u << 31), (unsigned long long)below(1u << 31));
}

/* One message of a kind; how long to wait after it, microseconds. */
static unsigned lie(int port, int kind) {
    static char line[8192];
    switch (kind) {
    case 0:
        for (size_t i = 0; i < 4096; i++)
            line[i] = below(256);
        say(port, line, 1 + below(4096));
        return 0;
    case 1:
        snprintf(line, sizeof line, "{\"need\":{\"id\":%s,\"bytes\":%s,\"urgent\":%s}}\n", number(), number(),
                 below(2) ? "true" : "false");
        break;
    case 2:
        status(line, sizeof line, number(), number());
        break;
    case 3:
        snprintf(line, sizeof line, "{\"give\":{\"id\":%s,\"bytes\":%s}}\n", number(), number());
        break;
    case 4:
        snprintf(line, sizeof line, "{\"offlined\":{\"id\":%llu,\"bytes\":%s}}\n", (unsigned long long)below(64), number());
        break;
    case 5:
        snprintf(line, sizeof line, "{\"hello\":{\"version\":%s,\"kernel\":\"\\u001b[2J\xff%s\",\"boot\":\"%s\",\"block_bytes\":%s}}\n",
                 number(), below(2) ? "6.12" : "\\n", number(), number());
        break;
    case 6: /* A line without an end, and half of one. */
        memset(line, 'x', sizeof line - 1);
        line[sizeof line - 1] = 0;
        if (below(2))
            snprintf(line, sizeof line, "{\"need\":{\"id\":1,");
        break;
    case 7: /* What could be true: nothing is in use, and it wants more; at the pace of an agent. */
        status(line, sizeof line, "1500000000", "1450000000");
        say(port, line, strlen(line));
        snprintf(line, sizeof line, "{\"need\":{\"id\":7,\"bytes\":%llu,\"urgent\":true}}\n", (unsigned long long)below(1024) * MIB);
        say(port, line, strlen(line));
        return 100000;
    default:
        return 500000;
    }
    say(port, line, strlen(line));
    return 0;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    int port = open(argv[1], O_RDWR | O_NONBLOCK);
    if (port < 0) {
        perror(argv[1]);
        return 1;
    }
    state = 88172645463325252u + strtoull(argv[3], NULL, 10);
    static const char hello[] = "\n{\"hello\":{\"version\":1,\"kernel\":\"6.12-liar\",\"boot\":\"1\",\"block_bytes\":134217728}}\n";
    for (double end = now() + atof(argv[2]); now() < end;) {
        say(port, hello, sizeof hello - 1);
        int kind = below(KINDS), reads = below(2);
        for (double until = now() + 1 + below(3); now() < until && now() < end;) {
            usleep(lie(port, kind));
            static char heard[4096];
            while (reads && read(port, heard, sizeof heard) > 0)
                ;
        }
        say(port, "\n", 1);
    }
    printf("liar: %llu messages, %llu bytes\n", (unsigned long long)messages, (unsigned long long)sent_bytes);
}
