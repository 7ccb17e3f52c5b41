//! The local ring: queue pairs in shared memory, for processes of the same host.
//!
//! ```text
//!  client                        the region: a memfd that the server creates and seals       server
//!    |  hello, over the socket                                                                 |
//!    |---------------------------------------------------------------------------------------->|  admitted?
//!    |<----------------------------------------------------------- welcome, with a descriptor --|
//!    |  value -> data area       +---------------------------+
//!    |  command -> queue ------->| commands, 64 bytes each   |--> copied, then checked ------->|
//!    |  doorbell --------------->| count of commands         |                                 | the store
//!    |                           | completions, 16 bytes     |<-- phase bit turned <-----------|
//!    |  value <- data area <-----| data area                 |<-- frame copied to its place <--|
//! ```
//!
//! Each connection is a queue pair and a thread. Both sides poll the region for a short while, then
//! sleep until a byte arrives on the socket. docs/ring.md describes the protocol and its trust model.

mod account;
mod bound;
mod connection;
mod execute;
mod pollers;
mod pools;
mod region;
mod server;
mod window;

pub use region::Region;
pub use server::{Config, Server};
pub use window::Attached;
