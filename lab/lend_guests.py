"""Guests that lend each other memory: their certificates, daemons and statuses, and a figure of their memory over
time."""

import json
import re
import subprocess
import time

import lab
from host_guest import Guest, Network, PROGRAMS, tools_disk

MIB = 1 << 20
CONFIG = """
[store]
capacity = "{capacity}M"

[listen]
nvme_tls = "{address}:4421"
nvme_tcp = "{direct}"
tls_certificate = "/etc/spillway/host.pem"
tls_key = "/etc/spillway/host.key"
tls_clients = "/etc/spillway/authority.pem"

[lend]
roles = "single"
listen = "{address}:4422"
slab = "16M"
device_min = "{device}M"
device_max = "{device}M"
devices_max = 1
reserve = "{reserve}M"
upper = 75
lower = 50
min_free = "48M"
request_ms = {request_ms}
margin = "32M"
{more}
"""


def certificates(folder, hosts):
    """An authority, and what a host of each name shows. Files in `folder`."""
    folder.mkdir()

    def openssl(*arguments):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                        "-days", "30", *arguments], cwd=folder, check=True, capture_output=True)

    openssl("-subj", "/CN=our hosts", "-keyout", "authority.key", "-out", "authority.pem")
    for name, address in hosts:
        openssl("-CA", "authority.pem", "-CAkey", "authority.key", "-subj", f"/CN={name}", "-addext",
                "basicConstraints=CA:FALSE", "-addext", f"subjectAltName=DNS:{name}.example,IP:{address}",
                "-keyout", f"{name}.key", "-out", f"{name}.pem")


class Host(Guest):
    """A guest with a daemon that lends and borrows."""

    def begin(self, keys, peers, more="", capacity=320, device=256, reserve=160, direct="", sections="", request_ms=10000):
        """Starts its daemon. `more` stands in [lend], `sections` at the end."""
        for source, target in (("authority.pem", "authority.pem"), (f"{self.name}.pem", "host.pem"),
                               (f"{self.name}.key", "host.key")):
            self.write(f"/etc/spillway/{target}", (keys / source).read_text())
        config = CONFIG.format(address=self.address, capacity=capacity, device=device, reserve=reserve, more=more,
                               direct=direct, request_ms=request_ms)
        for peer in peers:
            config += f'\n[[peer]]\nname = "{peer.name}.example"\naddress = "{peer.address}:4422"\n'
        self.write("/etc/spillway/spillwayd.toml", config + sections)
        self.run("chmod 600 /etc/spillway/host.key; spillwayd --check --config /etc/spillway/spillwayd.toml")
        self.serve()

    def serve(self):
        self.run("modprobe nbd nbds_max=8; spillway serve --config /etc/spillway/spillwayd.toml >/dev/ttyS0 2>&1 & echo $! >/tmp/serving")
        self.until("spillway lend status", 30)
        # A hog asks for more than there is before anything is borrowed.
        self.run("echo 1 >/proc/sys/vm/overcommit_memory; echo 49152 >/proc/sys/vm/min_free_kbytes; for it in $(pidof spillwayd); do echo -1000 >/proc/$it/oom_score_adj; done")

    def end(self):
        """Ends its daemon, which gives back first."""
        self.run("kill $(cat /tmp/serving)")
        end = time.monotonic() + 40
        while self.ask("kill -0 $(cat /tmp/serving) 2>/dev/null")[1] == 0:
            if time.monotonic() > end:
                lab.fail(f"{self.name}'s daemon does not end: {self.threads()} {self.served()[-3000:]}")
            time.sleep(0.3)

    def threads(self):
        """Where the kernel has the threads of the daemon and its helper."""
        return self.run("for it in /proc/[0-9]*; do case $(cat $it/comm 2>/dev/null) in spillway*) for task in $it/task/*; do "
                        "echo ${task##*/} $(cat $task/comm) $(cat $task/wchan) $(cut -d' ' -f 2 $task/stack | tr '\\n' ' '); done;; esac; done; true")

    def local_swap(self):
        """Swap on a local disk, below what is borrowed."""
        self.run("mkswap /dev/vdc && swapon /dev/vdc", 60)

    def status(self):
        return json.loads(self.run("spillway lend status -o json"))

    def role(self):
        return self.status()["role"]

    def hog(self, mib):
        """Starts a hog; it is over when `hogged` says something."""
        self.run(f"rm -f /tmp/hog.*; (echo 1000 >/proc/self/oom_score_adj; hog {mib} >/tmp/hog.out 2>&1; "
                 "echo $? >/tmp/hog.status) >/dev/null 2>&1 &")

    def hogged(self):
        """How the hog ended and what it said, or nothing."""
        text, status = self.ask("cat /tmp/hog.status 2>/dev/null && cat /tmp/hog.out")
        return text.strip() if status == 0 else None

    def served(self):
        """What the daemon and the kernel have said, without colours."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.console.read_text(errors="replace"))

    def errors(self):
        """The first lines of the daemon's that say what went wrong."""
        return "\n".join([line for line in self.served().splitlines() if " ERROR " in line or " WARN " in line][:8])


