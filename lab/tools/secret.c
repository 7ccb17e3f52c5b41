/* secret write MIB TEXT: fills so much memory with a text, and ends.
 * secret find MIB: takes so much memory, and says how many words of it were not zero before anything was written. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int main(int argc, char **argv) {
    size_t bytes = argc > 2 ? strtoul(argv[2], NULL, 10) << 20 : 0, length = argc > 3 ? strlen(argv[3]) : 0, seen = 0;
    if (!bytes)
        return 2;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        perror("secret");
        return 2;
    }
    if (!strcmp(argv[1], "write") && length) {
        for (size_t at = 0; at + 64 <= bytes; at += 64)
            memcpy(memory + at, argv[3], length < 64 ? length : 64);
        return 0;
    }
    /* A page that is read only is the kernel's page of zeros: one byte is written first, at the end. */
    for (size_t page = 0; page < bytes; page += 4096) {
        memory[page + 4095] = 1;
        for (size_t at = 0; at < 4088; at += 8)
            seen += *(const uint64_t *)(memory + page + at) != 0;
    }
    printf("%zu MiB: %zu words are not zero\n", bytes >> 20, seen);
    return 0;
}
