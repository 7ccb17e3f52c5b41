/* handover_monitor SOCKET cloud-hypervisor|firecracker|BAD MIB SECONDS [FILE]: a small virtual machine monitor without a machine.
 *
 * It makes a guest's memory, registers it with a userfaultfd, hands it over on SOCKET as the monitor of that name does, and
 * then is the guest: threads write pages, each with its number and the round it was written in, and check what they wrote
 * before, word by word; one thread gives pages up and checks that they are zeros. Says "ok" and what was done, or the first
 * wrong byte. Firecracker's memory is private and begins as FILE, which it writes first.
 *
 * BAD sends what must be refused: overlap, file-overlap, wrap, missing, beyond, unaligned, no-descriptor, no-uffd,
 * mode, unregistered, silent, garbage. It prints the answer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096
#define WORDS (PAGE / 8)
#define WRITERS 3
/* Two regions, of which the second lies elsewhere in the file than in memory. */
#define REGIONS 2
#define must(call) must_at((call) != -1, #call, __LINE__)

static uint64_t *memory;
static size_t pages;
/* The round in which each page was written last; 0 is never, or given up. */
static uint32_t *rounds;
/* A page is used by one thread at a time. */
static pthread_mutex_t *locks;
#define LOCKS 4096
static volatile int stop;
static _Atomic uint64_t writes, checks, removals, slowest_ns;
static int memory_file = -1, private_memory, seconds;

static void must_at(int good, const char *what, int line) {
    if (good)
        return;
    fprintf(stderr, "handover_monitor: line %d: %s: %s\n", line, what, strerror(errno));
    exit(2);
}

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* What word `at` of a page holds after it was written in a round. A third of the pages pack well. */
static uint64_t word(size_t page, uint32_t round, size_t at) {
    uint64_t mixed = (page + 1) * 0x9E3779B97F4A7C15u ^ (uint64_t)round * 0xBF58476D1CE4E5B9u;
    if (page % 3 == 0)
        return mixed;
    mixed += at * 0x94D049BB133111EBu;
    return (mixed ^ mixed >> 29) * 0xBF58476D1CE4E5B9u;
}

static void wrong(size_t page, size_t at, uint64_t found, uint64_t expected) {
    printf("WRONG: page %zu word %zu is %016" PRIx64 ", expected %016" PRIx64 " (round %u)\n", page, at, found, expected,
           rounds[page]);
    fflush(stdout);
    _exit(1);
}

static uint64_t first_word(size_t page, size_t at) { return private_memory ? word(page, 1, at) : 0; }

#define REMOVED UINT32_MAX

static void check(size_t page) {
    uint64_t *words = memory + page * WORDS;
    for (size_t at = 0; at < WORDS; at++) {
        uint64_t expected = rounds[page] == REMOVED ? 0 : rounds[page] ? word(page, rounds[page], at) : first_word(page, at);
        uint64_t found = ((volatile uint64_t *)words)[at];
        if (found != expected)
            wrong(page, at, found, expected);
    }
    checks++;
}

static void fill(size_t page) {
    uint32_t round = rounds[page] == REMOVED ? 2 : rounds[page] + 2;
    volatile uint64_t *words = memory + page * WORDS;
    for (size_t at = 0; at < WORDS; at++)
        words[at] = word(page, round, at);
    rounds[page] = round;
    writes++;
}

/* As a balloon does: the contents go. */
static void give_up(size_t page, const size_t *file_page) {
    if (!private_memory)
        must(fallocate(memory_file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)file_page[page] * PAGE, PAGE));
    must(madvise((char *)memory + page * PAGE, PAGE, private_memory ? MADV_DONTNEED : MADV_REMOVE));
    rounds[page] = REMOVED;
    removals++;
}

static size_t *file_pages;

