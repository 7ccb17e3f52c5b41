/* layers URL COUNT SECONDS: what a page takes on its way into a store and back: a copy alone, a store in this process,
 * and the store of the URL. Prints a JSON object: microseconds of one operation, on pages by chance of so many. */
#include <spillway.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { PAGE = 4096, CALLS = 256 };

static unsigned char *pages, page[PAGE];
static unsigned long count;
static double seconds;
static unsigned long long chance = 88172645463325252ull;
static spillway_store *store;
static spillway_pool pool;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static unsigned long any(void) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return chance % count;
}

static void check(int answer, const char *what) {
    if (answer != SPILLWAY_OK) {
        fprintf(stderr, "layers: %s: %d, %s\n", what, answer, spillway_last_error());
        exit(1);
    }
}

static void copy(unsigned long at) {
    memcpy(page, pages + at * PAGE, PAGE);
    /* The compiler may not leave it out. */
    __asm__ volatile("" : : "r"(page) : "memory");
}

static void put(unsigned long at) {
    check(spillway_put(store, pool, (spillway_key){at, 0}, pages + at * PAGE, PAGE), "put");
}

static void get(unsigned long at) {
    size_t bytes;
    check(spillway_get(store, pool, (spillway_key){at, 0}, page, PAGE, &bytes), "get");
    if (memcmp(page, pages + at * PAGE, PAGE)) {
        fprintf(stderr, "layers: page %lu came back wrong\n", at);
        exit(1);
    }
}

/* The smallest request: it carries no page. */
static void ask(unsigned long at) {
    check(spillway_exists(store, pool, (spillway_key){at, 0}), "exists");
}

static double each_us(void (*operation)(unsigned long)) {
    unsigned long done = 0;
    double began = now(), ends = began + seconds, at;
    do {
        for (int call = 0; call < CALLS; call++)
            operation(any());
        done += CALLS;
    } while ((at = now()) < ends);
    return (at - began) / done * 1e6;
}

static void measure(const char *name, const char *url) {
    check(spillway_open(url, &store), url);
    check(spillway_open_pool(store, SPILLWAY_PERSISTENT, NULL, &pool), "open a pool");
    for (unsigned long at = 0; at < count; at++)
        put(at);
    printf(", \"%s put\": %f, \"%s get\": %f, \"%s ask\": %f", name, each_us(put), name, each_us(get), name, each_us(ask));
    spillway_close(store);
}

int main(int argc, char **argv) {
    if (argc != 4 || !(count = strtoul(argv[2], NULL, 10)) || !(pages = malloc(count * PAGE)))
        return 2;
    seconds = atof(argv[3]);
    for (unsigned long at = 0; at < count * PAGE; at += sizeof chance) {
        any();
        memcpy(pages + at, &chance, sizeof chance);
    }
    printf("{\"copy\": %f", each_us(copy));
    measure("store", "embed:?capacity=1G");
    measure("ring", argv[1]);
    puts("}");
    return 0;
}
