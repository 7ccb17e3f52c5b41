"""Sends the same random commands to a plain server and to others that must answer alike, and decides which differences
matter."""

import time
from typing import NamedTuple

import lab
from alike_commands import CALL, PCALL, Commands, Dump

DATABASES = range(4)
# Times to live may differ by so many seconds: the servers get a command one after the other.
TOLERANCE_S = 3
SECONDS, MILLISECONDS = (b"TTL", b"EXPIRETIME"), (b"PTTL", b"PEXPIRETIME")
SHRINK_S = 20


class Reply(NamedTuple):
    """The first byte, which says what it is, and what follows: bytes, replies, or nothing."""

    kind: bytes
    content: object

    def shown(self):
        if isinstance(self.content, list):
            return f"{self.kind.decode()}[" + ", ".join(part.shown() for part in self.content[:20]) + "]"
        return f"{self.kind.decode()}{abbreviated(self.content)}"


def abbreviated(content):
    if not isinstance(content, bytes) or len(content) <= 80:
        return repr(content)
    return f"{content[:40]!r}... of {len(content)} bytes"


class Line(lab.Connection):
    """A connection that gives replies of RESP2 and RESP3 as they are."""

    def line(self):
        line = self.file.readline()
        if not line.endswith(b"\r\n"):
            raise EOFError
        return line[:-2]

    def send(self, words):
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words))

    def reply(self):
        line = self.line()
        kind, rest = line[:1], line[1:]
        if kind in b"*%~>":
            count = int(rest) * (2 if kind == b"%" else 1)
            return Reply(kind, None if count < 0 else [self.reply() for _ in range(count)])
        if kind in b"$=":
            return Reply(kind, None if rest == b"-1" else self.exactly(int(rest)))
        return Reply(kind, rest)

    def ask(self, *words):
        self.send([word if isinstance(word, bytes) else str(word).encode() for word in words])
        return self.reply()


class Target:
    """A server: its name, its socket, whether strings can be sent to the store, and whether it has all commands."""

    def __init__(self, name, path, has_all=True, demotes=False):
        self.name, self.path, self.has_all, self.demotes = name, path, has_all, demotes
        self.admin = lab.connect(Line, path)
        self.lines = []

    def begin(self):
        """New connections, and no keys."""
        self.end()
        self.lines = [lab.connect(Line, self.path) for _ in range(2)]
        self.expect_ok(self.admin.ask("SELECT", 0))
        self.expect_ok(self.admin.ask("FLUSHALL"))

    def end(self):
        for line in self.lines:
            line.file.close()
            line.socket.close()
        self.lines = []

    def expect_ok(self, reply):
        if reply != Reply(b"+", b"OK"):
            lab.fail(f"{self.name}: {reply.shown()}")

    def demote(self):
        """Sends all strings of two databases to the store."""
        for database in (0, 1):
            self.admin.ask("SELECT", database)
            keys = self.admin.ask("KEYS", "*").content
            for key in keys:
                self.admin.send([b"SPILL.DEMOTE", key.content])
            for _ in keys:
                self.admin.reply()

    def carry_out(self, step, words, is_queued):
        """The reply; of a scan all that it finds."""
        if self.demotes and step.demotes:
            self.demote()
        line = self.lines[step.connection]
        name = words[0].upper()
        if name == b"DBSIZE" and len(words) == 1 and not is_queued:
            # Keys that have expired count until they are met.
            line.ask("SCAN", 0, "COUNT", 1000)
        reply = line.ask(*words)
        if name == b"SCAN" and reply.kind == b"*" and not is_queued:
            found = list(reply.content[1].content)
            while reply.kind == b"*" and (cursor := reply.content[0].content) != b"0":
                reply = line.ask(words[0], cursor, *words[2:])
                found += reply.content[1].content if reply.kind == b"*" else [reply]
            return Reply(b"*", sorted(set(found)))
        return reply

    def content(self, dumps):
        """Every key with what it holds, and when it expires."""
        found = []
        for database in DATABASES:
            self.admin.ask("SELECT", database)
            # A scan, which removes what has expired.
            keys = self.admin.ask("SCAN", 0, "COUNT", 1000).content[1].content
            for key in sorted(key.content for key in keys):
                commands = [(b"TYPE", key), (b"PEXPIRETIME", key), (b"GET", key), (b"STRLEN", key)]
                commands += [(b"DUMP", key), (b"DEBUG", b"DIGEST-VALUE", key)] if dumps else []
                found += [(database, command, self.admin.ask(*command)) for command in commands]
            found.append((database, (b"DBSIZE",), self.admin.ask("DBSIZE")))
        return found


class Difference(NamedTuple):
    """What two servers answer differently: the unit of the case where it was seen, the command, and the answers."""

    unit: int
    command: tuple
    expected: str
    answer: str


