"""The Python package for tests: its Python half, and the library that was built beside the commands."""

import os
import pathlib
import subprocess
import sys

import lab

ROOT = lab.LAB.parent
# The one that LMCache is installed in, by lab/setup lmcache.
LMCACHE = lab.LAB / "cache/lmcache/bin/python"


def package():
    """A folder for PYTHONPATH with the package in it."""
    folder = lab.WORK / "python"
    inner = folder / "spillway"
    if not inner.exists():
        folder.mkdir()
        built = pathlib.Path(lab.SPILLWAY).with_name("libspillway_python.so")
        if not built.exists():
            lab.fail(f"no {built}: make build")
        source = ROOT / "clients/python/python/spillway"
        for path in source.rglob("*"):
            if path.suffix in (".py", ".pyi", ".typed"):
                place = inner / path.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(path)
        (inner / "_spillway.abi3.so").symlink_to(built)
    return folder


def use():
    """Makes the package one that this process can import."""
    sys.path.insert(0, str(package()))


def run(python, *line, **options):
    """Runs a program of a Python with the package."""
    environment = dict(os.environ, PYTHONPATH=str(package()), LMCACHE_TRACK_USAGE="false")
    return subprocess.run([str(python), *map(str, line)], env=environment, **options)
