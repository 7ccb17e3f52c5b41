/* network MIB STEPS: the access pattern of a network simplex (as SPEC's mcf): follows links between nodes that lie anywhere in so
 * much memory, and changes each node that it comes to. The working set is the whole of it. Prints a sum of what it changed. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

struct node {
    size_t next;
    unsigned long potential, flow[6];
};

/* xorshift64*: the same network in each run. */
static unsigned long random_next(unsigned long *state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717ul >> 16;
}

int main(int argc, char **argv) {
    size_t mib = argc == 3 ? strtoul(argv[1], NULL, 10) : 0, steps = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    size_t nodes = (mib << 20) / sizeof(struct node);
    if (nodes < 2 || steps == 0)
        return 2;
    struct node *all = mmap(NULL, nodes * sizeof(struct node), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED) {
        perror("network");
        return 2;
    }
    unsigned long state = 88172645463325252ul, sum = 0;
    for (size_t node = 0; node < nodes; node++)
        all[node] = (struct node){.next = random_next(&state) % nodes, .potential = node};
    size_t at = 0;
    for (size_t step = 0; step < steps; step++) {
        struct node *node = &all[at];
        node->potential += step;
        node->flow[step % 6]++;
        sum = sum * 31 + node->potential;
        /* Links alone would soon go round in a small circle. */
        at = (node->next + random_next(&state)) % nodes;
    }
    printf("%lu\n", sum);
    return 0;
}
