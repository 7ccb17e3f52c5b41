/* Opens the store that the first argument names, and makes every call. */
#include <spillway.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(sizeof(spillway_key) == 16, "key");
_Static_assert(sizeof(spillway_pool_info) == 56, "pool info");
_Static_assert(sizeof(spillway_operation) == 56, "operation");
_Static_assert(offsetof(spillway_operation, value) == 32, "operation");
_Static_assert(sizeof(spillway_statistics) == 96, "statistics");

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, spillway_last_error());      \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

static spillway_key key(uint64_t object, uint32_t index) {
    spillway_key key = {object, index};
    return key;
}

static void values(spillway_store *store, spillway_pool pool) {
    static const size_t lengths[] = {1, 100, 4096, 5000, SPILLWAY_VALUE_BYTES_MAX};
    unsigned char *value = malloc(SPILLWAY_VALUE_BYTES_MAX), *got = malloc(SPILLWAY_VALUE_BYTES_MAX);
    size_t bytes = 0;
    CHECK(value && got);
    for (size_t at = 0; at < SPILLWAY_VALUE_BYTES_MAX; at++)
        value[at] = (unsigned char)(at * 7 + (at >> 12));
    for (uint32_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        size_t length = lengths[at];
        CHECK(spillway_get(store, pool, key(1, at), got, length, &bytes) == SPILLWAY_MISS);
        CHECK(spillway_exists(store, pool, key(1, at)) == SPILLWAY_MISS);
        CHECK(spillway_put(store, pool, key(1, at), value, length) == SPILLWAY_OK);
        CHECK(spillway_exists(store, pool, key(1, at)) == SPILLWAY_OK);
        CHECK(spillway_get(store, pool, key(1, at), got, length - 1, &bytes) == SPILLWAY_SHORT);
        CHECK(bytes == length);
        memset(got, 0, length);
        CHECK(spillway_get(store, pool, key(1, at), got, SPILLWAY_VALUE_BYTES_MAX, &bytes) == SPILLWAY_OK);
        CHECK(bytes == length && memcmp(value, got, length) == 0);
        memset(got, 0, length);
        CHECK(spillway_take(store, pool, key(1, at), got, length, &bytes) == SPILLWAY_OK);
        CHECK(bytes == length && memcmp(value, got, length) == 0);
        CHECK(spillway_take(store, pool, key(1, at), got, length, &bytes) == SPILLWAY_MISS);
    }
    free(value);
    free(got);
}

static void batches(spillway_store *store, spillway_pool pool) {
    enum { COUNT = 200 };
    static unsigned char in[COUNT][300], out[COUNT][300];
    static spillway_operation operations[COUNT + 3];
    for (uint32_t at = 0; at < COUNT; at++) {
        memset(in[at], (int)at + 1, sizeof in[at]);
        operations[at] = (spillway_operation){
            .kind = SPILLWAY_PUT, .pool = pool, .key = key(2, at), .value = in[at], .bytes = sizeof in[at]};
    }
    CHECK(spillway_batch(store, operations, COUNT) == SPILLWAY_OK);
    for (uint32_t at = 0; at < COUNT; at++) {
        CHECK(operations[at].result == SPILLWAY_OK);
        operations[at].kind = at % 2 ? SPILLWAY_GET : SPILLWAY_TAKE;
        operations[at].value = out[at];
    }
    operations[COUNT] = (spillway_operation){.kind = SPILLWAY_EXISTS, .pool = pool, .key = key(9, 9)};
    operations[COUNT + 1] = (spillway_operation){.kind = SPILLWAY_FLUSH, .pool = pool, .key = key(9, 9)};
    operations[COUNT + 2] = (spillway_operation){.kind = SPILLWAY_FLUSH_OBJECT, .pool = pool, .key = key(9, 9)};
    CHECK(spillway_batch(store, operations, COUNT + 3) == SPILLWAY_OK);
    for (uint32_t at = 0; at < COUNT; at++)
        CHECK(operations[at].result == SPILLWAY_OK && operations[at].count == sizeof in[at]);
    CHECK(memcmp(in, out, sizeof in) == 0);
    CHECK(operations[COUNT].result == SPILLWAY_MISS && operations[COUNT + 1].result == SPILLWAY_MISS);
    CHECK(operations[COUNT + 2].result == SPILLWAY_OK && operations[COUNT + 2].count == 0);
    operations[0].kind = 77;
    CHECK(spillway_batch(store, operations, 1) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_batch(store, NULL, 1) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_batch(store, NULL, 0) == SPILLWAY_OK);
}

