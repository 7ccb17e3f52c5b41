//! The settings of lending.

use super::field::Field::{
    Address, Backup, Count, Device, Mode, OptionalSize, Path, Percent, Registry, Roles, Size,
    Switch, Text, Texts, Used,
};
use super::field::{Setting, fixed};
use super::values::{Lend, Peer};

/// Longest of the times that are given in seconds: a day.
const SECONDS_MAX: u64 = 24 * 3600;

/// `[lend]`
pub static LEND: [Setting<Lend>; 37] = [
    fixed(
        "roles",
        r#""off""#,
        Roles(|l| &mut l.roles),
        "What this host does. \"lend\" and \"borrow\": only that. \"single\": one of both at a time, depending on its memory. \"both\": both at a time. \"off\": nothing. See docs/lending.md.",
    ),
    fixed(
        "listen",
        r#""""#,
        Address(|l| &mut l.listen),
        "Address for messages of other hosts, usually port 4422 of the network between them, such as 192.0.2.1:4422. Needs `listen.tls_certificate`, `tls_key` and `tls_clients`; the DNS name in its certificate identifies a host. Required unless `roles` is \"off\".",
    ),
    fixed(
        "address",
        r#""""#,
        Address(|l| &mut l.address),
        "The address of `listen` as other hosts reach it, if it differs. For etcd.",
    ),
    fixed(
        "data_address",
        r#""""#,
        Address(|l| &mut l.data_address),
        "The address of `listen.nvme_tls` as borrowers reach it (of `listen.nvme_tcp` in direct mode), if it differs.",
    ),
    fixed(
        "rack",
        r#""""#,
        Text(|l| &mut l.rack),
        "Hosts of one rack may fail together: the copies of a page go to different racks where possible.",
    ),
    fixed(
        "registry",
        r#""static""#,
        Registry(|l| &mut l.registry),
        "Where this host finds others. \"static\": in the `[[peer]]` entries. \"etcd\": in etcd, where hosts register themselves.",
    ),
    fixed(
        "etcd",
        "[]",
        Texts(|l| &mut l.etcd),
        "Endpoints of etcd, such as \"http://192.0.2.9:2379\". With https, the keys of `listen.tls_*` apply.",
    ),
    fixed(
        "etcd_prefix",
        r#""/spillway/hosts/""#,
        Text(|l| &mut l.etcd_prefix),
        "The start of the keys of hosts in etcd.",
    ),
    fixed(
        "etcd_lease_s",
        "10",
        Count(|l| &mut l.etcd_lease_s, 2, SECONDS_MAX),
        "How many seconds etcd still lists a host that is gone. The loans of the host do not end with that.",
    ),
    fixed(
        "registry_ms",
        "1000",
        Count(|l| &mut l.registry_ms, 100, 3_600_000),
        "Milliseconds between two queries of the spare memory of a host of the static list.",
    ),
    fixed(
        "period_ms",
        "250",
        Count(|l| &mut l.period_ms, 50, 60_000),
        "Milliseconds between two samples of this host's memory.",
    ),
    fixed(
        "used",
        r#""available""#,
        Used(|l| &mut l.used),
        "What counts as memory in use. \"available\": all but MemAvailable. \"paper\": all but free memory, buffers, cache and slab.",
    ),
    fixed(
        "upper",
        "80",
        Percent(|l| &mut l.upper),
        "Memory use, in percent, above which this host borrows, or recalls its loans.",
    ),
    fixed(
        "lower",
        "60",
        Percent(|l| &mut l.lower),
        "Memory use, in percent. This host returns a borrowed device when use would stay at or below this with the pages of the device back in memory.",
    ),
    fixed(
        "dwell_ms",
        "1000",
        Count(|l| &mut l.dwell_ms, 0, 3_600_000),
        "Milliseconds for which memory use must be beyond a threshold before this host acts.",
    ),
    fixed(
        "reserve",
        r#""none""#,
        OptionalSize(|l| &mut l.reserve_bytes),
        "How much memory a lender keeps for itself; it can lend the rest. \"none\": it lends the memory that is not in use at the time.",
    ),
    fixed(
        "capacity",
        r#""none""#,
        OptionalSize(|l| &mut l.capacity_bytes),
        "The most memory that this host lends to all others together. The store's capacity also limits it.",
    ),
    fixed(
        "mode",
        r#""fan-out""#,
        Mode(|l| &mut l.mode),
        "How this host borrows. \"fan-out\": a device of its own, whose slabs lie encrypted on many hosts. \"direct\": the device of one lender, whose pages travel in the clear.",
    ),
    fixed(
        "slab",
        r#""64M""#,
        Size(|l| &mut l.slab_bytes, 1 << 20, 1 << 30),
        "The unit of placement on lenders: a power of two.",
    ),
    fixed(
        "device_min",
        r#""1G""#,
        Size(|l| &mut l.device_min_bytes, 1 << 20, 1 << 46),
        "The least that this host borrows at a time: a swap device can't grow, and there are few of them.",
    ),
    fixed(
        "device_max",
        r#""64G""#,
        Size(|l| &mut l.device_max_bytes, 1 << 20, 1 << 46),
        "The most that this host borrows at a time.",
    ),
    fixed(
        "devices_max",
        "8",
        Count(|l| &mut l.devices_max, 1, 8),
        "The most swap devices at the same time.",
    ),
    fixed(
        "device",
        r#""swap""#,
        Device(|l| &mut l.device),
        "What this host does with a borrowed device. \"swap\": it swaps onto it. \"socket\": it only serves it by NBD, on the Unix socket `lend-N.sock` in `listen.dir`, for the daemon's user and root.",
    ),
    fixed(
        "backup",
        r#""mirror""#,
        Backup(|l| &mut l.backup),
        "Where the second copy of each page lies. \"mirror\": with a second lender. \"file\": in `backup_file`. \"none\": nowhere; when a lender is lost, so are its pages and the programs that need them.",
    ),
    fixed(
        "backup_file",
        r#""""#,
        Path(|l| &mut l.backup_file),
        "The start of the names of local files for pages: `.n` follows for device n. They are allocated in full. With \"mirror\", they serve where there is no second lender. It can also be a disk or partition of this host, whose content is lost; a file system's own need of memory then can't delay writes, and it serves one device (`devices_max = 1`).",
    ),
    fixed(
        "backup_size",
        r#""0""#,
        Size(|l| &mut l.backup_bytes, 0, 1 << 46),
        "The most bytes of all these files.",
    ),
    fixed(
        "answer_ms",
        "1000",
        Count(|l| &mut l.answer_ms, 10, 60_000),
        "Milliseconds within which a host must answer a message.",
    ),
    fixed(
        "request_ms",
        "2000",
        Count(|l| &mut l.request_ms, 10, 60_000),
        "Milliseconds within which a lender must store or return a page, before the other copy serves alone. A request waits about that long when a lender is lost.",
    ),
    fixed(
        "retry_s",
        "5",
        Count(|l| &mut l.retry_s, 1, SECONDS_MAX),
        "Seconds until this host retries an action that was refused or failed.",
    ),
    fixed(
        "lease_s",
        "30",
        Count(|l| &mut l.lease_s, 1, SECONDS_MAX),
        "How many seconds a loan lasts unless its borrower renews it.",
    ),
    fixed(
        "lease_margin_s",
        "2",
        Count(|l| &mut l.lease_margin_s, 1, SECONDS_MAX),
        "How many seconds longer than that a lender waits: more than clocks drift apart in `lease_s`.",
    ),
    fixed(
        "recall_s",
        "60",
        Count(|l| &mut l.recall_s, 1, SECONDS_MAX),
        "How many seconds a borrower has when a loan is recalled; at least `lease_s` plus `lease_margin_s`.",
    ),
    fixed(
        "secret_file",
        r#""""#,
        Path(|l| &mut l.secret_file),
        "Direct mode: file with the secret by which this host's kernel authenticates to lenders, in the form that `nvme gen-dhchap-key` prints. A reload reads it again.",
    ),
    fixed(
        "min_free",
        r#""64M""#,
        Size(|l| &mut l.min_free_bytes, 0, 1 << 40),
        "How much memory the kernel must keep free (vm.min_free_kbytes) while it sends pages to other hosts, since sending takes memory itself; at most a twentieth of the memory.",
    ),
    fixed(
        "raise_min_free",
        "true",
        Switch(|l| &mut l.raise_min_free),
        "Raise vm.min_free_kbytes to `min_free` while this host borrows, and restore it afterwards. If false, borrowing fails where the value is lower.",
    ),
    fixed(
        "margin",
        r#""128M""#,
        Size(|l| &mut l.margin_bytes, 0, 1 << 40),
        "How much memory must stay available when a device is returned, beyond the pages on it.",
    ),
    fixed(
        "dry_run",
        "false",
        Switch(|l| &mut l.dry_run),
        "Log each action that would change this host (swap space, swapon, nvme connect), but do not perform it. Messages and loans to others are real.",
    ),
];

/// `[[peer]]`
pub static PEER: [Setting<Peer>; 3] = [
    fixed("name", "", Text(|p| &mut p.name), "The DNS name in the host's certificate. Required."),
    fixed(
        "address",
        "",
        Address(|p| &mut p.address),
        "The host's `lend.listen`, as this host reaches it. Required.",
    ),
    fixed("rack", r#""""#, Text(|p| &mut p.rack), "The rack of the host."),
];
