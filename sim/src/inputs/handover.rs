//! Messages of monitors that hand guest memory over.

use spillway_guest_memory::{Handshake, Layout};

use super::Source;

/// Cloud Hypervisor's text, after a byte with the number and size of the files.
pub fn cloud_hypervisor(bytes: &[u8]) {
    let mut source = Source(bytes);
    let choice = source.byte();
    let files = vec![4096_u64 << (choice >> 3); usize::from(choice & 7)];
    read(Handshake::CloudHypervisor, source.0, &files);
}

/// Firecracker's text, after a byte with the size of the memory file.
pub fn firecracker(bytes: &[u8]) {
    let mut source = Source(bytes);
    let length = 4096_u64 << (source.byte() & 31);
    read(Handshake::Firecracker, source.0, &[length]);
}

/// Whatever the text says: accepted regions lie within the files, and addresses are found again.
fn read(handshake: Handshake, text: &[u8], files: &[u64]) {
    let Ok(Some(claimed)) = handshake.decode(text, files.len()) else { return };
    let Ok(layout) = Layout::check(&claimed, files, handshake.pages_out()) else { return };
    let unit = layout.unit_bytes();
    let mut units = 0;
    for region in layout.regions() {
        let end = region.address.checked_add(region.bytes).expect("no region wraps");
        assert!(region.offset + region.bytes <= files[region.file]);
        let last = region.first + region.bytes / unit - 1;
        assert_eq!(layout.unit_of(region.address), Some(region.first));
        assert_eq!(layout.unit_of(end - 1), Some(last));
        assert_eq!(layout.locate(last), (region, region.bytes - unit));
        units += region.bytes / unit;
    }
    assert_eq!(units, layout.units());
    for pair in layout.regions().windows(2) {
        assert!(pair[0].address + pair[0].bytes <= pair[1].address);
    }
}
