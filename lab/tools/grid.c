/* grid MIB SWEEPS: a fluid solver's access pattern (as SPEC's zeusmp and bwaves): each sweep reads a grid of so much memory, two
 * halves of it, in order, and writes the other half. The working set is the whole of it. Prints a sum that depends on every cell. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { ROW = 1024 };

int main(int argc, char **argv) {
    size_t mib = argc == 3 ? strtoul(argv[1], NULL, 10) : 0, sweeps = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    size_t cells = (mib << 20) / 2 / sizeof(double);
    if (cells < 4 * ROW || sweeps == 0)
        return 2;
    double *grid = mmap(NULL, 2 * cells * sizeof(double), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (grid == MAP_FAILED) {
        perror("grid");
        return 2;
    }
    double *from = grid, *to = grid + cells;
    for (size_t cell = 0; cell < cells; cell++)
        from[cell] = to[cell] = (double)(cell * 2654435761u % 1000);
    for (size_t sweep = 0; sweep < sweeps; sweep++) {
        for (size_t cell = ROW; cell < cells - ROW; cell++)
            to[cell] = 0.2 * (from[cell] + from[cell - 1] + from[cell + 1] + from[cell - ROW] + from[cell + ROW]);
        double *next = from;
        from = to;
        to = next;
    }
    double sum = 0;
    for (size_t cell = 0; cell < cells; cell++)
        sum += from[cell] * (double)(cell % 7);
    printf("%.6f\n", sum);
    return 0;
}
