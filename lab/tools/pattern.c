/* pattern FILE MIB SEED: writes so much to FILE, alternately pages of text and of random bytes. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t next(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

int main(int argc, char **argv) {
    if (argc != 4)
        return 2;
    FILE *file = fopen(argv[1], "w");
    uint64_t state = 88172645463325252u + strtoull(argv[3], NULL, 10);
    static const char words[16][9] = {"alder   ", "beech   ", "cedar   ", "elm     ", "fir     ", "hazel   ",
                                      "larch   ", "oak     ", "pine    ", "rowan   ", "spruce  ", "thorn   ",
                                      "walnut  ", "willow  ", "yew     ", "ash     "};
    static uint64_t page[512];
    for (long left = atol(argv[2]) * 256; file && left > 0; left--) {
        for (int i = 0; i < 512; i++) {
            page[i] = next(&state);
            if (left % 2 == 0)
                memcpy(&page[i], words[page[i] & 15], 8);
        }
        if (fwrite(page, sizeof page, 1, file) != 1)
            file = NULL;
    }
    if (!file || fclose(file)) {
        perror(argv[1]);
        return 1;
    }
}
