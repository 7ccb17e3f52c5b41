"""Helpers for servers in a guest: Redis and Valkey, whose values lie in the host's store or in the guest's swap space.

    daemon = VmDaemon("d", windowed("one"), "1G")
    guest, port = boots_with_servers(functools.partial(boots_windowed, daemon), "one")
    server = GuestServer(guest, "redis-server", port, module("min-bytes", "64"))
    server.client.ask("PING")
"""

import base64
import pathlib
import shutil

import lab
from valkey import MODULE, Client, servers

# The guest is emulated: what takes a millisecond elsewhere may take a second.
DEADLINE = ("deadline-ms", "20000")


def boots_with_servers(boots, name, programs=(), modules="", options=()):
    """A guest with the servers and the module, which `boots` starts with the other arguments; and the host's port that leads to
    the guest's server."""
    port = lab.free_port()
    network = ("-netdev", f"user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:6379",
               "-device", "virtio-net-pci,netdev=net")
    carried = (*map(shutil.which, (*servers(), "redis-server", "redis-cli")), MODULE, *programs)
    guest = boots(name, programs=carried, modules=f"virtio_net {modules}", options=(*network, *options))
    guest.run("ip link set eth0 up; ip addr add 10.0.2.15/24 dev eth0")
    return guest, port


def module(*arguments):
    """A server's options that load the module."""
    return ("--loadmodule", f"/bin/{MODULE.name}", "url", "guest:", *DEADLINE, *arguments)


class GuestServer:
    """A server in the guest, as an ordinary user, whose port the host forwards. `group` is a control group of the guest."""

    def __init__(self, guest, program, port, options, group="/sys/fs/cgroup"):
        self.guest, self.port, self.folder = guest, port, "/run/server"
        self.socket = f"{self.folder}/socket"
        line = (f"{pathlib.Path(program).name} --port 6379 --bind 10.0.2.15 --unixsocket {self.socket} --protected-mode no "
                f"--dir {self.folder} --save '' --enable-debug-command yes {' '.join(map(str, options))}")
        guest.run(f"rm -rf {self.folder}; mkdir {self.folder}; chown user {self.folder}; "
                  f"(echo 0 >{group}/cgroup.procs; su user -c \"exec {line} --logfile {self.folder}/log --pidfile {self.folder}/pid "
                  "--daemonize yes\")")
        self.client = lab.until(self.connected, f"{program} in the guest", 60)
        if "--loadmodule" in options:
            lab.until(lambda: self.client.stats()["store_connected"], "the module to have a window", 60)

    def connected(self):
        """A connection. The host accepts it also while nobody listens in the guest, and then closes it."""
        try:
            client = Client(("127.0.0.1", self.port))
            client.socket.sendall(b"PING\r\n")
            return client if client.file.readline() == b"+PONG\r\n" else None
        except (ConnectionRefusedError, ConnectionResetError):
            return None

    def kill(self):
        self.guest.run(f"kill -9 $(cat {self.folder}/pid)")

    def stop(self):
        self.client.send("SHUTDOWN", "NOSAVE")
        self.gone()

    def gone(self):
        self.guest.until(f"! kill -0 $(cat {self.folder}/pid) 2>/dev/null")

    def log(self):
        return self.guest.run(f"cat {self.folder}/log")

    def take(self, name, to):
        """Copies a file of the server to the host."""
        part = 512 << 10
        length = int(self.guest.run(f"stat -c %s {self.folder}/{name}"))
        read = lambda at: self.guest.run(f"dd if={self.folder}/{name} bs={part} skip={at} count=1 2>/dev/null | base64")
        to.write_bytes(b"".join(base64.b64decode(read(at)) for at in range(-(-length // part))))
