//! Network Block Device: fixed newstyle, for kernels and tools.
