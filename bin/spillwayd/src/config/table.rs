//! The table of all settings.

use spillway_api::INTERVALS_MS;

pub use super::table_lend::{LEND, PEER};
pub use super::table_vm::{SECTIONS, VM};

use super::field::Field::{
    Address, Capacity, Count, Kind, Lock, OptionalCapacity, OptionalCount, OptionalSize, Path,
    Percent, Policy, Size, Switch, Text, Texts, Users,
};
use super::field::{Field, Setting};
use super::values::{Block, Client, Disk, Listen, Memory, Process, Store, Unnamed};

/// Most connections, of a client or of all unnamed ones each.
const CONNECTIONS_MAX: u64 = 4096;
/// Most operations under way.
const OPERATIONS_MAX: u64 = 1 << 20;
/// Most bytes of operations under way.
const BYTES_MAX: u64 = 1 << 40;
/// Largest block device.
const BLOCK_BYTES_MAX: u64 = 256 << 30;
/// Largest user and group id; the one above stands for nobody.
const ID_MAX: u64 = u32::MAX as u64 - 1;

/// A setting that a reload changes.
pub const fn live<T>(
    name: &'static str,
    default: &'static str,
    field: Field<T>,
    help: &'static str,
) -> Setting<T> {
    Setting { name, default, live: true, field, help }
}

/// A setting that needs a restart.
pub const fn fixed<T>(
    name: &'static str,
    default: &'static str,
    field: Field<T>,
    help: &'static str,
) -> Setting<T> {
    Setting { name, default, live: false, field, help }
}

/// `[store]`
pub static STORE: [Setting<Store>; 6] = [
    fixed(
        "capacity",
        r#""25%""#,
        Capacity(|s| &mut s.capacity),
        "Most memory that the store may take, index included: a size, or a share of the memory that the machine or the cgroup has.",
    ),
    fixed(
        "compress",
        "true",
        Switch(|s| &mut s.compress),
        "Pack pages with LZ4 where that saves a quarter of them, from when memory is nearly full.",
    ),
    fixed(
        "dedup",
        "false",
        Switch(|s| &mut s.dedup),
        "Let equal pages share memory: those of one client, and those of clients in one sharing domain.",
    ),
    fixed(
        "disk",
        r#""""#,
        Path(|s| &mut s.disk),
        "Directory on a disk for pages that memory has no room for, in a file without a name that ends with the store.",
    ),
    fixed(
        "disk_capacity",
        r#""16G""#,
        Size(|s| &mut s.disk_capacity_bytes, 1 << 20, 64 << 40),
        "Most bytes of pages in `disk`.",
    ),
    fixed(
        "disk_timeout_ms",
        "5000",
        Count(|s| &mut s.disk_timeout_ms, 100, 60_000),
        "How long a read or write of `disk` may take before it counts as failed, milliseconds.",
    ),
];

