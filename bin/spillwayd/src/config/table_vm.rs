//! The settings of guests that grow and shrink.

use super::field::Field::{Count, OptionalCount, OptionalSize, Path, Profile, Size, Switch, Text};
use super::field::Setting;
use super::table::{fixed, live};
use super::values::{Sections, Vm};

/// Largest guest.
const GUEST_BYTES_MAX: u64 = 16 << 40;

/// `[sections]`
pub static SECTIONS: [Setting<Sections>; 4] = [
    fixed(
        "capacity",
        r#""0""#,
        Size(|s| &mut s.capacity_bytes, 0, GUEST_BYTES_MAX),
        "Memory that is set aside for guests, beside `store.capacity`: boot memory and sections of all guests together. Needed where there is a `[[vm]]`.",
    ),
    fixed(
        "dir",
        r#""/dev/shm/spillway""#,
        Path(|s| &mut s.dir),
        "Directory of the guests' memory files, on hugetlbfs (best) or tmpfs. It is made if it is not there.",
    ),
    fixed(
        "section",
        r#""128M""#,
        Size(|s| &mut s.section_bytes, 2 << 20, 1 << 40),
        "Guests grow and shrink by multiples of this: a power of two. 128M is what a Linux guest on x86-64 can set offline as a whole.",
    ),
    fixed(
        "gid",
        "",
        OptionalCount(|s| &mut s.gid, 0, u32::MAX as u64 - 1),
        "Group that may open the memory files, so that QEMU need not run as the daemon's user.",
    ),
];

/// `[[vm]]`
pub static VM: [Setting<Vm>; 18] = [
    fixed("name", "", Text(|v| &mut v.name), "Its name. Needed."),
    fixed(
        "qmp",
        r#""""#,
        Path(|v| &mut v.qmp),
        "Unix socket of QEMU's monitor (QMP), for the daemon alone. Without it `NAME.qmp.sock` in `listen.dir`.",
    ),
    fixed(
        "libvirt",
        r#""""#,
        Text(|v| &mut v.libvirt),
        "The libvirt domain that it is: its size is then read and changed through libvirt, and never through its monitor.",
    ),
    fixed(
        "libvirt_socket",
        r#""""#,
        Path(|v| &mut v.libvirt_socket),
        "Unix socket of libvirt. Without it `/run/libvirt/virtqemud-sock` where that is there, else `/run/libvirt/libvirt-sock`.",
    ),
    fixed(
        "agent",
        r#""""#,
        Path(|v| &mut v.agent),
        "Unix socket of the agent's channel. Without it `NAME.agent.sock` in `listen.dir`. A guest without an agent grows and shrinks too, slower.",
    ),
    fixed(
        "client",
        r#""""#,
        Text(|v| &mut v.client),
        "The `[[client]]` whose values its programs put and get, through windows in its memory (docs/clients.md). No other VM has the same. Without it they get no windows.",
    ),
    fixed(
        "windows",
        r#""""#,
        Path(|v| &mut v.windows),
        "Unix socket of the windows' channel. Without it `NAME.windows.sock` in `listen.dir`.",
    ),
    fixed(
        "boot",
        r#""512M""#,
        Size(|v| &mut v.boot_bytes, 64 << 20, GUEST_BYTES_MAX),
        "What it boots with, which it never gives back.",
    ),
    live(
        "least",
        r#""none""#,
        OptionalSize(|v| &mut v.least_bytes),
        "It is never smaller; \"none\": what it boots with.",
    ),
    live(
        "most",
        r#""4G""#,
        Size(|v| &mut v.most_bytes, 64 << 20, GUEST_BYTES_MAX),
        "It is never larger. QEMU must know the largest size ever at boot: see `spillway vm args`.",
    ),
    live(
        "reserve",
        r#""96M""#,
        Size(|v| &mut v.reserve_bytes, 1 << 20, 1 << 40),
        "What its agent keeps available in it: below that it asks for more, and no order leaves it less.",
    ),
    live(
        "ready",
        r#""0""#,
        Size(|v| &mut v.ready_bytes, 0, 1 << 40),
        "What is allocated on the host before it grows, in whole sections, so that it gets that faster. Others take it where the pool is dry otherwise.",
    ),
    live(
        "profile",
        r#""returns-all""#,
        Profile(|v| &mut v.profile),
        "\"returns-all\": all that it is given can be taken back, and it grows to 16 times what it boots with at most; \"grows-far\": its kernel uses part of what it is given, which then stays.",
    ),
    live(
        "auto",
        "true",
        Switch(|v| &mut v.auto),
        "Whether its own wishes and the memory manager change its size. `spillway vm auto` changes it until the daemon ends.",
    ),
    live(
        "weight",
        "1",
        Count(|v| &mut v.weight, 1, 1000),
        "Its share beside that of others, for the policy \"utility\".",
    ),
    live(
        "resize_timeout_s",
        "30",
        Count(|v| &mut v.resize_timeout_s, 1, 3600),
        "Seconds that it may take to change its size, before it stays where it is or goes back.",
    ),
    live(
        "offline_timeout_ms",
        "2000",
        Count(|v| &mut v.offline_timeout_ms, 10, 600_000),
        "Milliseconds that its agent may take to set memory offline, before the device is asked all the same.",
    ),
    live(
        "interval_ms",
        "500",
        Count(|v| &mut v.interval_ms, 50, 60_000),
        "Milliseconds between two reports of its agent.",
    ),
];
