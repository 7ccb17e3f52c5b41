"""Small changes of the code that a test must notice: drawn from cargo-mutants' list, or planted by hand.

long/store-mutants, guests-mutants, lending-mutants and fanout-mutants draw and run them. Environment:

    MUTANTS_LIMIT   time limit of the tests, seconds; a mutant with which they take longer counts as caught (600)
    MUTANTS_WORK    folder of the copy and the build (lab/cache/mutants)
"""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
LONG = ROOT / "lab/long"
WORK = pathlib.Path(os.environ.get("MUTANTS_WORK", ROOT / "lab/cache/mutants"))
TREE = WORK / "tree"
LIMIT = int(os.environ.get("MUTANTS_LIMIT", 600))
DRAWN, COUNT = 45, 40
ENV = {"CARGO_TARGET_DIR": str(WORK / "target"), "CARGO_INCREMENTAL": "1", "CARGO_PROFILE_DEV_DEBUG": "0"}


def cargo(*words):
    """Its output and status, which is None when it did not end."""
    command = ["nice", "cargo", *words, "--locked", "--quiet"]
    job = subprocess.Popen(command, cwd=TREE, env={**os.environ, **ENV}, stdin=subprocess.DEVNULL, text=True,
                           errors="replace", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        return job.communicate(timeout=LIMIT)[0], job.returncode
    except subprocess.TimeoutExpired:
        os.killpg(job.pid, signal.SIGKILL)
        return job.communicate()[0], None


def change(patch):
    """The file and the lines that a patch changes, which stay the same when it moves in the file."""
    return [line for line in patch.splitlines() if line[:1] in "+-"]


class Mutants:
    """Mutants of the crates `drawn_from`, whose patches are in long/NAME-mutants.d. `tests` are pairs of a folder and the words
    of a `cargo test` that has to notice what changes there, those first that catch most."""

    def __init__(self, name, seed, drawn_from, tests):
        self.name, self.seed, self.drawn_from, self.tests = name, seed, drawn_from, tests
        self.patches = LONG / f"{name}-mutants.d"

    def draw(self, seed):
        folder = self.patches if seed == self.seed else LONG / f"{self.name}-mutants-{seed}.d"
        others = LONG.glob(f"{self.name}-mutants*.d/*.patch")
        drawn = [change(path.read_text()) for path in others if path.parent != folder]
        command = ["cargo", "mutants", "--list", "--json", "--diff", *self.drawn_from]
        listed = []
        for mutant in json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout):
            hunks = mutant["diff"][mutant["diff"].index("@@"):]
            listed.append("{name}\n--- a/{file}\n+++ b/{file}\n".format(**mutant) + hunks)
        listed = sorted(patch for patch in listed if change(patch) not in drawn)
        folder.mkdir(exist_ok=True)
        for number, patch in enumerate(random.Random(int(seed)).sample(listed, DRAWN), 1):
            (folder / f"{number:02}.patch").write_text(patch)
        print(f"{DRAWN} of {len(listed)}")

    def outcome(self, patches):
        changed = re.findall(r"^\+\+\+ b/(\S+)", "".join(path.read_text() for path in patches), re.M)
        for folder, tests in self.tests:
            if not any(path.startswith(folder) for path in changed):
                continue
            if cargo("test", "--no-run", *tests)[1] != 0:
                return "does not compile"
            output, status = cargo("test", *tests)
            failed = re.search(r"^---- (\S+) stdout|(signal: \d+)", output, re.M)
            if status is None:
                return "caught: the tests do not end"
            if status != 0:
                return "caught: " + (next(filter(None, failed.groups())) if failed else output[-200:].strip())
        return "SURVIVED"

    def run(self, patches):
        if not TREE.exists():
            subprocess.run(["git", "worktree", "add", "--force", "--quiet", "--detach", TREE], cwd=ROOT, check=True)
        head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
        checkout = ["git", "checkout", "--quiet", "--force", "--detach", head]
        subprocess.run(checkout, cwd=TREE, check=True)
        plain = self.outcome(patches)
        if plain != "SURVIVED":
            sys.exit(f"without any mutant: {plain}")
        counts = {"caught": 0, "SURVIVED": 0}
        for patch in patches:
            subprocess.run(checkout, cwd=TREE, check=True)
            subprocess.run(["git", "apply", "-C1", patch], cwd=TREE, check=True, stderr=subprocess.DEVNULL)
            came = self.outcome([patch])
            print(f"{patch.stem} {came}\n       {patch.read_text().splitlines()[0]}", flush=True)
            kind = came.split(":")[0]
            if kind in counts:
                counts[kind] += 1
            if sum(counts.values()) == COUNT:
                break
        print(", ".join(f"{count} {kind.lower()}" for kind, count in counts.items()))
        return counts["SURVIVED"]

    def main(self, usage):
        match sys.argv[1:]:
            case ["draw", *seed] if len(seed) < 2 and "".join(seed or [self.seed]).isdecimal():
                self.draw(*seed or [self.seed])
            case ["run", *named]:
                paths = [pathlib.Path(path).resolve() for path in named] or [self.patches]
                patches = [sorted(path.glob("*.patch")) if path.is_dir() else [path] for path in paths]
                sys.exit(self.run(sum(patches, [])) > 0)
            case _:
                sys.exit(usage)
