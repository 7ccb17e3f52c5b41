"""The pages of the docs, for the test that runs their commands: which blocks there are, and which can't run on one
host."""

import re
import subprocess
import textwrap

# Blocks that are not run: page and first line, and why.
LEFT_OUT = {
    ("README.md", "make demo    # installs what is missing, builds, runs memcached in a fraction of its memory, shows what happened"):
        "CI itself: .ci/run",
    ("docs/clients.md", "mount -t hugetlbfs none /dev/hugepages"): "in a guest: lab/tests/guest-window",
    ("docs/containers.md", "docker run --rm --device /dev/userfaultfd IMAGE spillway doctor"): "Docker: lab/tests/container",
    ("docs/containers.md", "make image                          # builds an OCI archive: target/image/spillway.tar"):
        "Docker: lab/long/container-image",
    ("docs/containers.md", "docker run --rm --volume spillway:/run/spillway spillway:0.1.0 spillway stat"):
        "Docker: lab/long/container-image",
    ("docs/daemon.md", 'b$ nvme connect -t tcp -a 192.0.2.1 -s 4420 -n nqn.2026-11.io.spillway:blocks --dhchap-secret "$(cat b.secret)" -c 1 -l -1'):
        "the kernel's nvme-tcp: lab/long/guest-nvme-tcp",
    ("docs/daemon.md", "b$ ssh -f -N -o ServerAliveInterval=5 -L 127.0.0.1:4420:127.0.0.1:4420 blade"):
        "another host, with SSH",
    ("docs/daemon.md", "here$ spillway client export alice > alice.pools        # her puts are refused here from now on"):
        "two daemons: lab/tests/daemon-moved",
    ("docs/daemon.md", "here$ spillway client export alice --rest > alice.rest"): "two daemons: lab/tests/daemon-moved",
    ("docs/daemon.md", "here$ spillway client move alice bob --to https://there.example:8431 --to-token-file there.token"):
        "two daemons: lab/tests/clients-move",
    ("docs/upgrade.md", "here$ spillway client move --all --to https://there.example:8431 --to-token-file there.token"):
        "two daemons: lab/tests/clients-move",
    ("docs/dashboard.md", "laptop$ export SPILLWAY_API=https://192.0.2.1:8431 SPILLWAY_API_CA=authority.pem"):
        "another host: lab/tests/https",
    ("docs/dashboard.md", "laptop$ ssh -L 8430:127.0.0.1:8430 host"): "another host, with SSH",
    ("docs/disks.md", "cat >/etc/udev/rules.d/60-spillway.rules <<'END'"): "in a guest: lab/long/guest-disk-udev",
    ("docs/disks.md", "spillway disk empty vm1-swap"): "with a guest that has ended: lab/tests/guest-tmem-disk",
    ("docs/guests.md", "spillway serve --config spillwayd.toml"): "with a guest: lab/tests/guest-resize",
    ("docs/guests.md", "spillway vm list                    # the pool, and each guest"): "with a guest: lab/tests/guest-resize",
    ("docs/guests.md", r'''qm set 100 --memory 512 --balloon 0 --numa 0 --args "$(spillway vm args web | tr -d '\\\n')"'''):
        "Proxmox's own command",
    ("docs/guests.md", "mount -t hugetlbfs -o pagesize=2M none /mnt/huge     # sections.dir = \"/mnt/huge/spillway\""):
        "huge pages of this machine",
    ("docs/guests.md", "make agent                                # builds target/release/spillway-agent, which needs no library of the guest"):
        "for a guest's image: lab/tests/guest-agent",
    ("docs/guests.md", "spillway-agent need 512M       # exits with 0 if anything was granted, and prints how much; else with 1 and the reason"):
        "in a guest: lab/tests/guest-agent",
    ("docs/hardening.md", "laptop$ mkdir -m 700 ~/blade"): "another host, with SSH",
    ("docs/hardening.md", "laptop$ ssh -f -N -o ExitOnForwardFailure=yes -L 8430:127.0.0.1:8430 blade"): "another host, with SSH",
    ("docs/containers.md", "kubectl apply --filename packaging/kubernetes/spillwayd.yaml --filename packaging/kubernetes/userfaultfd.yaml"):
        "a cluster: lab/long/kubernetes validates the files",
    ("docs/install.md", "make install PREFIX=/usr"): "a service manager: lab/tests/installed, lab/long/daemon-systemd",
    ("docs/install.md", "make deb                                      # builds the packages: target/deb/*.deb"):
        "builds and installs packages: lab/long/debian-packages",
    ("docs/install.md", "apt-get install -y ./target/deb/spillway_*.deb    # of the later version"): "lab/long/debian-packages",
    ("docs/install.md", "apt-get purge -y spillway"): "lab/long/debian-packages",
    ("docs/install.md", "make rpm                                      # builds the packages: target/rpm/*.rpm"): "lab/long/rpm-packages",
    ("docs/install.md", "make uninstall PREFIX=/usr"): "a service manager: lab/tests/installed, lab/long/daemon-systemd",
    ("docs/lending.md", "modprobe nbd"): "the kernel's nbd: lab/long/guest-lending, guest-rdma",
    ("docs/lending.md", "spillway lend borrow 1G"): "two hosts: lab/long/guest-lending",
    ("docs/lending.md", "modprobe nvme-rdma"): "lab/long/guest-rdma",
    ("docs/lending-simulation.md", "cargo xtask sim lending --seeds 10000          # on all cores; a line and a command for each violation"):
        "hours of virtual hosts: sim/tests runs some seeds",
    ("docs/nbd.md", "modprobe nbd"): "the kernel's nbd: lab/long/guest-nbd",
    ("docs/nbd.md", "swapoff /dev/nbd0"): "the kernel's nbd: lab/long/guest-nbd",
    ("docs/nbd.md", "umount /mnt"): "the kernel's nbd: lab/long/guest-nbd",
    ("docs/nbd.md", "grep VmSwap: /proc/[0-9]*/status | grep -v ' 0 kB'    # programs with pages there: start them again"):
        "the kernel's nbd: lab/long/guest-nbd",
    ("docs/nbd.md", "lab/setup bench"): "CI runs every benchmark",
    ("docs/policies.md", "spillway client set python3-4711 --floor 512M --target 2G"):
        "the number of the reader's own process: lab/tests/programs-share",
    ("docs/python.md", "make wheel                     # builds target/wheels/spillway-*.whl"):
        "builds all that the package needs by itself: lab/long/python-wheel",
    ("docs/upgrade.md", "dpkg -x ./target/deb/spillway_*.deb new"): "a Debian package: lab/long/debian-packages",
    ("docs/valkey.md", "redis-server --port 6380 --loadmodule /usr/lib/spillway/libspillway_valkey.so url guest: --daemonize yes"):
        "in a guest, by lab/tests/valkey-module-guest",
    ("docs/scenarios.md", "lab/scenarios run          # an hour and a half; continues where it was interrupted"): "hours",
}

