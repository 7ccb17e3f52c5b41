/* agent: a guest's init once it is set up. Runs each line that comes over a virtio port with the shell, and answers with
 * what it printed and its status. Locked in memory: it goes on when the guest's swap is gone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LINE_BYTES = 16384, OUTPUT_BYTES = 1 << 20 };

static void send_all(int port, const char *bytes, size_t count) {
    while (count) {
        ssize_t sent = write(port, bytes, count);
        if (sent <= 0)
            _exit(1);
        bytes += sent;
        count -= sent;
    }
}

/* What the line prints goes to the port; its end is marked by a byte that text does not have, and the status. */
static void run(int port, const char *line) {
    static char output[OUTPUT_BYTES];
    int ends[2], status = 0;
    if (pipe2(ends, O_CLOEXEC))
        return;
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(ends[1], 1);
        dup2(ends[1], 2);
        setsid();
        execl("/bin/sh", "sh", "-c", line, NULL);
        _exit(127);
    }
    close(ends[1]);
    ssize_t count;
    while ((count = read(ends[0], output, sizeof output)) > 0)
        send_all(port, output, count);
    close(ends[0]);
    waitpid(child, &status, 0);
    char last[32];
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    send_all(port, last, snprintf(last, sizeof last, "\036%d\n", code));
    while (waitpid(-1, NULL, WNOHANG) > 0)
        ;
}

int main(int argc, char **argv) {
    static char line[LINE_BYTES];
    int port = argc == 2 ? open(argv[1], O_RDWR | O_CLOEXEC) : -1;
    if (port < 0 || mlockall(MCL_CURRENT | MCL_FUTURE)) {
        perror("agent");
        return 1;
    }
    send_all(port, "ready\036" "0\n", 8);
    size_t held = 0;
    for (;;) {
        ssize_t got = read(port, line + held, 1);
        if (got <= 0) {
            usleep(10000);
            continue;
        }
        if (line[held] != '\n' && held < LINE_BYTES - 1) {
            held++;
            continue;
        }
        line[held] = 0;
        run(port, line);
        held = 0;
    }
}
