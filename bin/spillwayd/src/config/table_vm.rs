//! The settings of guests that grow and shrink.

use super::field::Field::{Count, OptionalCount, OptionalSize, Path, Profile, Size, Switch, Text};
use super::field::{Setting, fixed, live};
use super::values::{Sections, Vm};

/// Largest guest.
const GUEST_BYTES_MAX: u64 = 16 << 40;

/// `[sections]`
pub static SECTIONS: [Setting<Sections>; 5] = [
    fixed(
        "capacity",
        r#""0""#,
        Size(|s| &mut s.capacity_bytes, 0, GUEST_BYTES_MAX),
        "Memory reserved for guests, in addition to `store.capacity`: boot memory and sections of all guests together. Required if there is a `[[vm]]`.",
    ),
    fixed(
        "dir",
        r#""/dev/shm/spillway""#,
        Path(|s| &mut s.dir),
        "Directory of the guests' memory files, on hugetlbfs (best) or tmpfs. The daemon creates it if it is missing.",
    ),
    fixed(
        "section",
        r#""128M""#,
        Size(|s| &mut s.section_bytes, 2 << 20, 1 << 40),
        "Guests grow and shrink by multiples of this: a power of two. 128M is the unit that a Linux guest on x86-64 can set offline.",
    ),
    fixed(
        "lend",
        r#""0""#,
        Size(|s| &mut s.lend_bytes, 0, GUEST_BYTES_MAX),
        "How much of the pool's unused memory the page store may use, in addition to `store.capacity`, until guests need it. At most 16 times `store.capacity`; `sections.dir` must lie on tmpfs.",
    ),
    fixed(
        "gid",
        "",
        OptionalCount(|s| &mut s.gid, 0, u32::MAX as u64 - 1),
        "Group that may open the memory files, so that QEMU need not run as the daemon's user.",
    ),
];

/// `[[vm]]`
pub static VM: [Setting<Vm>; 19] = [
    fixed("name", "", Text(|v| &mut v.name), "The name of the guest. Required."),
    fixed(
        "qmp",
        r#""""#,
        Path(|v| &mut v.qmp),
        "Unix socket of QEMU's monitor (QMP), for the daemon alone. Default: `NAME.qmp.sock` in `listen.dir`.",
    ),
    fixed(
        "libvirt",
        r#""""#,
        Text(|v| &mut v.libvirt),
        "The libvirt domain of the guest. The daemon then reads and changes its size through libvirt only, never through its monitor.",
    ),
    fixed(
        "libvirt_socket",
        r#""""#,
        Path(|v| &mut v.libvirt_socket),
        "Unix socket of libvirt. Default: `/run/libvirt/virtqemud-sock` if it exists, otherwise `/run/libvirt/libvirt-sock`.",
    ),
    fixed(
        "agent",
        r#""""#,
        Path(|v| &mut v.agent),
        "Unix socket of the agent's channel. Default: `NAME.agent.sock` in `listen.dir`. A guest without an agent also grows and shrinks, but more slowly.",
    ),
    fixed(
        "client",
        r#""""#,
        Text(|v| &mut v.client),
        "The `[[client]]` that owns the values of the guest's programs, which they put and get through windows in guest memory (docs/clients.md). No other VM can have the same client. Without it the guest gets no windows.",
    ),
    fixed(
        "windows",
        r#""""#,
        Path(|v| &mut v.windows),
        "Unix socket of the windows' channel. Default: `NAME.windows.sock` in `listen.dir`.",
    ),
    fixed(
        "ivshmem",
        r#""""#,
        Path(|v| &mut v.ivshmem),
        "File of the guest's ivshmem device, in which windows may lie instead of guest memory (docs/clients.md). No other VM can have the same file.",
    ),
    fixed(
        "boot",
        r#""512M""#,
        Size(|v| &mut v.boot_bytes, 64 << 20, GUEST_BYTES_MAX),
        "The memory that the guest boots with, which it never gives back.",
    ),
    live(
        "least",
        r#""none""#,
        OptionalSize(|v| &mut v.least_bytes),
        "The smallest size of the guest. \"none\": its boot memory.",
    ),
    live(
        "most",
        r#""4G""#,
        Size(|v| &mut v.most_bytes, 64 << 20, GUEST_BYTES_MAX),
        "The largest size of the guest. QEMU must know the largest size that it can ever have at boot: see `spillway vm args`.",
    ),
    live(
        "reserve",
        r#""96M""#,
        Size(|v| &mut v.reserve_bytes, 1 << 20, 1 << 40),
        "How much memory the agent keeps available in the guest. Below that it requests more, and no order to shrink leaves less.",
    ),
    live(
        "ready",
        r#""0""#,
        Size(|v| &mut v.ready_bytes, 0, 1 << 40),
        "How much memory the host allocates before the guest grows, in whole sections, so that growth is faster. Other guests get it when the rest of the pool is exhausted.",
    ),
    live(
        "profile",
        r#""returns-all""#,
        Profile(|v| &mut v.profile),
        "\"returns-all\": all memory that the guest is given can be taken back, and it grows to at most 16 times its boot memory. \"grows-far\": its kernel uses part of the memory, which then stays.",
    ),
    live(
        "auto",
        "true",
        Switch(|v| &mut v.auto),
        "Whether the guest's own requests and the memory manager change its size. `spillway vm auto` changes this until the daemon ends.",
    ),
    live(
        "weight",
        "1",
        Count(|v| &mut v.weight, 1, 1000),
        "utility: the share of the guest relative to others.",
    ),
    live(
        "resize_timeout_s",
        "30",
        Count(|v| &mut v.resize_timeout_s, 1, 3600),
        "How many seconds a change of size may take, before the guest stays where it is or goes back.",
    ),
    live(
        "offline_timeout_ms",
        "2000",
        Count(|v| &mut v.offline_timeout_ms, 10, 600_000),
        "How many milliseconds the agent may take to set memory offline, before the daemon asks the device all the same.",
    ),
    live(
        "interval_ms",
        "500",
        Count(|v| &mut v.interval_ms, 50, 60_000),
        "Milliseconds between two reports of the agent.",
    ),
];
