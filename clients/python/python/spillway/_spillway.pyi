"""The native half of the package. A key is `bytes`, or `str`, which stands for its UTF-8; it has at most 1 MiB.

Buffers are whatever lends its memory in one piece: `bytes`, `bytearray`, `memoryview`, arrays of NumPy, `tensor.numpy()`, ...
Values are copied once, between the buffer and the store, and the interpreter's lock is released meanwhile. Calls may be made
from any number of threads.

Calls of many keys do all of it, then raise the first error that there was. Beside the exceptions that are named, each
call raises those of the way to the store: `LostError`, `TimeoutError`, `PoolLostError`, `ForkedError`, `ClosedError`.
"""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, TypeAlias

from typing_extensions import Buffer

Key: TypeAlias = bytes | str

__version__: str

class Cache:
    """An open cache; see `spillway.open`, whose arguments these are."""

    def __init__(
        self, url: str, *, name: str = "default", shared: str | None = None, timeout_s: float = 30.0
    ) -> None: ...
    @property
    def url(self) -> str:
        """What was opened."""
    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
    def put(self, key: Key, value: Buffer) -> bool:
        """Puts a value, of at most 1 GiB, in place of what is under the key. False: it was refused, because the store is full
        or this client at its limit, and nothing is under the key now. Raises `LengthError`."""
    def put_many(self, keys: Sequence[Key], values: Sequence[Buffer]) -> list[bool]:
        """Puts values, each as `put` does."""
    def get(self, key: Key) -> bytes | None:
        """The value under the key; None is a miss."""
    def get_many(self, keys: Sequence[Key]) -> list[bytes | None]:
        """The values under the keys."""
    def get_into(self, key: Key, buffer: Buffer) -> int | None:
        """Copies the value to the beginning of a buffer, and gives its length in bytes. Raises `ShortBufferError`, with both
        lengths, when the buffer is too short."""
    def get_many_into(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> list[int | None]:
        """Copies values to buffers, each as `get_into` does. The buffers must not overlap."""
    def exists(self, key: Key) -> bool:
        """Whether there is a value under the key. `key in cache` asks the same."""
    def __contains__(self, key: Key) -> bool: ...
    def exists_many(self, keys: Sequence[Key]) -> list[bool]:
        """Whether there are values under the keys."""
    def prefix(self, keys: Sequence[Key]) -> int:
        """How many of the first keys have values, up to the first that has none."""
    def delete(self, key: Key) -> bool:
        """Removes a value; whether there was one."""
    def delete_many(self, keys: Sequence[Key]) -> list[bool]:
        """Removes values; whether there was one under each key."""
    def clear(self) -> None:
        """Removes all values of this name. Those that others put meanwhile may stay."""
    def statistics(self) -> dict[str, int]:
        """Counters of this client of the store, over all its names and connections."""
    def close(self) -> None:
        """Closes the connection. The values stay, but for those of `embed:`. Calls that are under way end first."""
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

class Connector:
    """What LMCache asks of a native connector: batches of keys that `workers` threads carry out, each over a connection of its
    own. No call waits for the store, but for the first and `close`.

    Each batch is answered: as failed when no thread took it within `timeout_s`, when a call took longer than that, when 1024
    batches wait already, and when the store is away; that is connected to again by itself.
    """

    def __init__(
        self, url: str, *, name: str = "lmcache", shared: str | None = None, workers: int = 2, timeout_s: float = 5.0
    ) -> None: ...
    def event_fd(self) -> int:
        """A descriptor that becomes readable when there are completions."""
    def submit_batch_set(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> int:
        """Puts values, all or none; the batch's number. The buffers are lent until its completion is drained."""
    def submit_batch_get(self, keys: Sequence[Key], buffers: Sequence[Buffer]) -> int:
        """Gets values of exactly the lengths of the buffers; the batch's number."""
    def submit_batch_exists(self, keys: Sequence[Key]) -> int:
        """Asks for values; the batch's number."""
    def submit_batch_delete(self, keys: Sequence[Key]) -> int:
        """Removes values; the batch's number."""
    def drain_completions(self) -> list[tuple[int, bool, str, list[bool] | None]]:
        """The batches that are done: number, whether nothing went wrong, what did, and for each key whether its value was got,
        is there, or was removed."""
    def close(self) -> None:
        """Ends the threads. What waits is given up; a call that is under way ends first, within its time."""