# TOML that the text has the reader write to /etc/spillway/spillwayd.toml.
CONFIGURATIONS = {
    ("docs/daemon.md", "[store]"),
    ("docs/dashboard.md", "[listen]"),
    ("docs/lending.md", "[store]"),
    ("docs/resp.md", "[listen]"),
}

# As the unit runs it.
UNIT = "setpriv --reuid=spillway --regid=spillway --clear-groups --bounding-set=-all --no-new-privs"

# The Python of a virtual environment that has the package, of what was built for the tests.
PACKAGE = ("mkdir -p /tmp/spillway-python/bin && cp -r clients/python/python/spillway /tmp/spillway-python && "
           "cp target/release/libspillway_python.so /tmp/spillway-python/spillway/_spillway.abi3.so && "
           "printf '#!/bin/sh\\nPYTHONPATH=/tmp/spillway-python exec /usr/bin/python3 \"$@\"\\n' > /tmp/spillway-python/bin/python && "
           "chmod +x /tmp/spillway-python/bin/python")

# What the reader has done before a block, by the text around it or on another page.
BEFORE = {
    ("docs/blades.md", "shuf -i 1-1000000 > big.txt"): "spillway serve --capacity 1G --nvme-tcp 127.0.0.1:4420",
    ("docs/lending.md", "mkdir -p /var/lib/spillway"):
        "mkdir -p /etc/spillway && cp ca.pem /etc/spillway && cp b.pem /etc/spillway/cert.pem && cp b.key /etc/spillway/key.pem",
    ("docs/lmcache.md", "/tmp/spillway-python/bin/python example.py"): PACKAGE,
    ("docs/python.md", "/tmp/spillway-python/bin/python example.py"): PACKAGE,
    ("docs/policies.md", "spillway policy set utility --miss 500us      # until the daemon is stopped; memory.policy in its configuration is for good"):
        "spillway serve --capacity 1G",
    ("docs/upgrade.md", "spillwayd --check --config /etc/spillway/spillwayd.toml"):
        "mkdir -p /etc/spillway && printf '[[client]]\\nname = \"alice\"\\nuid = 0\\n' > /etc/spillway/spillwayd.toml",
    # A service manager would do this.
    ("docs/upgrade.md", "spillway client export alice > alice.pools"):
        "systemctl() { case $1 in stop) end_daemon ;; start) spillwayd --config /etc/spillway/spillwayd.toml & daemon=$!; "
        "wait_until spillway stat ;; esac; }; systemctl start && spillway pool create --client alice --block 1M --name disk",
}


