/* A module that opens keys, as other modules do: OTHER.TYPE KEY gives the number of the key's type, OTHER.BYTES KEY the length of
 * the string that the module gets to read, or -1. Redis and Valkey hand out their functions by name. */
#include <stddef.h>

typedef void Context, Key, String;
enum { READ = 1 };

static int (*wrong_arity)(Context *);
static Key *(*open_key)(Context *, String *, int);
static void (*close_key)(Key *);
static int (*key_type)(Key *);
static char *(*string_bytes)(Key *, size_t *, int);
static int (*reply_number)(Context *, long long);

static int type_of(Context *context, String **arguments, int count) {
    if (count != 2)
        return wrong_arity(context);
    Key *key = open_key(context, arguments[1], READ);
    int type = key_type(key);
    close_key(key);
    return reply_number(context, type);
}

static int bytes_of(Context *context, String **arguments, int count) {
    if (count != 2)
        return wrong_arity(context);
    Key *key = open_key(context, arguments[1], READ);
    size_t bytes = 0;
    long long found = key && string_bytes(key, &bytes, READ) ? (long long)bytes : -1;
    close_key(key);
    return reply_number(context, found);
}

int RedisModule_OnLoad(Context *context, String **arguments, int count) {
    (void)arguments, (void)count;
    int (*function)(const char *, void *) = *(int (**)(const char *, void *))context;
    void (*set_name)(Context *, const char *, int, int);
    int (*add_command)(Context *, const char *, int (*)(Context *, String **, int), const char *, int, int, int);
    struct {
        const char *name;
        void *place;
    } wanted[] = {
        {"RedisModule_SetModuleAttribs", &set_name},   {"RedisModule_CreateCommand", &add_command},
        {"RedisModule_WrongArity", &wrong_arity},      {"RedisModule_OpenKey", &open_key},
        {"RedisModule_CloseKey", &close_key},          {"RedisModule_KeyType", &key_type},
        {"RedisModule_StringDMA", &string_bytes},      {"RedisModule_ReplyWithLongLong", &reply_number},
    };
    for (size_t each = 0; each < sizeof wanted / sizeof *wanted; each++)
        if (function(wanted[each].name, wanted[each].place))
            return 1;
    set_name(context, "other", 1, 1);
    return add_command(context, "other.type", type_of, "readonly", 1, 1, 1) || add_command(context, "other.bytes", bytes_of, "readonly", 1, 1, 1);
}
