//! The settings of lending.

use super::field::Field::{
    Address, Backup, Count, Device, Mode, OptionalSize, Path, Percent, Registry, Roles, Size,
    Switch, Text, Texts, Used,
};
use super::field::Setting;
use super::table::fixed;
use super::values::{Lend, Peer};

/// Longest of the times that are given in seconds: a day.
const SECONDS_MAX: u64 = 24 * 3600;

/// `[lend]`
pub static LEND: [Setting<Lend>; 37] = [
    fixed(
        "roles",
        r#""off""#,
        Roles(|l| &mut l.roles),
        "What this host does with others: \"lend\", \"borrow\", \"single\", one of both at a time as its memory says, \"both\", both at a time. See docs/lending.md.",
    ),
    fixed(
        "listen",
        r#""""#,
        Address(|l| &mut l.listen),
        "Address for messages of other hosts, 0.0.0.0:4422 by custom. Needs `listen.tls_certificate`, `tls_key` and `tls_clients`; a host is the DNS name in its certificate. Needed unless `roles` is \"off\".",
    ),
    fixed(
        "address",
        r#""""#,
        Address(|l| &mut l.address),
        "Where others reach `listen`, where that is not its address. For etcd.",
    ),
    fixed(
        "data_address",
        r#""""#,
        Address(|l| &mut l.data_address),
        "Where borrowers reach `listen.nvme_tls` (`listen.nvme_tcp` for those that borrow in direct mode), where that is not its address.",
    ),
    fixed(
        "rack",
        r#""""#,
        Text(|l| &mut l.rack),
        "Hosts of one rack may fail together: the copies of a page go to different ones where there are some.",
    ),
    fixed(
        "registry",
        r#""static""#,
        Registry(|l| &mut l.registry),
        "Where other hosts are found: \"static\", those that a `[[peer]]` names; \"etcd\", those that have written themselves there.",
    ),
    fixed(
        "etcd",
        "[]",
        Texts(|l| &mut l.etcd),
        "Endpoints of etcd, such as \"http://192.0.2.9:2379\"; with https, the keys are those of `listen.tls_*`.",
    ),
    fixed(
        "etcd_prefix",
        r#""/spillway/hosts/""#,
        Text(|l| &mut l.etcd_prefix),
        "What the keys of hosts in etcd begin with.",
    ),
    fixed(
        "etcd_lease_s",
        "10",
        Count(|l| &mut l.etcd_lease_s, 2, SECONDS_MAX),
        "Seconds for which a host that is gone is still shown in etcd. Its loans don't end with that.",
    ),
    fixed(
        "registry_ms",
        "1000",
        Count(|l| &mut l.registry_ms, 100, 3_600_000),
        "Milliseconds between two questions to a peer of the static list what it can spare.",
    ),
    fixed(
        "period_ms",
        "250",
        Count(|l| &mut l.period_ms, 50, 60_000),
        "Milliseconds between two looks at this host's memory.",
    ),
    fixed(
        "used",
        r#""available""#,
        Used(|l| &mut l.used),
        "What memory in use is: \"available\", all but MemAvailable; \"paper\", all but free memory, buffers, cache and slab.",
    ),
    fixed(
        "upper",
        "80",
        Percent(|l| &mut l.upper),
        "With more of its memory in use than this, per cent, a host borrows, or recalls what it has lent.",
    ),
    fixed(
        "lower",
        "60",
        Percent(|l| &mut l.lower),
        "When no more than this would be in use with what is borrowed back in memory, per cent, a host gives it back.",
    ),
    fixed(
        "dwell_ms",
        "1000",
        Count(|l| &mut l.dwell_ms, 0, 3_600_000),
        "Milliseconds for which memory must be beyond a threshold before something is done.",
    ),
    fixed(
        "reserve",
        r#""none""#,
        OptionalSize(|l| &mut l.reserve_bytes),
        "What a lender keeps for itself: all else can be lent. Without it, what is not in use at the time.",
    ),
    fixed(
        "capacity",
        r#""none""#,
        OptionalSize(|l| &mut l.capacity_bytes),
        "Most that is lent to all others together. The store's capacity is a bound besides.",
    ),
    fixed(
        "mode",
        r#""fan-out""#,
        Mode(|l| &mut l.mode),
        "How this host borrows: \"fan-out\", a device of its own whose slabs lie encrypted on many hosts; \"direct\", a device of one lender, whose pages travel in the clear.",
    ),
    fixed(
        "slab",
        r#""64M""#,
        Size(|l| &mut l.slab_bytes, 1 << 20, 1 << 30),
        "What is placed as a whole: a power of two.",
    ),
    fixed(
        "device_min",
        r#""1G""#,
        Size(|l| &mut l.device_min_bytes, 1 << 20, 1 << 46),
        "Least that is borrowed at a time: a swap device can't grow, and there are few of them.",
    ),
    fixed(
        "device_max",
        r#""64G""#,
        Size(|l| &mut l.device_max_bytes, 1 << 20, 1 << 46),
        "Most that is borrowed at a time.",
    ),
    fixed(
        "devices_max",
        "8",
        Count(|l| &mut l.devices_max, 1, 8),
        "Most swap devices at the same time.",
    ),
    fixed(
        "device",
        r#""swap""#,
        Device(|l| &mut l.device),
        "What is done with what is borrowed: \"swap\", this host swaps onto it; \"socket\", it is served by NBD on the Unix socket `lend-N.sock` in `listen.dir`, for the daemon's user and root, and nothing else is done.",
    ),
    fixed(
        "backup",
        r#""mirror""#,
        Backup(|l| &mut l.backup),
        "Where each page lies besides: \"mirror\", with a second lender; \"file\", in `backup_file`; \"none\", nowhere: when a lender is lost, its pages are, and programs with them.",
    ),
    fixed(
        "backup_file",
        r#""""#,
        Path(|l| &mut l.backup_file),
        "The start of the names of local files for pages: that of device n has `.n` after it. They are allocated in full. With \"mirror\" they serve where there is no second lender. Or a disk or partition of this host, whose content is lost; a file system's own need of memory can't hold it up, and it serves one device (`devices_max = 1`).",
    ),
    fixed(
        "backup_size",
        r#""0""#,
        Size(|l| &mut l.backup_bytes, 0, 1 << 46),
        "Most bytes of all these files.",
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
        "Milliseconds within which a lender must take or give a page, before the other copy serves alone: the longest stall when it is lost.",
    ),
    fixed(
        "retry_s",
        "5",
        Count(|l| &mut l.retry_s, 1, SECONDS_MAX),
        "Seconds until what was refused or went wrong is tried again.",
    ),
    fixed(
        "lease_s",
        "30",
        Count(|l| &mut l.lease_s, 1, SECONDS_MAX),
        "Seconds for which a loan lasts without its borrower renewing it.",
    ),
    fixed(
        "lease_margin_s",
        "2",
        Count(|l| &mut l.lease_margin_s, 1, SECONDS_MAX),
        "Seconds that a lender waits beyond that: more than clocks drift apart in `lease_s`.",
    ),
    fixed(
        "recall_s",
        "60",
        Count(|l| &mut l.recall_s, 1, SECONDS_MAX),
        "Seconds that a borrower has when a loan is recalled; at least `lease_s` and `lease_margin_s`.",
    ),
    fixed(
        "secret_file",
        r#""""#,
        Path(|l| &mut l.secret_file),
        "Direct mode: file with the secret that this host's kernel proves to know to lenders, as `nvme gen-dhchap-key` prints it.",
    ),
    fixed(
        "min_free",
        r#""64M""#,
        Size(|l| &mut l.min_free_bytes, 0, 1 << 40),
        "What the kernel must keep free (vm.min_free_kbytes) while pages go to other hosts, at most a twentieth of the memory: sending them takes memory itself.",
    ),
    fixed(
        "raise_min_free",
        "true",
        Switch(|l| &mut l.raise_min_free),
        "Raise vm.min_free_kbytes to `min_free` while this host borrows, and restore it afterwards. Else borrowing fails where it is less.",
    ),
    fixed(
        "margin",
        r#""128M""#,
        Size(|l| &mut l.margin_bytes, 0, 1 << 40),
        "What must stay available when a device is given back, beyond what lies on it.",
    ),
    fixed(
        "dry_run",
        "false",
        Switch(|l| &mut l.dry_run),
        "Say in the log what would be done to this host (swap space, swapon, nvme connect), and don't. Messages are real, and so is what is lent.",
    ),
];

/// `[[peer]]`
pub static PEER: [Setting<Peer>; 3] = [
    fixed("name", "", Text(|p| &mut p.name), "The DNS name in its certificate. Needed."),
    fixed(
        "address",
        "",
        Address(|p| &mut p.address),
        "Where it listens: its `lend.listen`, as this host reaches it. Needed.",
    ),
    fixed("rack", r#""""#, Text(|p| &mut p.rack), "Its rack."),
];
