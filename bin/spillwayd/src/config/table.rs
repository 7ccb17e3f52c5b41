//! The table of all settings.

use spillway_api::INTERVALS_MS;

pub use super::table_lend::{LEND, PEER};
pub use super::table_vm::{SECTIONS, VM};

use super::field::Field::{
    Address, Capacity, Count, Kind, MemoryLock, OptionalCapacity, OptionalCount, OptionalSize,
    Path, Percent, Policy, Size, Switch, Text, Texts, Users,
};
use super::field::{Setting, fixed, live};
use super::values::{Block, Disk, Listen, Memory, NamedClient, Process, Store, Unnamed};

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

/// `[store]`
pub static STORE: [Setting<Store>; 6] = [
    fixed(
        "capacity",
        r#""25%""#,
        Capacity(|s| &mut s.capacity),
        "The most memory that the store may take, its index included: a size, or a share of the memory of the machine or the cgroup. A restart that keeps the store can lower it, and raise it to what the store began with; to raise it further, stop the daemon and start it.",
    ),
    fixed(
        "compress",
        "true",
        Switch(|s| &mut s.compress),
        "Compress pages with LZ4 once memory is nearly full, where that saves at least a quarter of a page.",
    ),
    fixed(
        "dedup",
        "false",
        Switch(|s| &mut s.dedup),
        "Let equal pages, and other equal values of 256 bytes and more, share memory, within a client and among clients of one sharing domain.",
    ),
    fixed(
        "disk",
        r#""""#,
        Path(|s| &mut s.disk),
        "Directory on a disk for pages that do not fit into memory. They lie in an unnamed file that ends with the store.",
    ),
    fixed(
        "disk_capacity",
        r#""16G""#,
        Size(|s| &mut s.disk_capacity_bytes, 1 << 20, 64 << 40),
        "The most bytes of pages in `disk`.",
    ),
    fixed(
        "disk_timeout_ms",
        "5000",
        Count(|s| &mut s.disk_timeout_ms, 100, 60_000),
        "How long a read or write of `disk` may take before it counts as failed, in milliseconds.",
    ),
];

