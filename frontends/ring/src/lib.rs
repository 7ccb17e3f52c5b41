//! The local ring: queue pairs in shared memory, for processes of the same host.
