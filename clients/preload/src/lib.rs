//! What `spillway run` loads into an unmodified program.
