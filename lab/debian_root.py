"""Clean Debian roots in which tests install packages."""

import re
import subprocess

import lab

# Where a purge and the upgrade of a package may leave traces: notes of dpkg and apt, caches, logs, the list of users.
NOT_OURS = re.compile(r"/(proc|sys|dev|tmp|root|packages|var/cache|var/log|var/lib/(dpkg|apt|ucf|systemd/catalog)|"
                      r"etc/(passwd|group|shadow|gshadow)-?|etc/\.pwd\.lock|etc/ld\.so\.cache)(/|$)")


def run(*command, **options):
    """What a command prints that must end well."""
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode:
        lab.fail(f"{command}: {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout.strip()


class Root:
    """A copy of a clean Debian root, whose commands see /packages and have a network of their own unless they need the host's."""

    def __init__(self, suite):
        self.suite, self.path = suite, lab.WORK / suite
        clean = lab.LAB / f"cache/debian-{suite}"
        if not clean.is_dir():
            new = clean.with_suffix(".new")
            run("rm", "-rf", new)
            # The package lists stay, for apt.
            run("mmdebstrap", "--mode=root", "--variant=minbase", "--skip=cleanup/apt", suite, new, "http://deb.debian.org/debian")
            new.rename(clean)
        run("cp", "-a", clean, self.path)
        run("cp", "--remove-destination", "/etc/resolv.conf", self.path / "etc/resolv.conf")
        (self.path / "packages").mkdir()

    def run(self, script, network=False):
        """What a script prints in the root, as root; it must end well."""
        bash = f"""
            cd {self.path}
            mount --bind {lab.WORK}/packages packages
            mount -t proc proc proc
            mount --bind /sys sys
            mount -t devtmpfs dev dev && mkdir -p dev/shm dev/pts
            mount -t tmpfs shm dev/shm
            ip link set lo up
            exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive \\
                chroot . bash -euo pipefail -c "$1" """
        apart = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *([] if network else ["--net"])]
        return run(*apart, "bash", "-ec", bash, "root", script, stdin=subprocess.DEVNULL)

    def files(self):
        """What is there: kind, mode and owner of each path that is not NOT_OURS."""
        found = {}
        for line in run("find", self.path, "-printf", "/%P\t%y %m %U:%G\n").splitlines():
            path, _, what = line.partition("\t")
            if not NOT_OURS.match(path):
                found[path] = what
        return found

    def same_files(self, before):
        now = self.files()
        changed = sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))
        if changed:
            lab.fail(f"{self.suite}: a purge leaves {[(path, before.get(path), now.get(path)) for path in changed]}")