static void *work(void *argument) {
    uint64_t state = (uint64_t)(uintptr_t)argument * 0x9E3779B97F4A7C15u + 1;
    size_t hot = pages / 8;
    while (!stop) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        /* Half of the time an eighth of the memory. */
        size_t page = (state >> 20) % (state & 1 ? hot : pages);
        pthread_mutex_lock(&locks[page % LOCKS]);
        uint64_t began = now_ns();
        check(page);
        if ((state >> 8) % 64 == 0)
            give_up(page, file_pages);
        else if ((state >> 8) % 2)
            fill(page);
        uint64_t took = now_ns() - began, before = slowest_ns;
        while (took > before && !__atomic_compare_exchange_n((uint64_t *)&slowest_ns, &before, took, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            ;
        pthread_mutex_unlock(&locks[page % LOCKS]);
    }
    return NULL;
}

/* Sends text and descriptors in one message. */
static int hand_over(const char *path, const char *text, const int *files, size_t count) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    must(fd);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    must(connect(fd, (struct sockaddr *)&to, sizeof to));
    struct iovec part = {(char *)text, strlen(text)};
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int) * 8)];
    } control = {0};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (count) {
        message.msg_control = &control;
        message.msg_controllen = CMSG_SPACE(sizeof(int) * count);
        struct cmsghdr *header = CMSG_FIRSTHDR(&message);
        *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int) * count)};
        memcpy(CMSG_DATA(header), files, sizeof(int) * count);
    }
    if (*text)
        must(sendmsg(fd, &message, 0));
    return fd;
}

static void answer(int fd, char *into, size_t room) {
    size_t got = 0;
    while (got < room - 1) {
        ssize_t came = read(fd, into + got, room - 1 - got);
        if (came <= 0)
            break;
        got += (size_t)came;
        if (memchr(into, '\n', got))
            break;
    }
    into[got] = 0;
    into[strcspn(into, "\n")] = 0;
}

int main(int argc, char **argv) {
    if (argc < 5)
        return fprintf(stderr, "see the top of handover_monitor.c\n"), 2;
    const char *path = argv[1], *kind = argv[2];
    pages = (size_t)atol(argv[3]) * 256;
    seconds = atoi(argv[4]);
    private_memory = !strcmp(kind, "firecracker");
    size_t bytes = pages * PAGE, half = bytes / REGIONS;
    signal(SIGPIPE, SIG_IGN);

    rounds = calloc(pages, sizeof *rounds);
    file_pages = calloc(pages, sizeof *file_pages);
    locks = malloc(LOCKS * sizeof *locks);
    for (size_t i = 0; i < LOCKS; i++)
        pthread_mutex_init(&locks[i], NULL);
    /* The second half of the guest's memory comes first in the file. */
    for (size_t i = 0; i < pages; i++)
        file_pages[i] = (i + pages / 2) % pages;
    if (private_memory) {
        int file = open(argc > 5 ? argv[5] : "", O_RDWR | O_CREAT | O_TRUNC, 0600);
        must(file);
        must(ftruncate(file, (off_t)bytes));
        uint64_t *saved = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        must_at(saved != MAP_FAILED, "mmap", __LINE__);
        for (size_t page = 0; page < pages; page++)
            for (size_t at = 0; at < WORDS; at++)
                saved[file_pages[page] * WORDS + at] = word(page, 1, at);
        munmap(saved, bytes);
        close(file);
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    } else {
        memory_file = memfd_create("guest", MFD_CLOEXEC);
        must(memory_file);
        must(ftruncate(memory_file, (off_t)bytes));
        memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, (off_t)0);
        must_at(memory != MAP_FAILED, "mmap", __LINE__);
        for (int i = 0; i < REGIONS; i++)
            must_at(mmap((char *)memory + half * i, half, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory_file,
                         (off_t)(half * (REGIONS - 1 - i))) != MAP_FAILED, "mmap", __LINE__);
    }
    must_at(memory != MAP_FAILED, "mmap", __LINE__);

    int uffd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    must(uffd);
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_EVENT_REMOVE | (private_memory ? 0 : UFFD_FEATURE_PAGEFAULT_FLAG_WP)};
    must(ioctl(uffd, UFFDIO_API, &api));
    for (int i = 0; i < REGIONS && strcmp(kind, "unregistered"); i++) {
        struct uffdio_register area = {.range = {(uintptr_t)memory + half * i, half},
            .mode = UFFDIO_REGISTER_MODE_MISSING | (private_memory ? 0 : UFFDIO_REGISTER_MODE_WP)};
        must(ioctl(uffd, UFFDIO_REGISTER, &area));
    }
    /* What a monitor loads before it hands its memory over, the kernel say, is there already. */
    int is_bad = !private_memory && strcmp(kind, "cloud-hypervisor");

    uint64_t address[REGIONS], size[REGIONS] = {half, half}, offset[REGIONS];
    for (int i = 0; i < REGIONS; i++)
        address[i] = (uintptr_t)memory + half * i, offset[i] = half * (REGIONS - 1 - i);
    int files[] = {uffd, memory_file}, file_index = 0;
    size_t count = private_memory ? 1 : 2;
    const char *mode = "MISSING|WP";
