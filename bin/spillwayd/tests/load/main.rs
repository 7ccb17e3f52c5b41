//! A daemon under load that checks every answer.

mod daemon;
mod killed;
mod moved;
mod packs;
mod worker;
