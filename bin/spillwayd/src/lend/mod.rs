//! Lending: hosts that lend each other memory.
//!
//! control/lending-driver does the work. This module gives it the settings from the configuration ([`parts`]), this
//! host's kernel ([`kernel`], through the privileged [`helper`]), and the connections to lenders ([`transport`]).

pub mod helper;
mod kernel;
mod parts;
mod socket;
mod transport;

pub use parts::lending_parts;
