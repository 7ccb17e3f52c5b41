"""A balloon that looks like a virtio-mem device to the daemon, so that daemon, agent and policy are the same for both.

    proxy = Proxy(listen, monitor, boot_mib, device_file, device_mib)

The proxy listens where the daemon expects QEMU's monitor (`listen`). It talks to the monitor (`monitor`) of a VM that
booted with its largest memory and a virtio-balloon device. When the daemon requests a size of the device, the balloon
leaves the guest that much beyond `boot_mib`. The guest's memory beyond `boot_mib` is the device's size. QEMU frees the
memory that a virtio-mem device gives up; so when the balloon has grown, the proxy frees that much of the device's file,
by which the pool counts.
"""

import ctypes
import json
import os
import socket
import threading

import lab
from resize_guest import MIB, Monitor

DEVICE, MEMORY = "spillway1", "spillway-mem1"
PUNCH_HOLE, KEEP_SIZE = 2, 1
GREETING = {"QMP": {"version": {"qemu": {"major": 7, "minor": 2, "micro": 0}, "package": ""}, "capabilities": []}}
libc = ctypes.CDLL(None, use_errno=True)


class AgentProxy:
    """The agent's channel: it says of virtio-mem's blocks alone when new memory is online. What a balloon leaves the guest is there
    at once, which this says in its place."""

    def __init__(self, listen, port):
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(listen))
        self.listener.listen()
        self.port = port
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            daemon, _ = self.listener.accept()
            agent = socket.socket(socket.AF_UNIX)
            agent.connect(str(self.port))
            threading.Thread(target=self._pass, args=(agent, daemon), daemon=True).start()
            self._pass(daemon, agent, self._arrives)

    @staticmethod
    def _arrives(line):
        """The answer to what the agent is not to hear."""
        said = json.loads(line) if line.strip() else None
        wanted = said.get("arrive") if isinstance(said, dict) else None
        return wanted and json.dumps({"arrived": {"id": wanted["id"], "bytes": wanted["bytes"]}}).encode() + b"\n"

    @staticmethod
    def _pass(source, sink, answered=lambda line: None):
        try:
            for line in source.makefile("rb"):
                answer = answered(line)
                source.sendall(answer) if answer else sink.sendall(line)
        except OSError:
            pass
        for end in source, sink:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class Proxy:
    def __init__(self, listen, monitor, boot_mib, device_file, device_mib):
        self.monitor = Monitor(monitor)
        self.boot, self.most, self.file = boot_mib * MIB, device_mib * MIB, device_file
        self.requested = 0
        self.freed_from = None
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(listen))
        self.listener.listen()
        self.ask_for(0)
        threading.Thread(target=self._serve, daemon=True).start()

    def ask_for(self, size):
        self.requested = size
        self.monitor.ask("balloon", value=self.boot + size)

    def size(self):
        """What the guest has beyond its boot memory, whole MiB."""
        size = max(self.monitor.ask("query-balloon")["actual"] - self.boot, 0) // MIB * MIB
        if size == self.requested and self.freed_from != size:
            self._free(size)
            self.freed_from = size
        return size

    def _free(self, start):
        if start == self.most:
            return
        with open(self.file, "r+b") as file:
            done = libc.fallocate(file.fileno(), PUNCH_HOLE | KEEP_SIZE, ctypes.c_long(start), ctypes.c_long(self.most - start))
        if done:
            lab.fail(f"{self.file}: {os.strerror(ctypes.get_errno())}")

    def _serve(self):
        while True:
            connection, _ = self.listener.accept()
            try:
                self._speak(connection)
            except (OSError, ValueError):
                pass
            connection.close()

    def _speak(self, connection):
        connection.sendall(json.dumps(GREETING).encode() + b"\r\n")
        for line in connection.makefile("rb"):
            said = json.loads(line)
            answer = {"return": self._answer(said["execute"], said.get("arguments") or {})}
            if "id" in said:
                answer["id"] = said["id"]
            connection.sendall(json.dumps(answer).encode() + b"\r\n")

    def _answer(self, command, arguments):
        match command, arguments.get("path"), arguments.get("property"):
            case "query-memory-devices", *_:
                data = {"id": DEVICE, "memaddr": 0, "node": 0, "memdev": f"/objects/{MEMORY}", "size": self.size(),
                        "requested-size": self.requested, "max-size": self.most, "block-size": 128 * MIB}
                return [{"type": "virtio-mem", "data": data}]
            case "query-memory-size-summary", *_:
                return {"base-memory": self.boot, "plugged-memory": self.size()}
            case "qom-set", _, "requested-size":
                self.ask_for(arguments["value"])
                return {}
            case "qom-get", _, "type":
                return "memory-backend-file"
            case "qom-get", _, "mem-path":
                return str(self.file)
            case "qom-get", _, "share" | "prealloc":
                return True
            case "qom-get", path, "size":
                return self.most if path.startswith("/objects") else self.size()
        return self.monitor.ask(command, **arguments) if command != "qmp_capabilities" else {}
