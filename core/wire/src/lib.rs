//! Encoding and decoding of every protocol that Spillway speaks: bytes in, values out. No I/O.
