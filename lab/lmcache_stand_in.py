"""Stand-ins for the parts of LMCache and PyTorch that the storage plug-in uses, for tests without them: together they
take 6 GB."""

import enum
import logging
import sys
import types


class Size(tuple):
    """As torch.Size."""


class Kind:
    """As a torch.dtype."""

    def __init__(self, name, item_bytes):
        self.name, self.item_bytes = name, item_bytes

    def __str__(self):
        return f"torch.{self.name}"


class Format(enum.Enum):
    """As lmcache's MemoryFormat."""

    KV_2LTD = 1


class Key(str):
    """As lmcache's CacheEngineKey."""

    def to_string(self):
        return str(self)


class Chunk:
    """As lmcache's MemoryObj: memory that is free when nobody refers to it any more."""

    def __init__(self, memory, shape, kind, form):
        self.memory, self.shape, self.kind, self.form, self.references = memory, shape, kind, form, 1
        count = 1
        for side in shape:
            count *= side
        self.byte_array = memoryview(bytearray(count * kind.item_bytes))

    def get_shapes(self):
        return [self.shape]

    def get_dtypes(self):
        return [self.kind]

    def get_memory_format(self):
        return self.form

    def ref_count_up(self):
        self.references += 1

    def ref_count_down(self):
        self.references -= 1
        assert self.references >= 0, "given back twice"
        self.memory.lent -= self.references == 0


class Memory:
    """As lmcache's LocalCPUBackend; counts the chunks that somebody refers to."""

    def __init__(self):
        self.lent = 0

    def allocate(self, shape, kind, form):
        self.lent += 1
        return Chunk(self, shape, kind, form)


class Plugin:
    """As lmcache's StoragePluginInterface."""

    def __init__(self, dst_device="cpu", config=None, metadata=None, local_cpu_backend=None, loop=None):
        self.local_cpu_backend = local_cpu_backend


BYTES = Kind("uint8", 1)


def use():
    """Makes these what a program imports."""
    for name, content in {
        "torch": {"Size": Size, "uint8": BYTES},
        "lmcache": {},
        "lmcache.logging": {"init_logger": logging.getLogger},
        "lmcache.utils": {"CacheEngineKey": Key},
        "lmcache.v1": {},
        "lmcache.v1.memory_management": {"MemoryFormat": Format, "MemoryObj": Chunk},
        "lmcache.v1.storage_backend": {},
        "lmcache.v1.storage_backend.abstract_backend": {"StoragePluginInterface": Plugin},
    }.items():
        module = types.ModuleType(name)
        module.__dict__.update(content)
        sys.modules[name] = module
