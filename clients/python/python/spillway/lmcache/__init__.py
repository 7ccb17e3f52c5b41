"""What LMCache uses: `Connector`, for its adapter of type `native_plugin`, and in `spillway.lmcache.storage` a storage plug-in.

docs/lmcache.md says how they are configured.
"""

from spillway._spillway import Connector

__all__ = ["Connector"]