/// `[listen]`
pub static LISTEN: [Setting<Listen>; 24] = [
    fixed(
        "dir",
        r#""/run/spillway""#,
        Path(|l| &mut l.dir),
        "Directory of the sockets below whose paths are relative. The daemon creates it if it is missing. `spillway serve` without `--config` sets it to $XDG_RUNTIME_DIR/spillway for users other than root.",
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
        "Unix socket where programs under `spillway run` register, report, and learn how many local frames they may hold.",
    ),
    fixed("nbd", r#""nbd.sock""#, Path(|l| &mut l.nbd), "Unix socket for NBD."),
    fixed(
        "nbd_tcp",
        r#""""#,
        Address(|l| &mut l.nbd_tcp),
        "Address for NBD over TCP, usually 127.0.0.1:10809. An address that other hosts reach needs `tls_certificate`, `tls_key` and `tls_clients`.",
    ),
    fixed(
        "nbd_tcp_name",
        r#""""#,
        Text(|l| &mut l.nbd_tcp_name),
        "The client identity (a `client.certificate`) given to local connections to `nbd_tcp` without a certificate. Empty refuses them.",
    ),
    fixed(
        "tls_certificate",
        r#""""#,
        Path(|l| &mut l.tls_certificate),
        "The daemon's certificate for `nbd_tcp`, `nvme_tls`, `resp_tls` and `api_tls`, in PEM. A reload reads the file again.",
    ),
    fixed(
        "tls_key",
        r#""""#,
        Path(|l| &mut l.tls_key),
        "The key of `tls_certificate`, in PEM. A reload reads the file again.",
    ),
    fixed(
        "tls_clients",
        r#""""#,
        Path(|l| &mut l.tls_clients),
        "Certificates of the authorities for clients, in PEM. If it is set, clients that use TLS must show a certificate, except at `api_tls`. A reload reads the file again.",
    ),
    fixed(
        "nvme_tcp",
        r#""""#,
        Address(|l| &mut l.nvme_tcp),
        "Address for NVMe over TCP, usually 127.0.0.1:4420. An address that other hosts reach needs a secret for every host (`client.secret_file`).",
    ),
    fixed(
        "nvme_tcp_name",
        r#""nqn.2026-11.io.spillway""#,
        Text(|l| &mut l.nvme_tcp_name),
        "The start of the names of the NVMe subsystems. Linux identifies subsystems by name, so two daemons that one host uses need different names.",
    ),
    fixed(
        "nvme_tcp_secret_file",
        r#""""#,
        Path(|l| &mut l.nvme_tcp_secret_file),
        "File with the secret that the daemon proves to hosts that request it, in the form that `nvme gen-dhchap-key` prints. A reload reads it again.",
    ),
    fixed(
        "nvme_tls",
        r#""""#,
        Address(|l| &mut l.nvme_tls),
        "Address for NVMe over TCP inside TLS 1.3, for clients on other Spillway hosts, usually 127.0.0.1:4421. Needs `tls_certificate`, `tls_key` and `tls_clients`; the certificate identifies the client (`client.certificate`). Kernels use `nvme_tcp`, because Linux supports TLS for NVMe with shared keys only.",
    ),
    fixed(
        "nvme_data_timeout_s",
        "30",
        Count(|l| &mut l.nvme_data_timeout_s, 1, 3600),
        "A host that owes data over NVMe must send 64 KiB of it, or the rest if that is less, in this many seconds; otherwise the daemon closes its connection. It also closes that of a host that receives nothing for 30 s.",
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
        "Loopback address for RESP over TCP, usually 127.0.0.1:6379. Clients authenticate by AUTH (`client.password_file`). Other hosts use `resp_tls`.",
    ),
    fixed(
        "resp_tcp_name",
        r#""""#,
        Text(|l| &mut l.resp_tcp_name),
        "The client identity (a `client.certificate`) given to connections to `resp_tcp` until they authenticate. Empty refuses commands until then.",
    ),
    fixed(
        "resp_tls",
        r#""""#,
        Address(|l| &mut l.resp_tls),
        "Address for RESP inside TLS, usually 127.0.0.1:6380. Needs `tls_certificate` and `tls_key`. With `tls_clients`, a client must show a certificate, which identifies it (`client.certificate`); it can authenticate as another client.",
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
        "Loopback address of the HTTP interface and the dashboard over TCP, usually 127.0.0.1:8430 (dashboard.md). Needs `api_token_file`. Other hosts use `api_tls`.",
    ),
    fixed(
        "api_tcp_guarded",
        "false",
        Switch(|l| &mut l.api_tcp_guarded),
        "Permit an `api_tcp` that other hosts reach, because something else encrypts all that goes there, such as WireGuard or a proxy with TLS.",
    ),
    fixed(
        "api_tls",
        r#""""#,
        Address(|l| &mut l.api_tls),
        "Address of the HTTP interface and the dashboard inside TLS 1.2 or 1.3 (https), usually 127.0.0.1:8431. Needs `tls_certificate`, `tls_key` and `api_token_file`. The token alone identifies the client, also with `tls_clients`.",
    ),
    fixed(
        "api_token_file",
        r#""""#,
        Path(|l| &mut l.api_token_file),
        "File with the token that requests to `api_tcp` and `api_tls` must carry: at least 16 characters on one line. A reload reads it again.",
    ),
    fixed(
        "api_read_token_file",
        r#""""#,
        Path(|l| &mut l.api_read_token_file),
        "File with a second token that permits only to read, for example by Prometheus. It must differ from that of `api_token_file`. A reload reads it again.",
    ),
];

/// `[process]`
pub static PROCESS: [Setting<Process>; 4] = [
    fixed(
        "lock_memory",
        r#""auto""#,
        MemoryLock(|p| &mut p.lock_memory),
        "Lock memory against paging (mlockall). \"auto\": if the limit on locked memory allows it. \"on\": the daemon does not start otherwise.",
    ),
    fixed(
        "sandbox",
        "true",
        Switch(|p| &mut p.sandbox),
        "Once it runs, the daemon gives up system calls (seccomp) and files (Landlock) that it does not need.",
    ),
    fixed(
        "keeper",
        "true",
        Switch(|p| &mut p.keeper),
        "Hold the store's memory in a small separate process, which restarts the daemon when it is killed. Under systemd, its descriptor store does that instead. If false and without systemd, a kill of the daemon loses the store.",
    ),
    fixed(
        "user",
        r#""""#,
        Text(|p| &mut p.user),
        "User, by name or number, to which the daemon changes if root starts it; then it has no capabilities, and must be able to read its configuration, keys and tokens. Empty: it stays the user that starts it. Not for a daemon that borrows memory or has guests (`[[vm]]`). In a systemd unit, write `User=` instead.",
    ),
];

/// `[memory]`
pub static MEMORY: [Setting<Memory>; 7] = [
    live(
        "policy",
        r#""greedy""#,
        Policy(|m| &mut m.policy),
        "Which client gets how much memory. \"greedy\": first come, first served. \"static-alloc\": equal shares. \"reconf-static\": equal shares for clients that have put something. \"smart-alloc\": more for clients whose puts are refused, less for clients with unused pages. \"utility\": to the clients for which it saves the most waiting, within bounds of fairness. See docs/policies.md.",
    ),
    live(
        "p",
        "2",
        Percent(|m| &mut m.p),
        "smart-alloc: in an interval a target grows by this percentage of the store, or shrinks by this percentage of itself.",
    ),
    live(
        "threshold",
        r#""none""#,
        OptionalSize(|m| &mut m.threshold_bytes),
        "smart-alloc: how much a client may leave unused before its target shrinks. \"none\": `p` percent of the store, and at least 256K.",
    ),
    live(
        "miss_us",
        "1000",
        Count(|m| &mut m.miss_us, 10, 1_000_000),
        "utility: what a miss costs a client, in microseconds: the time of a read from its disk.",
    ),
    live(
        "fairness_percent",
        "0",
        Count(|m| &mut m.fairness_percent, 0, 100),
        "utility: the part of the store that is shared evenly among the clients that can use it. 0: memory goes where it saves the most waiting, and clients that don't all fit take turns. 100: nobody takes turns, and equal clients get about equal shares.",
    ),
    live(
        "programs",
        r#""none""#,
        OptionalCapacity(|m| &mut m.programs),
        "The most memory that all programs under `spillway run` together may hold as local frames, in addition to `store.capacity`: a size, or a share of the memory of the machine or the cgroup. The policy divides it; a program gets at most its --local, or the cap that `spillway client set --target` gives it. \"none\": programs are counted and shown, and keep what they have.",
    ),
    live(
        "interval_ms",
        "1000",
        Count(|m| &mut m.interval_ms, *INTERVALS_MS.start(), *INTERVALS_MS.end()),
        "Milliseconds between two samples of the clients.",
    ),
];

/// `[unnamed]`
pub static UNNAMED: [Setting<Unnamed>; 7] = [
    live(
        "users",
        r#""same""#,
        Users(|u| &mut u.users),
        "Which local users the daemon admits although no client names them. \"same\": root and the daemon's own user. \"all\": every user, each as a client of its own. \"none\": no user.",
    ),
    live(
        "hosts",
        "false",
        Switch(|u| &mut u.hosts),
        "Admit NVMe hosts under any name that they give, without a secret. Only if `nvme_tcp` is a loopback address.",
    ),
    live(
        "target",
        r#""none""#,
        OptionalSize(|u| &mut u.target_bytes),
        "The cap of an unnamed client: the most that it may hold. The policy sets its present target at or below it.",
    ),
    live(
        "connections_max",
        "64",
        Count(|u| &mut u.connections_max, 1, CONNECTIONS_MAX),
        "The most connections of a client, unless its `[[client]]` sets another limit.",
    ),
    live(
        "operations_max",
        "4096",
        Count(|u| &mut u.operations_max, 1, OPERATIONS_MAX),
        "The most operations in flight of a client, unless its `[[client]]` sets another limit.",
    ),
    live(
        "bytes_max",
        r#""256M""#,
        Size(|u| &mut u.bytes_max, 1 << 20, BYTES_MAX),
        "The most bytes of values in flight of a client, unless its `[[client]]` sets another limit.",
    ),
    live(
        "grace_s",
        "60",
        Count(|u| &mut u.grace_s, 0, 7 * 24 * 3600),
        "How many seconds the pools of an unnamed client stay after its last connection has ended, also over a restart of the daemon.",
    ),
];

/// `[[client]]`
pub static CLIENT: [Setting<NamedClient>; 15] = [
    live("name", "", Text(|c| &mut c.name), "The name of the client. Required."),
    live(
        "uid",
        "",
        OptionalCount(|c| &mut c.uid, 0, ID_MAX),
        "The client is the processes of this user. One of `uid`, `gid`, `nqn`, `certificate` and `password_file` is required, except for a guest that only has disks (`[[disk]]`) or windows (`[[vm]]`).",
    ),
    live(
        "gid",
        "",
        OptionalCount(|c| &mut c.gid, 0, ID_MAX),
        "The client is the processes of this group, unless their user is another client.",
    ),
    live(
        "nqn",
        "",
        Text(|c| &mut c.nqn),
        "The client is the host with this NVMe Qualified Name (`/etc/nvme/hostnqn` on that host).",
    ),
    live(
        "certificate",
        "",
        Text(|c| &mut c.certificate),
        "The client is every connection that shows a certificate for this DNS name over TLS.",
    ),
    live(
        "secret_file",
        "",
        Path(|c| &mut c.secret_file),
        "File with the secret by which the host authenticates, in the form that `nvme gen-dhchap-key` prints.",
    ),
    live(
        "password_file",
        "",
        Path(|c| &mut c.password_file),
        "The client is every RESP connection that sends the client's name and the password in this file by AUTH. AUTH with a password alone means the client `default`.",
    ),
    live(
        "target",
        r#""none""#,
        OptionalSize(|c| &mut c.target_bytes),
        "The cap of the client: the most that it may hold. The policy sets its present target at or below it.",
    ),
    live(
        "floor",
        r#""0""#,
        Size(|c| &mut c.floor_bytes, 0, 1 << 50),
        "The policy \"utility\" never sets the target of the client below this.",
    ),
    live(
        "weight",
        "1",
        Count(|c| &mut c.weight, 1, 1000),
        "utility: how much the client's waiting counts relative to others, and how large its fair share is.",
    ),
    live(
        "connections_max",
        "",
        OptionalCount(|c| &mut c.connections_max, 1, CONNECTIONS_MAX),
        "The most connections of the client. Default: as in `[unnamed]`.",
    ),
    live(
        "operations_max",
        "",
        OptionalCount(|c| &mut c.operations_max, 1, OPERATIONS_MAX),
        "The most operations in flight. Default: as in `[unnamed]`.",
    ),
    live(
        "bytes_max",
        "",
        OptionalSize(|c| &mut c.bytes_max),
        "The most bytes of values in flight. Default: as in `[unnamed]`.",
    ),
    live(
        "domain",
        "",
        OptionalCount(|c| &mut c.domain, 0, u32::MAX as u64),
        "Sharing domain: clients of one domain share memory of equal pages, if `store.dedup` is on. It can't change while the client exists.",
    ),
    live(
        "shared",
        "[]",
        Texts(|c| &mut c.shared),
        "UUIDs of the shared pools that the client may join.",
    ),
];

/// `[[block]]`
pub static BLOCK: [Setting<Block>; 5] = [
    live("name", "", Text(|b| &mut b.name), "The name of the device. Required."),
    live("client", "", Text(|b| &mut b.client), "The client that may use the device. Required."),
    live(
        "size",
        r#""0""#,
        Size(|b| &mut b.size_bytes, 0, BLOCK_BYTES_MAX),
        "The length of the device, a multiple of 4096 bytes. It is reserved in memory, unless `reserve` is false. Required.",
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
        "Reserve the memory of the device in full, so that no write is refused. If false, the store compresses its pages and moves them to `store.disk` like others, and a write fails when the store is full or the client is at its target.",
    ),
];

/// `[[disk]]`
pub static DISK: [Setting<Disk>; 9] = [
    fixed("name", "", Text(|d| &mut d.name), "The name of the disk. Required."),
    fixed(
        "client",
        "",
        Text(|d| &mut d.client),
        "The client that holds the blocks: a `[[client]]` of the guest alone, which needs no `uid` or other identity. Required.",
    ),
    fixed(
        "kind",
        r#""swap""#,
        Kind(|d| &mut d.kind),
        "\"swap\": swap space, whose blocks lie in the store or in `backing`. \"cache\": a file system's disk, which lies in `backing` in full, with clean copies in the store.",
    ),
    fixed(
        "size",
        r#""0""#,
        Size(|d| &mut d.size_bytes, 0, spillway_vhost_user_blk::BYTES_MAX),
        "The length of the disk, a multiple of 4096 bytes. Default: the length of `backing`.",
    ),
    fixed(
        "backing",
        "",
        Path(|d| &mut d.backing),
        "The file for blocks that the store does not take. The daemon creates it if it is missing, and allocates it in full. The map of the blocks lies beside it, under the same name with `.map`. Required.",
    ),
    fixed(
        "socket",
        "",
        Path(|d| &mut d.socket),
        "Unix socket for the guest's QEMU, for the daemon's user, root and the group `gid` only. Default: `NAME.vhost.sock` in `listen.dir`.",
    ),
    fixed(
        "gid",
        "",
        OptionalCount(|d| &mut d.gid, 0, ID_MAX),
        "Group that may also connect, such as QEMU's.",
    ),
    fixed(
        "queues",
        "16",
        Count(|d| &mut d.queues, 1, 64),
        "The most virtqueues. QEMU uses one for each processor of the guest; the daemon serves each on a thread of its own.",
    ),
    fixed(
        "disk_latency_us",
        "0",
        Count(|d| &mut d.disk_latency_us, 0, 10_000_000),
        "For experiments: delay each request to `backing` by this many microseconds, to emulate a slower disk.",
    ),
];
