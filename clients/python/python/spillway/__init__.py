"""A cache in memory for Python programs: values of up to 1 GiB under byte-string keys. The values lie in the program
itself, in the daemon of this host, or in the daemon of another host.

    import spillway

    with spillway.open("ring:/run/spillway/spillway.sock") as cache:
        cache.put(b"key", b"a value")
        print(cache.get(b"key"))

For more, see docs/python.md.
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
    """Opens the cache `name` in the store at `url`. Creates it if it does not exist.

    `embed:?capacity=2G` is a store in this process, `ring:/run/spillway/spillway.sock` the daemon of this host,
    `nvme+tcp://host:4420` and `nvme+tls://host:4421?certificate=...` the daemon of another host. Processes that are the
    same client of a daemon and open the same name share the values. `shared` is the UUID of a pool that several clients
    share. `timeout_s` is how long a call waits for the store, in seconds.
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