#define BAD(name) else if (!strcmp(kind, name))
    if (!is_bad)
        ;
    BAD("overlap") address[1] -= PAGE;
    BAD("file-overlap") offset[0] = offset[1] + PAGE;
    BAD("wrap") address[1] = UINT64_MAX - PAGE + 1;
    BAD("missing") count = 1;
    BAD("beyond") size[0] += PAGE * 16;
    BAD("unaligned") offset[1] += 512;
    BAD("no-descriptor") count = 0;
    BAD("no-uffd") files[0] = memory_file;
    BAD("mode") mode = "MISSING|WP|WP_ASYNC";
    BAD("unregistered") mode = "MISSING|WP";
    BAD("file-index") file_index = 7;

    char text[1024];
    if (private_memory)
        snprintf(text, sizeof text,
                 "[{\"base_host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"page_size\":4096,\"page_size_kib\":4096},"
                 "{\"base_host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64 ",\"offset\":%" PRIu64 ",\"page_size\":4096,\"page_size_kib\":4096}]",
                 address[0], size[0], offset[0], address[1], size[1], offset[1]);
    else
        snprintf(text, sizeof text,
                 "{\"type\":\"handoff\",\"version\":1,\"vmm_pid\":%d,\"mode\":\"%s\",\"regions\":["
                 "{\"guest_phys_addr\":0,\"host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64 ",\"file_offset\":%" PRIu64 ",\"page_size\":4096,\"fd_index\":%d},"
                 "{\"guest_phys_addr\":4294967296,\"host_virt_addr\":%" PRIu64 ",\"size\":%" PRIu64 ",\"file_offset\":%" PRIu64 ",\"page_size\":4096,\"fd_index\":%d}]}\n",
                 getpid(), mode, address[0], size[0], offset[0], file_index, address[1], size[1], offset[1], file_index);
    if (!strcmp(kind, "garbage"))
        snprintf(text, sizeof text, "hello\n");
    if (!strcmp(kind, "silent"))
        text[0] = 0;
    int fd = hand_over(path, text, files, count);
    char said[1024] = "";
    if (!private_memory)
        answer(fd, said, sizeof said);
    if (is_bad)
        return puts(said), 0;
    if (!private_memory && !strstr(said, "\"ready\""))
        return printf("not taken: %s\n", said), 1;
    printf("handed over\n");
    fflush(stdout);

    pthread_t threads[WRITERS];
    for (size_t i = 0; i < WRITERS; i++)
        must(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) ? -1 : 0);
    uint64_t most = 0, last = 0;
    for (int tick = 0; tick < seconds * 10; tick++) {
        struct timespec pause = {0, 100000000};
        nanosleep(&pause, NULL);
        struct stat stat = {0};
        if (!private_memory)
            must(fstat(memory_file, &stat));
        uint64_t resident = (uint64_t)stat.st_blocks * 512;
        /* The manager needs a moment for what was there before it. */
        if (resident > most)
            most = resident;
        if (tick % 300 == 299) {
            printf("%d s: resident %" PRIu64 " KiB, at most %" PRIu64 "; %" PRIu64 " writes, %" PRIu64 " checks, %" PRIu64
                   " removals, slowest access %" PRIu64 " ms\n", (tick + 1) / 10, resident / 1024, most / 1024, (uint64_t)writes,
                   (uint64_t)checks, (uint64_t)removals, slowest_ns / 1000000);
            fflush(stdout);
            if (checks == last)
                return printf("HANG: nothing was checked for 30 s\n"), 1;
            last = checks;
        }
    }
    stop = 1;
    for (size_t i = 0; i < WRITERS; i++)
        pthread_join(threads[i], NULL);
    for (size_t page = 0; page < pages; page++)
        check(page);
    printf("ok: %" PRIu64 " writes, %" PRIu64 " checks, %" PRIu64 " removals; resident at most %" PRIu64 " KiB; slowest access %" PRIu64 " ms\n",
           (uint64_t)writes, (uint64_t)checks, (uint64_t)removals, most / 1024, slowest_ns / 1000000);
    fflush(stdout);
    return 0;
}
