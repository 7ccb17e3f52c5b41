/* Calls the agent that listens at the first argument. It replies to each call in a different way. */
#include <spillway.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                            \
    do {                                                                                            \
        if (!(condition)) {                                                                         \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, spillway_last_error());      \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

int main(int count, char **arguments) {
    uint64_t bytes = 99;
    const char *agent = arguments[1];
    CHECK(count == 2 && strcmp(SPILLWAY_AGENT, "/run/spillway-agent/socket") == 0);

    CHECK(spillway_guest_need(agent, 512 << 20, 0, &bytes) == SPILLWAY_OK && bytes == 512 << 20);
    CHECK(spillway_guest_give(agent, 300 << 20, 60000, &bytes) == SPILLWAY_OK && bytes == 256 << 20);
    CHECK(spillway_guest_need(agent, 1, 60000, &bytes) == SPILLWAY_REFUSED_BY_HOST && bytes == 0);
    CHECK(strcmp(spillway_last_error(), "refused: the pool is dry") == 0);

    bytes = 99;
    CHECK(spillway_guest_need(agent, 2, 60000, &bytes) == SPILLWAY_ERROR_PROTOCOL && bytes == 0);
    CHECK(spillway_guest_need(agent, 3, 60000, &bytes) == SPILLWAY_ERROR_LOST);
    /* The agent ends before the call: no signal must end the program. */
    CHECK(spillway_guest_give(agent, 4, 60000, &bytes) == SPILLWAY_ERROR_LOST);
    CHECK(spillway_guest_need(agent, 5, 100, &bytes) == SPILLWAY_ERROR_TIMEOUT);

    CHECK(spillway_guest_need(agent, 0, 100, &bytes) == SPILLWAY_ERROR_ARGUMENT && bytes == 0);
    CHECK(spillway_guest_give(agent, UINT64_MAX, 100, &bytes) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_guest_need(agent, 1, 100, NULL) == SPILLWAY_ERROR_ARGUMENT);
    CHECK(spillway_guest_need("/nowhere/at.all", 1, 100, &bytes) == SPILLWAY_ERROR_CONNECT);
    CHECK(strstr(spillway_last_error(), "/nowhere/at.all") != NULL);
    puts("all answers are right");
    return 0;
}
