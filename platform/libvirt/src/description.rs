//! A domain's description (XML): its virtio-mem devices.

use std::ops::Range;

use roxmltree::{Document, Node};

use crate::error::Error;

/// A running domain's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Its number; each start changes it. None while it does not run.
    pub id: Option<u32>,
    /// Its memory at boot, bytes.
    pub boot_bytes: u64,
    /// Whether its memory is allocated before the guest gets it (`<allocation mode='immediate'/>`, `<hugepages/>`).
    pub is_allocated_first: bool,
    /// Its virtio-mem devices, in their order.
    pub devices: Vec<MemoryDevice>,
    text: String,
}

/// A virtio-mem device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryDevice {
    /// libvirt's name for it.
    pub alias: String,
    /// Its largest size, bytes.
    pub max_bytes: u64,
    /// Sizes are multiples of this, bytes.
    pub block_bytes: u64,
    /// The size requested from the guest, bytes.
    pub requested_bytes: u64,
    /// The size that the guest has plugged, bytes.
    pub size_bytes: u64,
    /// The ranges of its element and of the requested size in the text.
    element: Range<usize>,
    requested: Range<usize>,
}

impl Description {
    /// Parses libvirt's description of a domain.
    ///
    /// # Errors
    /// [`Error::Garbage`]
    pub fn read(text: String) -> Result<Self, Error> {
        let document = Document::parse(&text).map_err(|error| Error::garbage(error.to_string()))?;
        let domain = document.root_element();
        let devices: Vec<_> = child(domain, "devices")
            .into_iter()
            .flat_map(|devices| devices.children())
            .filter(|node| node.has_tag_name("memory"))
            .filter(|node| node.attribute("model") == Some("virtio-mem"))
            .map(device)
            .collect::<Result<_, _>>()?;
        let plugged: u64 = devices.iter().map(|device| device.max_bytes).sum();
        let backing = child(domain, "memoryBacking");
        let has = |name| backing.and_then(|node| child(node, name));
        let is_immediate =
            has("allocation").is_some_and(|node| node.attribute("mode") == Some("immediate"));
        let is_allocated_first = is_immediate || has("hugepages").is_some();
        Ok(Self {
            id: domain.attribute("id").and_then(|id| id.parse().ok()),
            boot_bytes: bytes(domain, "memory")?.saturating_sub(plugged),
            is_allocated_first,
            devices,
            text,
        })
    }

    /// A device's element with another requested size, in libvirt's form.
    #[must_use]
    pub fn resized(&self, device: &MemoryDevice, bytes: u64) -> String {
        let MemoryDevice { element, requested, .. } = device;
        let (before, after) = (element.start..requested.start, requested.end..element.end);
        let requested = format!("<requested unit='KiB'>{}</requested>", bytes >> 10);
        format!("{}{requested}{}", &self.text[before], &self.text[after])
    }
}

fn device(node: Node<'_, '_>) -> Result<MemoryDevice, Error> {
    let missing = |what: &str| Error::garbage(format!("a virtio-mem device without <{what}>"));
    let target = child(node, "target").ok_or_else(|| missing("target"))?;
    let alias = child(node, "alias").and_then(|alias| alias.attribute("name"));
    let requested = child(target, "requested").ok_or_else(|| missing("requested"))?;
    let requested_bytes = bytes(target, "requested")?;
    // Only a running domain's device has a current size.
    let size_bytes = child(target, "current").map(|_| bytes(target, "current")).transpose()?;
    Ok(MemoryDevice {
        alias: alias.unwrap_or("virtio-mem").to_owned(),
        max_bytes: bytes(target, "size")?,
        block_bytes: bytes(target, "block")?,
        requested_bytes,
        size_bytes: size_bytes.unwrap_or(0),
        element: node.range(),
        requested: requested.range(),
    })
}

fn child<'a, 'i>(node: Node<'a, 'i>, name: &str) -> Option<Node<'a, 'i>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// A size, which libvirt always gives in KiB.
fn bytes(node: Node<'_, '_>, name: &str) -> Result<u64, Error> {
    let wrong = || Error::garbage(format!("a <{name}> that is not a number of KiB"));
    let found = child(node, name).ok_or_else(wrong)?;
    let is_kib = matches!(found.attribute("unit"), Some("KiB") | None);
    let kib = found.text().and_then(|text| text.trim().parse::<u64>().ok());
    kib.filter(|_| is_kib).and_then(|kib| kib.checked_mul(1024)).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    const XML: &str = "<domain type='qemu' id='3'>\n  <name>web</name>\n  \
        <maxMemory slots='1' unit='KiB'>4194304</maxMemory>\n  \
        <memory unit='KiB'>4194304</memory>\n  \
        <memoryBacking>\n    <allocation mode='immediate'/>\n  </memoryBacking>\n  <devices>\n    \
        <memory model='dimm'><target><size unit='KiB'>1</size></target></memory>\n    \
        <memory model='virtio-mem'>\n      <target>\n        <size unit='KiB'>3670016</size>\n        \
        <node>0</node>\n        <block unit='KiB'>131072</block>\n        \
        <requested unit='KiB'>262144</requested>\n        <current unit='KiB'>131072</current>\n      \
        </target>\n      <alias name='virtiomem0'/>\n    </memory>\n  </devices>\n</domain>\n";

    fn read(text: &str) -> Result<Description, Error> {
        Description::read(text.to_owned())
    }

    #[test]
    fn sizes_are_read_and_one_is_changed() {
        let web = read(XML).unwrap();
        assert_eq!((web.id, web.boot_bytes, web.is_allocated_first), (Some(3), 512 << 20, true));
        let [device] = web.devices.as_slice() else { panic!("{:?}", web.devices) };
        let MemoryDevice { max_bytes, block_bytes, requested_bytes, size_bytes, .. } = *device;
        assert_eq!((max_bytes, block_bytes), (3584 << 20, 128 << 20));
        assert_eq!((requested_bytes, size_bytes), (256 << 20, 128 << 20));
        let element = web.resized(device, 1 << 30);
        assert!(element.starts_with("<memory model='virtio-mem'>"), "{element}");
        assert!(element.ends_with("</memory>"), "{element}");
        let again = read(&XML.replace(&XML[web.devices[0].element.clone()], &element));
        assert_eq!(again.unwrap().devices[0].requested_bytes, 1 << 30);
    }

    #[test]
    fn a_domain_that_does_not_run_has_no_number() {
        let off = XML.replace(" id='3'", "").replace("<current unit='KiB'>131072</current>", "");
        let off = read(&off).unwrap();
        assert_eq!((off.id, off.devices[0].size_bytes), (None, 0));
        let lazy = read(&XML.replace("immediate", "ondemand")).unwrap();
        assert!(!lazy.is_allocated_first);
    }

    #[test]
    fn what_is_no_description_is_said() {
        for bad in [
            "",
            "<domain>",
            "<domain/>",
            "<!DOCTYPE a [<!ENTITY b 'c'>]><domain><memory>&b;</memory></domain>",
            &XML.replace("<block unit='KiB'>", "<block unit='parsecs'>"),
            &XML.replace("3670016", "18446744073709551615"),
            &XML.replace("<requested unit='KiB'>262144</requested>", ""),
        ] {
            assert!(matches!(read(bad), Err(Error::Garbage { .. })), "{bad}");
        }
    }
}
