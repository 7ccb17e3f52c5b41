/* Forks in a loop from several threads while everything that a fork meets is in far memory: open files
 * that others open and close, name look-ups, timers whose handlers touch the heap, signal stacks, stacks
 * of coroutines and of threads. FORK_SECONDS says how long (2). */
#include "far.h"
#include <pthread.h>
#include <pwd.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

enum { BLOCK_PAGES = 16, STACK_BYTES = BLOCK_PAGES * PAGE, FILES = 32 };

static char *heap;
static volatile int over;
static volatile sig_atomic_t ticks;

static void on_tick(int signal) {
    (void)signal;
    static unsigned seed = 1;
    seed = seed * 1103515245 + 12345;
    /* A word that no generation fills, in a page of the far heap. */
    volatile char *at = heap + (size_t)(seed >> 8) % FAR_PAGES * PAGE + PAGE - 1;
    *at = *at;
    ticks++;
}

static void *walk(void *unused) {
    (void)unused;
    while (!over)
        for (size_t page = 0; page < FAR_PAGES && !over; page++) {
            volatile char *at = heap + page * PAGE;
            *at = *at;
        }
    return NULL;
}

static void *open_files(void *unused) {
    (void)unused;
    FILE *files[FILES] = {0};
    for (unsigned seed = 7; !over; seed = seed * 1103515245 + 12345) {
        FILE **file = &files[seed >> 16 & (FILES - 1)];
        if (*file) {
            fclose(*file);
            *file = NULL;
            free(memset(malloc(400 + (seed >> 8) % 300), 0x41, 300));
        } else {
            *file = fopen("/dev/null", "w");
            fputs("x", *file);
        }
    }
    return NULL;
}

static void *look_up(void *unused) {
    (void)unused;
    while (!over) {
        char text[4096];
        struct passwd record, *found;
        if (getpwnam_r("root", &record, text, sizeof text, &found) || !found)
            far_fail("no root");
        usleep(100);
    }
    return NULL;
}

/* A child that is sound: its memory is its parent's, it may fork itself, and its own heap works. */
static void fork_once(unsigned round) {
    pid_t child = fork();
    if (child == 0) {
        char *own = malloc(STACK_BYTES);
        memset(own, 0x42, STACK_BYTES);
        size_t page = round * 2654435761u % FAR_PAGES;
        far_check_at(heap + page * PAGE, page, 1, "in the child");
        free(own);
        _exit(0);
    }
    far_wait(child, "fork");
}

static void take_signal_stack(void) {
    stack_t stack = {.ss_sp = aligned_alloc(PAGE, STACK_BYTES), .ss_size = STACK_BYTES};
    far_must(sigaltstack(&stack, NULL));
}

static void *forks(void *count) {
    take_signal_stack();
    for (unsigned round = 0; !over; round++) {
        fork_once(round);
        ++*(unsigned *)count;
    }
    stack_t none = {.ss_flags = SS_DISABLE};
    far_must(sigaltstack(&none, NULL));
    return NULL;
}

static ucontext_t back, coroutine;

static void fork_in_coroutine(void) {
    for (unsigned round = 1;; round++) {
        fork_once(round);
        far_must(swapcontext(&coroutine, &back));
    }
}

int main(void) {
    const char *text = getenv("FORK_SECONDS");
    heap = far_make(FAR_PAGES);
    take_signal_stack();
    struct sigaction action = {.sa_handler = on_tick, .sa_flags = SA_RESTART | SA_ONSTACK};
    far_must(sigaction(SIGALRM, &action, NULL));

    pthread_t threads[5];
    void *(*const bodies[])(void *) = {walk, open_files, look_up, forks, forks};
    unsigned counts[5] = {0};
    for (int i = 0; i < 5; i++) {
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        if (i >= 3) /* control block and thread-local data are in far memory too */
            pthread_attr_setstack(&attributes, aligned_alloc(PAGE, STACK_BYTES), STACK_BYTES);
        if (pthread_create(&threads[i], &attributes, bodies[i], &counts[i]))
            far_fail("no thread");
    }
    struct itimerval timer = {{0, 100}, {0, 100}};
    far_must(setitimer(ITIMER_REAL, &timer, NULL));

    far_must(getcontext(&coroutine));
    coroutine.uc_stack = (stack_t){.ss_sp = malloc(STACK_BYTES), .ss_size = STACK_BYTES};
    makecontext(&coroutine, fork_in_coroutine, 0);
    time_t end = time(NULL) + (text ? atoi(text) : 2);
    unsigned rounds = 0;
    while (time(NULL) < end || rounds < 20) {
        far_must(swapcontext(&back, &coroutine));
        fork_once(rounds++);
    }
    over = 1;
    for (int i = 0; i < 5; i++)
        pthread_join(threads[i], NULL);
    memset(&timer, 0, sizeof timer);
    far_must(setitimer(ITIMER_REAL, &timer, NULL));
    if (!counts[3] || !counts[4] || !ticks)
        far_fail("forks %u and %u, ticks %d", counts[3], counts[4], (int)ticks);
    far_check(heap, FAR_PAGES, 1, "at the end");
    puts("ok");
}
