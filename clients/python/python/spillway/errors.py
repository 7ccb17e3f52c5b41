"""The exceptions of this package. Wrong types and buffers are Python's own TypeError and BufferError."""

import builtins


class Error(Exception):
    """What every exception of this package is."""


class UrlError(Error, ValueError):
    """The URL names no store."""


class ConnectError(Error, ConnectionError):
    """The store can't be reached, or lets this client not in."""


class LostError(Error, ConnectionError):
    """The connection has ended. Whether a put took effect is not known. Open the store again."""


class TimeoutError(Error, builtins.TimeoutError):
    """The store did not answer in time. The connection is given up: open the store again."""


class ForkedError(Error):
    """The cache was opened before a fork. Open another one in the child."""


class ClosedError(Error, ValueError):
    """The cache was closed."""


class PoolLostError(Error):
    """The store has lost the pool, with its values. Open the cache again."""


class PermissionError(Error, builtins.PermissionError):
    """The operator does not let this client use the shared pool."""


class FullError(Error):
    """The store has no room for another client or pool."""


class LengthError(Error, ValueError):
    """A key, value or name is too long."""


class ShortBufferError(LengthError):
    """The buffer is shorter than the value. `value_bytes` and `buffer_bytes` say both."""

    def __init__(self, text: str, value_bytes: int, buffer_bytes: int) -> None:
        super().__init__(text)
        self.value_bytes = value_bytes
        self.buffer_bytes = buffer_bytes


class CorruptError(Error):
    """Stored bytes are not what was stored."""
