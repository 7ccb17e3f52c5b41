"""Chunks of LMCache through Spillway's connector and storage plug-in, or through LMCache's own RESP client, run by the Python
that LMCache is installed in:

    lmcache_chunks.py SCENARIO URL COUNT        the connector's URL, or resp:ADDRESS:PORT

Compares every byte. Stored chunks must be found; a missing chunk must be a miss."""

import asyncio
import json
import logging
import os
import pathlib
import select
import sys
import tempfile
import threading
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
logging.disable(logging.INFO)

import numpy
import torch
import yaml
from lmcache.utils import CacheEngineKey
from lmcache.v1.config import LMCacheEngineConfig
from lmcache.v1.distributed.api import ObjectKey
from lmcache.v1.distributed.l2_adapters.config import get_l2_adapter_config_class
from lmcache.v1.distributed.l2_adapters.factory import create_l2_adapter_from_registry
from lmcache.v1.memory_management import MemoryFormat
from lmcache.v1.metadata import LMCacheMetadata
from lmcache.v1.storage_backend import storage_plugin_launcher
from lmcache.v1.storage_backend.local_cpu_backend import LocalCPUBackend
from pages import blocks_of

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs/lmcache.md"

# 256 KiB: layers, keys and values, tokens, heads, what a head has.
SHAPE = (4, 2, 256, 1, 64)
CHUNK = torch.Size([2, 4, 256, 64])
CHUNK_BYTES = 256 << 10
BATCH = 32


def metadata():
    return LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, SHAPE)


def as_printed(kind):
    """What the page has the reader write: its only block of this kind."""
    (text,) = (text for _, of_kind, text in blocks_of(PAGE) if of_kind == kind)
    return text


def local_memory(config):
    """LMCache's own memory, which chunks come from and go to."""
    return LocalCPUBackend(config, metadata(), "cpu")


def small_memory():
    return local_memory(LMCacheEngineConfig.from_defaults(local_cpu=False, max_local_cpu_size=0.25))


def content(number):
    return numpy.random.default_rng(number).integers(0, 256, CHUNK_BYTES, dtype=numpy.uint8)


def room(memory):
    made = memory.allocate(CHUNK, torch.bfloat16, MemoryFormat.KV_2LTD)
    assert made is not None, "LMCache's memory is full"
    return made


def filled(memory, number):
    made = room(memory)
    numpy.frombuffer(made.byte_array, numpy.uint8)[:] = content(number)
    return made


def check(made, number):
    assert numpy.array_equal(numpy.frombuffer(made.byte_array, numpy.uint8), content(number)), f"chunk {number} is wrong"


def give_back(chunks):
    for chunk in chunks:
        chunk.ref_count_down()


class Adapter:
    """LMCache's adapter over the connector, asked as its controllers do: submit, wait for the descriptor, take the result."""

    def __init__(self, specification):
        kind = get_l2_adapter_config_class(specification["type"])
        self.inner = create_l2_adapter_from_registry(kind.from_dict(specification), None)

    def key(self, number):
        return ObjectKey(chunk_hash=number.to_bytes(32, "little"), model_name="a/model", kv_rank=1, cache_salt="salt")

    def _wait(self, fd, take):
        poller = select.poll()
        poller.register(fd, select.POLLIN)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            taken = take()
            if taken is not None:
                return taken
            if poller.poll(1000):
                os.read(fd, 8)
        raise AssertionError("no answer within a minute")

    def store(self, numbers, chunks):
        task = self.inner.submit_store_task([self.key(number) for number in numbers], chunks)
        results = {}

        def take():
            results.update(self.inner.pop_completed_store_tasks())
            return results.get(task)

        return self._wait(self.inner.get_store_event_fd(), take).is_successful()

    def look_up(self, numbers):
        task = self.inner.submit_lookup_and_lock_task([self.key(number) for number in numbers], {})
        bitmap = self._wait(self.inner.get_lookup_and_lock_event_fd(), lambda: self.inner.query_lookup_and_lock_result(task))
        self.inner.submit_unlock([self.key(number) for number in numbers])
        return [bitmap.test(at) for at in range(len(numbers))]

    def load(self, numbers, chunks):
        task = self.inner.submit_load_task([self.key(number) for number in numbers], chunks)
        bitmap = self._wait(self.inner.get_load_event_fd(), lambda: self.inner.query_load_result(task))
        return [bitmap.test(at) for at in range(len(numbers))]

    def delete(self, numbers):
        self.inner.delete([self.key(number) for number in numbers])

    def close(self):
        self.inner.close()


def connector(url, **other):
    """What LMCache's configuration says of an adapter."""
    if url.startswith("resp:"):
        _, host, port = url.split(":")
        return {"type": "resp", "host": host, "port": int(port), "num_workers": 2, **other}
    printed = json.loads(as_printed("json"))
    parameters = printed["adapter_params"] | {"url": url, "timeout_s": 30.0}
    return {**printed, "adapter_params": parameters, **other}


def batches(count):
    for start in range(0, count, BATCH):
        yield list(range(start, min(start + BATCH, count)))


def fill(adapter, memory, count):
    """Stores chunks; the numbers of those whose batches LMCache was told are stored."""
    stored = []
    for numbers in batches(count):
        chunks = [filled(memory, number) for number in numbers]
        if adapter.store(numbers, chunks):
            stored += numbers
        give_back(chunks)
    return stored


