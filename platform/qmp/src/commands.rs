//! The commands that resizing a guest needs.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::Error;
use crate::monitor::Monitor;

/// Paths of QEMU's backends, and of devices that have an id.
const OBJECTS: &str = "/objects/";
const PERIPHERAL: &str = "/machine/peripheral/";

/// Whether the VM runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct RunState {
    /// The virtual CPUs run.
    pub running: bool,
    /// QEMU's name for the state: `running`, `paused`, `inmigrate`, `shutdown`...
    #[serde(rename = "status")]
    pub state: String,
}

/// The VM's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct MemorySize {
    /// Its memory at boot, bytes.
    #[serde(rename = "base-memory")]
    pub base_bytes: u64,
    /// Memory of DIMMs and virtio-mem devices, bytes.
    #[serde(default, rename = "plugged-memory")]
    pub plugged_bytes: u64,
}

/// A virtio-mem device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct MemoryDevice {
    /// Its id. None if QEMU's command line gave it none; then it can't be resized.
    pub id: Option<String>,
    /// Its backend's id.
    pub memdev: String,
    /// Its NUMA node.
    pub node: u64,
    /// The size that the guest has plugged.
    #[serde(rename = "size")]
    pub size_bytes: u64,
    /// The size requested from the guest.
    #[serde(rename = "requested-size")]
    pub requested_bytes: u64,
    /// The most that it can have.
    #[serde(rename = "max-size")]
    pub max_bytes: u64,
    /// Sizes are multiples of this.
    #[serde(rename = "block-size")]
    pub block_bytes: u64,
}

/// The memory backend of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// `memory-backend-file`, `memory-backend-memfd`, `memory-backend-ram`.
    pub kind: String,
    /// The file of a `memory-backend-file`.
    pub path: Option<PathBuf>,
    /// Its size.
    pub size_bytes: u64,
    /// Whether the guest's writes go to the file.
    pub share: bool,
    /// Whether all of it was allocated at the start.
    pub prealloc: bool,
}

/// A virtio-mem device to be added, empty.
#[derive(Clone, Copy, Debug)]
pub struct NewDevice<'a> {
    /// Its id.
    pub id: &'a str,
    /// Its backend's id.
    pub memdev: &'a str,
    /// The backend's file, of at least `bytes`.
    pub path: &'a Path,
    /// The most that it can have.
    pub bytes: u64,
    /// Sizes are multiples of this.
    pub block_bytes: u64,
    /// A PCI bus that takes devices while the VM runs: a bridge's id, or `pci.0`.
    pub bus: &'a str,
    /// A free slot there.
    pub slot: u8,
    /// Its NUMA node.
    pub node: u64,
}

impl Monitor {
    /// The VM's name (`-name`).
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn vm_name(&mut self, deadline: Instant) -> Result<Option<String>, Error> {
        #[derive(Deserialize)]
        struct Name {
            name: Option<String>,
        }
        Ok(self.ask::<Name>("query-name", Value::Null, deadline)?.name)
    }