def as_unit(then):
    """A daemon of the unit's user on the configuration: that user can read what it names. Ends it after `then`."""
    return (f"end_daemon; mkdir /run/unit; chown spillway /run/unit; {UNIT} spillwayd --config /etc/spillway/spillwayd.toml "
            f"--set listen.dir=/run/unit & daemon=$!; wait_until spillway stat --api /run/unit/api.sock && {then}")


# What must hold after a block.
AFTER = {
    ("README.md", "make build"): "sort big.txt | cmp - sorted.txt && test -s ~/.local/share/man/man1/spillway-run.1",
    ("docs/daemon.md", "b$ shuf -i 1-1000000 > big.txt"):
        "sort big.txt | cmp - sorted.txt && { " + as_unit("end_daemon") + "; } && "
        "{ spillway serve --capacity 1G & daemon=$!; wait_until spillway stat; }",
    ("docs/dashboard.md", "[listen]"):
        as_unit("curl -fsS -H \"Authorization: Bearer $(cat /etc/spillway/token)\" http://127.0.0.1:8430/v1/clients"),
    ("docs/upgrade.md", "spillway client export alice > alice.pools"): "spillway pool list | grep -w disk",
    ("docs/blades.md", "spillway run --local 16M --blade nvme+tcp://one.example --mirror nvme+tcp://two.example -- sort big.txt > sorted.txt"):
        "sort big.txt | cmp - sorted.txt",
}


def blocks_of(path):
    """The fenced blocks of a page: line, kind, text."""
    page = path.read_text()
    for block in re.finditer(r"^( *)```(\S*)\n(.*?)^\1```$", page, re.M | re.S):
        text = textwrap.dedent(block[3])
        if block[2] not in ("sh", "console") and re.match(r"([a-z]*\$|#) ", text):
            raise SystemExit(f"FAILED: a block of {path} has commands, but does not say that it is sh or console")
        yield page[: block.start()].count("\n") + 1, block[2], text


def commands_of(kind, text):
    """The commands of a block. In a console they follow a prompt, and what they print follows them."""
    lines = text.splitlines()
    while lines:
        command = lines.pop(0)
        if kind == "console":
            prompt = re.match(r"[a-z]*\$ ", command)
            if not prompt:
                continue
            command = command[prompt.end():]
        while lines and subprocess.run(["bash", "-n"], input=command, text=True, capture_output=True).stderr:
            command += "\n" + lines.pop(0)
        while command.endswith("\\") and lines:
            command += "\n" + lines.pop(0)
        command = re.sub(r"\s+# .*$", "", command) if "\n" not in command else command
        if command.strip() and not command.lstrip().startswith("#"):
            yield command
