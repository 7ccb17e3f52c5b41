"""Runs commands in containers as Docker makes them: runc, Docker's namespaces, capabilities and seccomp profile, over
parts of this machine's file system."""

import json
import os
import pathlib
import subprocess

import lab

# Docker's own file; lab/setup gets it.
PROFILE = lab.LAB / "cache/docker-seccomp.json"
CAPABILITIES = [f"CAP_{name}" for name in (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYS_CHROOT")]
ARCHITECTURES = {"amd64": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]}
USERFAULTFD = pathlib.Path("/dev/userfaultfd")
TMPFS = {"type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}


def seccomp():
    """Docker's profile as the runtime takes it: its rules for this processor and these capabilities."""
    profile = json.loads(PROFILE.read_text())

    def applies(rule):
        includes, excludes = rule.get("includes", {}), rule.get("excludes", {})
        return ("amd64" in includes.get("arches", ["amd64"]) and "amd64" not in excludes.get("arches", [])
                and set(includes.get("caps", [])) <= set(CAPABILITIES) and not set(excludes.get("caps", [])) & set(CAPABILITIES))

    def rule(it):
        return {name: it[name] for name in ("names", "action", "args", "errnoRet") if it.get(name)}

    rules = [rule(it) for it in profile["syscalls"] if applies(it)]
    if not any("pidfd_getfd" in it["names"] for it in profile["syscalls"]) or any("pidfd_getfd" in it["names"] for it in rules):
        lab.fail("the profile does not treat pidfd_getfd as Docker does")
    return {"defaultAction": profile["defaultAction"], "architectures": ARCHITECTURES["amd64"], "syscalls": rules}


def bind(path, access="ro"):
    return {"destination": str(path), "source": str(path), "type": "bind", "options": ["rbind", access]}


def device(path):
    """A device that the container gets, as by Docker's --device; and the rule of its control group."""
    number = path.stat().st_rdev
    numbers = {"type": "c", "major": os.major(number), "minor": os.minor(number)}
    return {"path": str(path), **numbers, "fileMode": 0o600, "uid": 0, "gid": 0}, {"allow": True, **numbers, "access": "rwm"}


class Container:
    """A container that runs one command as the user with the number `user`. Its files are those of this machine's /usr and
    /etc, of the build and of the lab, read only; or those in the folder `root`, and what is mounted from `volumes`."""

    def __init__(self, name, *command, devices=(USERFAULTFD,), root=None, user=0, volumes=()):
        self.name = f"spillway-{name}-{os.getpid()}"
        self.bundle = lab.WORK / name
        self.bundle.mkdir()
        mounts = [{"destination": "/proc", "type": "proc", "source": "proc"},
                  {"destination": "/dev", **TMPFS, "options": ["nosuid", "mode=755", "size=64m"]},
                  {"destination": "/dev/shm", **TMPFS},
                  {"destination": "/tmp", **TMPFS},
                  {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["ro"]},
                  *({**bind(source, "rw"), "destination": where} for where, source in volumes)]
        if root is None:
            root = self.bundle / "root"
            root.mkdir()
            for link in "bin", "lib", "lib64", "sbin":
                (root / link).symlink_to(f"usr/{link}")
            mounts += map(bind, ["/usr", "/etc", pathlib.Path(lab.SPILLWAY).resolve().parent, lab.LAB])
        given = [device(path) for path in devices]
        has = CAPABILITIES if user == 0 else []
        process = {"user": {"uid": user, "gid": user}, "args": [str(word) for word in command], "cwd": "/tmp",
                   "env": ["PATH=/usr/sbin:/usr/bin", "HOME=/tmp", f"LAB_WORK={lab.WORK}"],
                   "capabilities": {"bounding": CAPABILITIES, "effective": has, "permitted": has}}
        linux = {"namespaces": [{"type": kind} for kind in ("pid", "network", "ipc", "uts", "mount")],
                 "devices": [it[0] for it in given], "seccomp": seccomp(),
                 "resources": {"devices": [{"allow": False, "access": "rwm"}, *(it[1] for it in given)]},
                 "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/sys/firmware"],
                 "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys"]}
        whole = {"ociVersion": "1.0.2", "process": process, "root": {"path": str(root)}, "hostname": name, "mounts": mounts, "linux": linux}
        (self.bundle / "config.json").write_text(json.dumps(whole))

    def start(self):
        """Starts it. Its processes are also processes of this machine."""
        return lab.start(["runc", "--root", lab.WORK / "runc", "run", "--bundle", self.bundle, self.name], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)

    def run(self, seconds=60):
        """Runs the command, which ends within `seconds`: its status, output and errors."""
        process = self.start()
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            subprocess.run(["runc", "--root", lab.WORK / "runc", "delete", "--force", self.name], check=False, timeout=30)
            lab.fail(f"the container did not end within {seconds} s: {process.communicate()}")
        return process.returncode, out, err
