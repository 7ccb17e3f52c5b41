"""A daemon that grows and shrinks guests, and checks that it, QEMU, the guest and the pool's files agree.

    daemon = VmDaemon("d", '[[vm]]\\nname = "one"', sections="2560M")
    one = daemon.boots("one")
    daemon.change("grow", "one", "500M")
    daemon.agree(one, 1024)
"""

import atexit
import json
import os
import pathlib
import shutil
import subprocess

import lab
from daemon import Daemon
from resize_guest import MIB, Guest

KERNEL = os.environ.get("LAB_KERNEL", "kernel")


def mounted(name, backing, size):
    """A mount of `tmpfs` or `hugetlbfs` as large as that, such as 512M, until the test ends; the host has its huge pages."""
    mount = lab.WORK / f"mount-{name}"
    mount.mkdir()
    options = f"size={size}" + (",pagesize=2M" if backing == "hugetlbfs" else "")
    subprocess.run(["mount", "-t", backing, "-o", options, "guests", mount], check=True)
    # Later than those that use it end: lab.py ends what it has started first of all.
    atexit.register(subprocess.run, ["umount", "--lazy", mount], check=True)
    return mount


class VmDaemon(Daemon):
    """The pool lies in /dev/shm, or on a mount of its own of the kind `backing`."""

    def __init__(self, name, vms, sections, backing=None, **options):
        if backing:
            self.pool = mounted(name, backing, sections) / "pool"
        else:
            self.pool = pathlib.Path("/dev/shm") / f"spillway-lab-{os.getpid()}-{name}"
        atexit.register(shutil.rmtree, self.pool, ignore_errors=True)
        self.config = lab.WORK / f"{name}.toml"
        self.configure(vms, sections)
        super().__init__(name, config=self.config, **options)

    def configure(self, vms, sections):
        self.config.write_text(f'[sections]\ncapacity = "{sections}"\ndir = "{self.pool}"\n{vms}\n')

    def vm(self, name):
        return self.json("vm", "show", name)

    def seen(self, name):
        """The same, at once: without a command."""
        return self.ask("GET", f"/v1/vms/{name}")[1]

    def attached(self, name):
        lab.until(lambda: self.vm(name)["state"] == "attached", f"{name} to be attached", 30)

    def boots(self, name, **options):
        """A guest, with the options that the daemon prints; with the agent unless `options` say otherwise."""
        guest = Guest(name, KERNEL, args=self.json("vm", "args", name)["qemu"], **options)
        self.attached(name)
        if guest.uses_agent:
            lab.until(lambda: self.vm(name)["agent"], f"the agent of {name}", 60)
        return guest

    def asks(self, how, name, size, *more):
        """The command that changes a size."""
        return [lab.SPILLWAY, "vm", how, name, size, "-o", "json", *more, "--api", str(self.api)]

    def change(self, how, name, size, *more, end="reached", status=0):
        """Grows or shrinks by the command; what came of it, or the line of complaint if it is to be refused."""
        done = subprocess.run(self.asks(how, name, size, *more), capture_output=True, text=True, timeout=100)
        if done.returncode != status:
            lab.fail(f"vm {how} {name} {size} ended with {done.returncode}: {done.stdout} {done.stderr}")
        if status == 2:
            return done.stderr
        outcome = json.loads(done.stdout)
        if outcome["end"] != end:
            lab.fail(f"a change ended as {outcome}")
        return outcome

    def held_mib(self, name, file="device"):
        """What a file of the pool holds of the host's memory."""
        return (self.pool / name / file).stat().st_blocks * 512 // MIB

    def pool_mib(self):
        """What all files hold."""
        return sum(path.stat().st_blocks * 512 for path in self.pool.glob("*/*")) // MIB

    def sizes(self, guest, boot_mib=512):
        """What the daemon, QEMU, the file and the pool say that the guest has."""
        status, held = self.vm(guest.name), self.held_mib(guest.name) + boot_mib
        plugged = guest.monitor.ask("qom-get", path="/machine/peripheral/spillway1", property="size") // MIB + boot_mib
        return status["size_bytes"] // MIB, plugged, held, status["set_aside_bytes"] // MIB + boot_mib

    def agree(self, guest, mib, boot_mib=512):
        """The daemon, QEMU, the guest and the file say the same."""
        sizes = self.sizes(guest, boot_mib)
        if set(sizes) != {mib}:
            lab.fail(f"{guest.name}: {mib} MiB expected; daemon, QEMU, file, set aside: {sizes}")
        # The last block is plugged a moment before it is online.
        lab.until(lambda: mib - 150 < guest.memory_mib() < mib, f"a MemTotal of {mib} MiB in {guest.name}", 20)
