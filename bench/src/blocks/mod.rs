//! `blocks`: blocks over the network, compared with other servers and with bare sockets.
//!
//! NBD: fio's nbd engine against our server, and against nbdkit's memory plugin. NVMe/TCP: our client
//! against our target, and two threads that only exchange messages of the same sizes.

pub(super) mod awake;
pub(super) mod fio;
mod floor;
pub(super) mod nbd;
mod nvme;
pub(super) mod registry;

use super::rows::Report;

/// The name in the rows.
const BENCH: &str = "blocks";
/// Bytes of a block.
const BLOCK: usize = 4096;
/// Requests in flight.
const DEPTHS: [u32; 2] = [1, 32];

/// Measures NBD and NVMe/TCP.
///
/// # Errors
/// The user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    let mut report = Report::default();
    let _awake = awake::Awake::start()?;
    nbd::run(&mut report)?;
    nvme::run(&mut report)?;
    report.remarks.push(
        "4 KiB, random places. On both sides alike, a thread of the idle class spins on each core, \
         so that none sleeps: waking one takes 50 µs on some virtual machines, more than all the \
         rest. The servers run on this machine, ours in the bench's own process. \
         NVMe/TCP: values got and put by key; at depth 32 in batches of 2048, of which 32 are under \
         way."
            .to_owned(),
    );
    Ok(report)
}
