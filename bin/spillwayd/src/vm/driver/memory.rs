//! Work on the pool beside orders: ready memory, further devices, and the memory of VMs that have ended.

use anyhow::Context;
use spillway_guests::{Event, View};

use super::Driver;
use crate::config::Way;
use crate::vm::attached::Attached;
use crate::vm::shared::Memory;

impl Driver {
    /// Finds where the memory lies in which windows may be.
    pub(super) fn find_memory(&self, attached: &mut Attached, boot_bytes: u64) {
        let Some(windows) = &self.shared.windows else { return };
        let name = &self.shared.name;
        let prepared = attached.prepare_windows();
        let is_prepared = prepared.is_ok();
        let boot = prepared.and_then(|()| attached.layout(name, &self.shared.pool, boot_bytes));
        match &boot {
            Ok(_) => {}
            Err(why) if is_prepared && windows.device.is_some() => {
                tracing::warn!(
                    "vm {name}: its programs get windows in its ivshmem device only: {why}"
                );
            }
            Err(why) => tracing::warn!("vm {name}: its programs get no windows: {why}"),
        }
        windows.renew(is_prepared.then(|| Memory { boot: boot.ok() }));
    }

    /// Memory that the VM had when the configuration used the other interface: files of the pool under QEMU, accounts
    /// under libvirt.
    pub(super) fn forget_other_way(&self) -> anyhow::Result<()> {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        let Way::Libvirt { .. } = self.shared.way else { return Ok(pool.forget_counted(name)?) };
        let bytes = pool.clear_held(name).with_context(|| {
            format!("vm '{name}' is a libvirt domain now: its former QEMU must end first")
        })?;
        if bytes > 0 {
            let size = spillway_types::Size(bytes);
            tracing::info!(
                "vm {name}: it is a libvirt domain now; {size} of the former QEMU are free"
            );
        }
        Ok(())
    }

    /// Returns memory of an ended VM beyond its boot memory to the pool.
    pub(super) fn take_back(&self) {
        let (name, pool) = (&self.shared.name, &self.shared.pool);
        // Memory of libvirt domains is not taken here: libvirt reports when a domain has ended.
        let Way::Monitor(_) = self.shared.way else { return };
        let usage = pool.usage();
        let devices = usage.guests.get(name).map(|guest| guest.devices.values());
        if devices.into_iter().flatten().all(|it| it.set_aside_bytes + it.ready_bytes == 0) {
            return;
        }
        match pool.empty_devices(name) {
            Ok(bytes) => {
                let size = spillway_types::Size(bytes);
                tracing::info!("vm {name}: it has ended; {size} of it are free");
            }
            // It runs; only its monitor is out of reach.
            Err(spillway_sections::Error::InUse { .. }) => {}
            Err(error) => tracing::error!("vm {name}: can't take its memory back: {error}"),
        }
    }

    /// Adds a device to an idle guest that may grow beyond its devices. What QEMU refused is not tried again until
    /// another size is wanted.
    pub(super) fn widen(&mut self) {
        let lacks = self.shared.guest().lacks_bytes();
        let Some(attached) = &mut self.attached else { return };
        if lacks == 0 || lacks == self.refused_bytes {
            return;
        }
        self.refused_bytes = lacks;
        let name = &self.shared.name;
        match attached.add_device(name, &self.shared.pool, lacks) {
            Ok(None) => {}
            Ok(Some(facts)) => {
                let more = spillway_types::Size(lacks);
                tracing::info!("vm {name}: it has a further device, of {more}");
                self.tell(Event::Attached(facts));
                // The same amount may be wanted again.
                if self.shared.guest().lacks_bytes() == 0 {
                    self.refused_bytes = 0;
                }
            }
            Err(error) => self.note_problem(format!(
                "it can't become larger while it runs: {error}; start it with the options that `spillway vm args {name}` prints now"
            )),
        }
    }

    /// While the guest is idle, prepares memory for its next growth, in the first device with free space.
    pub(super) fn keep_ready(&mut self, sizes: &[(u64, u64)]) {
        // The memory of libvirt domains is not in the pool's files.
        let Some(Attached::Monitor(attached)) = &self.attached else { return };
        let view = self.shared.guest().view();
        let ready_bytes = self.shared.notes().ready_bytes;
        let max_bytes = |device| attached.max_bytes(device);
        let Some(shares) = to_lie_ready(ready_bytes, &view, sizes, max_bytes) else { return };
        for (device, (&(size, _), bytes)) in sizes.iter().zip(shares).enumerate() {
            let kept =
                self.shared.pool.keep_ready(&self.shared.name, attached.file(device), size, bytes);
            match kept {
                // Handles new orders in between.
                Ok(true) => self.read_at_us = 0,
                Ok(false) => {}
                Err(error) => return self.note_problem(error.to_string()),
            }
        }
    }
}

/// Bytes to prepare for each device: only for the device that grows next, and no more than the guest may still get.
/// None while the guest's size changes, by an order or by its own request.
pub(super) fn to_lie_ready(
    ready_bytes: u64,
    view: &View,
    sizes: &[(u64, u64)],
    max_bytes: impl Fn(usize) -> u64,
) -> Option<Vec<u64>> {
    if view.aim_bytes.is_some() || sizes.iter().any(|(size, requested)| size != requested) {
        return None;
    }
    let growth = view.ceiling_bytes.saturating_sub(view.size_bytes.unwrap_or_default());
    let mut shares = vec![0; sizes.len()];
    let first = sizes.iter().enumerate().position(|(at, &(size, _))| size < max_bytes(at));
    if let Some(share) = first.and_then(|first| shares.get_mut(first)) {
        *share = ready_bytes.min(growth);
    }
    Some(shares)
}
