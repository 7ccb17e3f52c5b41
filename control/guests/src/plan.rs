//! Computes sizes: rounds an order, and distributes a size over the devices.

use crate::Device;

/// The aim of an order from `size_bytes` to `to_bytes`. The difference is rounded up to sections when the guest grows,
/// and down when it shrinks (section III-A of the paper).
pub(crate) fn aim(size_bytes: u64, to_bytes: u64, section_bytes: u64) -> u64 {
    if to_bytes >= size_bytes {
        size_bytes + (to_bytes - size_bytes).next_multiple_of(section_bytes)
    } else {
        size_bytes - (size_bytes - to_bytes) / section_bytes * section_bytes
    }
}

/// The size of each device for `bytes` in all: the first devices are filled first and emptied last. None if they
/// can't hold that much.
pub(crate) fn spread(devices: &[Device], bytes: u64) -> Option<Vec<u64>> {
    let now: u64 = devices.iter().map(|device| device.size_bytes).sum();
    let mut sizes: Vec<u64> = devices.iter().map(|device| device.size_bytes).collect();
    if bytes >= now {
        let mut more = bytes - now;
        for (size, device) in sizes.iter_mut().zip(devices) {
            let step = more.min(device.max_bytes.saturating_sub(*size));
            *size += step;
            more -= step;
        }
        (more == 0).then_some(sizes)
    } else {
        let mut less = now - bytes;
        for size in sizes.iter_mut().rev() {
            let step = less.min(*size);
            *size -= step;
            less -= step;
        }
        Some(sizes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 128 << 20;

    #[test]
    fn growth_is_rounded_up_and_shrinking_down() {
        assert_eq!(aim(4 * S, 4 * S + 1, S), 5 * S);
        assert_eq!(aim(4 * S, 6 * S, S), 6 * S);
        assert_eq!(aim(4 * S, 4 * S, S), 4 * S);
        assert_eq!(aim(4 * S, 3 * S + 1, S), 4 * S);
        assert_eq!(aim(4 * S, 3 * S, S), 3 * S);
        assert_eq!(aim(4 * S, 2 * S - 1, S), 2 * S);
        // A guest whose boot memory is not a multiple keeps this offset.
        assert_eq!(aim(4 * S + 7, 5 * S, S), 5 * S + 7);
        assert_eq!(aim(4 * S + 7, 3 * S, S), 3 * S + 7);
    }

    #[test]
    fn front_devices_are_filled_first_and_emptied_last() {
        let device = |size, max| Device { size_bytes: size, max_bytes: max, ..Device::default() };
        let two = [device(S, 4 * S), device(0, 2 * S)];
        assert_eq!(spread(&two, 3 * S), Some(vec![3 * S, 0]));
        assert_eq!(spread(&two, 5 * S), Some(vec![4 * S, S]));
        assert_eq!(spread(&two, 7 * S), None);
        let full = [device(4 * S, 4 * S), device(2 * S, 2 * S)];
        assert_eq!(spread(&full, 5 * S), Some(vec![4 * S, S]));
        assert_eq!(spread(&full, S), Some(vec![S, 0]));
        assert_eq!(spread(&full, 0), Some(vec![0, 0]));
        assert_eq!(spread(&[], 0), Some(vec![]));
        assert_eq!(spread(&[], 1), None);
    }
}
