"""A stock Debian kernel under QEMU (TCG) with a tmem disk, for tests of the daemon's vhost-user-blk."""

import functools
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import threading

import lab

BACKPORTS = lab.LAB / "cache/qemu-10/usr"
QEMUS = {
    "7.2": ["qemu-system-x86_64"],
    "10.0": [BACKPORTS / "bin/qemu-system-x86_64", "-L", BACKPORTS / "share/qemu", "-L", BACKPORTS / "share/seabios"],
}

# Starts the guest's script with all that it needs, and ends it.
INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in virtio_pci virtio_blk ext4 crc32c_generic; do modprobe $module; done
say() { echo "GUEST $*"; }
die() { say "failed: $*"; dmesg | tail -n 15; poweroff -f; }
# Tells the test something and waits for its word.
ask() { say "$@"; read -r word </dev/console; }
wait_for() {
    local left=$(($1 * 5)); shift
    while ! "$@" >/dev/null 2>&1; do left=$((left - 1)); [ $left -gt 0 ] || return 1; sleep 0.2; done
}
wait_for 10 test -b /dev/vda || die "no disk"
. /script
say done
poweroff -f
"""


def kernel_folder(name):
    folder = lab.LAB / "cache" / name
    if not list(folder.glob("boot/vmlinuz-*")):
        lab.fail(f"no guest kernel in {folder}: run lab/setup guest")
    return folder


def libraries(program):
    """The shared libraries of a program, with the loader; none of a static one."""
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    return re.findall(r"/\S+", linked)


@functools.cache
def _initramfs(kernel, script, programs):
    root = lab.WORK / "root"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "proc", "sys", "dev", "mnt"):
        (root / name).mkdir(parents=True)
    shutil.copy("/usr/bin/busybox", root / "bin/busybox")
    for source in programs:
        line = ["gcc", "-O2", "-static", "-o", root / "bin" / source, lab.LAB / f"tools/{source}.c"]
        subprocess.run(line, check=True)
    bash = """KERNEL=$2; . "$1"/network_guest.sh; MODULES=(virtio_pci virtio_blk ext4 crc32c_generic)
              guest_modules "$3" """
    subprocess.run(["bash", "-c", bash, "guest", lab.LAB, kernel, root], check=True)
    (root / "script").write_text(script)
    (root / "init").write_text(INIT)
    (root / "init").chmod(0o755)
    packed = pathlib.Path(tempfile.mkstemp(prefix="initramfs.", dir=lab.WORK)[1])
    pack = "cd $1 && find . | cpio -o -H newc --quiet | gzip -1 >$2"
    subprocess.run(["bash", "-c", pack, "pack", root, packed], check=True)
    return packed


class Guest:
    """Runs `script` under `qemu`, a program and options; by default that of QEMUS that LAB_QEMU names, else 7.2. `expect`
    waits for what it says, `go` answers what it asks."""

    def __init__(self, kernel, mib, socket, script, programs=("hog",), shows=True, qemu=None):
        kernel = kernel_folder(kernel)
        initramfs = _initramfs(kernel, script, programs)
        image = sorted(kernel.glob("boot/vmlinuz-*"))[-1]
        self.said = []
        self.console = []
        self.shows = shows
        self._news = threading.Condition()
        self.process = lab.start([
            *(qemu or QEMUS[os.environ.get("LAB_QEMU", "7.2")]),
            "-accel", "tcg,thread=multi", "-cpu", "Nehalem", "-smp", "1", "-m", f"{mib}M",
            "-object", f"memory-backend-memfd,id=memory,size={mib}M,share=on", "-machine", "memory-backend=memory",
            "-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio",
            "-chardev", f"socket,id=disk,path={socket},reconnect=1",
            "-device", "vhost-user-blk-pci,chardev=disk,num-queues=2",
            "-kernel", image, "-initrd", initramfs,
            "-append", "console=ttyS0 panic=-1 quiet mitigations=off no_timer_check",
        ], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        for line in self.process.stdout:
            line = line.decode(errors="replace").strip()
            with self._news:
                self.console.append(line)
                if match := re.search(r"GUEST (.*)", line):
                    self.said.append(match[1])
                    if self.shows:
                        print(line, flush=True)
                self._news.notify_all()
        with self._news:
            self.said.append("failed: QEMU ended")
            self._news.notify_all()

    def expect(self, start, seconds=200):
        """What the guest says next; it must begin so."""
        with self._news:
            if not self._news.wait_for(lambda: self.said, seconds):
                lab.fail(f"the guest did not say '{start}' within {seconds} s: {self.console[-15:]}")
            said = self.said.pop(0)
        if not said.startswith(start):
            lab.fail(f"the guest said '{said}', not '{start}': {self.console[-15:]}")
        return said

    def go(self):
        self.process.stdin.write(b"go\n")
        self.process.stdin.flush()

    def end(self):
        self.expect("done")
        if lab.ends(self.process, 30) != 0:
            lab.fail("QEMU did not end well")


def disk_bytes(daemon, name):
    """The disk's metrics by their short names, such as store_written."""
    status, text = daemon.ask("GET", "/metrics")
    found = re.findall(r'^spillway_disk_(\w+?)(?:_bytes)?_total\{disk="%s"\} (\d+)$' % re.escape(name), text, re.M)
    if status != 200 or not found:
        lab.fail(f"no metrics of disk {name}")
    return {key: int(value) for key, value in found}


def write_config(*sections):
    path = pathlib.Path(lab.WORK) / "disks.toml"
    path.write_text("\n".join(sections))
    return path
