//! QEMU's monitor for the driver: the VM's identity, memory and requested size.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use spillway_guests::{Device, Facts};
use spillway_qmp::{Error, MemoryDevice, Monitor, NewDevice};
use spillway_sections::{DEVICES_MAX, GuestFile, Pool};

use crate::vm::layout::Layout;
use crate::vm::options::{BOOT, SLOTS, backend_id, device_id};

/// How long QEMU may take to answer.
const ANSWER: Duration = Duration::from_secs(5);

/// A monitor whose VM was identified.
pub struct Attached {
    pub monitor: Monitor,
    /// The ids of its devices, in the order in which they are filled, and the file of each.
    devices: Vec<(String, u8)>,
    /// The capacity of each, bytes.
    max_bytes: Vec<u64>,
}

impl Attached {
    /// Connects, and reads the VM's memory devices.
    ///
    /// # Errors
    /// The monitor does not answer; it is another VM's; or the VM can't be resized: the line names what it needs.
    pub fn connect(name: &str, path: &Path, pool: &Pool) -> anyhow::Result<(Self, Facts)> {
        let monitor = Monitor::connect(path, deadline())?;
        let mut attached = Self { monitor, devices: Vec::new(), max_bytes: Vec::new() };
        let facts = attached.read(name, pool)?;
        Ok((attached, facts))
    }

    fn read(&mut self, name: &str, pool: &Pool) -> anyhow::Result<Facts> {
        let listed = self.monitor.memory_devices(deadline())?;
        if listed.is_empty() {
            if self.monitor.machine(deadline())?.starts_with("microvm") {
                bail!(
                    "the VM is a microvm, which does not support virtio-mem: start it with -machine pc or q35"
                );
            }
            bail!(
                "the VM has no virtio-mem device: it needs -m with maxmem=, -object memory-backend-file and -device \
                 virtio-mem-pci, as `spillway vm args {name}` prints them"
            );
        }
        self.devices.clear();
        for device in &listed {
            let identified = identify(name, &mut self.monitor, device, pool)?;
            self.devices.push(identified);
        }
        self.devices.sort_by_key(|&(_, file)| file);
        let boot_bytes = self.monitor.memory_size(deadline())?.base_bytes;
        let devices = self.facts(name, pool, &listed)?;
        self.max_bytes = devices.iter().map(|device| device.max_bytes).collect();
        // From now on only events report a reset. The state read below covers earlier ones.
        let _ = self.monitor.events();
        Ok(Facts { boot_bytes, devices })
    }

    /// Adds an empty device of this many bytes to the VM, and reads the VM again.
    ///
    /// # Errors
    /// QEMU refuses because it has no slot or no addresses left. Nothing has changed then.
    pub fn add_device(&mut self, name: &str, pool: &Pool, bytes: u64) -> anyhow::Result<Facts> {
        let is_q35 = self.monitor.machine(deadline())?.contains("q35");
        if is_q35 && self.monitor.acpi(deadline())? == "off" {
            // Linux hangs when a device is added (6.1, QEMU 7.2), behind a bridge and behind a root
            // port.
            bail!("a q35 machine without ACPI can't get a further device");
        }
        let number = self.devices.last().map_or(0, |&(_, file)| file) + 1;
        let file = GuestFile::Device(number);
        if pool.usage().guests.get(name).is_some_and(|it| it.devices.contains_key(&number)) {
            // An earlier attempt was not completed.
            pool.remove_device(name, number)?;
        }
        let path = pool.create(name, file, bytes)?;
        let device = NewDevice {
            id: &device_id(number),
            memdev: &backend_id(number),
            path: &path,
            bytes,
            block_bytes: pool.section_bytes(),
            bus: SLOTS,
            slot: number - 1,
            node: 0,
        };
        if let Err(error) = self.monitor.add_device(&device, deadline()) {
            // If the reply timed out, QEMU may still have the device: keep the file.
            let _ = pool.remove_device(name, number);
            return Err(error.into());
        }
        self.read(name, pool)
    }

