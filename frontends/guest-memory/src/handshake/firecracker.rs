//! Firecracker's handover when a snapshot is resumed with the userfaultfd backend
//! (docs/snapshotting/handling-page-faults-on-snapshot-resume.md there): a JSON array on a stream socket, with
//! the userfaultfd attached by SCM_RIGHTS. Memory is private, and registered for MISSING only.

use serde::Deserialize;

use super::document;
use crate::{Claimed, Error};

#[derive(Deserialize)]
struct Mapping {
    base_host_virt_addr: u64,
    size: u64,
    /// The offset of its contents in the snapshot's memory file.
    offset: u64,
    page_size: Option<u64>,
    /// The older name. Some versions put KiB here, others bytes in spite of the name.
    page_size_kib: Option<u64>,
}

impl Mapping {
    fn page_bytes(&self) -> u64 {
        match (self.page_size, self.page_size_kib) {
            (Some(bytes), _) => bytes,
            (None, Some(kib)) if kib < 4096 => kib * 1024,
            (None, Some(bytes)) => bytes,
            (None, None) => 4096,
        }
    }
}

pub fn decode(bytes: &[u8]) -> Result<Option<Vec<Claimed>>, Error> {
    let Some(mappings) = document::<Vec<Mapping>>("Firecracker", bytes)? else { return Ok(None) };
    let claim = |mapping: Mapping| Claimed {
        address: mapping.base_host_virt_addr,
        bytes: mapping.size,
        offset: mapping.offset,
        page_bytes: mapping.page_bytes(),
        file: 0,
    };
    Ok(Some(mappings.into_iter().map(claim).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page_bytes(of: &str) -> u64 {
        let text = format!("[{{\"base_host_virt_addr\":4096,\"size\":4096,\"offset\":0{of}}}]");
        decode(text.as_bytes()).unwrap().unwrap()[0].page_bytes
    }

    #[test]
    fn a_mapping_is_read_and_the_rest_is_waited_for() {
        let text = r#"[{"base_host_virt_addr":139637976727552,"size":268435456,"offset":8192,
            "page_size":4096,"page_size_kib":4096}]"#;
        let regions = decode(text.as_bytes()).unwrap().unwrap();
        let expected = Claimed {
            address: 139637976727552,
            bytes: 268435456,
            offset: 8192,
            page_bytes: 4096,
            file: 0,
        };
        assert_eq!(regions, [expected]);
        for end in 0..text.len() {
            assert_eq!(decode(&text.as_bytes()[..end]), Ok(None), "{end}");
        }
    }

    #[test]
    fn page_sizes_of_all_versions_are_understood() {
        for (text, bytes) in [
            ("", 4096),
            (r#","page_size":2097152,"page_size_kib":2097152"#, 2 << 20),
            (r#","page_size_kib":4"#, 4096),
            (r#","page_size_kib":2048"#, 2 << 20),
            (r#","page_size_kib":4096"#, 4096),
            (r#","page_size_kib":2097152"#, 2 << 20),
        ] {
            assert_eq!(page_bytes(text), bytes, "{text}");
        }
    }

    #[test]
    fn what_is_no_hand_over_is_one_line() {
        for text in ["{}", "[1]", "[{}]", "x", "[] []"] {
            let line = decode(text.as_bytes()).unwrap_err().to_string();
            assert!(line.contains("Firecracker") && !line.contains('\n'), "{text}: {line}");
        }
    }
}
