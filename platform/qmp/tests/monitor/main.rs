//! The client against correct monitors and faulty ones.

mod commands;
mod fake;
mod protocol;
