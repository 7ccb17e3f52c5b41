"""Plug-ins for LMCache: `Connector`, for its adapter of type `native_plugin`, and the storage plug-in
`spillway.lmcache.storage`.

docs/lmcache.md describes their configuration.
"""

from spillway._spillway import Connector

__all__ = ["Connector"]