/// `[listen]`
pub static LISTEN: [Setting<Listen>; 21] = [
    fixed(
        "dir",
        r#""/run/spillway""#,
        Path(|l| &mut l.dir),
        "Directory of the sockets below whose paths are relative. It is made if it is not there.",
    ),
    fixed(
        "ring",
        r#""spillway.sock""#,
        Path(|l| &mut l.ring),
        "Unix socket of the shared-memory ring, for local programs and guests.",
    ),
    fixed(
        "programs",
        r#""programs.sock""#,
        Path(|l| &mut l.programs),
        "Unix socket where programs under `spillway run` register, report, and hear how many local frames they may hold.",
    ),
    fixed("nbd", r#""nbd.sock""#, Path(|l| &mut l.nbd), "Unix socket for NBD."),
    fixed(
        "nbd_tcp",
        r#""""#,
        Address(|l| &mut l.nbd_tcp),
        "Address for NBD over TCP, 127.0.0.1:10809 by custom. One that other hosts reach needs `tls_certificate`, `tls_key` and `tls_clients`.",
    ),
    fixed(
        "nbd_tcp_name",
        r#""""#,
        Text(|l| &mut l.nbd_tcp_name),
        "Whoever connects to `nbd_tcp` from this host without a certificate is the client of this `certificate`. Empty: nobody is.",
    ),
    fixed(
        "tls_certificate",
        r#""""#,
        Path(|l| &mut l.tls_certificate),
        "The daemon's certificate for `nbd_tcp`, `nvme_tls` and `resp_tls`, in PEM.",
    ),
    fixed("tls_key", r#""""#, Path(|l| &mut l.tls_key), "The key of `tls_certificate`, in PEM."),
    fixed(
        "tls_clients",
        r#""""#,
        Path(|l| &mut l.tls_clients),
        "Certificates of those who vouch for clients, in PEM. With it, clients that speak TLS must show a certificate.",
    ),
    fixed(
        "nvme_tcp",
        r#""""#,
        Address(|l| &mut l.nvme_tcp),
        "Address for NVMe over TCP, 127.0.0.1:4420 by custom. One that other hosts reach needs a secret for every host (`client.secret_file`).",
    ),
    fixed(
        "nvme_tcp_name",
        r#""nqn.2026-11.io.spillway""#,
        Text(|l| &mut l.nvme_tcp_name),
        "What the names of the NVMe subsystems begin with. Linux tells subsystems apart by their names, so two daemons that one host uses need different ones.",
    ),
    fixed(
        "nvme_tcp_secret_file",
        r#""""#,
        Path(|l| &mut l.nvme_tcp_secret_file),
        "File with the secret that the daemon proves to know to hosts that ask for it, as `nvme gen-dhchap-key` prints it.",
    ),
    fixed(
        "nvme_tls",
        r#""""#,
        Address(|l| &mut l.nvme_tls),
        "Address for NVMe over TCP inside TLS 1.3, for clients of other Spillway hosts, 127.0.0.1:4421 by custom. Needs `tls_certificate`, `tls_key` and `tls_clients`; who connects is the client of this `certificate`. Linux's own NVMe speaks TLS with shared keys only, so kernels use `nvme_tcp`.",
    ),
    fixed(
        "nvme_data_timeout_s",
        "30",
        Count(|l| &mut l.nvme_data_timeout_s, 1, 3600),
        "A host that has begun to send a value over NVMe is cut off when in so many seconds less than 64 KiB of what it owes comes, or less than all of it if that is less; 30 s in which it receives nothing end it too.",
    ),
    fixed(
        "resp",
        r#""resp.sock""#,
        Path(|l| &mut l.resp),
        "Unix socket for RESP, the protocol of Redis and Valkey (resp.md).",
    ),
    fixed(
        "resp_tcp",
        r#""""#,
        Address(|l| &mut l.resp_tcp),
        "Loopback address for RESP over TCP, 127.0.0.1:6379 by custom. Clients say who they are by AUTH (`client.password_file`). Other hosts use `resp_tls`.",
    ),
    fixed(
        "resp_tcp_name",
        r#""""#,
        Text(|l| &mut l.resp_tcp_name),
        "Whoever connects to `resp_tcp` is the client of this `certificate`, until it authenticates as another. Empty: nobody is.",
    ),
    fixed(
        "resp_tls",
        r#""""#,
        Address(|l| &mut l.resp_tls),
        "Address for RESP inside TLS, 127.0.0.1:6380 by custom. Needs `tls_certificate` and `tls_key`. With `tls_clients`, who connects must show a certificate and is the client of this `certificate`; it can authenticate as another.",
    ),
    fixed(
        "api",
        r#""api.sock""#,
        Path(|l| &mut l.api),
        "Unix socket of the HTTP interface, for the daemon's user and root only (mode 0600).",
    ),
    fixed(
        "api_tcp",
        r#""""#,
        Address(|l| &mut l.api_tcp),
        "Address of the HTTP interface over TCP, and of the dashboard (dashboard.md); needs `api_token_file`.",
    ),
    fixed(
        "api_token_file",
        r#""""#,
        Path(|l| &mut l.api_token_file),
        "File with the token that requests over TCP must bear: at least 16 characters on one line.",
    ),
];

/// `[process]`
pub static PROCESS: [Setting<Process>; 3] = [
    fixed(
        "lock_memory",
        r#""auto""#,
        Lock(|p| &mut p.lock_memory),
        "Lock memory against paging (mlockall): \"auto\" does so when the limit on locked memory allows it, \"on\" does not start without.",
    ),
    fixed(
        "sandbox",
        "true",
        Switch(|p| &mut p.sandbox),
        "Give up system calls (seccomp) and files (Landlock) that the daemon does not need once it runs.",
    ),
    fixed(
        "keeper",
        "true",
        Switch(|p| &mut p.keeper),
        "Keep the store's memory in a small process of its own, which starts the daemon again when it is killed. Under systemd its descriptor store does that instead.",
    ),
];

/// `[memory]`
pub static MEMORY: [Setting<Memory>; 6] = [
    live(
        "policy",
        r#""greedy""#,
        Policy(|m| &mut m.policy),
        "Who gets the memory: \"greedy\", first come, first served; \"static-alloc\", equal shares; \"reconf-static\", equal shares for those who have put something; \"smart-alloc\", more for those who are refused and less for those who have pages to spare; \"utility\", to whom it saves most waiting, within bounds of fairness. See docs/policies.md.",
    ),
    live(
        "p",
        "2",
        Percent(|m| &mut m.p),
        "smart-alloc: how much a target grows, of the store, and shrinks, of itself, in an interval.",
    ),
    live(
        "threshold",
        r#""none""#,
        OptionalSize(|m| &mut m.threshold_bytes),
        "smart-alloc: what a client may leave unused before its target shrinks. Without it `p` of the store, and at least 256K.",
    ),
    live(
        "miss_us",
        "1000",
        Count(|m| &mut m.miss_us, 10, 1_000_000),
        "utility: what a page costs a client that the store does not have, microseconds: a read from its disk.",
    ),
    live(
        "programs",
        r#""none""#,
        OptionalCapacity(|m| &mut m.programs),
        "Memory that programs under `spillway run` may hold together as local frames, beside `store.capacity`: a size, or a share of the memory that the machine or the cgroup has. The policy shares it out; no program gets more than its own --local. \"none\": they are counted and shown, and keep what they have.",
    ),
    live(
        "interval_ms",
        "1000",
        Count(|m| &mut m.interval_ms, *INTERVALS_MS.start(), *INTERVALS_MS.end()),
        "Milliseconds between two looks at the clients.",
    ),
];

/// `[unnamed]`
pub static UNNAMED: [Setting<Unnamed>; 7] = [
    live(
        "users",
        r#""same""#,
        Users(|u| &mut u.users),
        "Which local users that no client names are let in: \"same\", root and the daemon's own user; \"all\", each a client of its own; \"none\".",
    ),
    live(
        "hosts",
        "false",
        Switch(|u| &mut u.hosts),
        "Let hosts in by whatever name they give, without a secret. Only where `nvme_tcp` is a loopback address.",
    ),
    live(
        "target",
        r#""none""#,
        OptionalSize(|u| &mut u.target_bytes),
        "Most that an unnamed client may hold.",
    ),
    live(
        "connections_max",
        "64",
        Count(|u| &mut u.connections_max, 1, CONNECTIONS_MAX),
        "Most connections of a client, where the client does not say.",
    ),
    live(
        "operations_max",
        "4096",
        Count(|u| &mut u.operations_max, 1, OPERATIONS_MAX),
        "Most operations under way of a client, where the client does not say.",
    ),
    live(
        "bytes_max",
        r#""256M""#,
        Size(|u| &mut u.bytes_max, 1 << 20, BYTES_MAX),
        "Most bytes of values of operations under way of a client, where the client does not say.",
    ),
    live(
        "grace_s",
        "60",
        Count(|u| &mut u.grace_s, 0, 7 * 24 * 3600),
        "Seconds for which the pools of an unnamed client stay when its last connection has ended, also over a restart of the daemon.",
    ),
];

/// `[[client]]`
pub static CLIENT: [Setting<Client>; 15] = [
    live("name", "", Text(|c| &mut c.name), "Its name. Needed."),
    live(
        "uid",
        "",
        OptionalCount(|c| &mut c.uid, 0, ID_MAX),
        "It is the processes of this user. One of `uid`, `gid`, `nqn`, `certificate` and `password_file` is needed, but for a guest that only has disks (`[[disk]]`) or windows (`[[vm]]`).",
    ),
    live(
        "gid",
        "",
        OptionalCount(|c| &mut c.gid, 0, ID_MAX),
        "It is the processes of this group whose user is no client.",
    ),
    live(
        "nqn",
        "",
        Text(|c| &mut c.nqn),
        "It is the host of this NVMe Qualified Name (`/etc/nvme/hostnqn` there).",
    ),
    live(
        "certificate",
        "",
        Text(|c| &mut c.certificate),
        "It is whoever shows a certificate for this DNS name over TLS.",
    ),
    live(
        "secret_file",
        "",
        Path(|c| &mut c.secret_file),
        "File with the secret that the host must prove to know, as `nvme gen-dhchap-key` prints it.",
    ),
    live(
        "password_file",
        "",
        Path(|c| &mut c.password_file),
        "It is whoever gives the password in this file, over RESP: AUTH with the client's name and the password. AUTH with a password alone means the client `default`.",
    ),
    live("target", r#""none""#, OptionalSize(|c| &mut c.target_bytes), "Most that it may hold."),
    live(
        "floor",
        r#""0""#,
        Size(|c| &mut c.floor_bytes, 0, 1 << 50),
        "What the policy \"utility\" leaves it at any time.",
    ),
    live(
        "weight",
        "1",
        Count(|c| &mut c.weight, 1, 1000),
        "What its waiting counts beside that of others, and its share, for the policy \"utility\".",
    ),
    live(
        "connections_max",
        "",
        OptionalCount(|c| &mut c.connections_max, 1, CONNECTIONS_MAX),
        "Most connections; else as `[unnamed]` says.",
    ),
    live(
        "operations_max",
        "",
        OptionalCount(|c| &mut c.operations_max, 1, OPERATIONS_MAX),
        "Most operations under way; else as `[unnamed]` says.",
    ),
    live(
        "bytes_max",
        "",
        OptionalSize(|c| &mut c.bytes_max),
        "Most bytes of values of operations under way; else as `[unnamed]` says.",
    ),
    live(
        "domain",
        "",
        OptionalCount(|c| &mut c.domain, 0, u32::MAX as u64),
        "Sharing domain: clients of one domain share memory of equal pages, where `store.dedup` is on. It stays as long as the client.",
    ),
    live("shared", "[]", Texts(|c| &mut c.shared), "UUIDs of the shared pools that it may join."),
];

/// `[[block]]`
pub static BLOCK: [Setting<Block>; 5] = [
    live("name", "", Text(|b| &mut b.name), "Its name. Needed."),
    live("client", "", Text(|b| &mut b.client), "The client that may use it. Needed."),
    live(
        "size",
        r#""0""#,
        Size(|b| &mut b.size_bytes, 0, BLOCK_BYTES_MAX),
        "Its length, a multiple of 4096 bytes; so much memory is set aside, unless `reserve` says otherwise. Needed.",
    ),
    live(
        "block_bytes",
        "4096",
        Count(|b| &mut b.block_bytes, 512, 4096),
        "The length of a block: 512 or 4096.",
    ),
    live(
        "reserve",
        "true",
        Switch(|b| &mut b.reserve),
        "Set its memory aside, so that no write is refused. Without, its pages are kept as others are: packed, moved to `store.disk`, and a write fails when the store is full or the client at its target.",
    ),
];

/// `[[disk]]`
pub static DISK: [Setting<Disk>; 9] = [
    fixed("name", "", Text(|d| &mut d.name), "Its name. Needed."),
    fixed(
        "client",
        "",
        Text(|d| &mut d.client),
        "The client whose pages its blocks are: a `[[client]]` of the guest's own, which needs no `uid` or the like. Needed.",
    ),
    fixed(
        "kind",
        r#""swap""#,
        Kind(|d| &mut d.kind),
        "\"swap\": swap space, whose blocks lie in the store or in `backing`; \"cache\": a file system's disk, all of which is in `backing`, with clean copies in the store.",
    ),
    fixed(
        "size",
        r#""0""#,
        Size(|d| &mut d.size_bytes, 0, spillway_vhost_user_blk::BYTES_MAX),
        "Its length, a multiple of 4096 bytes; without one that of `backing`.",
    ),
    fixed(
        "backing",
        "",
        Path(|d| &mut d.backing),
        "The file for blocks that the store does not take. It is made if it is not there, and allocated in full. Beside it lies the map of the blocks, with `.map` after its name. Needed.",
    ),
    fixed(
        "socket",
        "",
        Path(|d| &mut d.socket),
        "Unix socket for the guest's QEMU, for the daemon's user and root only; `NAME.vhost.sock` without one.",
    ),
    fixed(
        "gid",
        "",
        OptionalCount(|d| &mut d.gid, 0, ID_MAX),
        "Group that may connect too, such as QEMU's.",
    ),
    fixed(
        "queues",
        "16",
        Count(|d| &mut d.queues, 1, 64),
        "Most virtqueues. QEMU takes one for each processor of the guest; each is served on a thread of its own.",
    ),
    fixed(
        "disk_latency_us",
        "0",
        Count(|d| &mut d.disk_latency_us, 0, 10_000_000),
        "For experiments: microseconds that each request to `backing` waits, to stand for a slower disk.",
    ),
];
