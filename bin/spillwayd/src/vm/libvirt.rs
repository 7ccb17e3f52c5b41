//! A libvirt domain: its identity, memory and requested size.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::bail;
use spillway_guests::{Device, Facts};
use spillway_libvirt::{Connection, Description, DomainHandle, MemoryDevice};
use spillway_sections::{DEVICES_MAX, Pool};
use spillway_types::Size;

/// How long libvirt may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A running domain that can be resized.
pub struct Attached {
    connection: Connection,
    domain: DomainHandle,
    /// Its last known state.
    description: Description,
}

impl Attached {
    /// Connects, and reads the domain's memory, which the pool counts from now on. The memory of a domain that does not
    /// run is no longer counted.
    ///
    /// # Errors
    /// libvirt does not answer, the domain does not run, or it can't be resized: the line names what it needs.
    pub fn connect(
        name: &str,
        socket: &Path,
        domain: &str,
        pool: &Pool,
    ) -> anyhow::Result<(Self, Facts)> {
        let mut connection = Connection::open(socket, deadline())?;
        let found = connection.find(domain, deadline())?;
        let description = connection.describe(&found, deadline())?;
        if description.id.is_none() || description.id != found.id() {
            pool.forget_counted(name)?;
            bail!("libvirt's domain '{domain}' does not run");
        }
        check(name, domain, &description, pool.section_bytes())?;
        pool.count(name, 0, description.boot_bytes)?;
        let mut devices = Vec::new();
        for (at, device) in description.devices.iter().enumerate() {
            let device = counted(device);
            pool.count(name, account(at), device.set_aside_bytes)?;
            devices.push(device);
        }
        // Devices of an earlier start.
        for at in devices.len()..DEVICES_MAX.into() {
            pool.count(name, account(at), 0)?;
        }
        let facts = Facts { boot_bytes: description.boot_bytes, devices };
        Ok((Self { connection, domain: found, description }, facts))
    }

    /// Checks whether libvirt is reachable.
    ///
    /// # Errors
    /// It is not reachable.
    pub fn look(&mut self) -> Result<(), String> {
        self.connection.pump().map_err(|error| error.to_string())
    }

    /// The size and requested size of each device, bytes.
    ///
    /// # Errors
    /// libvirt does not answer, or the domain has changed.
    pub fn sizes(&mut self) -> Result<Vec<(u64, u64)>, String> {
        let described = self.connection.describe(&self.domain, deadline());
        let description = described.map_err(|error| error.to_string())?;
        if description.id != self.domain.id() {
            return Err("the domain has ended".into());
        }
        let names = |of: &Description| -> Vec<String> {
            of.devices.iter().map(|device| device.alias.clone()).collect()
        };
        if names(&description) != names(&self.description) {
            return Err("the domain's virtio-mem devices have changed".into());
        }
        self.description = description;
        let devices = self.description.devices.iter();
        Ok(devices.map(|device| (device.size_bytes, device.requested_bytes)).collect())
    }

    /// Requests a size of a device from the guest.
    ///
    /// # Errors
    /// libvirt does not answer, or refuses.
    pub fn request(&mut self, device: usize, bytes: u64) -> Result<(), String> {
        let Some(device) = self.description.devices.get(device) else { return Ok(()) };
        let element = self.description.resized(device, bytes);
        let done = self.connection.update(&self.domain, &element, deadline());
        done.map_err(|error| error.to_string())
    }
}

impl AsFd for Attached {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.connection.as_fd()
    }
}

/// The pool's account of a device; 0 is that of boot memory.
pub fn account(device: usize) -> u8 {
    device as u8 + 1
}

/// What a device counts as: one that shrinks still has its former size, and one that grows may already have all of its
/// requested size.
fn counted(found: &MemoryDevice) -> Device {
    let MemoryDevice { max_bytes, size_bytes, requested_bytes, .. } = *found;
    let set_aside_bytes = size_bytes.max(requested_bytes);
    Device { max_bytes, size_bytes, requested_bytes, set_aside_bytes }
}

