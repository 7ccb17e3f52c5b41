"""Random commands on a few keys for commands-alike: valid ones, invalid ones, and values near the lengths at which
storage changes."""

import random
from typing import NamedTuple

# What a script does with the command that follows it.
CALL = "return redis.call(unpack(ARGV))"
PCALL = "return redis.pcall(unpack(ARGV))"
KEYS = ("k0", "k1", "k2", "k3", "k4", "k5", "", "bin\0\r\n\xff")
# Keys that more often have another type, for the module.
TYPED = {"list": "t1", "set": "t2", "hash": "t3", "sorted": "t4", "log": "t5"}
LENGTHS = (0, 1, 2, 19, 20, 21, 43, 44, 45, 100, 2047, 2048, 4000, 4055, 4056, 4057, 4095, 4096, 4097, 8191, 8192)
LONG = (65_535, 65_536, 65_537, 70_000, 131_072, 262_143, 262_144, 300_000)
BYTES = random.Random(1).randbytes(1 << 20)
INTEGERS = (0, 1, -1, 7, 10, 9999, 10_000, 10_001, 2**31, -(2**63), 2**63 - 1, 2**63 - 2, -(2**63) + 1, 2**63, -(2**63) - 1, 2**64)
FLOATS = ("0.1", "3.0", "-2.5", "1e3", "5.0e-3", "1.10", "-0.0", "10.50", ".5", "5.", "3.0e15", "17179869184.5", "123456789.987654321", "1e17",
          "0.00000000000000001", "9007199254740993", "18446744073709551617", "1e22", "1e-5", "0.3", "2.675", "1e300", "-1e300")
NO_NUMBERS = ("abc", "", " 1", "1 ", "01", "+1", "-0", "1.5", "1e2", "--1", "0x10", "nan", "inf", "-inf", "1e5000", "1\0", "\xff")
WORDS = ("NX", "XX", "GET", "KEEPTTL", "PERSIST", "EX", "PX", "GT", "LT", "MATCH", "COUNT", "abc", "", "0", "-1", "1.5", "9223372036854775807",
         "-9223372036854775808", "9223372036854775808", "key", "\r\n")
PATTERNS = ("*", "k*", "k?", "k[0-2]", "[^k]*", "*0", "?", "", "\\k1", "k[", "k[^", "[a-", "k[1", "b*n*", "k\\", "**1", "k[2-0]", "[k]1", "*[3-]")
# Never more than a few hundred KiB: what is set behind it is made of zeros. Or beyond all limits.
OFFSETS = (0, 1, 2, 43, 44, 45, 100, 4055, 4056, 4095, 4096, 4097, 65_535, 65_536, 65_537, 200_000)
FAR = (536_870_911, 536_870_912, 2**32, 2**62, 2**63 - 1, 2**63, -1, -(2**63))


class Step(NamedTuple):
    """A command of one of a client's two connections. Before it strings leave for the store, if `demotes`."""

    connection: int
    words: tuple
    demotes: bool


class Dump(NamedTuple):
    """An argument that is what DUMP gives of a key just then."""

    key: bytes


def encoded(word):
    return word if isinstance(word, (bytes, Dump)) else str(word).encode("latin-1")


