//! The QEMU options, or libvirt elements, that a guest needs to grow and shrink.

use std::path::Path;

use spillway_api::types::VmArgs;
use spillway_guests::{agent::PORT, window};

/// Input of the options.
pub struct Vm<'a> {
    pub boot_bytes: u64,
    /// The first device.
    pub device_bytes: u64,
    /// The largest size of the guest with further devices, for which QEMU lays out addresses.
    pub max_bytes: u64,
    pub section_bytes: u64,
    pub agent: &'a Path,
    /// The channel of its programs' windows, if it has a client.
    pub windows: Option<&'a Path>,
    /// The file of its ivshmem device.
    pub ivshmem: Option<&'a Path>,
}

/// The memory of an ivshmem device: a power of two, as for every PCI device. It holds 32 windows.
const IVSHMEM_MIB: u64 = 64;

/// The bridge to which further devices are added while the VM runs. Other buses do not support that on some machines,
/// or without ACPI.
pub const SLOTS: &str = "spillway-slots";
/// A number that no other bridge has.
const CHASSIS: u8 = 250;

/// QEMU's name for the boot memory.
pub const BOOT: &str = "spillway-boot";

/// QEMU's name for a virtio-mem device.
pub fn device_id(number: u8) -> String {
    format!("spillway{number}")
}

/// QEMU's name for the memory behind it.
pub fn backend_id(number: u8) -> String {
    format!("spillway-mem{number}")
}

/// The files that QEMU maps, and the path of its monitor.
pub struct Files<'a> {
    pub boot: &'a Path,
    pub device: &'a Path,
    pub qmp: &'a Path,
}

/// QEMU's options.
pub fn qemu(vm: &Vm<'_>, files: &Files<'_>) -> VmArgs {
    let mib = |bytes: u64| bytes >> 20;
    let (boot, device) = (comma(files.boot), comma(files.device));
    let mut qemu = vec![
        "-m".into(),
        format!("{}M,slots=1,maxmem={}M", mib(vm.boot_bytes), mib(vm.max_bytes)),
        "-machine".into(),
        format!("memory-backend={BOOT}"),
        "-object".into(),
        format!(
            "memory-backend-file,id={BOOT},mem-path={boot},size={}M,share=on,prealloc=on",
            mib(vm.boot_bytes)
        ),
        "-object".into(),
        format!(
            "memory-backend-file,id={},mem-path={device},size={}M,share=on,reserve=off",
            backend_id(1),
            mib(vm.device_bytes)
        ),
        "-device".into(),
        format!(
            "virtio-mem-pci,id={},memdev={},block-size={}M,requested-size=0,prealloc=on",
            device_id(1),
            backend_id(1),
            mib(vm.section_bytes)
        ),
        "-device".into(),
        format!("pci-bridge,id={SLOTS},chassis_nr={CHASSIS},shpc=on"),
        "-chardev".into(),
        format!("socket,id=spillway-agent,path={},server=on,wait=off", comma(vm.agent)),
        "-device".into(),
        "virtio-serial-pci,id=spillway-serial".into(),
        "-device".into(),
        format!("virtserialport,bus=spillway-serial.0,chardev=spillway-agent,name={PORT}"),
        "-qmp".into(),
        format!("unix:{},server=on,wait=off", comma(files.qmp)),
    ];
    if let Some(windows) = vm.windows {
        let channel =
            format!("socket,id=spillway-windows,path={},server=on,wait=off", comma(windows));
        let port = window::PORT;
        let port =
            format!("virtserialport,bus=spillway-serial.0,chardev=spillway-windows,name={port}");
        qemu.extend(["-chardev".into(), channel, "-device".into(), port]);
    }
    if let Some(file) = vm.ivshmem {
        let backend = format!(
            "memory-backend-file,id=spillway-ivshmem,mem-path={},size={IVSHMEM_MIB}M,share=on,prealloc=on",
            comma(file)
        );
        let device = "ivshmem-plain,memdev=spillway-ivshmem".into();
        qemu.extend(["-object".into(), backend, "-device".into(), device]);
    }
    VmArgs { qemu, libvirt: String::new(), boot_bytes: vm.boot_bytes, max_bytes: vm.max_bytes }
}

