/*
 * libspillway: put values into a page store, and get them back.
 *
 * A store is opened by URL: "embed:" (in this process; "embed:?capacity=64M" says how much memory it may
 * take), "ring:/run/spillway/spillway.sock" (a daemon of this host, over shared memory) or
 * "nvme+tcp://host:4420" (a daemon of another host). Values have 1 byte to 16 MiB and lie in pools, under
 * keys.
 *
 * All functions but spillway_close may be called from any number of threads at the same time. A store that
 * was opened before a fork can be used in the parent alone. Functions give SPILLWAY_OK (0), one of the
 * positive answers, or a negative error; spillway_last_error has a line about the last error of the thread.
 * The spillway_guest functions take no store: a program of a virtual machine asks the host for memory with
 * them, by the agent of its guest.
 *
 * No function calls exit, changes signal handlers or writes to a terminal; a bug found inside the library
 * ends the process by abort.
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

/* A pool, as the store that gave it knows it. */
typedef uint64_t spillway_pool;

/* The name of a value in its pool. */
typedef struct {
    uint64_t object;
    uint32_t index;
} spillway_key;

/* What functions give. The numbers never change. */
enum {
    SPILLWAY_OK = 0,

    /* Answers: nothing is wrong. */
    SPILLWAY_MISS = 1,              /* There is no value under the key. */
    SPILLWAY_SHORT = 2,             /* The value is longer than the buffer; nothing was copied. */
    SPILLWAY_REFUSED_AT_TARGET = 3, /* Not stored: this client holds all the pages that it may hold. */
    SPILLWAY_REFUSED_FULL = 4,      /* Not stored: the store has no memory left. */
    SPILLWAY_REFUSED_FROZEN = 5,    /* Not stored: the client is being moved elsewhere. */
    SPILLWAY_REFUSED_BY_HOST = 6,   /* The guest got no memory, or gave none; spillway_last_error says why. */

    /* Errors. */
    SPILLWAY_ERROR_ARGUMENT = -1,      /* A null pointer, a length or a flag that can't be. */
    SPILLWAY_ERROR_URL = -2,           /* The URL names no store, or a file that can't be used. */
    SPILLWAY_ERROR_CONNECT = -3,       /* The store can't be reached. */
    SPILLWAY_ERROR_DENIED = -4,        /* The store does not let this client in. */
    SPILLWAY_ERROR_LOST = -5,          /* The connection has ended; the outcome is not known. */
    SPILLWAY_ERROR_TIMEOUT = -6,       /* No answer came in time; the outcome is not known. */
    SPILLWAY_ERROR_FORKED = -7,        /* The store was opened by the parent of this process. */
    SPILLWAY_ERROR_NO_POOL = -8,       /* There is no such pool (any more). */
    SPILLWAY_ERROR_UNAUTHORISED = -9,  /* Not authorised for the shared pool, or there is none. */
    SPILLWAY_ERROR_LIFETIME = -10,     /* The shared pool is there, but persistent where ephemeral was asked
                                          for, or the other way round. */
    SPILLWAY_ERROR_POOLS_FULL = -11,   /* The store has no room for another pool. */
    SPILLWAY_ERROR_LENGTH = -12,       /* A value is empty, or longer than can travel. */
    SPILLWAY_ERROR_CORRUPT = -13,      /* Stored bytes are not what was stored. They are not given. */
    SPILLWAY_ERROR_PROTOCOL = -14,     /* The other side does not keep to the protocol. */
    SPILLWAY_ERROR_SYSTEM = -15,       /* A system call failed. */
    SPILLWAY_ERROR_FAILED = -16        /* The store failed. */
};

/* Flags of a pool: tmem's flag word without the version. */
enum {
    SPILLWAY_EPHEMERAL = 0,  /* Values may vanish at any time; a get from a private pool removes them. */
    SPILLWAY_PERSISTENT = 1, /* Values stay until they are flushed or their pool goes. */
    SPILLWAY_SHARED = 2      /* For all clients that the operator has authorised for the UUID. */
};

/* Most bytes of a value. */
#define SPILLWAY_VALUE_BYTES_MAX ((size_t)16 << 20)

/* Opens the store that url names. */
int spillway_open(const char *url, spillway_store **store);

/* Closes a store; null is fine. No other call on it may be under way, and none may follow. Pools of a
 * daemon stay. */
void spillway_close(spillway_store *store);

/* Makes a pool. With SPILLWAY_SHARED, uuid has 16 bytes, and a pool that is there is joined; else it may be
 * null. */
int spillway_open_pool(spillway_store *store, uint32_t flags, const uint8_t *uuid, spillway_pool *pool);

/* Joins the shared pool of a UUID of 16 bytes. */
int spillway_join_pool(spillway_store *store, const uint8_t *uuid, spillway_pool *pool);

/* Destroys a private pool with its values, or leaves a shared one. */
int spillway_close_pool(spillway_store *store, spillway_pool pool);

