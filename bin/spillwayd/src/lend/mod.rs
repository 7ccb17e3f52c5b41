//! Lending: hosts that lend each other memory.
//!
//! control/lending-driver does it. Here is what it is given: settings from the configuration ([`parts`]), this host's
//! kernel ([`kernel`], through the privileged [`helper`]), and the way to lenders ([`transport`]).

pub mod helper;
mod kernel;
mod parts;
mod socket;
mod transport;

pub use parts::lending_parts;
