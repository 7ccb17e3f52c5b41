//! The blade of a run: claims it before the program starts, frees what killed processes left there,
//! and releases it at the end.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sys::signal::SigSet;
use spillway_blade::{Claim, claim};
use spillway_pager::tree::{BladeAddress, BladeSettings, Text, Tree};
use spillway_tiers::blade::KEY_BYTES;

use crate::options::Remote;
use crate::refusal::Refusal;

/// The bit of a file's mode that lets every user read it.
const READ_BY_OTHERS: u32 = 0o004;

/// Pools on a blade and its mirror. Dropping this removes their contents.
pub struct Blades {
    claims: Vec<Claim>,
}

impl Blades {
    /// Claims what the options name; `None` if they name no blade. Writes to the settings how the
    /// run's processes reach it.
    ///
    /// # Errors
    /// One line that says what is wrong with an option, or why a blade can't be used.
    pub fn claim(options: &Remote, settings: &mut BladeSettings) -> Result<Option<Self>, Refusal> {
        let Some(url) = &options.blade else { return Ok(None) };
        let refuse = |name: &str, why: String| Refusal::usage(format!("{name}: {why}"));
        if spillway_blade::is_directory(url) {
            let why = format!("'{url}' is not a URL: write ring:PATH or nvme+tcp://HOST[:PORT]");
            return Err(refuse("--blade", why));
        }
        *settings = BladeSettings {
            timeout_ns: options.blade_timeout.as_nanos() as u64,
            loss_timeout_ns: options.blade_loss_timeout.as_nanos() as u64,
            encrypt: u32::from(!options.no_encrypt),
            share: u32::from(options.share.is_some()),
            ..BladeSettings::NONE
        };
        settings.key = match &options.share {
            Some(path) => domain_key(path).map_err(|why| refuse("--share", why))?,
            None => random_key().map_err(|why| refuse("--blade", why))?,
        };
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

    /// Ends the run. Processes that continue as daemons keep their pages, and the last of them
    /// removes the pool.
    pub fn end(self, tree: &Tree) {
        let in_use = |slot: &spillway_pager::tree::Slot| {
            slot.pid.load(std::sync::atomic::Ordering::Relaxed) != 0
        };
        if tree.slots.iter().any(in_use) {
            std::mem::forget(self);
        }
    }
}

/// Blocks all signals of this thread until dropped. Threads started meanwhile inherit the mask, so
/// signals go to the supervisor.
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
            // Restoring a mask that was read can't fail.
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

fn random_key() -> Result<[u8; KEY_BYTES], String> {
    let mut key = [0; KEY_BYTES];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("no random key: {error}"))?;
    Ok(key)
}

/// Reads the key of a sharing domain. Warns if other users can read the file.
fn domain_key(path: &Path) -> Result<[u8; KEY_BYTES], String> {
    let shown = path.display();
    let read = || -> std::io::Result<(String, u32)> {
        let file = File::open(path)?;
        let mode = file.metadata()?.mode();
        let mut text = String::new();
        // A key and its line end; more than that is not a key.
        file.take(2 * KEY_BYTES as u64 + 2).read_to_string(&mut text)?;
        Ok((text, mode))
    };
    let (text, mode) =
        read().map_err(|error| without_number(&format!("can't read '{shown}': {error}")))?;
    let key = parse_key(text.trim_ascii_end()).ok_or_else(|| {
        format!("'{shown}' has no key of 64 hexadecimal digits: openssl rand -hex 32 > FILE")
    })?;
    if mode & READ_BY_OTHERS != 0 {
        // A closed standard error is the user's choice.
        let _ = writeln!(
            std::io::stderr(),
            "spillway: other users can read the key in '{shown}': chmod o= '{shown}'"
        );
    }
    Ok(key)
}

fn parse_key(text: &str) -> Option<[u8; KEY_BYTES]> {
    let mut key = [0; KEY_BYTES];
    let (digits, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if digits.len() != KEY_BYTES {
        return None;
    }
    for (byte, digits) in key.iter_mut().zip(digits) {
        let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
        *byte = (high? << 4 | low?) as u8;
    }
    Some(key)
}

/// The message without the error number that the standard library appends.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_64_digits_and_nothing_else() {
        let mut expected = [0xab; KEY_BYTES];
        expected[0] = 0x01;
        let text = format!("01{}", "aB".repeat(KEY_BYTES - 1));
        assert_eq!(parse_key(&text), Some(expected));
        for wrong in [&text[1..], &text[2..], &format!("{text}00"), "", &text.replace('0', "g")] {
            assert_eq!(parse_key(wrong), None, "{wrong}");
        }
    }
}
