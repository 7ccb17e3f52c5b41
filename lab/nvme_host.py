"""A handwritten NVMe/TCP host, so that a test can leave commands incomplete."""

import socket
import struct

POOLS = "nqn.2026-11.io.spillway:pools"
CAPSULE, RESPONSE, HOST_DATA, READY = 4, 5, 6, 9
LAST = 4
STORE, CREATE_POOL = 0x01, 0xc1
PART_BYTES = 128 << 10


class Queue:
    """A connection that carries one queue of a controller of `subsystem`: number 0 makes it, others name it."""

    def __init__(self, port, host, number=0, controller=0xffff, subsystem=POOLS, keep_alive_ms=0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.last = 0
        self.socket.sendall(struct.pack("<BBBBI", 0, 0, 128, 0, 128) + bytes(120))
        self.pdu()
        data = bytearray(1024)
        data[:16] = bytes([7] * 16)
        struct.pack_into("<H", data, 16, controller)
        data[256:256 + len(subsystem)] = subsystem.encode()
        data[512:512 + len(host)] = host.encode()
        # Connect: queue, its entries less one, no flow control, the time of keep-alive.
        words = struct.pack("<IIIIII", number << 16, 1 << 18 | 31, keep_alive_ms, 0, 0, 0)
        self.controller = self.ask(0x7f, 1, words, bytes(data)) & 0xffff
        if number == 0:
            # Set the property CC: enabled, the command sets that there are.
            self.ask(0x7f, 0, struct.pack("<IIIIII", 0, 0x14, 0x00460001, 0, 0, 0))

    def receive(self, count):
        got = bytearray()
        while len(got) < count:
            part = self.socket.recv(count - len(got))
            if not part:
                raise ConnectionError("the target closed the connection")
            got += part
        return bytes(got)

    def pdu(self):
        """The kind of the next PDU, and what is behind its first 8 bytes."""
        head = self.receive(8)
        return head[0], self.receive(struct.unpack_from("<I", head, 4)[0] - 8)

    def command(self, opcode, namespace, words, data=b"", announced=0, key=(0, 0)):
        """Sends a command with its data, or with the length of data that is to be asked for."""
        self.last += 1
        kind = 1 if data else 0x5a
        pointer = struct.pack("<QI3xB", 0, len(data) or announced, kind)
        command = struct.pack("<BBHIII8x", opcode, 0x40, self.last, namespace, key[0], 0) + pointer + words
        length = 72 + len(data)
        self.socket.sendall(struct.pack("<BBBBI", CAPSULE, 0, 72, 72 if data else 0, length) + command + data)

    def answer(self):
        """The result of the command that is completed next; its status when it failed."""
        kind, body = self.pdu()
        if kind != RESPONSE:
            raise ValueError(f"a PDU of kind {kind}")
        status = struct.unpack_from("<H", body, 14)[0] >> 1
        if status:
            raise OSError(status, "the command failed")
        return struct.unpack_from("<Q", body)[0]

    def ask(self, *command):
        self.command(*command)
        return self.answer()

    def create_pool(self):
        return self.ask(CREATE_POOL, 0, bytes(24), struct.pack("<I", 1 << 24 | 1) + bytes(20))

    def announce(self, pool, index, length):
        """Announces a value of so many bytes."""
        words = struct.pack("<IIIIII", length, 12, 0, 0, index, 0)
        self.command(STORE, pool, words, announced=length, key=(1, 0))

    def send(self, least_missing=0, pause=lambda sent: None):
        """Sends the value that was announced, as it is asked for, but for its last bytes; how many were sent."""
        sent = 0
        while True:
            kind, body = self.pdu()
            if kind != READY:
                raise ValueError(f"a PDU of kind {kind}")
            command, tag, offset, length = struct.unpack_from("<HHII", body)
            for at in range(offset, offset + length, PART_BYTES):
                part = min(PART_BYTES, offset + length - at)
                if at + part > self.length - least_missing:
                    return sent
                flags = LAST if at + part == offset + length else 0
                head = struct.pack("<BBBBIHHII4x", HOST_DATA, flags, 24, 24, 24 + part, command, tag, at, part)
                self.socket.sendall(head + self.filling[:part])
                sent += part
                pause(sent)
            if offset + length == self.length:
                return sent

    def store(self, pool, index, length, least_missing=0, pause=lambda sent: None):
        """Stores a value but for its last bytes, which are no page of one word."""
        self.length, self.filling = length, bytes((n * 7 + n // 251) & 0xff for n in range(4096)) * 32
        self.announce(pool, index, length)
        return self.send(least_missing, pause)


def association(port, host, queues):
    """An admin queue, and so many others."""
    admin = Queue(port, host)
    return admin, [Queue(port, host, number, admin.controller) for number in range(1, queues + 1)]
