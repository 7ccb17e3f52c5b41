/* vfork and exec, posix_spawn, system and popen, all with far memory in the parent. */
#include "far.h"
#include <spawn.h>

extern char **environ;

int main(void) {
    void *far = far_make(FAR_PAGES);
    char *arguments[] = {"/bin/true", NULL};
    for (int round = 0; round < 10; round++) {
        pid_t child = vfork();
        if (child == 0) {
            execv(arguments[0], arguments);
            _exit(127);
        }
        far_wait(child, "vfork and exec");
        if (posix_spawn(&child, arguments[0], NULL, NULL, arguments, environ))
            far_fail("posix_spawn");
        far_wait(child, "posix_spawn");
        if (system("exit 3") != 3 << 8)
            far_fail("system");
        FILE *pipe = popen("echo through a pipe", "r");
        char line[64];
        if (!pipe || !fgets(line, sizeof line, pipe) || strcmp(line, "through a pipe\n") || pclose(pipe))
            far_fail("popen");
        far_check(far, FAR_PAGES, round + 1, "after spawning");
        far_write(far, FAR_PAGES, round + 2);
    }
    puts("ok");
}
