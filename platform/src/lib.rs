//! Thin, safe wrappers over the Linux interfaces that Spillway stands on.
