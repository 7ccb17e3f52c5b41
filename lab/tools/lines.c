/* lines MIB: prints so much text, lines of a random key and a few words, the same every time. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

int main(int argc, char **argv) {
    static const char *const words[] = {"alder", "beech", "cedar", "elm", "fir", "hazel", "larch", "oak",
                                        "pine", "rowan", "spruce", "thorn", "walnut", "willow", "yew", "ash"};
    long left = (argc > 1 ? atol(argv[1]) : 1) << 20;
    uint64_t state = 88172645463325252u;
    while (left > 0) {
        uint64_t key = next(&state), choice = next(&state);
        left -= printf("%016lx", key);
        for (unsigned count = 3 + (key & 7); count; count--, choice >>= 4)
            left -= printf(" %s", words[choice & 15]);
        putchar('\n');
        left--;
    }
}
