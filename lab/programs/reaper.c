/* A process that adopts orphans sees its own children and the orphans of its descendants, and no others:
 * a process that becomes a subreaper, and process 1 of a namespace. What else a program does to its
 * threads holds below these as elsewhere. */
#include "far.h"
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>

enum { CHILDREN = 4, CHECKED = FAR_PAGES / 8 };

static void *heap;
static const char *self;
/* The orphan, in memory that all processes share. */
static volatile pid_t *orphan;

static void check(const char *when) { far_check(heap, CHECKED, 1, when); }

/* Makes a child that does not wait for its own, which ends after it. */
static void leave_orphan(const char *who) {
    pid_t child = fork();
    if (child == 0) {
        usleep(200000);
        check(who);
        _exit(3);
    }
    *orphan = child;
}

/* Children that end at once, later, after leaving an orphan, and by exec; all of them and the orphan are
 * waited for, and nobody else. */
static void reap_all(int options, const char *who) {
    pid_t children[CHILDREN], pid;
    int status, seen = 0;
    *orphan = -1;
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i])
            continue;
        check(who);
        if (i == 1)
            usleep(100000);
        if (i == 2)
            leave_orphan(who);
        if (i == 3)
            execl(self, self, "exits", NULL);
        _exit(3);
    }
    while ((pid = waitpid(-1, &status, options)) > 0) {
        int known = pid == *orphan;
        for (int i = 0; i < CHILDREN; i++)
            known |= children[i] == pid;
        if (!known || status != 3 << 8)
            far_fail("%s reaped %s with status %#x", who, known ? "a child" : "a stranger", status);
        seen++;
    }
    if (errno != ECHILD || seen != CHILDREN + 1)
        far_fail("%s reaped %d of %d: %s", who, seen, CHILDREN + 1, strerror(errno));
    far_check(heap, FAR_PAGES, 1, who);
}

static void *go_on(void *bare) {
    usleep(200000); /* the first thread has ended by now */
    check("without the first thread");
    if (bare)
        syscall(SYS_exit, 0);
    return NULL;
}

/* The first thread ends before another, by the C library or by a bare system call. */
static void first_thread_ends(int bare) {
    pid_t child = fork();
    int status;
    if (child == 0) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, go_on, bare ? &bare : NULL))
            far_fail("no thread");
        if (bare)
            syscall(SYS_exit, 3);
        pthread_exit(NULL);
    }
    far_must(waitpid(child, &status, 0));
    if (status != 0) /* what the last thread ended with */
        far_fail("a process whose first thread ended, ended with %#x", status);
}

/* The only thread ends by a bare system call. */
static void only_thread_ends(void) {
    pid_t child = fork();
    int status;
    if (child == 0)
        syscall(SYS_exit, 3);
    far_must(waitpid(child, &status, 0));
    if (status != 3 << 8)
        far_fail("a process whose only thread ended, ended with %#x", status);
}

/* Process 1 of a namespace. */
static void first_process(void) {
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWPID) < 0)
            _exit(errno == EPERM ? 0 : 1);
        child = fork();
        if (child == 0) {
            if (getpid() != 1)
                far_fail("not process 1");
            reap_all(0, "process 1");
            reap_all(__WALL, "process 1, all kinds");
            _exit(0);
        }
        far_wait(child, "process 1");
        _exit(0);
    }
    far_wait(child, "the parent of process 1");
}

int main(int count, char **words) {
    if (count > 1 && !strcmp(words[1], "exits"))
        return 3;
    self = words[0];
    orphan = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    heap = far_make(FAR_PAGES);
    first_process();
    far_must(prctl(PR_SET_CHILD_SUBREAPER, 1));
    reap_all(0, "a subreaper");
    reap_all(__WALL, "a subreaper, all kinds");
    first_thread_ends(0);
    first_thread_ends(1);
    only_thread_ends();
    puts("ok");
}
