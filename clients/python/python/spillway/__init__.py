"""A store of memory for Python programs: values of up to 1 GiB under keys of bytes, in the program itself, in the daemon of
this host, or in that of another.

    import spillway

    with spillway.open("ring:/run/spillway/spillway.sock") as cache:
        cache.put(b"key", b"a value")
        print(cache.get(b"key"))

docs/python.md says more.
"""

from spillway._spillway import Cache, __version__
from spillway.errors import (
    ClosedError,
    ConnectError,
    CorruptError,
    Error,
    ForkedError,
    FullError,
    LengthError,
    LostError,
    PermissionError,
    PoolLostError,
    ShortBufferError,
    TimeoutError,
    UrlError,
)


def open(url: str, *, name: str = "default", shared: str | None = None, timeout_s: float = 30.0) -> Cache:
    """Opens the cache `name` in the store that `url` names. It is made where there is none.

    `embed:?capacity=2G` is a store in this process, `ring:/run/spillway/spillway.sock` the daemon's of this host,
    `nvme+tcp://host:4420` and `nvme+tls://host:4421?certificate=...` that of another host. Whoever opens the same name as the
    same client of a daemon finds the same values. `shared` is the UUID of a shared pool, for several clients. `timeout_s` is
    how long a call waits for the store.
    """
    return Cache(url, name=name, shared=shared, timeout_s=timeout_s)


__all__ = [
    "Cache",
    "ClosedError",
    "ConnectError",
    "CorruptError",
    "Error",
    "ForkedError",
    "FullError",
    "LengthError",
    "LostError",
    "PermissionError",
    "PoolLostError",
    "ShortBufferError",
    "TimeoutError",
    "UrlError",
    "__version__",
    "open",
]