    fn facts(
        &mut self,
        name: &str,
        pool: &Pool,
        listed: &[MemoryDevice],
    ) -> anyhow::Result<Vec<Device>> {
        let usage = pool.usage();
        let guest = usage.guests.get(name);
        let find = |(id, file): &(String, u8)| {
            let device = listed.iter().find(|device| device.id.as_ref() == Some(id))?;
            let set_aside = guest.and_then(|guest| guest.devices.get(file));
            Some(Device {
                max_bytes: device.max_bytes,
                size_bytes: device.size_bytes,
                requested_bytes: device.requested_bytes,
                set_aside_bytes: set_aside.map_or(0, |device| device.set_aside_bytes),
            })
        };
        let found: Option<Vec<_>> = self.devices.iter().map(find).collect();
        found.context("a virtio-mem device is gone")
    }

    /// Prepares the VM for windows, wherever they lie.
    ///
    /// # Errors
    /// It can have none, or the monitor does not answer.
    pub fn prepare_windows(&mut self) -> Result<(), String> {
        // The guest could make QEMU discard a page that the daemon has mapped. Touching it then raises SIGBUS.
        if self.monitor.has_balloon(deadline()).map_err(|error| error.to_string())? {
            return Err("it has a balloon: start it without one".into());
        }
        // During a migration QEMU does not see what the host writes.
        self.monitor.tell_migration(deadline()).map_err(|error| error.to_string())
    }

    /// Where the guest's boot memory lies, if it is the pool's file.
    ///
    /// # Errors
    /// It is not, or the monitor does not report it.
    pub fn layout(&mut self, name: &str, pool: &Pool, boot_bytes: u64) -> Result<Layout, String> {
        let backend = self.monitor.backend(BOOT, deadline()).map_err(|error| error.to_string())?;
        let path = pool.path(name, GuestFile::Boot).map_err(|error| error.to_string())?;
        if backend.path != Some(path) || !backend.share {
            return Err(format!(
                "its boot memory differs from what `spillway vm args {name}` prints"
            ));
        }
        Layout::find(BOOT, boot_bytes, |address| self.monitor.host_address(address, deadline()))
    }

    /// The size and requested size of each device, bytes.
    ///
    /// # Errors
    /// The monitor does not answer.
    pub fn sizes(&mut self) -> Result<Vec<(u64, u64)>, Error> {
        let listed = self.monitor.memory_devices(deadline())?;
        let find = |(id, _): &(String, u8)| {
            let device = listed.iter().find(|device| device.id.as_ref() == Some(id));
            device.map_or((0, 0), |device| (device.size_bytes, device.requested_bytes))
        };
        Ok(self.devices.iter().map(find).collect())
    }

    /// Requests a size of a device from the guest.
    ///
    /// # Errors
    /// The monitor does not answer, or refuses.
    pub fn request(&mut self, device: usize, bytes: u64) -> Result<(), Error> {
        let Some((id, _)) = self.devices.get(device) else { return Ok(()) };
        self.monitor.set_requested_size(id, bytes, deadline())
    }

    /// The capacity of a device, bytes.
    pub fn max_bytes(&self, device: usize) -> u64 {
        self.max_bytes.get(device).copied().unwrap_or_default()
    }

    /// The pool's file of a device.
    pub fn file(&self, device: usize) -> u8 {
        self.devices.get(device).map_or(0, |&(_, file)| file)
    }
}

/// Finds which file of the pool a device maps, and checks QEMU's options for it.
fn identify(
    name: &str,
    monitor: &mut Monitor,
    device: &MemoryDevice,
    pool: &Pool,
) -> anyhow::Result<(String, u8)> {
    let options = format!("start the VM with the options that `spillway vm args {name}` prints");
    let Some(id) = &device.id else {
        bail!("a virtio-mem device has no id: {options}");
    };
    let backend = monitor.backend(&device.memdev, deadline())?;
    let path = backend.path.unwrap_or_default();
    let own = |file: &u8| pool.path(name, GuestFile::Device(*file)).is_ok_and(|own| own == path);
    let Some(file) = (1..=DEVICES_MAX).find(own) else {
        bail!(
            "device {id} of the VM has its memory in {}, which does not belong to vm '{name}': {options}, or set the right monitor socket",
            if path.as_os_str().is_empty() { "no file".into() } else { path.display().to_string() },
        );
    };
    if !backend.share {
        bail!("the memory of device {id} lacks share=on: {options}");
    }
    if !monitor.device_prealloc(id, deadline())? {
        // QEMU would be killed if the pool ran out of memory.
        bail!("device {id} lacks prealloc=on: {options}");
    }
    Ok((id.clone(), file))
}

fn deadline() -> Instant {
    Instant::now() + ANSWER
}

#[cfg(test)]
mod tests;