class Commands:
    """Commands of a case. `module` for those that the module has and the front end has not."""

    def __init__(self, seed, now, module):
        self.random, self.now, self.module, self.times = random.Random(seed), int(now), module, 0
        self.three = self.random.random() < 0.4
        one = [self.get, self.set, self.set, self.set, self.strings, self.strings, self.parts, self.parts, self.change, self.numbers, self.numbers,
               self.expire, self.expire, self.times_of, self.times_of, self.remove, self.keys_of, self.many, self.getex, self.listing, self.unknown]
        others = [self.bits, self.bits, self.move, self.move, self.typed, self.typed, self.patterns, self.restore]
        self.kinds = one + (others if module else [self.connection])

    def units(self, count):
        """Lists of steps that make sense together."""
        units = [[self.step(["HELLO", 3], number)] for number in (0, 1)] if self.three else []
        while len(units) < count:
            units.append(self.unit())
        return units

    def unit(self):
        chance = self.random.random()
        if self.module and chance < 0.06:
            return self.transaction()
        if self.module and chance < 0.10:
            command = self.command(alone=False)
            return [self.step(["EVAL", self.random.choice((CALL, PCALL)), 0, *command])]
        if self.module and chance < 0.11:
            return [self.step([self.word(self.pick("MULTI", "EXEC", "DISCARD", "UNWATCH", "WATCH"))])]
        if chance < 0.16:
            command = self.pick(["SET", self.key(), self.value()], ["SETEX", self.key(), self.life(), self.value()])
            # docs/resp.md, "OBJECT ENCODING is that of a value set by SET": the front end is asked behind SET alone.
            if self.module:
                command = self.pick(command, self.set(), self.strings(), self.numbers(), self.change())
            return [self.step(command), self.step([self.word("OBJECT"), self.word("ENCODING"), command[1]])]
        return [self.step(self.command())]

    def transaction(self):
        connection = self.random.randrange(2)
        steps = []
        if self.random.random() < 0.5:
            steps.append(self.step(["WATCH", self.key(), self.key()], connection))
            if self.random.random() < 0.5:
                steps.append(self.step(self.command(), self.random.randrange(2)))
        steps.append(self.step(["MULTI"], connection))
        for _ in range(self.random.randrange(5)):
            steps.append(self.step(self.command(alone=False), connection))
            if self.random.random() < 0.2:
                steps.append(self.step(self.command(), 1 - connection))
        steps.append(self.step([self.pick("EXEC", "EXEC", "EXEC", "exec", "DISCARD")], connection))
        return steps

    def step(self, words, connection=None):
        if connection is None:
            connection = int(self.random.random() < 0.15)
        return Step(connection, tuple(map(encoded, words)), self.random.random() < 0.25)

    def command(self, alone=True):
        """One; `alone` if it may be one whose answer can be judged only outside of transactions."""
        command = self.random.choice(self.kinds)()
        while not alone and command[0].upper() in ("DBSIZE", "SCAN", "RANDOMKEY", "KEYS", "SELECT", "SWAPDB"):
            command = self.random.choice(self.kinds)()
        # A set of other things than numbers has no order; a life that is too long for RESTORE is not refused.
        may_spoil = command[0] not in ("SADD", "RESTORE") and self.random.random() < 0.06
        return [self.word(command[0]), *(self.spoiled(command[1:]) if may_spoil else command[1:])]

    def spoiled(self, words):
        """With an argument more, less, or another."""
        # docs/resp.md, "longest argument other than a value": a long value must not come to stand where a key or an option does.
        words = [word[:100] if isinstance(word, bytes) and len(word) > 65_536 else word for word in words]
        at = self.random.randrange(len(words) + 1)
        kind = self.random.randrange(3)
        if kind == 0 or at == len(words):
            words.insert(at, self.random.choice(WORDS))
        elif kind == 1:
            del words[at]
        else:
            words[at] = self.random.choice(WORDS)
        return words

    def pick(self, *several):
        return self.random.choice(several)

    def word(self, word):
        """In any case."""
        chance = self.random.random()
        if chance < 0.7 or not word.isascii():
            return word
        return word.lower() if chance < 0.9 else "".join(self.random.choice((letter.lower(), letter.upper())) for letter in word)

    def key(self):
        if self.module and self.random.random() < 0.06:
            return self.random.choice(list(TYPED.values()))
        return self.random.choice(KEYS[:4] if self.random.random() < 0.7 else KEYS)

    def bytes(self, length):
        at = self.random.randrange(len(BYTES) - length) if length < len(BYTES) else 0
        return BYTES[at : at + length]

    def value(self):
        chance = self.random.random()
        if chance < 0.2:
            return str(self.random.choice(INTEGERS))
        if chance < 0.3:
            return self.random.choice(FLOATS)
        if chance < 0.35:
            return self.random.choice(NO_NUMBERS)
        if chance < 0.45:
            return "text " * self.random.randrange(12)
        if chance < 0.90:
            return self.bytes(self.random.choice(LENGTHS))
        return self.bytes(self.random.choice(LONG) if chance < 0.995 else len(BYTES))

    def life(self):
        """Seconds to live, that differ so much from all others that it does not matter when a command arrives."""
        self.times += 1
        return 1000 + 20 * self.random.randrange(500) * 2 + 10_000 * self.times

    def until(self):
        """The same as a time, seconds since 1970."""
        return self.now + self.life() + 20

    def wrong_time(self):
        return self.pick(0, -1, 2**63 - 1, -(2**63), 2**63 // 1000, -(2**63) // 1000 - 1, 2**63 // 1000 - self.now, 2**63 - 1 - self.now * 1000,
                         2**63, *NO_NUMBERS)

    def time_option(self):
        name = self.pick("EX", "PX", "EXAT", "PXAT")
        number = {"EX": self.life, "PX": lambda: self.life() * 1000, "EXAT": self.until, "PXAT": lambda: self.until() * 1000}[name]()
        if self.random.random() < 0.15:
            number = self.pick(1, 1_000_000) if name.endswith("AT") and self.random.random() < 0.5 else self.wrong_time()
        return [self.word(name), number]

    def options(self, words):
        """None to four options of these words and times."""
        options = []
        for _ in range(self.pick(0, 0, 1, 1, 1, 1, 2, 2, 3, 4)):
            options += self.time_option() if self.random.random() < 0.45 else [self.word(self.random.choice(words))]
        if options and self.random.random() < 0.04:
            options.pop()
        return options

    def get(self):
        return [self.pick("GET", "GET", "STRLEN", "TYPE"), self.key()]

    def set(self):
        return ["SET", self.key(), self.value(), *self.options(("NX", "XX", "GET", "GET", "KEEPTTL", "KEEPTTL", self.pick("PERSIST", "abc", "")))]

    def getex(self):
        return ["GETEX", self.key(), *self.options(("PERSIST", "PERSIST", self.pick("KEEPTTL", "NX", "GET", "abc")))]

    def strings(self):
        name = self.pick("SETNX", "SETEX", "PSETEX", "GETSET", "GETDEL", "APPEND", "APPEND")
        if name == "GETDEL":
            return [name, self.key()]
        if name in ("SETEX", "PSETEX"):
            time = self.wrong_time() if self.random.random() < 0.2 else self.life() * (1000 if name == "PSETEX" else 1)
            return [name, self.key(), time, self.value()]
        return [name, self.key(), self.value()]

    def range_end(self):
        at = self.random.choice(OFFSETS) + self.pick(-1, 0, 0, 1)
        return self.pick(at, at, at, -at, -at, self.random.choice(FAR), self.random.choice(NO_NUMBERS) if self.random.random() < 0.3 else 0)

    def parts(self):
        return [self.pick("GETRANGE", "GETRANGE", "GETRANGE", "SUBSTR"), self.key(), self.range_end(), self.range_end()]

    def bit_offset(self):
        return self.pick(self.random.choice(OFFSETS) * 8 + self.random.randrange(8), self.random.randrange(64),
                         self.random.randrange(300_000), self.random.choice((2**32, *FAR[3:], *NO_NUMBERS)))

    def change(self):
        name = self.pick("SETRANGE", "SETRANGE", "SETBIT", "GETBIT")
        if name == "SETRANGE":
            offset = self.random.choice(OFFSETS if self.random.random() < 0.8 else FAR[1:] + NO_NUMBERS)
            return [name, self.key(), offset, self.value()]
        bit = [self.pick(0, 1, 0, 1, 0, 1, 2, -1, "abc", "")] if name == "SETBIT" else []
        return [name, self.key(), self.bit_offset(), *bit]

    def numbers(self):
        name = self.pick("INCR", "DECR", "INCRBY", "DECRBY", "INCRBYFLOAT", "INCRBYFLOAT")
        if name in ("INCR", "DECR"):
            return [name, self.key()]
        if name == "INCRBYFLOAT":
            return [name, self.key(), self.pick(*FLOATS, *FLOATS, *INTEGERS, *NO_NUMBERS)]
        return [name, self.key(), self.pick(*INTEGERS, *INTEGERS, *NO_NUMBERS)]

    def expire(self):
        if self.random.random() < 0.15:
            return ["PERSIST", self.key()]
        name = self.pick("EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT")
        time = (self.until() if name.endswith("AT") else self.life()) * (1000 if name[0] == "P" else 1)
        if self.random.random() < 0.15:
            time = self.wrong_time()
        options = [self.word(self.pick("NX", "XX", "GT", "LT", "GT", "LT", "abc" if self.random.random() < 0.3 else "GT"))
                   for _ in range(self.pick(0, 0, 0, 1, 1, 1, 2, 3))]
        return [name, self.key(), time, *options]

    def times_of(self):
        return [self.pick("TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME"), self.key()]

    def several(self, most):
        return [self.key() for _ in range(self.random.randrange(1, most + 1))]

    def remove(self):
        return [self.pick("DEL", "UNLINK"), *self.several(2)]

    def keys_of(self):
        return [self.pick("EXISTS", "TOUCH", "MGET", "MGET"), *self.several(5)]

    def many(self):
        pairs = [word for key in self.several(4) for word in (key, self.value())]
        return [self.pick("MSET", "MSETNX"), *pairs]

    def listing(self):
        name = self.pick("KEYS", "SCAN", "SCAN", "DBSIZE", "RANDOMKEY", "SELECT", "FLUSHDB", "FLUSHALL", "OBJECT")
        if name == "KEYS":
            return [name, self.random.choice(PATTERNS)]
        if name == "SCAN":
            options = []
            for _ in range(self.pick(0, 1, 1, 2, 3)):
                option = self.pick("MATCH", "COUNT", "TYPE", "COUNT", "MATCH", "TYPE", "abc")
                given = {"MATCH": PATTERNS, "COUNT": (1, 2, 10, 1000, 1000, 0, -1, "abc", 2**63 - 1), "TYPE": ("string", "STRING", "string", "list", "zset")}
                options += [self.word(option), self.random.choice(given.get(option, WORDS))]
            return [name, 0 if self.random.random() < 0.95 else self.pick("abc", "", "1.5", " 0", 2**64), *options]
        if name == "SELECT":
            return [name, self.pick(0, 0, 0, 1, 2, 1, 2, 15, 16, -1, 2**31, 2**63, "abc", "", "1.5")]
        if name.startswith("FLUSH"):
            return [name, *self.pick([], ["SYNC"], ["async"], ["abc"])] if self.random.random() < 0.3 else self.get()
        if name == "OBJECT":
            return [name, self.pick("REFCOUNT", "refcount", "abc"), self.key()]
        return [name]

    def unknown(self):
        if self.random.random() < 0.7:
            return self.get()
        # docs/resp.md, "longest argument other than a value": of longer ones the front end can't show the beginning.
        return [self.pick("NOSUCH", "GE", "a b", "\xff\n", "n" * 200), *(self.short() for _ in range(self.random.randrange(4)))]

    def short(self):
        return self.bytes(self.random.choice(LENGTHS))

    def connection(self):
        return self.pick(["PING"], ["PING", self.short()], ["PING", "a", "b"], ["ECHO", self.short()], ["ECHO"], ["HELLO", self.pick(1, 4, "abc", "")],
                         ["HELLO", self.pick(2, 3)], ["HELLO", 3, "abc"], ["HELLO", 2, "SETNAME", self.pick("name", "a b")], ["CLIENT", "GETNAME"],
                         ["CLIENT", "SETNAME", self.pick("me", "", "a b", "\n")], ["RESET"])

    # What the front end has not.

    def bits(self):
        name = self.pick("BITCOUNT", "BITPOS", "BITOP", "BITFIELD", "BITFIELD_RO", "LCS", "GETBIT", "SETBIT")
        if name == "BITCOUNT":
            return [name, self.key(), *self.pick([], [self.range_end(), self.range_end(), *self.pick([], ["BYTE"], ["bit"], ["abc"])])]
        if name == "BITPOS":
            return [name, self.key(), self.pick(0, 1, 0, 1, 2), *self.pick([], [self.range_end()], [self.range_end(), self.range_end(), "BIT"])]
        if name == "BITOP":
            return [name, self.pick("AND", "OR", "XOR", "NOT", "abc"), self.key(), *self.several(3)]
        if name.startswith("BITFIELD"):
            parts = []
            for _ in range(self.random.randrange(1, 4)):
                kind, at = self.pick("u8", "i16", "u63", "i64", "u1", "u64", "i5"), self.pick(0, 7, 100, "#3", "#200", 524_288, -1)
                parts += self.pick(["GET", kind, at], ["SET", kind, at, self.pick(1, -1, 255, 2**63 - 1)], ["INCRBY", kind, at, self.pick(1, -7, 2**62)],
                                   ["OVERFLOW", self.pick("WRAP", "SAT", "FAIL", "abc")])
            return [name, self.key(), *parts]
        if name == "LCS":
            return [name, self.key(), self.key(), *self.pick(["LEN"], ["IDX"], [], ["LEN", "IDX"])] if self.random.random() < 0.2 else self.parts()
        return [name, self.key(), self.bit_offset(), *([self.pick(0, 1)] if name == "SETBIT" else [])]

    def move(self):
        name = self.pick("RENAME", "RENAME", "RENAMENX", "COPY", "COPY", "COPY", "MOVE", "SWAPDB", "OBJECT")
        if name == "COPY":
            return [name, self.key(), self.key(), *self.pick([], [], ["REPLACE"], ["DB", self.pick(0, 1, 2, 16, "abc")], ["DB", 1, "replace"], ["abc"])]
        if name == "MOVE":
            return [name, self.key(), self.pick(0, 1, 2, 1, 2, 16, "abc")]
        if name == "SWAPDB":
            return [name, self.pick(0, 1, "abc"), self.pick(0, 1, 2, 16)]
        if name == "OBJECT":
            return [name, self.pick("ENCODING", "ENCODING", "encoding", "FREQ", "IDLETIME"), self.key()]
        return [name, self.key(), self.key()]

    def typed(self):
        """Of other types, and of strings as if they were of others."""
        key = self.key() if self.random.random() < 0.3 else None
        return self.pick(
            ["RPUSH", key or TYPED["list"], *range(self.random.randrange(1, 6))], ["LRANGE", key or TYPED["list"], 0, -1], ["LLEN", key or TYPED["list"]],
            ["SADD", key or TYPED["set"], *range(self.random.randrange(1, 6))], ["SCARD", key or TYPED["set"]], ["SISMEMBER", key or TYPED["set"], 1],
            ["HSET", key or TYPED["hash"], "f", self.value(), "g", 1], ["HGET", key or TYPED["hash"], "f"], ["HINCRBY", key or TYPED["hash"], "g", 5],
            ["ZADD", key or TYPED["sorted"], "1.5", "m"], ["ZRANGE", key or TYPED["sorted"], 0, -1, "WITHSCORES"], ["ZSCORE", key or TYPED["sorted"], "m"],
            ["PFADD", key or TYPED["log"], self.random.randrange(1000), self.random.randrange(1000)], ["PFCOUNT", TYPED["log"], *([key] if key else [])],
            ["PFMERGE", self.key(), key or TYPED["log"]], ["DEL", self.random.choice(list(TYPED.values()))])

    def patterns(self):
        by = self.pick([], ["BY", "nosort"], ["BY", "k*"], ["BY", "k*", "ALPHA"])
        parts = self.pick([], ["GET", "k*"], ["GET", "#", "GET", "k*"], ["GET", "k*", "LIMIT", 0, 2], ["DESC", "ALPHA"])
        store = ["STORE", self.key()] if self.random.random() < 0.3 else []
        return [self.pick("SORT", "SORT", "SORT_RO"), self.pick(TYPED["list"], TYPED["list"], TYPED["set"], self.key()), *by, *parts, *store]

    def restore(self):
        if self.random.random() < 0.4:
            return ["DUMP", self.key()]
        life = self.pick([0], [0, "REPLACE"], [self.life() * 1000, "REPLACE"], [self.until() * 1000, "ABSTTL", "replace"], [1000, "ABSTTL"], [-1], ["abc"],
                         [0, "IDLETIME", 5, "REPLACE"], [0, "FREQ", 5], [0, "REPLACE", "abc"])
        dump = Dump(encoded(self.key())) if self.random.random() < 0.9 else self.value()
        return ["RESTORE", self.key(), life[0], dump, *life[1:]]
