//! A module of Valkey and Redis: a data type whose values lie in the page store of this host.
//!
//! ```text
//!  client --> server's thread --> commands --> value: in the server, or a number and a checksum
//!                                                |  put, get over the ring, with a deadline
//!  server's lazy-free thread --> drop ----+      v
//!                                         |    session: the connection, and this server's pool
//!                                         v      ^
//!                    discards --> the module's thread: flushes, connects again
//!                       ^ waits for the child
//!  child that saves: a session of its own, no lock of the server's --> the dump has the bytes
//! ```
//!
//! A value never changes: an overwrite gets another number. So a child sees the values of the moment of its fork as
//! long as none of them is flushed.

mod arguments;
mod commands;
mod deadline;
mod discards;
mod error;
mod fetch;
mod many;
mod server;
mod session;
mod spill;
mod statistics;
mod transparent;
mod uses;
mod value;

use std::ffi::c_int;

use crate::arguments::Arguments;
use crate::server::{
    Context, RawContext, RawString, ServerAllocator, Text, attach, listen_for_dumps, on_fork,
    register_information, register_type, within_onload,
};
use crate::value::Value;

#[global_allocator]
static ALLOCATOR: ServerAllocator = ServerAllocator;

/// The module's version, as the server lists it.
const VERSION: c_int = 1;

/// The entry point that the server calls when it loads the module.
///
/// # Safety
/// Only a server calls it, with its context and the module's arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn RedisModule_OnLoad(
    context: *mut RawContext,
    arguments: *mut *mut RawString,
    count: c_int,
) -> c_int {
    // SAFETY: as the server promises.
    unsafe { within_onload(context, arguments, count, load) }
}

fn load(context: &Context<'_>, arguments: &[Text<'_>]) -> Result<(), String> {
    let texts: Vec<&[u8]> = arguments.iter().map(Text::bytes).collect();
    let arguments = Arguments::parse(&texts)?;
    attach(context, c"spillway", VERSION)?;
    if !register_type::<Value>(context) {
        return Err("the server does not take the data type".to_owned());
    }
    let listens = on_fork(context, spill::on_fork) && listen_for_dumps(context);
    if !listens || !register_information(context, statistics::inform) {
        return Err("the server does not tell of forks and dumps".to_owned());
    }
    commands::register(context)?;
    if arguments.transparent {
        transparent::start(context, arguments.spill_from_percent)?;
    }
    fetch::start()?;
    spill::start(arguments)
}