/* Stores a value of 1 byte to 16 MiB in place of what is under the key. When it is refused, nothing is
 * under the key. */
int spillway_put(spillway_store *store, spillway_pool pool, spillway_key key, const void *value,
                 size_t bytes);

/* Copies a value out if it has at most room bytes. *bytes becomes its length, also with SPILLWAY_SHORT. */
int spillway_get(spillway_store *store, spillway_pool pool, spillway_key key, void *value, size_t room,
                 size_t *bytes);

/* Like spillway_get, and removes the value in the same step. */
int spillway_take(spillway_store *store, spillway_pool pool, spillway_key key, void *value, size_t room,
                  size_t *bytes);

/* Removes a value; SPILLWAY_MISS when there is none. */
int spillway_flush(spillway_store *store, spillway_pool pool, spillway_key key);

/* Removes all values of an object. *pages becomes how many pages this freed; it may be null. */
int spillway_flush_object(spillway_store *store, spillway_pool pool, uint64_t object, uint64_t *pages);

/* SPILLWAY_OK when there is a value under the key, else SPILLWAY_MISS. */
int spillway_exists(spillway_store *store, spillway_pool pool, spillway_key key);

/* Lists at most room keys of a pool, from *from on (that key too), or from the first when from is null.
 * *count becomes how many there are in keys; fewer than room means that there are no more. */
int spillway_list(spillway_store *store, spillway_pool pool, const spillway_key *from, spillway_key *keys,
                  size_t room, size_t *count);

/* A pool of this client. */
typedef struct {
    spillway_pool pool;
    uint64_t pages;       /* Pages that its values are billed as. */
    uint32_t flags;       /* SPILLWAY_PERSISTENT, SPILLWAY_SHARED. */
    uint32_t reserved;    /* Zero. */
    uint8_t uuid[16];     /* Of a shared pool. */
    uint8_t identity[16]; /* Tells it from every other pool that there was or will be. */
} spillway_pool_info;

/* Tells about at most room pools of this client, also those that earlier connections opened. *count becomes
 * how many pools there are, which can be more than room. */
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
    int32_t kind;       /* What to do. */
    int32_t result;     /* What the function for it would have given; written by spillway_batch. */
    spillway_pool pool;
    spillway_key key;
    void *value;        /* The value of a put, which is only read; the buffer of a get or take. */
    size_t bytes;       /* Its length. */
    uint64_t count;     /* Bytes of the value (get, take) or pages freed (flush object); written. */
} spillway_operation;

/* Carries operations out, many at a time where the way to the store allows, in no particular order; values
 * of different operations must not overlap. Gives SPILLWAY_OK when all have a result of their own. */
int spillway_batch(spillway_store *store, spillway_operation *operations, size_t count);

/* Counters of this client, over all its connections. They only grow, but for the last two. */
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
    uint64_t target_pages; /* UINT64_MAX is no limit. */
} spillway_statistics;

/* Reads the counters. */
int spillway_read_statistics(spillway_store *store, spillway_statistics *statistics);

/* Where spillway-agent listens in a guest. */
#define SPILLWAY_AGENT "/run/spillway-agent/socket"

/* Asks the host for so many bytes more for this guest, and waits until they are there. agent is the path of
 * the agent's socket; null is SPILLWAY_AGENT. The call takes at most timeout_ms milliseconds; 0 is 35 s, in which
 * an agent that works always replies. SPILLWAY_OK when the guest has more memory: *granted becomes how much,
 * which can be less than was asked for, or a little more, since the host counts in sections. Otherwise *granted
 * becomes 0, and the call gives SPILLWAY_REFUSED_BY_HOST, SPILLWAY_ERROR_CONNECT (no agent runs there),
 * SPILLWAY_ERROR_TIMEOUT (memory may come all the same), SPILLWAY_ERROR_LOST, SPILLWAY_ERROR_PROTOCOL,
 * SPILLWAY_ERROR_SYSTEM or SPILLWAY_ERROR_ARGUMENT (0 bytes, more than 4 PiB, granted is null). The memory is
 * the guest's, not this program's alone. The agent bounds how often a user may ask, and for how much. */
int spillway_guest_need(const char *agent, uint64_t bytes, uint32_t timeout_ms, uint64_t *granted);

/* Tells the host that this guest can do without so many bytes, which the program has freed before. *taken
 * becomes how much the host takes; all else is as with spillway_guest_need. */
int spillway_guest_give(const char *agent, uint64_t bytes, uint32_t timeout_ms, uint64_t *taken);

/* A line about the last call of this thread that gave an error or was refused by the host of a guest; empty when
 * none was. It stays as it is until the thread's next error. */
const char *spillway_last_error(void);

/* The version of the library, such as "0.1.0". */
const char *spillway_version(void);

#ifdef __cplusplus
}
#endif

#endif
