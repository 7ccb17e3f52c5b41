//! The C library of a Spillway client.
