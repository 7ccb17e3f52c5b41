"""What lab/long/day measures of a daemon: memory without the store's own, descriptors, threads, mappings, files, log."""

import json
import os
import pathlib

import lab

STORE = "/memfd:spillway-store"


def memory(pid):
    """KiB of resident memory by what is mapped, and the number of mappings."""
    found = {"anonymous": 0, "store": 0, "other memory files": 0, "files": 0}
    mappings = 0
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            mappings += 1
            name = words[5] if len(words) > 5 else ""
            if name.startswith(STORE):
                kind = "store"
            elif name.startswith("/memfd:"):
                kind = "other memory files"
            else:
                kind = "files" if name.startswith("/") else "anonymous"
        elif words[0] == "Rss:":
            found[kind] += int(words[1])
    return found, mappings


def processor_s(pid):
    """Seconds of processor time that a process has used."""
    words = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Measured:
    """Samples of a daemon, its keeper and its log, by the part of the day that has passed."""

    def __init__(self, daemon, path):
        self.daemon, self.samples = daemon, []
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = open(path, "w", buffering=1)

    def sample(self, part):
        pid, keeper = self.daemon.pid(), self.daemon.process.pid
        if pid is None:
            return
        resident, mappings = memory(pid)
        of_keeper, _ = memory(keeper)
        sample = {
            "part": round(part, 5),
            "pid": pid,
            "memory KiB": sum(resident.values()) - resident["store"],
            **{f"{kind} KiB": size for kind, size in resident.items()},
            "keeper KiB": of_keeper["anonymous"] + of_keeper["files"],
            "mappings": mappings,
            "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
            "keeper descriptors": len(os.listdir(f"/proc/{keeper}/fd")),
            "threads": len(os.listdir(f"/proc/{pid}/task")),
            "files": sum(len(files) for _, _, files in os.walk(self.daemon.dir)),
            "log bytes": self.daemon.log.stat().st_size,
            "processor s": processor_s(pid),
            "pools": len(self.daemon.ask("GET", "/v1/pools")[1]),
            "clients": len(self.daemon.ask("GET", "/v1/clients")[1]),
            "history": self.daemon.ask("GET", f"/v1/history?since={2**62}")[1]["newest"],
        }
        self.samples.append(sample)
        self.file.write(json.dumps(sample) + "\n")

    def quarter(self, number):
        return [sample for sample in self.samples if (number - 1) / 4 <= sample["part"] < number / 4]

    def verdict(self, bounds, history):
        """Compares the means of the second and the last quarter. A bound is a factor and an addition. What has grown more.
        `history` is how many samples of the daemon's own make its history full, which they must before the second quarter."""
        second, last = self.quarter(2), self.quarter(4)
        if len({sample["pid"] for sample in second + self.quarter(3) + last}) != 1 or min(len(second), len(last)) < 10:
            lab.fail("not one daemon from the second quarter to the last, or hardly a sample")
        if second[0]["history"] < history:
            lab.fail(f"the daemon's history had {second[0]['history']} samples when the second quarter began, {history} fill it")
        grown = []
        for name, (factor, more) in bounds.items():
            before, after = (self.volume(quarter) if name == "log bytes" else mean(quarter, name) for quarter in (second, last))
            most = before * factor + more
            print(f"  {name}: {before:.1f} in the second quarter, {after:.1f} in the last, at most {most:.1f}", flush=True)
            if after > most:
                grown.append(f"{name} from {before:.1f} to {after:.1f}")
        return grown

    @staticmethod
    def volume(quarter):
        return quarter[-1]["log bytes"] - quarter[0]["log bytes"]


def mean(samples, name):
    return sum(sample[name] for sample in samples) / len(samples)
