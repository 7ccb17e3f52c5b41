/*
 * libspillway: put values into a page store, and get them back.
 *
 * You open a store by URL: "embed:" (in this process; "embed:?capacity=64M" limits its memory),
 * "ring:/run/spillway/spillway.sock" (a daemon of this host, over shared memory) or "nvme+tcp://host:4420"
 * (a daemon of another host). A value has 1 byte to 16 MiB, and lies in a pool, under a key.
 *
 * Any number of threads may call all functions except spillway_close at the same time. After a fork, only the
 * parent can use a store that was opened before it. Functions return SPILLWAY_OK (0), a positive answer, or a
 * negative error; spillway_last_error describes the thread's last error in a line. The spillway_guest functions
 * take no store: a program in a virtual machine uses them to request memory from the host, through the guest's
 * agent.
 *
 * No function calls exit, changes signal handlers or writes to a terminal. If the library detects a bug in
 * itself, it aborts the process.
 */
#ifndef SPILLWAY_H
#define SPILLWAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An open store. */
typedef struct spillway_store spillway_store;

/* A handle of a pool, valid for the store that returned it. */
typedef uint64_t spillway_pool;

/* The name of a value in its pool. */
typedef struct {
    uint64_t object;
    uint32_t index;
} spillway_key;

/* Results of functions. The numbers never change. */
enum {
    SPILLWAY_OK = 0,

    /* Answers, which are not errors. */
    SPILLWAY_MISS = 1,              /* There is no value under the key. */
    SPILLWAY_SHORT = 2,             /* The value is longer than the buffer; nothing was copied. */
    SPILLWAY_REFUSED_AT_TARGET = 3, /* Not stored: this client holds as many pages as its target allows. */
    SPILLWAY_REFUSED_FULL = 4,      /* Not stored: the store has no memory left. */
    SPILLWAY_REFUSED_FROZEN = 5,    /* Not stored: the client is being moved to another daemon. */
    SPILLWAY_REFUSED_BY_HOST = 6,   /* The host granted or took no memory; spillway_last_error says why. */

    /* Errors. */
    SPILLWAY_ERROR_ARGUMENT = -1,      /* A null pointer, or an invalid length or flag. */
    SPILLWAY_ERROR_URL = -2,           /* The URL names no store, or a file that can't be used. */
    SPILLWAY_ERROR_CONNECT = -3,       /* The store can't be reached. */
    SPILLWAY_ERROR_DENIED = -4,        /* The store refuses this client. */
    SPILLWAY_ERROR_LOST = -5,          /* The connection has ended; the outcome is unknown. */
    SPILLWAY_ERROR_TIMEOUT = -6,       /* No answer came in time; the outcome is unknown. */
    SPILLWAY_ERROR_FORKED = -7,        /* The store was opened by the parent of this process. */
    SPILLWAY_ERROR_NO_POOL = -8,       /* There is no such pool (any more). */
    SPILLWAY_ERROR_UNAUTHORISED = -9,  /* Not authorised for the shared pool, or it does not exist. */
    SPILLWAY_ERROR_LIFETIME = -10,     /* The shared pool exists, but is persistent instead of ephemeral, or
                                          vice versa. */
    SPILLWAY_ERROR_POOLS_FULL = -11,   /* The store has no room for another pool. */
    SPILLWAY_ERROR_LENGTH = -12,       /* A value is empty, or longer than a request can carry. */
    SPILLWAY_ERROR_CORRUPT = -13,      /* The stored bytes are corrupt. They are not returned. */
    SPILLWAY_ERROR_PROTOCOL = -14,     /* The peer violated the protocol. */
    SPILLWAY_ERROR_SYSTEM = -15,       /* A system call failed. */
    SPILLWAY_ERROR_FAILED = -16        /* The store failed. */
};

/* Flags of a pool: tmem's flag word without the version. */
enum {
    SPILLWAY_EPHEMERAL = 0,  /* Values may vanish at any time; a get from a private pool removes them. */
    SPILLWAY_PERSISTENT = 1, /* Values stay until they are flushed or their pool is destroyed. */
    SPILLWAY_SHARED = 2      /* For all clients that the operator has authorised for the UUID. */
};

/* Most bytes of a value. */
#define SPILLWAY_VALUE_BYTES_MAX ((size_t)16 << 20)

/* Opens the store that url names. */
int spillway_open(const char *url, spillway_store **store);

/* Closes a store; null is allowed. No other call may use it meanwhile or afterwards. A daemon keeps the pools. */
void spillway_close(spillway_store *store);

/* Creates a pool. With SPILLWAY_SHARED, uuid has 16 bytes, and an existing pool is joined; otherwise uuid may be
 * null. */
int spillway_open_pool(spillway_store *store, uint32_t flags, const uint8_t *uuid, spillway_pool *pool);

/* Joins the existing shared pool of a UUID of 16 bytes. */
int spillway_join_pool(spillway_store *store, const uint8_t *uuid, spillway_pool *pool);

/* Destroys a private pool with its values, or leaves a shared one. */
int spillway_close_pool(spillway_store *store, spillway_pool pool);

/* Stores a value of 1 byte to 16 MiB, and replaces the key's former one. After a refusal the key has no value. */
int spillway_put(spillway_store *store, spillway_pool pool, spillway_key key, const void *value,
                 size_t bytes);

