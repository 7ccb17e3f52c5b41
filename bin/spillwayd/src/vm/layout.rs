//! Where a guest's boot memory lies: guest-physical addresses, and offsets in the file that QEMU maps.

/// What a guest-physical address maps: the memory's name, and its address in QEMU.
type Found = Option<(String, u64)>;

/// RAM that does not fit below the devices continues here.
const ABOVE_DEVICES: u64 = 4 << 30;
/// Windows and pieces consist of pages of this size.
const PAGE_BYTES: u64 = 2 << 20;
/// An address that is RAM on every machine, above what firmware remaps.
const LOW: u64 = PAGE_BYTES;

/// The boot memory of a guest: one piece from address 0, and the rest from 4 GiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    boot_bytes: u64,
    low_bytes: u64,
}

impl Layout {
    /// Finds the layout by querying QEMU for a few addresses. `name` is the boot memory's.
    ///
    /// # Errors
    /// `ask` fails, or the memory lies elsewhere.
    pub fn find<E: std::fmt::Display>(
        name: &str,
        boot_bytes: u64,
        mut ask: impl FnMut(u64) -> Result<Found, E>,
    ) -> Result<Self, String> {
        let mut at = |address: u64| match ask(address) {
            Ok(Some((known, host))) if known == name => Ok(Some(host)),
            Ok(_) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let base = at(LOW)?.ok_or("the VM's boot memory is not at the expected address")? - LOW;
        let low_bytes = match at(ABOVE_DEVICES)? {
            Some(host) => host.wrapping_sub(base),
            None => boot_bytes,
        };
        let layout = Self { boot_bytes, low_bytes };
        let last =
            |end: u64| end.checked_sub(PAGE_BYTES).filter(|_| end.is_multiple_of(PAGE_BYTES));
        let ends = [Some(low_bytes), Some(ABOVE_DEVICES + boot_bytes.wrapping_sub(low_bytes))];
        let pieces = if low_bytes == boot_bytes { 1 } else { 2 };
        for end in ends.into_iter().take(pieces) {
            let page =
                end.and_then(last).ok_or("the VM's boot memory is not a whole number of pages")?;
            let offset = layout.offset(page);
            if offset.is_none() || at(page)?.map(|host| host.wrapping_sub(base)) != offset {
                return Err("the VM's boot memory has an unknown layout".into());
            }
        }
        Ok(layout)
    }

    /// The offset in the file of a page of 2 MiB; none if it does not lie in the boot memory.
    pub fn offset(&self, address: u64) -> Option<u64> {
        let Self { boot_bytes, low_bytes } = *self;
        let fits = |start: u64, bytes: u64| {
            let at = address.checked_sub(start)?;
            let is_page = at.is_multiple_of(PAGE_BYTES) && bytes >= PAGE_BYTES;
            (is_page && at <= bytes - PAGE_BYTES).then_some(at)
        };
        let high_bytes = boot_bytes.checked_sub(low_bytes)?;
        let high = || fits(ABOVE_DEVICES, high_bytes).map(|at| low_bytes + at);
        fits(0, low_bytes.min(ABOVE_DEVICES)).or_else(high)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;
    const HOST: u64 = 0x7f00_0000_0000;

    /// QEMU with so much boot memory, of which so much lies below the devices, and hot-plugged memory behind it.
    fn machine(boot: u64, low: u64) -> impl FnMut(u64) -> Result<Found, String> {
        move |address| {
            let offset = match address {
                _ if address < low => address,
                _ if address >= ABOVE_DEVICES && address - ABOVE_DEVICES < boot - low => {
                    low + address - ABOVE_DEVICES
                }
                _ if address >= ABOVE_DEVICES + boot - low => {
                    return Ok(Some(("spillway-mem1".into(), 7)));
                }
                _ => return Ok(None),
            };
            Ok(Some(("boot".into(), HOST + offset)))
        }
    }

    #[test]
    fn addresses_are_found_on_either_side_of_the_devices() {
        for (boot, low) in [
            (GIB / 2, GIB / 2),
            (3 * GIB, 3 * GIB),
            (5 * GIB, 3 * GIB),
            (5 * GIB, 2 * GIB),
            (4 * GIB, 0xe000_0000),
        ] {
            let layout = Layout::find("boot", boot, machine(boot, low)).unwrap();
            let mut ask = machine(boot, low);
            let mut found = 0;
            for page in 0..(ABOVE_DEVICES + boot + GIB) / PAGE_BYTES {
                let address = page * PAGE_BYTES;
                let known = ask(address).unwrap().filter(|(name, _)| name == "boot");
                let offset = known.map(|(_, host)| host - HOST);
                assert_eq!(layout.offset(address), offset, "{boot} {low} {address:#x}");
                found += u64::from(offset.is_some());
            }
            assert_eq!(found, boot / PAGE_BYTES);
            for address in [PAGE_BYTES - 1, 4096, u64::MAX, u64::MAX - PAGE_BYTES + 1] {
                assert_eq!(layout.offset(address), None);
            }
        }
    }

    #[test]
    fn memory_that_lies_elsewhere_is_not_guessed_at() {
        // As QEMU lays it out around what some processors keep below 1 TiB.
        let mut ask = |address: u64| {
            Ok::<_, String>((address < 3 * GIB).then(|| ("boot".to_owned(), HOST + address)))
        };
        assert!(Layout::find("boot", 5 * GIB, &mut ask).is_err());
        assert!(Layout::find("other", 2 * GIB, &mut ask).is_err());
        assert!(Layout::find("boot", GIB + 4096, machine(GIB, GIB)).is_err());
        assert!(Layout::find("boot", GIB, |_| Err::<Found, _>("gone")).is_err());
    }
}
