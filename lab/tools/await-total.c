/* await-total MIB: says when it waits, and when the machine has MIB more memory than at the start. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include <unistd.h>

static unsigned long total(void) {
    struct sysinfo info;
    return sysinfo(&info) ? 0 : info.totalram / 1024 * info.mem_unit;
}

int main(int argc, char **argv) {
    if (argc != 2)
        return 2;
    unsigned long wanted = total() + strtoul(argv[1], NULL, 10) * 1024;
    setvbuf(stdout, NULL, _IONBF, 0);
    puts("waits");
    for (int left = 60000; total() < wanted; usleep(1000))
        if (!left--)
            return 1;
    puts("there");
}