/* Copies a value of at most room bytes out. Sets *bytes to its length, also with SPILLWAY_SHORT. */
int spillway_get(spillway_store *store, spillway_pool pool, spillway_key key, void *value, size_t room,
                 size_t *bytes);

/* Like spillway_get, but also removes the value in the same step. */
int spillway_take(spillway_store *store, spillway_pool pool, spillway_key key, void *value, size_t room,
                  size_t *bytes);

/* Removes a value; SPILLWAY_MISS when there is none. */
int spillway_flush(spillway_store *store, spillway_pool pool, spillway_key key);

/* Removes all values of an object. Sets *pages to the number of pages freed; pages may be null. */
int spillway_flush_object(spillway_store *store, spillway_pool pool, uint64_t object, uint64_t *pages);

/* SPILLWAY_OK when there is a value under the key, else SPILLWAY_MISS. */
int spillway_exists(spillway_store *store, spillway_pool pool, spillway_key key);

/* Lists at most room keys of a pool, beginning with *from, or with the first key when from is null. Sets *count
 * to the number of keys listed; fewer than room means that there are no more. */
int spillway_list(spillway_store *store, spillway_pool pool, const spillway_key *from, spillway_key *keys,
                  size_t room, size_t *count);

/* A pool of this client. */
typedef struct {
    spillway_pool pool;
    uint64_t pages;       /* Pages charged for its values. */
    uint32_t flags;       /* SPILLWAY_PERSISTENT, SPILLWAY_SHARED. */
    uint32_t reserved;    /* Zero. */
    uint8_t uuid[16];     /* Of a shared pool. */
    uint8_t identity[16]; /* Distinguishes it from every other pool of any store, at any time. */
} spillway_pool_info;

/* Describes at most room pools of this client, also those that earlier connections opened. Sets *count to the
 * number of the client's pools, which can be more than room. */
int spillway_pools(spillway_store *store, spillway_pool_info *pools, size_t room, size_t *count);

/* What an operation of a batch does. */
enum {
    SPILLWAY_PUT = 1,
    SPILLWAY_GET = 2,
    SPILLWAY_TAKE = 3,
    SPILLWAY_FLUSH = 4,
    SPILLWAY_FLUSH_OBJECT = 5, /* Of key.object. */
    SPILLWAY_EXISTS = 6
};

/* One operation of a batch. */
typedef struct {
    int32_t kind;       /* One of the constants above. */
    int32_t result;     /* Set by spillway_batch: the result of the single function. */
    spillway_pool pool;
    spillway_key key;
    void *value;        /* The value of a put, which is only read; the buffer of a get or take. */
    size_t bytes;       /* Its length. */
    uint64_t count;     /* Set by spillway_batch: bytes of the value, or pages freed. */
} spillway_operation;

/* Executes operations in no particular order, many at a time if the transport allows. Values of different
 * operations must not overlap. Returns SPILLWAY_OK when every operation has its result. */
int spillway_batch(spillway_store *store, spillway_operation *operations, size_t count);

/* Counters of this client, over all its connections. All but the last two only grow. */
typedef struct {
    uint64_t puts;
    uint64_t puts_stored;
    uint64_t puts_refused_at_target;
    uint64_t puts_refused_full;
    uint64_t puts_refused_other;
    uint64_t gets;
    uint64_t hits;
    uint64_t misses;
    uint64_t flushed_pages;
    uint64_t evicted_pages;
    uint64_t used_pages;
    uint64_t target_pages; /* UINT64_MAX means no limit. */
} spillway_statistics;

/* Reads the counters. */
int spillway_read_statistics(spillway_store *store, spillway_statistics *statistics);

/* Where spillway-agent listens in a guest. */
#define SPILLWAY_AGENT "/run/spillway-agent/socket"

/* Requests memory from the host for this guest, and waits until it is available. agent is the path of the agent's
 * socket; null means SPILLWAY_AGENT. The call takes at most timeout_ms milliseconds; 0 means 35 s, within which a
 * working agent always replies. Returns SPILLWAY_OK when the guest has more memory, and sets *granted to the number
 * of bytes. This can be less than requested, or a little more, because the host counts in sections. Otherwise sets
 * *granted to 0 and returns SPILLWAY_REFUSED_BY_HOST, SPILLWAY_ERROR_CONNECT (no agent runs there),
 * SPILLWAY_ERROR_TIMEOUT (the memory may still come), SPILLWAY_ERROR_LOST, SPILLWAY_ERROR_PROTOCOL,
 * SPILLWAY_ERROR_SYSTEM or SPILLWAY_ERROR_ARGUMENT (0 bytes, more than 4 PiB, granted is null). The memory belongs
 * to the whole guest, not only to this program. The agent limits how often a user may ask, and for how much. */
int spillway_guest_need(const char *agent, uint64_t bytes, uint32_t timeout_ms, uint64_t *granted);

/* Offers the host memory that the program has freed before. Sets *taken to the number of bytes that the host takes.
 * Otherwise like spillway_guest_need. */
int spillway_guest_give(const char *agent, uint64_t bytes, uint32_t timeout_ms, uint64_t *taken);

/* A line about this thread's last error or refusal by the host; empty if there was none. The text is valid until the
 * thread's next error. */
const char *spillway_last_error(void);

/* The version of the library, such as "0.1.0". */
const char *spillway_version(void);

#ifdef __cplusplus
}
#endif

#endif
