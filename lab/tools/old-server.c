/* old-server MODULE [VERSION]: loads a module of Redis as a server would that is too old for it, and ends with what the
 * module's entry point gives. Without a version the server has none of the functions that a module asks for; with one,
 * in hexadecimal as GetServerVersion gives it, it has all, and tells this version. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int version;

static int its_version(void) { return version; }

static void its_log(void *context, const char *level, const char *format, ...) {
    va_list values;
    (void)context, (void)level;
    va_start(values, format);
    vfprintf(stderr, format, values);
    va_end(values);
    fputc('\n', stderr);
}

static int anything(void) { return 0; }

static const struct {
    const char *name;
    void *function;
} KNOWN[] = {
    {"GetServerVersion", its_version}, {"Log", its_log},        {"Alloc", malloc},     {"TryAlloc", malloc},
    {"Calloc", calloc},                {"TryCalloc", calloc},   {"Realloc", realloc},  {"TryRealloc", realloc},
    {"Free", free},
};

static int look_up(const char *name, void **function) {
    if (!version)
        return 1;
    *function = (void *)anything;
    for (size_t each = 0; each < sizeof KNOWN / sizeof *KNOWN; each++)
        if (!strcmp(name + strlen("RedisModule_"), KNOWN[each].name))
            *function = KNOWN[each].function;
    return 0;
}

int main(int argc, char **argv) {
    void *module = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
    int (*on_load)(void *, void **, int) = module ? dlsym(module, "RedisModule_OnLoad") : NULL;
    /* A context begins with the function that looks up others. */
    void *context[16] = {(void *)look_up};
    if (!on_load) {
        fprintf(stderr, "old-server: %s\n", argc > 1 ? dlerror() : "which module?");
        return 2;
    }
    version = argc > 2 ? strtol(argv[2], NULL, 16) : 0;
    return on_load(context, NULL, 0);
}
