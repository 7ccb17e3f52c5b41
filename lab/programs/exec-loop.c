/* The program executes itself again and again, leaving far memory behind each time. */
#include "far.h"

int main(int argc, char **argv) {
    int left = argc > 1 ? atoi(argv[1]) : 10;
    void *far = far_make(FAR_PAGES);
    far_check(far, FAR_PAGES, 1, "after exec");
    if (left == 0) {
        puts("ok");
        return 0;
    }
    char count[16];
    snprintf(count, sizeof count, "%d", left - 1);
    execl("/proc/self/exe", argv[0], count, (char *)NULL);
    far_fail("exec: %s", strerror(errno));
}
