//! Where bytes lie: memory, compressed memory, file.
