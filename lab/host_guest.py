"""Stock Debian guests under QEMU (TCG) as hosts on a network of their own: a bridge in a network namespace, which the
test can cut and slow down."""

import base64
import os
import pathlib
import re
import shlex
import shutil
import socket
import subprocess
import time

import disk_guest
import lab

# Who a guest is: its address, and the name in its certificate.
NETWORK = "10.77.0"
MODULES = ("virtio_pci virtio_net virtio_blk virtio_console ext4 crc32c_generic nvme-tcp nvmet nvmet-tcp brd nbd ublk_drv "
           "loop sch_netem")
PROGRAMS = (lab.SPILLWAY, lab.SPILLWAYD, "/usr/sbin/nvme", "/usr/bin/fio", "/usr/sbin/mkfs.ext4", "/usr/sbin/mkswap", "/usr/sbin/swapon",
            "/usr/sbin/swapoff", "/usr/sbin/blkdiscard", "/usr/sbin/nbd-client")
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/tools/bin:/bin LD_LIBRARY_PATH=/tools/lib
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp
mount -t tmpfs run /run
mkdir -p /dev/shm && mount -t tmpfs shm /dev/shm
for module in virtio_pci virtio_net virtio_blk virtio_console ext4 crc32c_generic; do modprobe $module; done
left=50; while [ ! -b /dev/vda ] && [ $left -gt 0 ]; do left=$((left - 1)); sleep 0.1; done
mount -t ext4 -o ro /dev/vda /tools && ln -s /tools/lib/ld-linux-x86-64.so.2 /lib64/
# Where Debian has them, before those of busybox.
mkdir -p /lib /usr && ln -s /tools/lib /lib/x86_64-linux-gnu && ln -s /tools/bin /usr/sbin && ln -s /tools/bin /usr/bin
for name in /tools/bin/*; do rm -f /bin/${name##*/}; done; ln -s /tools/bin /sbin
ip link set lo up; ip link set eth0 up; ip addr add $ADDRESS/24 dev eth0; hostname $NAME
echo 1 >/proc/sys/kernel/sysrq; echo 8 >/proc/sys/kernel/printk
exec agent $(ls /dev/vport*p1)
"""


class Network:
    """A namespace with a bridge, until the test ends."""

    def __init__(self):
        script = ("ip link add spillway0 type bridge && ip link set spillway0 up && ip link set lo up && "
                  f"ip address add {NETWORK}.254/24 dev spillway0 && echo ready && exec sleep infinity")
        self.holder = lab.start(["unshare", "--net", "sh", "-c", script], stdout=subprocess.PIPE, text=True)
        if self.holder.stdout.readline() != "ready\n":
            lab.fail("no network namespace: is this root, and is iproute2 there?")

    def line(self, *command):
        return ["nsenter", "-t", self.holder.pid, "--net", *command]

    def run(self, *command):
        subprocess.run([str(part) for part in self.line(*command)], check=True, timeout=60)

    def tap(self, name):
        self.run("ip", "tuntap", "add", name, "mode", "tap")
        self.run("ip", "link", "set", "dev", name, "master", "spillway0", "up")

    def cut(self, guest):
        self.run("ip", "link", "set", "dev", guest.name, "down")

    def mend(self, guest):
        self.run("ip", "link", "set", "dev", guest.name, "up")

    def slow(self, guest, kbit):
        """What goes to the guest goes at so many kbit a second."""
        self.run("tc", "qdisc", "add", "dev", guest.name, "root", "tbf", "rate", f"{kbit}kbit", "burst", "8kb", "latency", "500ms")

    def quick(self, guest):
        self.run("tc", "qdisc", "del", "dev", guest.name, "root")


def tools_disk(programs):
    """An image with programs and their libraries."""
    root = lab.WORK / "tools"
    for folder in "bin", "lib":
        (root / folder).mkdir(parents=True)
    for program in programs:
        if not pathlib.Path(program).exists():
            lab.fail(f"no {program}: run lab/setup guest")
        target = shutil.copy(program, root / "bin")
        subprocess.run(["strip", target], check=False, stderr=subprocess.DEVNULL)
        for library in disk_guest.libraries(program):
            shutil.copy(library, root / "lib")
    image = lab.WORK / "tools.img"
    with open(image, "wb") as file:
        file.truncate(192 << 20)
    subprocess.run(["mke2fs", "-q", "-t", "ext4", "-d", root, image], check=True)
    shutil.rmtree(root)
    return image


def initramfs(kernel, name, address):
    root = lab.WORK / f"root-{name}"
    for folder in ("bin", "proc", "sys", "dev", "tmp", "run", "tools", "lib64", "etc/nvme"):
        (root / folder).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin/busybox")
    for source in "agent", "hog", "press":
        subprocess.run(["gcc", "-O2", "-static", "-o", root / "bin" / source, lab.LAB / f"tools/{source}.c"], check=True)
    bash = f"""KERNEL=$2; . "$1"/network_guest.sh; MODULES=({MODULES}); guest_modules "$3" """
    subprocess.run(["bash", "-c", bash, "guest", lab.LAB, kernel, root], check=True)
    number = int(address.rpartition(".")[2])
    identity = f"3f5d62d6-2e40-4f7a-9d3e-0d2bb6b7a{number:03}"
    (root / "etc/nvme/hostnqn").write_text(f"nqn.2014-08.org.nvmexpress:uuid:{identity}\n")
    (root / "etc/nvme/hostid").write_text(identity + "\n")
    (root / "init").write_text(INIT.replace("$ADDRESS", address).replace("$NAME", name))
    (root / "init").chmod(0o755)
    packed = lab.WORK / f"initramfs-{name}"
    subprocess.run(["bash", "-c", "cd $1 && find . | cpio -o -H newc --quiet | gzip -1 >$2", "pack", root, packed], check=True)
    shutil.rmtree(root)
    return packed


class Guest:
    """A host: `run` does something there as root and gives what it printed."""

    def __init__(self, network, name, number, mib, image, disk_mib=0, swap_mib=0, kernel="kernel", cpu="Westmere"):
        kernel = disk_guest.kernel_folder(kernel)
        self.name, self.number, self.network = name, number, network
        self.address = f"{NETWORK}.{number}"
        self.console = lab.WORK / f"console-{name}"
        self.port = lab.WORK / f"port-{name}"
        self.monitor = lab.WORK / f"monitor-{name}"
        self.disk = lab.WORK / f"disk-{name}"
        packed = initramfs(kernel, name, self.address)
        network.tap(name)
        drives = ["-drive", f"file={image},if=virtio,format=raw,readonly=on"]
        if disk_mib:
            with open(self.disk, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, disk_mib << 20)
            drives += ["-drive", f"file={self.disk},if=virtio,format=raw,cache=none"]
        if swap_mib:
            self.swap = lab.WORK / f"swap-{name}"
            with open(self.swap, "wb") as file:
                os.posix_fallocate(file.fileno(), 0, swap_mib << 20)
            drives += ["-drive", f"file={self.swap},if=virtio,format=raw,cache=none"]
        self.line = network.line(
            "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", cpu, "-smp", "2", "-m", f"{mib}M",
            "-nodefaults", "-nographic", "-no-reboot", "-serial", f"file:{self.console}",
            "-monitor", f"unix:{self.monitor},server=on,wait=off",
            "-netdev", f"tap,id=net,ifname={name},script=no,downscript=no",
            "-device", f"virtio-net-pci,netdev=net,mac=52:54:00:77:00:{number:02x}",
            "-chardev", f"socket,id=port,path={self.port},server=on,wait=off",
            "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=port,name=port", *drives,
            "-kernel", sorted(kernel.glob("boot/vmlinuz-*"))[-1], "-initrd", packed,
            "-append", "console=ttyS0 panic=-1 quiet mitigations=off")
        self.boot()

    def boot(self, again=True):
        """Starts it. A kernel that patches itself while both processors run panics at times under TCG in its first seconds:
        that is tried once more."""
        self.process = lab.start(self.line)
        self.socket = socket.socket(socket.AF_UNIX)
        lab.until(lambda: self.port.exists() and self.socket.connect_ex(str(self.port)) == 0, f"QEMU of {self.name}")
        self.rest = b""
        try:
            self.answer("boot", 90)
        except SystemExit:
            if not again or "Oops: int3" not in self.last_words():
                raise
            self.kill()
            self.boot(again=False)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.socket.close()
        self.port.unlink(missing_ok=True)

    def answer(self, what, seconds):
        """The output and the status of what runs."""
        end = time.monotonic() + seconds
        while not (found := re.search(rb"\x1e(\d+)\n", self.rest)):
            self.socket.settimeout(max(0.01, end - time.monotonic()))
            try:
                got = self.socket.recv(1 << 16)
            except TimeoutError:
                self.stacks()
                lab.fail(f"{self.name} did not answer '{what}' within {seconds} s: {self.last_words()}")
            if not got:
                lab.fail(f"{self.name} ended: {self.last_words()}")
            self.rest += got
        output, self.rest = self.rest[:found.start()], self.rest[found.end():]
        return output.decode(errors="replace"), int(found[1])

    def stacks(self):
        """Has the kernel say on the console where it waits and what memory it has: SysRq of a keyboard, so the guest need not
        be able to run anything."""
        for key in "w", "m", "l":
            with socket.socket(socket.AF_UNIX) as monitor:
                monitor.connect(str(self.monitor))
                monitor.sendall(f"sendkey alt-sysrq-{key}\n".encode())
                time.sleep(2)

    def last_words(self):
        return self.console.read_text(errors="replace")[-12000:] if self.console.exists() else ""

    def ask(self, command, seconds=240):
        """What a command prints, and its status."""
        self.socket.sendall(" ; ".join(command.strip().splitlines()).encode() + b"\n")
        return self.answer(command, seconds)

    def run(self, command, seconds=240):
        """What a command prints that must end well."""
        output, status = self.ask(command, seconds)
        if status:
            lab.fail(f"{self.name}: '{command}' ended with {status}: {output} {self.last_words()[-1500:]}")
        return output.strip()

    def write(self, path, text):
        """Puts a file there, a piece at a time."""
        self.run(f"mkdir -p {shlex.quote(os.path.dirname(path))}; : >{shlex.quote(path)}")
        encoded = base64.b64encode(text.encode()).decode()
        for at in range(0, len(encoded), 8192):
            self.run(f"echo {encoded[at:at + 8192]} | base64 -d >>{shlex.quote(path)}")

    def memory_kib(self):
        """What stands in /proc/meminfo."""
        lines = self.run("cat /proc/meminfo").splitlines()
        return {name: int(value.split()[0]) for name, _, value in (line.partition(":") for line in lines)}

    def until(self, command, seconds=60):
        """Waits until a command ends well."""
        lab.until(lambda: self.ask(command)[1] == 0, f"{command} on {self.name}", seconds)
