//! The local ring: queue pairs in shared memory, for processes of the same host.
//!
//! ```text
//!  client                        the region: a memfd that the server makes and seals         server
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
//! Each connection is a queue pair and a thread. Both sides look at the region for a short while, then
//! sleep until a byte comes over the socket. docs/ring.md tells all of it, and what is trusted.

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