static void lists(spillway_store *store, spillway_pool pool) {
    spillway_key keys[150];
    spillway_pool_info pools[4];
    size_t count = 0;
    uint64_t pages = 0;
    /* The odd keys of the batch still exist. */
    CHECK(spillway_list(store, pool, NULL, keys, 150, &count) == SPILLWAY_OK && count == 100);
    for (size_t at = 0; at < count; at++)
        CHECK(keys[at].object == 2 && keys[at].index % 2 == 1);
    spillway_key from = keys[60];
    CHECK(spillway_list(store, pool, &from, keys, 150, &count) == SPILLWAY_OK && count == 40);
    CHECK(keys[0].index == from.index);
    CHECK(spillway_pools(store, pools, 4, &count) == SPILLWAY_OK && count == 1);
    CHECK(pools[0].pool == pool && pools[0].pages == 100 && pools[0].flags == SPILLWAY_PERSISTENT);
    CHECK(spillway_pools(store, NULL, 0, &count) == SPILLWAY_OK && count == 1);
    CHECK(spillway_flush(store, pool, from) == SPILLWAY_OK);
    CHECK(spillway_flush(store, pool, from) == SPILLWAY_MISS);
    CHECK(spillway_flush_object(store, pool, 2, &pages) == SPILLWAY_OK && pages == 99);
    CHECK(spillway_flush_object(store, pool, 2, NULL) == SPILLWAY_OK);
}

static void wrong_arguments(spillway_store *store, spillway_pool pool) {
    spillway_store *other = NULL;
    spillway_pool shared;
    size_t bytes;
    char byte = 0;
    const uint8_t uuid[16] = {1};
    CHECK(spillway_open(NULL, &other) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_open("embed:", NULL) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_open("file:///", &other) == SPILLWAY_ERROR_URL);
    CHECK(strstr(spillway_last_error(), "'file:///' names no store") != NULL);
    CHECK(spillway_open("ring:/nowhere/at.all", &other) == SPILLWAY_ERROR_CONNECT && other == NULL);
    CHECK(spillway_put(NULL, pool, key(1, 1), &byte, 1) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_put(store, pool, key(1, 1), NULL, 1) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_put(store, pool, key(1, 1), NULL, 0) == SPILLWAY_ERROR_LENGTH);
    CHECK(spillway_put(store, pool, key(1, 1), &byte, SIZE_MAX) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_get(store, pool, key(1, 1), NULL, 1, &bytes) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_get(store, pool, key(1, 1), &byte, 1, NULL) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_open_pool(store, 4, NULL, &shared) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_open_pool(store, SPILLWAY_SHARED, NULL, &shared) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_open_pool(store, SPILLWAY_PERSISTENT, NULL, NULL) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_join_pool(store, NULL, &shared) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_join_pool(store, uuid, &shared) == SPILLWAY_ERROR_UNAUTHORISED);
    CHECK(spillway_close_pool(store, UINT64_MAX) == SPILLWAY_ERROR_NO_POOL);
    CHECK(spillway_get(store, UINT64_MAX, key(1, 1), &byte, 1, &bytes) == SPILLWAY_ERROR_NO_POOL);
    CHECK(spillway_read_statistics(store, NULL) == SPILLWAY_ERROR_ARGUMENT);
    spillway_close(NULL);
}

int main(int count, char **arguments) {
    spillway_store *store = NULL;
    spillway_pool pool, shared;
    spillway_statistics statistics;
    const uint8_t uuid[16] = {0xab, 1};
    CHECK(count == 2 && strlen(spillway_version()) >= 5 && strlen(spillway_last_error()) == 0);
    CHECK(spillway_open(arguments[1], &store) == SPILLWAY_OK);
    CHECK(spillway_open_pool(store, SPILLWAY_PERSISTENT, NULL, &pool) == SPILLWAY_OK);
    values(store, pool);
    batches(store, pool);
    lists(store, pool);
    wrong_arguments(store, pool);
    CHECK(spillway_open_pool(store, SPILLWAY_SHARED | SPILLWAY_PERSISTENT, uuid, &shared) == SPILLWAY_OK);
    CHECK(spillway_join_pool(store, uuid, &shared) == SPILLWAY_OK);
    CHECK(spillway_open_pool(store, SPILLWAY_SHARED, uuid, &shared) == SPILLWAY_ERROR_LIFETIME);
    CHECK(spillway_close_pool(store, shared) == SPILLWAY_OK);
    CHECK(spillway_read_statistics(store, &statistics) == SPILLWAY_OK);
    CHECK(statistics.puts_stored == 205 && statistics.used_pages == 0);
    CHECK(spillway_close_pool(store, pool) == SPILLWAY_OK);
    CHECK(spillway_close_pool(store, pool) == SPILLWAY_ERROR_NO_POOL);
    spillway_close(store);
    puts("all calls are right");
    return 0;
}
