"""Helpers for tests of windows: guests whose programs put values into the host's store.

    daemon = VmDaemon("d", windowed("one"), "1G")
    guest = boots_windowed(daemon, "one")
    background(guest, "work", "window-client guest: work 5"); ended(guest, "work")
"""

import json
import sys

import lab

CLIENT = lab.LAB.parent / "target/release/window-client"
USER = "mkdir -p /etc && echo user:x:1000:1000::/:/bin/sh >/etc/passwd && echo user:x:1000: >/etc/group"
HOLDER = "hold-windows"
PORT = "org.spillway.windows.0"
FOLDER = "/dev/hugepages/spillway-agent"

if lab.PLAIN:
    print("a plain run has no daemon: nothing to see")
    sys.exit()
if not CLIENT.exists():
    lab.fail(f"no {CLIENT}: run make window-client")


def windowed(name):
    """The configuration of a guest whose programs are a client."""
    return f'''[[client]]
name = "{name}-programs"
[[vm]]
name = "{name}"
most = "1G"
client = "{name}-programs"
auto = false
'''


def boots_windowed(daemon, name, programs=(), **options):
    guest = daemon.boots(name, programs=(CLIENT, "window-fuzz", *programs), seconds=300, **options)
    guest.run(USER)
    # The host tries the channel once a second.
    guest.until("window-client guest: fill 1")
    return guest


def background(guest, name, command):
    """Starts a command whose output is to be had by `ended`."""
    # The guest waits for whoever still has the pipe.
    guest.run(f"rm -f /run/{name}; ({command}; echo ended $?) >/run/{name} 2>&1 </dev/null & echo $! >/run/{name}.pid")


def ended(guest, name, seconds=60):
    """What a command said, with its status behind it, when it has ended."""
    lab.until(lambda: "ended" in guest.run(f"cat /run/{name}"), f"{name} to end in {guest.name}", seconds)
    return guest.run(f"cat /run/{name}")


def ended_well(guest, name, seconds=60):
    said = ended(guest, name, seconds)
    if "ended 0" not in said:
        lab.fail(f"{name} in {guest.name}: {said}")
    return said.rsplit("ended", 1)[0].strip()


def huge_pages(guest):
    """Huge pages that the guest's kernel has made."""
    return int(guest.run("grep HugePages_Total /proc/meminfo").split()[1])


def has_window(guest):
    lab.until(lambda: huge_pages(guest) > 0, f"a window in {guest.name}")


def all_given_back(guest):
    # The agent may still make and free a window that a dead program has asked for.
    empty = lambda: huge_pages(guest) == 0 and not guest.run(f"ls {FOLDER}")
    lab.until(empty, f"the windows' pages and files to go in {guest.name}", 20)


def connections(daemon):
    """Of the guests' programs, each by a window."""
    return sum(client["connections"] for client in daemon.json("client", "list"))


def end_agent(guest, signal="TERM"):
    """The agent is gone, however long it takes."""
    guest.run(f"kill -{signal} $(cat /run/agent.pid); while grep -q . /proc/$(cat /run/agent.pid)/cmdline 2>/dev/null; do sleep 0.1; done")


def says_itself(guest, lines, seconds=5):
    """What the host answers when the guest says these lines over the windows' channel, in the agent's place."""
    port = guest.run(f"basename $(dirname $(grep -lx {PORT} /sys/class/virtio-ports/*/name))")
    script = "\\n".join(["", *lines, ""]).replace('"', '\\"')
    heard = guest.run(f'exec 3<>/dev/{port} && printf "{script}" >&3 && (timeout {seconds} cat <&3 || true)')
    return [json.loads(line) for line in heard.splitlines() if line.startswith("{")]
