// Fills a server that speaks RESP with distinct values, then reads and overwrites them for a while, by keys by chance, and
// compares every value that comes back. Prints a line with a JSON object: requests, seconds, and the median and 99th
// percentile of a batch's time, microseconds.
//
//     kvcheck SOCKET KEYS VALUE_BYTES RATIO DISTRIBUTION[,DISTRIBUTION] SET_PERCENT DEPTH SECONDS
//
// RATIO is what a value packs to: 1, all of its bytes are by chance; 2, half of them are. DISTRIBUTION is uniform or zipf, which
// is YCSB's, with 0.99, its warm keys spread over all keys; each has a line. It warms up for half of SECONDS.
#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { DEPTH_MAX = 64, SAMPLES_MAX = 1 << 22 };
static const double THETA = 0.99;

static int fd;
static size_t value_bytes, random_bytes;
static uint64_t keys, chance = 88172645463325252ull;
static uint32_t *version; // of each key's value
static char *value, *out, *in;
static size_t out_bytes, in_at, in_bytes, in_room;
static double zeta_keys, eta, alpha;
static float samples[SAMPLES_MAX];

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, errno ? strerror(errno) : "the connection ended");
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15ull;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

static uint64_t random64(void) {
    return mixed(chance++);
}

static double unit(void) {
    return (random64() >> 11) * (1.0 / (1ull << 53));
}

// Gray et al., "Quickly generating billion-record synthetic databases" (1994), as in YCSB.
static void prepare_zipf(void) {
    double zeta2 = 1 + pow(0.5, THETA);
    for (uint64_t at = 1; at <= keys; at++)
        zeta_keys += pow(1.0 / at, THETA);
    alpha = 1 / (1 - THETA);
    eta = (1 - pow(2.0 / keys, 1 - THETA)) / (1 - zeta2 / zeta_keys);
}

static uint64_t zipf(void) {
    double u = unit(), uz = u * zeta_keys;
    uint64_t rank = uz < 1 ? 0 : uz < 1 + pow(0.5, THETA) ? 1 : (uint64_t)(keys * pow(eta * u - eta + 1, alpha));
    return mixed(rank) % keys;
}

// The value of a key at its version.
static const char *value_of(uint64_t key) {
    uint64_t seed = mixed(key << 32 | version[key]);
    for (size_t at = 0; at + 8 <= random_bytes; at += 8) {
        uint64_t word = mixed(seed + at);
        memcpy(value + at, &word, 8);
    }
    memset(value + random_bytes, 'a' + seed % 26, value_bytes - random_bytes);
    return value;
}

static void ask(uint64_t key, int sets) {
    const char *form = sets ? "*3\r\n$3\r\nSET\r\n$16\r\nkey:%012lu\r\n$%zu\r\n" : "*2\r\n$3\r\nGET\r\n$16\r\nkey:%012lu\r\n";
    out_bytes += sprintf(out + out_bytes, form, key, value_bytes);
    if (sets) {
        version[key]++;
        memcpy(out + out_bytes, value_of(key), value_bytes);
        memcpy(out + out_bytes + value_bytes, "\r\n", 2);
        out_bytes += value_bytes + 2;
    }
}

static void send_all(void) {
    for (size_t at = 0; at < out_bytes;) {
        ssize_t sent = write(fd, out + at, out_bytes - at);
        if (sent <= 0)
            fail("send");
        at += sent;
    }
    out_bytes = 0;
}

// The next bytes of the answers.
static const char *take(size_t count) {
    if (in_bytes - in_at < count) {
        memmove(in, in + in_at, in_bytes -= in_at);
        in_at = 0;
    }
    while (in_bytes < count) {
        errno = 0;
        ssize_t got = read(fd, in + in_bytes, in_room - in_bytes);
        if (got <= 0)
            fail("receive");
        in_bytes += got;
    }
    in_at += count;
    return in + in_at - count;
}

static void expect(const char *what, const char *wanted, size_t count, uint64_t key) {
    const char *got = take(count);
    if (memcmp(got, wanted, count)) {
        fprintf(stderr, "%s of key %lu: it begins with %.60s\n", what, key, got);
        exit(1);
    }
}

static void check(uint64_t key, uint32_t its_version, int sets) {
    char head[32];
    if (sets)
        return expect("SET", "+OK\r\n", 5, key);
    expect("GET", head, sprintf(head, "$%zu\r\n", value_bytes), key);
    uint32_t newest = version[key];
    version[key] = its_version;
    expect("the value", value_of(key), value_bytes, key);
    version[key] = newest;
    expect("the end of the value", "\r\n", 2, key);
}

static void fill(void) {
    for (uint64_t key = 0; key < keys; key++) {
        ask(key, 1);
        send_all();
        check(key, 0, 1);
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

// Batches until `end`; how many requests.
static uint64_t batches(double end, int depth, int by_zipf, int set_percent, size_t *count) {
    uint64_t done = 0, chosen[DEPTH_MAX];
    uint32_t versions[DEPTH_MAX];
    int sets[DEPTH_MAX];
    *count = 0;
    for (double began = now(); began < end;) {
        for (int at = 0; at < depth; at++) {
            chosen[at] = by_zipf ? zipf() : random64() % keys;
            sets[at] = (int)(random64() % 100) < set_percent;
            ask(chosen[at], sets[at]);
            versions[at] = version[chosen[at]];
        }
        double sent = now();
        send_all();
        for (int at = 0; at < depth; at++)
            check(chosen[at], versions[at], sets[at]);
        done += depth;
        began = now();
        if (*count < SAMPLES_MAX)
            samples[(*count)++] = (began - sent) * 1e6;
    }
    return done;
}

// Measures one distribution, and prints its line.
static void measure(int by_zipf, int set_percent, int depth, double seconds) {
    size_t count;
    batches(now() + seconds / 2, depth, by_zipf, set_percent, &count);
    double began = now();
    uint64_t done = batches(began + seconds, depth, by_zipf, set_percent, &count);
    double took = now() - began;
    qsort(samples, count, sizeof *samples, by_size);
    printf("{\"requests\": %lu, \"seconds\": %.6f, \"median_us\": %.1f, \"p99_us\": %.1f}\n", done, took, samples[count / 2], samples[count * 99 / 100]);
}

int main(int argc, char **argv) {
    if (argc != 9)
        return fprintf(stderr, "usage: kvcheck SOCKET KEYS VALUE_BYTES RATIO DISTRIBUTION[,DISTRIBUTION] SET_PERCENT DEPTH SECONDS\n"), 2;
    keys = strtoull(argv[2], NULL, 10);
    value_bytes = strtoul(argv[3], NULL, 10);
    random_bytes = value_bytes / strtoul(argv[4], NULL, 10);
    int set_percent = atoi(argv[6]), depth = atoi(argv[7]);
    if (keys < 1 || depth < 1 || depth > DEPTH_MAX)
        return fprintf(stderr, "a depth of 1 to %d, and a key\n", DEPTH_MAX), 2;
    version = calloc(keys, sizeof *version);
    value = calloc(1, value_bytes + 8);
    out = malloc(DEPTH_MAX * (value_bytes + 128));
    in = malloc(in_room = DEPTH_MAX * (value_bytes + 128));
    prepare_zipf();
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, argv[1], sizeof address.sun_path - 1);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (connect(fd, (void *)&address, sizeof address))
        fail(argv[1]);
    fill();
    for (char *distribution = strtok(argv[5], ","); distribution; distribution = strtok(NULL, ","))
        measure(!strcmp(distribution, "zipf"), set_percent, depth, atof(argv[8]));
    return 0;
}
