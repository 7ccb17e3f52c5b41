//! The blade of a run: claimed before the program starts, tidied for processes that were killed, and
//! given back at the end.

use std::io::Write;

use nix::sys::signal::SigSet;
use spillway_blade::{Claim, claim};
use spillway_pager::tree::{BladeAddress, BladeSettings, Text, Tree};

use crate::cli::Remote;
use crate::refusal::Refusal;

/// Pools on a blade and its mirror. Dropping them removes all that is there.
pub struct Blades {
    claims: Vec<Claim>,
}

impl Blades {
    /// Claims what the options name; `None` when they name no blade. Writes to the settings how the
    /// run's processes get there.
    ///
    /// # Errors
    /// One line: what is wrong with an option, or why a blade can't be used.
    pub fn claim(options: &Remote, settings: &mut BladeSettings) -> Result<Option<Self>, Refusal> {
        let Some(url) = &options.blade else { return Ok(None) };
        let refuse = |name: &str, why: String| Refusal::usage(format!("{name}: {why}"));
        if spillway_blade::is_directory(url) {
            let why = format!("'{url}' is no URL: write ring:PATH or nvme+tcp://HOST[:PORT]");
            return Err(refuse("--blade", why));
        }
        *settings = BladeSettings {
            timeout_ns: options.blade_timeout.as_nanos() as u64,
            encrypt: u32::from(!options.no_encrypt),
            ..BladeSettings::NONE
        };
        let random =
            rustix::rand::getrandom(&mut settings.key, rustix::rand::GetRandomFlags::empty());
        random.map_err(|error| refuse("--blade", format!("no random key: {error}")))?;
        let _held = SignalsHeld::new();
        let mut blades = Self { claims: Vec::new() };
        let ways = [
            ("--blade", Some(url), &mut settings.blade),
            ("--mirror", options.mirror.as_ref(), &mut settings.mirror),
        ];
        for (name, text, address) in ways {
            let Some(text) = text else { continue };
            let claim = claim(text, options.blade_timeout)
                .map_err(|error| refuse(name, without_number(&error.to_string())))?;
            let written = address_of(&claim);
            blades.claims.push(claim);
            *address = written.ok_or_else(|| refuse(name, format!("'{text}' is too long")))?;
        }
        Ok(Some(blades))
    }

    /// Removes an object that no process of the run holds any more.
    pub fn flush_object(&self, name: u64) {
        for claim in &self.claims {
            claim.carrier.flush_object(name);
        }
    }

    /// Ends the run: daemons that go on keep what they have, and the last of them removes it.
    pub fn end(self, tree: &Tree) {
        let in_use = |slot: &spillway_pager::tree::Slot| {
            slot.pid.load(std::sync::atomic::Ordering::Relaxed) != 0
        };
        if tree.slots.iter().any(in_use) {
            std::mem::forget(self);
        }
    }
}

/// All signals of this thread, held until it is dropped: a thread that is started meanwhile leaves
/// them to the supervisor for good.
struct SignalsHeld {
    before: Option<SigSet>,
}

impl SignalsHeld {
    fn new() -> Self {
        let before = SigSet::thread_get_mask().ok();
        let held = before.filter(|_| SigSet::all().thread_block().is_ok());
        Self { before: held }
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Setting a mask that was read fails for no reason that there is.
            let _ = before.thread_set_mask();
        }
    }
}

impl Drop for Blades {
    fn drop(&mut self) {
        for claim in &self.claims {
            claim.carrier.tend();
            if !claim.carrier.end_run() {
                // A closed standard error is the user's choice.
                let _ = writeln!(
                    std::io::stderr(),
                    "spillway: {} does not answer: what the run had there stays there as long as it \
                     keeps this host's pools",
                    shown(&claim.address)
                );
            }
        }
    }
}

/// A line without the number that the standard library puts behind the kernel's reasons.
fn without_number(line: &str) -> String {
    match line.split_once(" (os error ") {
        Some((before, after)) => {
            let after = after.split_once(')').map_or("", |(_, after)| after);
            format!("{before}{after}")
        }
        None => line.to_owned(),
    }
}

/// An address without its options.
fn shown(address: &str) -> &str {
    address.split_once('?').map_or(address, |(address, _)| address)
}

fn address_of(claim: &Claim) -> Option<BladeAddress> {
    Some(BladeAddress {
        pool_identity: claim.identity.to_ne_bytes(),
        address: Text::new(&claim.address)?,
        secret: Text::new(claim.secret.as_deref().unwrap_or_default())?,
    })
}
