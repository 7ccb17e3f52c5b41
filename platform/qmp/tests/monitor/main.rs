//! The client against monitors that behave, and against others.

mod commands;
mod fake;
mod protocol;
