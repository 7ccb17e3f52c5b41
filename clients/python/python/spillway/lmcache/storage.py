"""A storage plug-in that runs in LMCache's process: copies chunks between LMCache's memory and the store, in batches.

A chunk is two values of the cache: its bytes, under the chunk's key, and the layout that LMCache needs to allocate
memory for them, under the same key with the suffix `LAYOUT`. A stored chunk stays until LMCache removes it. While the
store is full or unreachable, chunks are neither stored nor found: LMCache computes them again.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from lmcache.logging import init_logger
from lmcache.utils import CacheEngineKey
from lmcache.v1.memory_management import MemoryFormat, MemoryObj
from lmcache.v1.storage_backend.abstract_backend import StoragePluginInterface

import spillway

logger = init_logger(__name__)

# Suffix of a layout's key. The key of a chunk is printable, so the two can't collide.
LAYOUT = "\0layout"
# Pause before another attempt to open the store, seconds.
REOPEN_PAUSE_S = 1.0
# Most chunks that wait to be stored.
WAITING_MAX = 4096


def layout_of(memory: MemoryObj) -> bytes:
    """The layout of a chunk, encoded for `_room_for`."""
    shapes = [list(shape) for shape in memory.get_shapes()]
    dtypes = [str(dtype).removeprefix("torch.") for dtype in memory.get_dtypes()]
    return json.dumps({"shapes": shapes, "dtypes": dtypes, "format": memory.get_memory_format().name}).encode()


class StorageBackend(StoragePluginInterface):
    """Configured by `extra_config`: `spillway.url`; optionally `spillway.name`, `spillway.shared` and `spillway.timeout_s`."""

    def __init__(self, config=None, metadata=None, local_cpu_backend=None, loop=None, dst_device="cpu") -> None:
        super().__init__(dst_device, config, metadata, local_cpu_backend, loop)
        extra = (config.extra_config if config is not None else None) or {}
        if "spillway.url" not in extra:
            raise ValueError("extra_config needs spillway.url, such as ring:/run/spillway/spillway.sock")
        self._url = extra["spillway.url"]
        self._options = {
            "name": extra.get("spillway.name", "lmcache"),
            "shared": extra.get("spillway.shared"),
            "timeout_s": float(extra.get("spillway.timeout_s", 5.0)),
        }
        self._lock = threading.Lock()
        self._putting: set[CacheEngineKey] = set()
        self._tried_at = 0.0
        self._closed = False
        self._cache: spillway.Cache | None = spillway.open(self._url, **self._options)
        self._threads = ThreadPoolExecutor(max_workers=2, thread_name_prefix="spillway")

    def __str__(self) -> str:
        return "SpillwayBackend"

    # The connection to the store. LMCache continues without the store after any error.

    def _ask(self, call: Callable[[spillway.Cache], Any], otherwise: Any) -> Any:
        """The result of `call` on the cache. On an error of the store, logs a line and returns `otherwise`."""
        cache = self._open()
        if cache is None:
            return otherwise
        try:
            return call(cache)
        except spillway.Error as error:
            logger.warning("spillway: %s", error)
            if isinstance(error, (spillway.LostError, spillway.TimeoutError, spillway.PoolLostError, spillway.ForkedError)):
                self._lose(cache)
            return otherwise

    def _open(self) -> spillway.Cache | None:
        with self._lock:
            if self._cache is not None or self._closed or time.monotonic() - self._tried_at < REOPEN_PAUSE_S:
                return self._cache
            self._tried_at = time.monotonic()
            try:
                self._cache = spillway.open(self._url, **self._options)
                logger.info("spillway: connected to %s again", self._url)
            except spillway.Error as error:
                logger.warning("spillway: %s", error)
            return self._cache

    def _lose(self, cache: spillway.Cache) -> None:
        with self._lock:
            if self._cache is cache:
                self._cache = None
        cache.close()

    # Lookups.

    def contains(self, key: CacheEngineKey, pin: bool = False) -> bool:
        return self._ask(lambda cache: cache.exists(key.to_string()), False)

    def batched_contains(self, keys: list[CacheEngineKey], pin: bool = False) -> int:
        return self._ask(lambda cache: cache.prefix([key.to_string() for key in keys]), 0)

    async def batched_async_contains(self, lookup_id: str, keys: list[CacheEngineKey], pin: bool = False) -> int:
        return await self._in_thread(self.batched_contains, keys)

    # The store never evicts chunks, so every stored chunk is pinned.

    def pin(self, key: CacheEngineKey) -> bool:
        return self.contains(key)

    def unpin(self, key: CacheEngineKey) -> bool:
        return self.contains(key)

    # Puts.

    def exists_in_put_tasks(self, key: CacheEngineKey) -> bool:
        with self._lock:
            return key in self._putting

    def batched_submit_put_task(
        self,
        keys: Sequence[CacheEngineKey],
        objs: list[MemoryObj],
        transfer_spec: Any = None,
        on_complete_callback: Callable[[CacheEngineKey], None] | None = None,
    ) -> list[Future] | None:
        with self._lock:
            pairs = [(key, memory) for key, memory in zip(keys, objs, strict=True) if key not in self._putting]
            if self._closed or not pairs or len(self._putting) + len(pairs) > WAITING_MAX:
                return None
            self._putting.update(key for key, _ in pairs)
        for _, memory in pairs:
            memory.ref_count_up()
        return [self._threads.submit(self._put, pairs, on_complete_callback)]

    def _put(self, pairs: list[tuple[CacheEngineKey, MemoryObj]], on_complete: Callable | None) -> None:
        try:
            names = [key.to_string() for key, _ in pairs]
            # Store the layout first, so that every chunk that is found has one.
            layouts = self._ask(
                lambda cache: cache.put_many([name + LAYOUT for name in names], [layout_of(memory) for _, memory in pairs]),
                [False] * len(pairs),
            )
            ready = [number for number, stored in enumerate(layouts) if stored]
            stored = self._ask(
                lambda cache: cache.put_many(
                    [names[number] for number in ready], [pairs[number][1].byte_array for number in ready]
                ),
                [False] * len(ready),
            )
            refused = [names[number] + LAYOUT for number, there in zip(ready, stored, strict=True) if not there]
            if refused:
                self._ask(lambda cache: cache.delete_many(refused), None)
            done = [pairs[number][0] for number, there in zip(ready, stored, strict=True) if there]
        finally:
            with self._lock:
                self._putting.difference_update(key for key, _ in pairs)
            for _, memory in pairs:
                memory.ref_count_down()
        if len(done) < len(pairs):
            logger.warning("spillway: %d of %d chunks are not stored", len(pairs) - len(done), len(pairs))
        for key in done if on_complete is not None else []:
            try:
                on_complete(key)
            except Exception:
                logger.exception("the callback for %s failed", key)

    # Gets.

    def get_blocking(self, key: CacheEngineKey) -> MemoryObj | None:
        return self.batched_get_blocking([key])[0]

    def batched_get_blocking(self, keys: list[CacheEngineKey]) -> list[MemoryObj | None]:
        names = [key.to_string() for key in keys]
        found: list[MemoryObj | None] = [None] * len(keys)
        layouts = self._ask(lambda cache: cache.get_many([name + LAYOUT for name in names]), found)
        rooms: list[tuple[int, MemoryObj]] = []
        for number, layout in enumerate(layouts):
            memory = None if layout is None else self._room_for(layout)
            if memory is not None:
                rooms.append((number, memory))
        sizes = self._ask(
            lambda cache: cache.get_many_into([names[number] for number, _ in rooms], [memory.byte_array for _, memory in rooms]),
            [None] * len(rooms),
        )
        for (number, memory), size in zip(rooms, sizes, strict=True):
            if size == len(memory.byte_array):
                found[number] = memory
            else:
                memory.ref_count_down()
        return found

    async def batched_get_non_blocking(
        self, lookup_id: str, keys: list[CacheEngineKey], transfer_spec: Any = None
    ) -> list[MemoryObj]:
        found = await self._in_thread(self.batched_get_blocking, keys)
        missing = next((number for number, memory in enumerate(found) if memory is None), len(found))
        for memory in found[missing:]:
            if memory is not None:
                memory.ref_count_down()
        return found[:missing]

    def _room_for(self, layout: bytes) -> MemoryObj | None:
        """Memory for a chunk of that layout; None if there is no memory, or the layout is of another version."""
        if self.local_cpu_backend is None:
            return None
        try:
            read = json.loads(layout)
            shapes = [torch.Size(shape) for shape in read["shapes"]]
            dtypes = [getattr(torch, name) for name in read["dtypes"]]
            form = MemoryFormat[read["format"]]
        except (ValueError, KeyError, TypeError, AttributeError):
            logger.warning("spillway: a chunk's layout is not understood")
            return None
        if len(shapes) == 1:
            return self.local_cpu_backend.allocate(shapes[0], dtypes[0], form)
        return self.local_cpu_backend.allocate(shapes, dtypes, form)

    async def _in_thread(self, call: Callable, *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *arguments)

    # Other methods.

    def remove(self, key: CacheEngineKey, force: bool = True) -> bool:
        return self.batched_remove([key], force) == 1

    def batched_remove(self, keys: list[CacheEngineKey], force: bool = True) -> int:
        names = [key.to_string() for key in keys]
        removed = self._ask(lambda cache: cache.delete_many(names), [])
        self._ask(lambda cache: cache.delete_many([name + LAYOUT for name in names]), None)
        return sum(removed)

    def get_allocator_backend(self):
        return self.local_cpu_backend

    def touch_cache(self) -> None:
        """Does nothing: the store never evicts chunks, so the order of use does not matter."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=True)
        if self._cache is not None:
            self._cache.close()