    /// The VM's UUID (`-uuid`); all zeros without one.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn vm_uuid(&mut self, deadline: Instant) -> Result<String, Error> {
        #[derive(Deserialize)]
        struct Uuid {
            #[serde(rename = "UUID")]
            uuid: String,
        }
        Ok(self.ask::<Uuid>("query-uuid", Value::Null, deadline)?.uuid)
    }

    /// Whether the VM runs.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn status(&mut self, deadline: Instant) -> Result<RunState, Error> {
        self.ask("query-status", Value::Null, deadline)
    }

    /// The amount of memory of the VM.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn memory_size(&mut self, deadline: Instant) -> Result<MemorySize, Error> {
        self.ask("query-memory-size-summary", Value::Null, deadline)
    }

    /// The virtio-mem devices. DIMMs and other kinds are left out.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn memory_devices(&mut self, deadline: Instant) -> Result<Vec<MemoryDevice>, Error> {
        #[derive(Deserialize)]
        struct Entry {
            #[serde(rename = "type")]
            kind: String,
            data: Value,
        }
        let command = "query-memory-devices";
        let entries: Vec<Entry> = self.ask(command, Value::Null, deadline)?;
        let ours = entries.into_iter().filter(|entry| entry.kind == "virtio-mem");
        ours.map(|entry| {
            let mut device: MemoryDevice = self.check(|_| read(command, entry.data))?;
            if let Some(id) = device.memdev.strip_prefix(OBJECTS) {
                device.memdev = id.to_owned();
            }
            Ok(device)
        })
        .collect()
    }

    /// Requests that the guest plug `bytes` of a device. The guest does so over time: see [`Self::size`].
    ///
    /// # Errors
    /// Those of [`Self::execute`]. QEMU refuses a size that is not a multiple of the block size or above the device's
    /// largest size.
    pub fn set_requested_size(
        &mut self,
        id: &str,
        bytes: u64,
        deadline: Instant,
    ) -> Result<(), Error> {
        let path = format!("{PERIPHERAL}{id}");
        let arguments = json!({ "path": path, "property": "requested-size", "value": bytes });
        self.execute("qom-set", arguments, deadline).map(drop)
    }

    /// The size of a device that the guest has plugged, bytes.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn size(&mut self, id: &str, deadline: Instant) -> Result<u64, Error> {
        self.property(&format!("{PERIPHERAL}{id}"), "size", deadline)
    }

    /// Whether a device allocates memory before the guest gets it (`prealloc=on`). Without it, an exhausted pool kills
    /// QEMU by SIGBUS.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn device_prealloc(&mut self, id: &str, deadline: Instant) -> Result<bool, Error> {
        self.property(&format!("{PERIPHERAL}{id}"), "prealloc", deadline)
    }

    /// A backend, by its id.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn backend(&mut self, memdev: &str, deadline: Instant) -> Result<Backend, Error> {
        let object = format!("{OBJECTS}{memdev}");
        let kind: String = self.property(&object, "type", deadline)?;
        let path = match kind.as_str() {
            "memory-backend-file" => Some(self.property(&object, "mem-path", deadline)?),
            _ => None,
        };
        Ok(Backend {
            path,
            kind,
            size_bytes: self.property(&object, "size", deadline)?,
            share: self.property(&object, "share", deadline)?,
            prealloc: self.property(&object, "prealloc", deadline)?,
        })
    }

    /// The machine that QEMU emulates, such as `pc-q35-7.2-machine`.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn machine(&mut self, deadline: Instant) -> Result<String, Error> {
        self.property("/machine", "type", deadline)
    }

    /// Whether the machine has ACPI: `on`, `off` or `auto`, which is on.
    ///
    /// # Errors
    /// Those of [`Self::execute`]. QEMU refuses for a machine type without ACPI.
    pub fn acpi(&mut self, deadline: Instant) -> Result<String, Error> {
        self.property("/machine", "acpi", deadline)
    }

    /// Adds a virtio-mem device over a file. If the device is refused, removes the backend again.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn add_device(&mut self, device: &NewDevice<'_>, deadline: Instant) -> Result<(), Error> {
        let path = device.path.to_str().ok_or_else(|| Error::Refused {
            command: "object-add".to_owned(),
            class: "GenericError".to_owned(),
            text: "the path is not UTF-8".to_owned(),
        })?;
        let backend = json!({
            "qom-type": "memory-backend-file", "id": device.memdev, "mem-path": path,
            // The file's owner allocates the range in use; QEMU itself reserves nothing.
            "size": device.bytes, "share": true, "prealloc": false, "reserve": false,
        });
        let virtio_mem = json!({
            "driver": "virtio-mem-pci", "id": device.id, "memdev": device.memdev,
            "bus": device.bus, "addr": device.slot.to_string(), "node": device.node, "block-size": device.block_bytes,
            "requested-size": 0, "prealloc": true,
        });
        self.execute("object-add", backend, deadline)?;
        let added = self.execute("device_add", virtio_mem, deadline);
        if matches!(added, Err(Error::Refused { .. })) {
            self.execute("object-del", json!({ "id": device.memdev }), deadline)?;
        }
        added.map(drop)
    }

    /// Whether the VM has a balloon, through which its guest can discard pages of any memory.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn has_balloon(&mut self, deadline: Instant) -> Result<bool, Error> {
        match self.execute("query-balloon", Value::Null, deadline) {
            Ok(_) => Ok(true),
            Err(Error::Refused { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes QEMU send [`crate::Event::Migration`] from now on.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn tell_migration(&mut self, deadline: Instant) -> Result<(), Error> {
        let events = json!({ "capabilities": [{ "capability": "events", "state": true }] });
        self.execute("migrate-set-capabilities", events, deadline).map(drop)
    }

    /// The mapping of a guest-physical address: the name of the memory, which is its backend's id, and the virtual
    /// address in QEMU. None if there is no RAM at the address.
    ///
    /// # Errors
    /// Those of [`Self::execute`].
    pub fn host_address(
        &mut self,
        guest_address: u64,
        deadline: Instant,
    ) -> Result<Option<(String, u64)>, Error> {
        let line = format!("gpa2hva {guest_address:#x}");
        let arguments = json!({ "command-line": line });
        let text: String = self.ask("human-monitor-command", arguments, deadline)?;
        Ok(read_host_address(&text))
    }

    fn property<T: DeserializeOwned>(
        &mut self,
        path: &str,
        property: &str,
        deadline: Instant,
    ) -> Result<T, Error> {
        self.ask("qom-get", json!({ "path": path, "property": property }), deadline)
    }

    fn ask<T: DeserializeOwned>(
        &mut self,
        command: &str,
        arguments: Value,
        deadline: Instant,
    ) -> Result<T, Error> {
        let answer = self.execute(command, arguments, deadline)?;
        self.check(|_| read(command, answer))
    }
}

/// Parses `Host virtual address for 0x100000 (NAME) is 0x7f5c7be00000`. Any other text means that there is no RAM.
fn read_host_address(text: &str) -> Option<(String, u64)> {
    let (before, address) = text.trim().rsplit_once(") is 0x")?;
    let (_, name) = before.split_once(" (")?;
    Some((name.to_owned(), u64::from_str_radix(address, 16).ok()?))
}

/// Decodes a command's answer.
fn read<T: DeserializeOwned>(command: &str, answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|error| Error::garbage(format!("{command}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_address_is_read_or_there_is_none() {
        let text = "Host virtual address for 0x100000 (boot (1)) is 0x7f5c7be00000\r\n";
        let boot = ("boot (1)".to_owned(), 0x7f5c_7be0_0000);
        assert_eq!(read_host_address(text), Some(boot));
        for none in
            ["", "No memory is mapped at address 0x100000000", "x (y) is 0x", "x (y) is 0xg"]
        {
            assert_eq!(read_host_address(none), None, "{none}");
        }
    }
}
