//! Checks whether an order can be executed, from the guest's known state.

use spillway_types::Size;

use crate::agent::Profile;
use crate::plan::{aim, spread};
use crate::settings::{DESCRIPTORS_PART, GROWTH_MAX, KERNEL_FREE_MIN_BYTES};
use crate::{Guest, Order};

impl Guest {
    /// The guest's present size, the aim, and the aim of each device.
    pub(crate) fn plan(&self, order: &Order) -> Result<(u64, u64, Vec<u64>), String> {
        let facts = self.facts.as_ref().ok_or("the VM's monitor is out of reach")?;
        let (size, section) = (facts.size_bytes(), self.settings.section_bytes);
        let least = self.settings.least_bytes.max(facts.boot_bytes);
        if order.to_bytes < least {
            let (to, least) = (Size(order.to_bytes), Size(least));
            return Err(format!("{to} is less than the guest's least, {least}"));
        }
        let to_bytes = aim(size, order.to_bytes, section);
        let ceiling = self.ceiling_bytes(facts);
        if to_bytes > ceiling && to_bytes > size {
            return Err(format!(
                "{} is more than the guest can have, {}: the least of `most`, {GROWTH_MAX} times the memory that it booted \
                 with (profile returns-all), and what its devices hold",
                Size(to_bytes),
                Size(ceiling)
            ));
        }
        let plugged = to_bytes - facts.boot_bytes;
        let to =
            spread(&facts.devices, plugged).ok_or("the guest's devices do not hold so much")?;
        Ok((size, to_bytes, to))
    }

    /// Checks the guest's report for a change from one size to another.
    pub(crate) fn check(
        &self,
        order: &Order,
        from_bytes: u64,
        to_bytes: u64,
    ) -> Result<(), String> {
        if to_bytes > from_bytes {
            return self.check_descriptors(to_bytes - from_bytes);
        }
        let is_free = order.force || to_bytes == from_bytes;
        if is_free { Ok(()) } else { self.check_room(from_bytes - to_bytes) }
    }

    /// A guest that is too full would stop halfway, with almost nothing left for its programs.
    fn check_room(&self, less_bytes: u64) -> Result<(), String> {
        let (Some(agent), Some(facts)) = (&self.agent, &self.facts) else { return Ok(()) };
        let Some(status) = agent.status else { return Ok(()) };
        // Accounts for memory that the guest got or lost since its report.
        let since = status.available_bytes + facts.size_bytes();
        let available = since.saturating_sub(agent.status_size_bytes());
        let reserve = self.settings.reserve_bytes;
        if available.saturating_sub(less_bytes) < reserve {
            return Err(format!(
                "{} is available in the guest: {} less would leave it below its reserve, {} (--force shrinks it all the \
                 same)",
                Size(available),
                Size(less_bytes),
                Size(reserve)
            ));
        }
        Ok(())
    }

    /// If all new memory is movable, the kernel's zones must hold the descriptors of its pages.
    fn check_descriptors(&self, more_bytes: u64) -> Result<(), String> {
        let Some(status) = self.agent.as_ref().and_then(|agent| agent.status) else {
            return Ok(());
        };
        let (free, needed) = (status.kernel_free_bytes, more_bytes / DESCRIPTORS_PART);
        // A full guest keeps little memory free; its kernel reclaims memory for each section's
        // descriptors as needed.
        let room = (free / 2).max(free.saturating_sub(KERNEL_FREE_MIN_BYTES));
        if self.settings.profile == Profile::ReturnsAll && needed > room {
            return Err(format!(
                "{} is free in the zones of the guest's kernel, and {} more would take {} of it for page descriptors: boot \
                 the guest with more memory, or use profile grows-far",
                Size(free),
                Size(more_bytes),
                Size(needed)
            ));
        }
        Ok(())
    }
}
