/* hold MIB [ROUNDS]: fills far memory, says "ready", waits for a line on standard input if there is
 * one to come, then checks and rewrites every page ROUNDS times (for ever when it is left out) and
 * says "ok". On SIGUSR1 it checks every page once more and ends with status 7. */
#include "../programs/far.h"

static volatile sig_atomic_t asked;

static void on_signal(int signal) { asked = signal; }

int main(int argc, char **argv) {
    size_t pages = (size_t)atol(argv[1]) * MIB_PAGES;
    long rounds = argc > 2 ? atol(argv[2]) : -1;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    far_must(sigaction(SIGUSR1, &action, NULL));
    char *far = far_make(pages);
    printf("ready\n");
    fflush(stdout);
    char line[16];
    far_must(read(0, line, sizeof line));
    for (uint64_t generation = 1; rounds < 0 || (long)generation <= rounds; generation++)
        for (size_t page = 0; page < pages; page++) {
            if (asked) {
                for (size_t i = 0; i < pages; i++)
                    far_check_at(far + i * PAGE, i, i < page ? generation + 1 : generation, "at the end");
                return 7;
            }
            far_check_at(far + page * PAGE, page, generation, "held");
            far_write_page(far, page, generation + 1);
        }
    puts("ok");
}
