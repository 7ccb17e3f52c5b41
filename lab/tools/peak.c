/* peak FILE PROGRAM ARGS...: runs PROGRAM and writes the most memory that one of its processes had,
 * in KiB, to FILE. Ends as PROGRAM did. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv) {
    if (argc < 3)
        return 2;
    pid_t child = fork();
    if (child == 0) {
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    FILE *file = fopen(argv[1], "w");
    if (!file) {
        perror(argv[1]);
        return 2;
    }
    fprintf(file, "%ld\n", usage.ru_maxrss);
    fclose(file);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
