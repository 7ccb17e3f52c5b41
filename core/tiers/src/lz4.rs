//! Packing of pages with the LZ4 block format, without allocation.

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};
use spillway_types::PAGE_BYTES;

/// The compressor's hash table, 8 KiB. Reused from page to page.
#[derive(Default)]
pub struct Table(CompressTable);

impl core::fmt::Debug for Table {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("Table")
    }
}

/// Room for the packing of any page: the compressor wants it for the worst case.
pub const PACKED_BYTES: usize = get_maximum_output_size(PAGE_BYTES);

/// Packs `page` into `packed`; the packed length.
pub fn pack(page: &[u8; PAGE_BYTES], packed: &mut [u8; PACKED_BYTES], table: &mut Table) -> usize {
    compress_into_with_table(page, packed, &mut table.0).expect("there is room for the worst case")
}

/// Unpacks `packed` into `page`; false when it is not the packing of a page.
#[must_use]
pub fn unpack(packed: &[u8], page: &mut [u8; PAGE_BYTES]) -> bool {
    decompress_into(packed, page).is_ok_and(|length| length == PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unpack_undoes_pack_and_refuses_what_is_cut_short() {
        let mut page = [0; PAGE_BYTES];
        for (at, byte) in page.iter_mut().enumerate() {
            *byte = (at % 61) as u8;
        }
        let mut table = Table::default();
        let mut packed = [0; PACKED_BYTES];
        let length = pack(&page, &mut packed, &mut table);
        assert!(length < PAGE_BYTES / 2);
        let mut back = [0; PAGE_BYTES];
        assert!(unpack(&packed[..length], &mut back));
        assert_eq!(back, page);
        assert!(!unpack(&packed[..length - 1], &mut back));
    }
}
