//! One interface to a page store: embedded, over the ring, over NVMe/TCP.