def is_alike(words, expected, answer, queued):
    """Whether an answer says the same, to the byte, but for times, the order of keys, and figures of memory."""
    name = words[0].upper()
    if name == b"EVAL" and len(words) > 3 and words[1] in (CALL.encode(), PCALL.encode()):
        return is_alike(words[3:], expected, answer, queued)
    if expected.kind != answer.kind:
        return False
    lists = isinstance(expected.content, list) and isinstance(answer.content, list)
    if name == b"EXEC" and lists and len(expected.content) == len(answer.content) == len(queued):
        return all(is_alike(command, *both, []) for command, *both in zip(queued, expected.content, answer.content))
    if expected.kind == b":" and name in SECONDS + MILLISECONDS and min(int(expected.content), int(answer.content)) > 0:
        return abs(int(expected.content) - int(answer.content)) <= TOLERANCE_S * (1 if name in SECONDS else 1000)
    if name == b"KEYS" and lists:
        return sorted(expected.content) == sorted(answer.content)
    if name == b"SCAN" and expected.kind == b"*" and words[1] not in (b"0", b""):
        # A cursor that nobody gave means another place on each server.
        return True
    if name == b"RANDOMKEY":
        return (expected.content is None) == (answer.content is None)
    if name == b"HELLO" and lists:
        # The server's name and version, and the number of the connection.
        return len(expected.content) == len(answer.content) and expected.content[4:6] == answer.content[4:6]
    if name == b"DUMP" and expected.content and not expected.content.startswith(b"\0"):
        # Of sets and hashes the order differs from one server to the other; a SORT by a pattern that fails may have changed how a sorted
        # set is kept, for the module looks at the elements first. What they hold is compared by their digests.
        return bool(answer.content) and not answer.content.startswith(b"\0")
    if name == b"OBJECT" and expected.kind == b":":
        # When a key was used; and how often the server shares a small number (docs/resp.md: "OBJECT REFCOUNT is 1").
        return True
    return expected.content == answer.content


class Case:
    """A sequence of commands, by its seed."""

    def __init__(self, seed, module, length):
        self.seed, self.module = seed, module
        commands = Commands(seed, time.time(), module)
        self.units = commands.units(length)

    def difference(self, plain, targets, units=None):
        """Carries the units out on all servers; the first difference, and the target that answers differently."""
        units = self.units if units is None else units
        for target in (plain, *targets):
            target.begin()
        queues = [[], []]
        step, at = None, 0
        try:
            for at, unit in enumerate(units):
                for step in unit:
                    if found := one_step(plain, targets, step, queues[step.connection]):
                        target, words, expected, answer = found
                        return Difference(at, words, expected.shown(), answer.shown()), target
        except EOFError:
            return Difference(at, step.words, "an answer", "a closed connection"), None
        return end_of_case(plain, targets, len(units))

    def shrunk(self, plain, target, found):
        """A shorter sequence, by its units, that differs too, and how: parts are left out as long as something differs."""
        until = time.monotonic() + SHRINK_S
        units = self.units[: found.unit + 1]
        size = len(units) // 2
        while size and time.monotonic() < until:
            at = 0
            while at < len(units) and time.monotonic() < until:
                fewer = units[:at] + units[at + size :]
                if again := self.difference(plain, [target], fewer):
                    found, units = again[0], fewer
                else:
                    at += size
            size //= 2
        return found, units


def one_step(plain, targets, step, queue):
    """Asks all; the target, command and answers of the first that differs."""
    words = list(step.words)
    for at, word in enumerate(words):
        if isinstance(word, Dump):
            plain.admin.ask("SELECT", 0)
            words[at] = plain.admin.ask("DUMP", word.key).content or b""
    words = tuple(words)
    name = words[0].upper()
    expected = plain.carry_out(step, words, bool(queue))
    for target in targets:
        answer = target.carry_out(step, words, bool(queue))
        if not is_alike(words, expected, answer, queue[1:]):
            return target, words, expected, answer
    # The first of a queue is its MULTI.
    if name == b"MULTI" and expected.content == b"OK" or expected == Reply(b"+", b"QUEUED"):
        queue.append(words)
    elif name in (b"EXEC", b"DISCARD", b"RESET") and (expected.kind != b"-" or expected.content.startswith(b"EXECABORT")):
        queue.clear()
    return None


def end_of_case(plain, targets, count):
    """What the servers hold in the end."""
    for target in targets:
        expected, found = plain.content(target.has_all), target.content(target.has_all)
        for (_, command, one), (database, other, answer) in zip(expected, found):
            if command != other:
                return Difference(count, (f"keys of database {database}".encode(),), abbreviated(command[1:]), abbreviated(other[1:])), target
            if not is_alike(command, one, answer, []):
                where = (f"in the end, database {database}:".encode(), *command)
                return Difference(count, where, one.shown(), answer.shown()), target
    return None


def show(case, target, found, units):
    """Prints how to see a difference again, and fails."""
    print(f"{case.seed}: {target.name if target else 'a server'} differs, with these commands (connection: command):")
    for step in (step for unit in units for step in unit):
        words = " ".join(f"DUMP({word.key!r})" if isinstance(word, Dump) else abbreviated(word)[1:] for word in step.words)
        print(f"  {step.connection}: {words}{'   (behind a SPILL.DEMOTE of all)' if target and target.demotes and step.demotes else ''}")
    print(f"  expected {found.expected}\n  answered {found.answer}")
    command = " ".join(abbreviated(word)[1:] for word in found.command)
    lab.fail(f"{target.name if target else 'a server'}: {command[:300]} gives {found.answer[:200]}, expected {found.expected[:200]}")