/// Refuses a domain that can't be resized safely.
fn check(name: &str, domain: &str, found: &Description, section_bytes: u64) -> anyhow::Result<()> {
    let elements = format!("give it the elements that `spillway vm args {name}` prints");
    if !(1..=usize::from(DEVICES_MAX)).contains(&found.devices.len()) {
        let count = found.devices.len();
        bail!("libvirt's domain '{domain}' has {count} virtio-mem devices: {elements}");
    }
    if !found.is_allocated_first {
        // QEMU would be killed if the host ran out of memory.
        bail!("libvirt's domain '{domain}' lacks <allocation mode='immediate'/>: {elements}");
    }
    for device in &found.devices {
        if device.block_bytes == 0 || !section_bytes.is_multiple_of(device.block_bytes) {
            bail!(
                "device {} of libvirt's domain '{domain}' has blocks of {}, and sections.section, {}, is not a multiple of that: {elements}",
                device.alias,
                Size(device.block_bytes),
                Size(section_bytes)
            );
        }
    }
    Ok(())
}

fn deadline() -> Instant {
    Instant::now() + ANSWER
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// A domain of one device of 1 GiB, for each (MiB that it has, MiB that it was asked for).
    fn domain(allocation: &str, block_mib: u64, devices: &[(u64, u64)]) -> Description {
        let device = |&(size, requested): &(u64, u64)| {
            format!(
                "<memory model='virtio-mem'><target><size unit='KiB'>1048576</size>\
                <block unit='KiB'>{}</block><requested unit='KiB'>{}</requested>\
                <current unit='KiB'>{}</current></target></memory>",
                block_mib << 10,
                requested << 10,
                size << 10
            )
        };
        let devices: String = devices.iter().map(device).collect();
        Description::read(format!(
            "<domain id='1'><memory unit='KiB'>8388608</memory><memoryBacking>{allocation}</memoryBacking>\
            <devices>{devices}</devices></domain>"
        ))
        .unwrap()
    }

    const IMMEDIATE: &str = "<allocation mode='immediate'/>";

    #[test]
    fn what_a_device_may_hold_is_counted_whichever_way_it_changes() {
        let found = domain(IMMEDIATE, 2, &[(512, 256), (256, 512), (128, 128)]);
        let seen = found.devices.iter().map(|device| {
            let Device { max_bytes, size_bytes, requested_bytes, set_aside_bytes } =
                counted(device);
            [max_bytes, size_bytes, requested_bytes, set_aside_bytes].map(|bytes| bytes / MIB)
        });
        let expected = [[1024, 512, 256, 512], [1024, 256, 512, 512], [1024, 128, 128, 128]];
        assert!(seen.eq(expected));
    }

    #[test]
    fn a_domain_that_cant_be_resized_without_harm_is_refused() {
        let check = |found: &Description| check("vm", "web", found, 128 * MIB);
        assert!(check(&domain(IMMEDIATE, 2, &[(0, 0); 2])).is_ok());
        assert!(check(&domain("<hugepages/>", 128, &[(0, 0)])).is_ok());
        let most = usize::from(DEVICES_MAX);
        assert!(check(&domain(IMMEDIATE, 2, &vec![(0, 0); most])).is_ok());
        for (found, why) in [
            (domain(IMMEDIATE, 2, &[]), "has 0 virtio-mem devices"),
            (domain(IMMEDIATE, 2, &vec![(0, 0); most + 1]), "virtio-mem devices"),
            (domain("", 2, &[(0, 0)]), "lacks <allocation mode='immediate'/>"),
            (domain(IMMEDIATE, 256, &[(0, 0)]), "has blocks of 256.0 MiB"),
            (domain(IMMEDIATE, 0, &[(0, 0)]), "has blocks of 0"),
        ] {
            let error = check(&found).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}