def verify(adapter, memory, count, stored, lost=frozenset()):
    for numbers in batches(count):
        expected = [number in stored for number in numbers]
        assert adapter.look_up(numbers) == expected, f"lookup of {numbers[0]}.."
        chunks = [room(memory) for _ in numbers]
        loaded = adapter.load(numbers, chunks)
        for number, there, chunk, promised in zip(numbers, loaded, chunks, expected):
            assert there == (promised and number not in lost), f"chunk {number}: loaded {there}, stored {promised}"
            if there:
                check(chunk, number)
        give_back(chunks)


def by_connector(url, count):
    """All chunks fit: all are found."""
    memory = small_memory()
    adapter = Adapter(connector(url, max_capacity_gb=64))
    stored = fill(adapter, memory, count)
    assert len(stored) == count, f"{count - len(stored)} of {count} were refused below capacity"
    verify(adapter, memory, count, set(stored))
    assert adapter.look_up([count, 0]) == [False, True]
    usage = adapter.inner.get_usage().total_bytes_used
    assert usage == count * CHUNK_BYTES, f"LMCache counts {usage} bytes"
    adapter.close()
    # Another process of the engine finds what is there.
    adapter = Adapter(connector(url))
    assert all(adapter.look_up(list(range(0, count, 97))))
    adapter.delete(list(range(count)))
    assert not any(adapter.look_up(list(range(0, count, 97))))
    adapter.close()


def with_faults(url, count):
    """LMCache's own adapter that loses chunks while they are loaded, around ours."""
    memory = small_memory()
    adapter = Adapter({"type": "fault_inject", "rate": 0.1, "seed": 7, "gap_indices": [3], "inner": connector(url)})
    stored = fill(adapter, memory, count)
    assert len(stored) == count
    dropped = lambda numbers: {numbers[at] for at in adapter.inner._drop_positions([adapter.key(n) for n in numbers])}
    lost = set().union(*(dropped(numbers) for numbers in batches(count)))
    assert count // 20 < len(lost) < count // 4, f"{len(lost)} faults"
    verify(adapter, memory, count, set(stored), lost)
    adapter.delete(list(range(count)))
    adapter.close()


def until_full(url, count):
    """More than the store takes: what was stored is found, the rest is a miss, and what is deleted makes room."""
    memory = small_memory()
    adapter = Adapter(connector(url))
    stored = fill(adapter, memory, count)
    assert BATCH < len(stored) < count, f"{len(stored)} of {count} were stored"
    verify(adapter, memory, count, set(stored))
    adapter.delete(stored[:BATCH])
    chunks = [filled(memory, number) for number in stored[:BATCH]]
    assert adapter.store(stored[:BATCH], chunks), "what was deleted left no room"
    give_back(chunks)
    verify(adapter, memory, count, set(stored))
    adapter.delete(stored)
    adapter.close()


def plug_in(url, memory_and_config):
    config, memory = memory_and_config
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    backends = {}
    storage_plugin_launcher(config, metadata(), loop, memory, "cpu", backends)
    return backends["spillway"], loop


def plugged(url):
    """The page's configuration file, with little memory, and LMCache's memory."""
    printed = yaml.safe_load(as_printed("yaml")) | {"max_local_cpu_size": 0.25}
    printed["extra_config"] |= {"spillway.url": url, "spillway.timeout_s": 30.0}
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(printed, file)
        file.flush()
        config = LMCacheEngineConfig.from_file(file.name)
    return config, local_memory(config)


def keys_of(numbers):
    return [CacheEngineKey("a/model", 1, 0, number, torch.bfloat16) for number in numbers]


def by_plug_in(url, count, full=False):
    """The storage plug-in, as LMCache loads and asks it."""
    config, memory = plugged(url)
    backend, loop = plug_in(url, (config, memory))
    stored = set()
    for numbers in batches(count):
        chunks = [filled(memory, number) for number in numbers]
        done = lambda key: stored.add(key.chunk_hash)
        for future in backend.batched_submit_put_task(keys_of(numbers), chunks, on_complete_callback=done) or []:
            future.result(60)
        give_back(chunks)
    assert full or len(stored) == count, f"{count - len(stored)} of {count} were refused below capacity"
    assert not full or BATCH < len(stored) < count, f"{len(stored)} of {count} were stored"
    for numbers in batches(count):
        prefix = next((at for at, number in enumerate(numbers) if number not in stored), len(numbers))
        assert backend.batched_contains(keys_of(numbers)) == prefix
        found = backend.batched_get_blocking(keys_of(numbers))
        for number, chunk in zip(numbers, found):
            assert (chunk is not None) == (number in stored), f"chunk {number}"
            if chunk is not None:
                assert (chunk.get_shape(), chunk.get_dtype()) == (CHUNK, torch.bfloat16)
                check(chunk, number)
                chunk.ref_count_down()
    numbers = sorted(stored)[:BATCH]
    asked = asyncio.run_coroutine_threadsafe(backend.batched_get_non_blocking("id", keys_of(numbers)), loop).result(60)
    for number, chunk in zip(numbers, asked, strict=True):
        check(chunk, number)
        chunk.ref_count_down()
    assert backend.get_blocking(keys_of([count + 1])[0]) is None
    assert not backend.contains(keys_of([count + 1])[0])
    assert backend.batched_remove(keys_of(sorted(stored))) == len(stored)
    assert not backend.contains(keys_of(sorted(stored)[:1])[0])
    backend.close()


def plug_in_until_full(url, count):
    by_plug_in(url, count, full=True)


SCENARIOS = {"connector": by_connector, "faults": with_faults, "full": until_full,
             "plug-in": by_plug_in, "plug-in-full": plug_in_until_full}

if __name__ == "__main__":
    scenario, url, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    start = time.monotonic()
    SCENARIOS[scenario](url, count)
    print(f"{scenario}: {count} chunks, {time.monotonic() - start:.1f} s")
