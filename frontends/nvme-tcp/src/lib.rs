//! NVMe over TCP: key-value namespaces for clients, block namespaces for kernels.