/// A path inside a QEMU option: commas are doubled.
fn comma(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

/// Elements of a domain, with or without huge pages. libvirt requires a NUMA node before it accepts memory devices.
/// With immediate allocation it tells QEMU to allocate a device's memory before the guest gets it (prealloc).
pub fn libvirt(vm: &Vm<'_>, is_huge: bool) -> VmArgs {
    let kib = |bytes: u64| bytes >> 10;
    let (boot, max, section) = (kib(vm.boot_bytes), kib(vm.max_bytes), kib(vm.section_bytes));
    let device = kib(vm.device_bytes);
    let memory = boot + device;
    let huge = if is_huge { "<hugepages/>" } else { "" };
    let agent = xml(&vm.agent.display().to_string());
    let libvirt = format!(
        "<maxMemory slots='1' unit='KiB'>{max}</maxMemory>
<memory unit='KiB'>{memory}</memory>
<memoryBacking>{huge}<source type='memfd'/><access mode='shared'/><allocation mode='immediate'/></memoryBacking>
<cpu>
  <numa>
    <cell id='0' memory='{boot}' unit='KiB'/>
  </numa>
</cpu>
<devices>
  <memory model='virtio-mem'>
    <target>
      <size unit='KiB'>{device}</size>
      <node>0</node>
      <block unit='KiB'>{section}</block>
      <requested unit='KiB'>0</requested>
    </target>
  </memory>
  <channel type='unix'>
    <source mode='bind' path='{agent}'/>
    <target type='virtio' name='{PORT}'/>
  </channel>
</devices>
"
    );
    VmArgs { qemu: Vec::new(), libvirt, boot_bytes: vm.boot_bytes, max_bytes: vm.max_bytes }
}

fn xml(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('\'', "&apos;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_name_the_files_and_the_sizes() {
        let vm = Vm {
            boot_bytes: 512 << 20,
            device_bytes: 3584 << 20,
            max_bytes: 8 << 30,
            section_bytes: 128 << 20,
            agent: Path::new("/run/a'.agent.sock"),
            windows: Some(Path::new("/run/a.windows.sock")),
            ivshmem: Some(Path::new("/dev/shm/a,b")),
        };
        let files = Files {
            boot: Path::new("/pool/a/boot"),
            device: Path::new("/pool,1/a/device"),
            qmp: Path::new("/run/a.qmp.sock"),
        };
        let line = qemu(&vm, &files).qemu.join(" ");
        for part in [
            "-m 512M,slots=1,maxmem=8192M",
            "mem-path=/pool/a/boot,size=512M,share=on,prealloc=on",
            "mem-path=/pool,,1/a/device,size=3584M,share=on,reserve=off",
            "block-size=128M,requested-size=0,prealloc=on",
            "pci-bridge,id=spillway-slots,chassis_nr=250,shpc=on",
            "name=org.spillway.agent.0",
            "unix:/run/a.qmp.sock,server=on,wait=off",
            "socket,id=spillway-windows,path=/run/a.windows.sock,server=on,wait=off",
            "name=org.spillway.windows.0",
            "-object memory-backend-file,id=spillway-ivshmem,mem-path=/dev/shm/a,,b,size=64M,share=on",
            "-device ivshmem-plain,memdev=spillway-ivshmem",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
        let none = qemu(&Vm { windows: None, ivshmem: None, ..vm }, &files).qemu.join(" ");
        assert!(!none.contains("windows") && !none.contains("ivshmem"), "{none}");
        let xml = libvirt(&vm, true).libvirt;
        assert!(xml.contains("<size unit='KiB'>3670016</size>"), "{}", xml);
        assert!(xml.contains("<cell id='0' memory='524288' unit='KiB'/>"));
        assert!(xml.contains("<hugepages/><source type='memfd'/>"), "{}", xml);
        assert!(xml.contains("path='/run/a&apos;.agent.sock'"), "{}", xml);
    }
}
