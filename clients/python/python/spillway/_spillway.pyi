"""The native half of the package. A key is `bytes`, or `str`, which is encoded as UTF-8. It has at most 1 MiB.

A buffer is any object with contiguous memory: `bytes`, `bytearray`, `memoryview`, NumPy arrays, `tensor.numpy()`, ...
Values are copied once, between the buffer and the store. The interpreter's lock is released meanwhile. Any number of
threads may call.

Calls with many keys handle all of them, then raise the first error. Every call can also raise the exceptions of the
connection: `LostError`, `TimeoutError`, `PoolLostError`, `ForkedError`, `ClosedError`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeAlias

from typing_extensions import Buffer

Key: TypeAlias = bytes | str

__version__: str

class Cache:
    """An open cache. The arguments are those of `spillway.open`."""

    def __init__(
        self, url: str, *, name: str = "default", shared: str | None = None, timeout_s: float = 30.0
    ) -> None: ...
    @property
    def url(self) -> str:
        """The URL that was opened."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    def put(self, key: Key, value: Buffer) -> bool:
        """Puts a value of at most 1 GiB, and replaces the former one. False: the store refused it, because the store is
        full or this client is at its limit; the key has no value now. Raises `LengthError`."""
    def put_many(self, keys: Sequence[Key], values: Sequence[Buffer]) -> list[bool]:
        """Puts values, each as `put` does."""
    def get(self, key: Key) -> bytes | None:
        """The value under the key; None if there is none."""
    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The values under the keys."""
    def get_into(self, key: Key, buffer: Buffer) -> int | None:
        """Copies the value to the beginning of a buffer, and returns its length in bytes. Raises `ShortBufferError`,
        with both lengths, if the buffer is too short."""
    def get_many_into(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> list[int | None]:
        """Copies values to buffers, each as `get_into` does. The buffers must not overlap."""
    def exists(self, key: Key) -> bool:
        """Whether there is a value under the key. `key in cache` is the same."""
    def __contains__(self, key: Key) -> bool: ...
    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Whether there are values under the keys."""
    def prefix(self, keys: Sequence[Key]) -> int:
        """The number of keys before the first one without a value."""
    def delete(self, key: Key) -> bool:
        """Removes a value. Returns whether there was one."""
    def delete_many(self, keys: Sequence[Key]) -> list[bool]:
        """Removes values. Returns for each key whether there was one."""
    def clear(self) -> None:
        """Removes all values of this name. Values that other threads or clients put meanwhile may stay."""
    def statistics(self) -> dict[str, int]:
        """Counters of this client of the store, over all its names and connections."""
    def close(self) -> None:
        """Closes the connection after all running calls have ended. The values stay, except those of `embed:`."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Connector:
    """LMCache's interface of a native connector: `workers` threads execute batches of keys, each over its own
    connection. Only the constructor and `close` wait for the store.

    Every batch gets a completion. A batch fails when no thread takes it within `timeout_s`, when a call takes longer
    than that, when 1024 batches are waiting, or while the store is unreachable. The threads reconnect by themselves.
    """

    def __init__(
        self, url: str, *, name: str = "lmcache", shared: str | None = None, workers: int = 2, timeout_s: float = 5.0
    ) -> None: ...
    def event_fd(self) -> int:
        """A descriptor that becomes readable when there are completions."""
    def submit_batch_set(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> int:
        """Puts all values or none. Returns the batch's number. Don't change the buffers until its completion is
        drained."""
    def submit_batch_get(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> int:
        """Gets values of exactly the lengths of the buffers. Returns the batch's number."""
    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """Checks whether values exist. Returns the batch's number."""
    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """Removes values. Returns the batch's number."""
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """The completed batches: number, whether the batch succeeded, the error text, and for each key whether its
        value was copied, exists or was removed."""
    def close(self) -> None:
        """Ends the threads. Waiting batches are dropped; running calls end first, within their timeout."""
