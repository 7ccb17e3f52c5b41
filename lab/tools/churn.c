/* churn FOLDER: holds as many MiB as FOLDER/want says, gives the oldest back first, and verifies them all the while, rewriting
 * some. So what it holds lies in the newest memory of a guest, and moves when that goes. FOLDER/state says how it stands. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CHUNK_BYTES = 1 << 20, WORDS = CHUNK_BYTES / 8, CHUNKS_MAX = 1 << 14 };

static struct chunk {
    uint64_t *memory, seed;
} chunks[CHUNKS_MAX];
static uint64_t seeds, checked, wrong;

static uint64_t word(uint64_t seed, uint64_t at) {
    return (seed << 20 ^ at) * 0x9e3779b97f4a7c15u;
}

static void fill(struct chunk *chunk) {
    chunk->seed = ++seeds;
    for (uint64_t at = 0; at < WORDS; at++)
        chunk->memory[at] = word(chunk->seed, at);
}

static void verify(const struct chunk *chunk) {
    for (uint64_t at = 0; at < WORDS; at++)
        wrong += chunk->memory[at] != word(chunk->seed, at);
    checked++;
}

static size_t wanted(void) {
    char text[32] = "";
    int file = open("want", O_RDONLY);
    if (file < 0 || read(file, text, sizeof text - 1) < 0)
        exit(2);
    close(file);
    return strtoul(text, NULL, 10);
}

static void tell(size_t held) {
    FILE *file = fopen("state.new", "w");
    if (!file || fprintf(file, "%zu %llu %llu\n", held, (unsigned long long)checked, (unsigned long long)wrong) < 0 ||
        fclose(file) || rename("state.new", "state"))
        exit(2);
}

int main(int argc, char **argv) {
    if (argc != 2 || chdir(argv[1])) {
        perror("churn");
        return 2;
    }
    uint64_t first = 0, last = 0;
    for (uint64_t turn = 0;; turn++) {
        size_t want = wanted();
        for (; last - first < want && want <= CHUNKS_MAX; last++) {
            struct chunk *chunk = &chunks[last % CHUNKS_MAX];
            chunk->memory = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            if (chunk->memory == MAP_FAILED) {
                perror("churn");
                return 2;
            }
            fill(chunk);
        }
        for (; last - first > want; first++) {
            struct chunk *chunk = &chunks[first % CHUNKS_MAX];
            verify(chunk);
            munmap(chunk->memory, CHUNK_BYTES);
        }
        if (last > first) {
            struct chunk *chunk = &chunks[(first + turn % (last - first)) % CHUNKS_MAX];
            verify(chunk);
            if (turn % 3 == 0)
                fill(chunk);
        }
        tell(last - first);
        usleep(5000);
    }
}
