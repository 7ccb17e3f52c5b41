"""The exceptions of this package. Wrong types and buffers raise Python's own TypeError and BufferError."""

import builtins


class Error(Exception):
    """The base class of this package's exceptions."""


class UrlError(Error, ValueError):
    """The URL names no store."""


class ConnectError(Error, ConnectionError):
    """The store can't be reached, or refuses this client."""


class LostError(Error, ConnectionError):
    """The connection has ended. It is unknown whether a put took effect. Open the store again."""


class TimeoutError(Error, builtins.TimeoutError):
    """The store did not answer in time. The connection is closed: open the store again."""


class ForkedError(Error):
    """The cache was opened before a fork. Open it again in the child."""


class ClosedError(Error, ValueError):
    """The cache was closed."""


class PoolLostError(Error):
    """The store has lost the pool and its values. Open the cache again."""


class PermissionError(Error, builtins.PermissionError):
    """This client is not authorised for the shared pool."""


class FullError(Error):
    """The store has no room for another client or pool."""


class LengthError(Error, ValueError):
    """A key, value or name is too long."""


class ShortBufferError(LengthError):
    """The buffer is shorter than the value. `value_bytes` and `buffer_bytes` are the two lengths."""

    def __init__(self, text: str, value_bytes: int, buffer_bytes: int) -> None:
        super().__init__(text)
        self.value_bytes = value_bytes
        self.buffer_bytes = buffer_bytes


class CorruptError(Error):
    """The stored bytes are corrupt."""