class Watch:
    """Memory and role of hosts over time."""

    def __init__(self, hosts):
        self.hosts, self.began, self.seen = hosts, time.monotonic(), []

    def look(self):
        """The roles now; noted down."""
        at_s, roles = time.monotonic() - self.began, {}
        for host in self.hosts:
            status, memory = host.status(), host.memory_kib()
            roles[host.name] = status["role"]
            self.seen.append({
                "at_s": at_s, "host": host.name, "role": status["role"], "lent_mib": status["lent_bytes"] / MIB,
                "stored_mib": sum(it["used_bytes"] for it in status["lent"]) / MIB,
                "device_mib": sum(it["used_bytes"] for it in status["devices"]) / MIB,
                "stall_us": max((it["longest_stall_us"] for it in status["devices"]), default=0),
                "fail_overs": sum(it["fail_overs"] for it in status["devices"]),
                "used_mib": (memory["MemTotal"] - memory["MemAvailable"]) / 1024, "total_mib": memory["MemTotal"] / 1024,
                "available_mib": memory["MemAvailable"] / 1024,
                "swap_mib": (memory["SwapTotal"] - memory["SwapFree"]) / 1024,
            })
        return roles

    def until(self, condition, what, seconds):
        """Looks again and again until the roles (and more) are as wanted."""
        end = time.monotonic() + seconds
        while True:
            roles = self.look()
            if answer := condition(roles):
                return answer
            if time.monotonic() > end:
                print([host.hogged() for host in self.hosts], flush=True)
                lines = [f"{host.name}: {json.dumps(host.status())} {host.errors()} ... {host.served()[-1500:]}" for host in self.hosts]
                lab.fail(f"waited {seconds} s for {what}: {roles} " + " ".join(lines))
            time.sleep(0.3)

    def most(self, host, name):
        return max(it[name] for it in self.seen if it["host"] == host.name)

    def least(self, host, name):
        return min(it[name] for it in self.seen if it["host"] == host.name)

    def plot(self, path):
        """As figure 10 of Garrido et al.: what each host has in use over time, and what is borrowed."""
        width, height, left, top = 760, 170, 60, 24
        end_s = max(it["at_s"] for it in self.seen)
        out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width + left + 20} {len(self.hosts) * (height + 50) + 10}" '
               'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>']
        names = {"used_mib": ("#0072b2", "in use"), "swap_mib": ("#d55e00", "in swap"), "stored_mib": ("#009e73", "of others")}
        for at, host in enumerate(self.hosts):
            rows = [it for it in self.seen if it["host"] == host.name]
            most = max(max(it["total_mib"], it["swap_mib"]) for it in rows)
            base = top + at * (height + 50)
            out.append(f'<text x="{left}" y="{base - 8}">host {host.name}, MiB over s ({rows[0]["total_mib"]:.0f} MiB)</text>')
            out.append(f'<rect x="{left}" y="{base}" width="{width}" height="{height}" fill="none" stroke="#888"/>')
            for number, (name, (colour, label)) in enumerate(names.items()):
                points = " ".join(f"{left + it['at_s'] / end_s * width:.1f},{base + height - it[name] / most * height:.1f}" for it in rows)
                out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
                out.append(f'<text x="{left + 220 + 110 * number}" y="{base - 8}" fill="{colour}">{label}</text>')
            role = None
            for it in rows:
                if it["role"] != role:
                    role, x = it["role"], left + it["at_s"] / end_s * width
                    out.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{base}" y2="{base + height}" stroke="#bbb" stroke-dasharray="3 3"/>')
                    later = [row["at_s"] for row in rows if row["at_s"] > it["at_s"] and row["role"] != role]
                    # A role that was over at once has no room for its name.
                    if (min(later, default=end_s) - it["at_s"]) / end_s * width > 60:
                        out.append(f'<text x="{x + 3:.1f}" y="{base + 14}" fill="#555">{role}</text>')
            out.append(f'<text x="4" y="{base + 12}">{most:.0f}</text><text x="4" y="{base + height}">0</text>')
            out.append(f'<text x="{left + width - 30}" y="{base + height + 16}">{end_s:.0f} s</text>')
        out.append("</svg>")
        path.write_text("\n".join(out))


def two_hosts(mib=512, disk_mib=320, swap_mib=256):
    """Two guests, their network and their keys."""
    network = Network()
    image = tools_disk(PROGRAMS)
    a = Host(network, "a", 1, mib, image, disk_mib=disk_mib, swap_mib=swap_mib)
    b = Host(network, "b", 2, mib, image, disk_mib=disk_mib, swap_mib=swap_mib)
    keys = lab.WORK / "keys"
    certificates(keys, [(it.name, it.address) for it in (a, b)])
    return network, a, b, keys
