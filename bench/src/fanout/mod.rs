//! `fanout`: the borrower's device of lending, compared with nbdkit's memory plugin.
//!
//! fio's nbd engine on Unix sockets, against devices whose slabs lie with real daemons over TLS on loopback: one
//! lender, two lenders (a mirror), and a lender with a local file. The cost of sealing is measured separately, compared
//! with a copy of the page.

mod lenders;
mod sealing;

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use spillway_block::fresh_uuid;
use spillway_fanout::{BackupFile, FanOut, Holder, Settings, SlabLocation};
use spillway_nbd::{Config, Listener, Server};
use spillway_types::ClientId;

use self::lenders::Lenders;
use super::blocks::awake::Awake;
use super::blocks::fio::{self, Measured, Way};
use super::blocks::nbd::{Folder, Nbdkit, Transport, uri_of_socket};
use super::blocks::registry::FakeRegistry;
use super::rows::{Report, Row, median};
use super::{build_programs, by_size, go_on, rounds, wanted};

/// The name in the rows.
const BENCH: &str = "fanout";
/// Requests in flight.
const DEPTHS: [u32; 2] = [1, 32];
/// Size of the devices, bytes.
fn device_bytes() -> u64 {
    by_size(256 << 20, 64 << 20)
}

/// The places of a slab's copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    OneLender,
    TwoLenders,
    LenderAndFile,
}

impl Layout {
    const ALL: [Self; 3] = [Self::OneLender, Self::TwoLenders, Self::LenderAndFile];

    const fn name(self) -> &'static str {
        match self {
            Self::OneLender => "one lender",
            Self::TwoLenders => "two lenders",
            Self::LenderAndFile => "lender and file",
        }
    }
}

/// One round of one side of a cell; no layout means nbdkit.
struct Sample {
    layout: Option<Layout>,
    cell: (Way, u32),
    measured: Measured,
}

/// Measures the device and sealing.
///
/// # Errors
/// The user's interruption. The report contains sides that fail.
pub fn run() -> anyhow::Result<Report> {
    let mut report = Report::default();
    if wanted("sealing") {
        report.rows.push(sealing::run()?);
    }
    let _awake = Awake::start()?;
    if wanted("nbd") {
        build_programs()?;
        if let Some(samples) = report.keep("nbd", measure()) {
            report.rows.extend(rows(&samples));
        }
    }
    report.remarks.push(
        "4 KiB, random places, fio on a Unix socket. On both sides alike, a thread of the idle class spins on each \
         core. The lenders are daemons of this machine, reached over TLS, and share its cores with fio and the \
         device, while nbdkit holds its memory itself: the ratio is the price of a network, of TLS and of sealing \
         on the same cores. Sealing: pages a second on one thread, beside copying them."
            .to_owned(),
    );
    Ok(report)
}

fn measure() -> anyhow::Result<Vec<Sample>> {
    let folder = Folder::new()?;
    let lenders = Lenders::start(&folder.0, device_bytes())?;
    let devices = Layout::ALL
        .map(|layout| serve(layout, &lenders, &folder.0).map(|(server, uri)| (layout, server, uri)))
        .into_iter()
        .collect::<anyhow::Result<Vec<_>>>()?;
    let (_nbdkit, other) = Nbdkit::start(Transport::Unix, &folder.0)?;
    let mut sides = vec![(None, other)];
    sides.extend(devices.iter().map(|(layout, _, uri)| (Some(*layout), uri.clone())));
    for (_, uri) in &sides {
        fio::fill(uri)?;
    }
    let mut samples = Vec::new();
    let rounds = rounds()?;
    for round in 1..=rounds {
        eprintln!("round {round} of {rounds}");
        for way in [Way::Read, Way::Write] {
            for depth in DEPTHS {
                for (layout, uri) in &sides {
                    let measured = fio::run(uri, way, depth)?;
                    samples.push(Sample { layout: *layout, cell: (way, depth), measured });
                    go_on()?;
                }
            }
        }
    }
    Ok(samples)
}

fn rows(samples: &[Sample]) -> Vec<Row> {
    let mut rows = Vec::new();
    for layout in Layout::ALL {
        for cell @ (way, depth) in
            [Way::Read, Way::Write].iter().flat_map(|way| DEPTHS.map(|depth| (*way, depth)))
        {
            let of = |layout: Option<Layout>, figure: fn(&Measured) -> f64| {
                let its = samples.iter().filter(|s| s.cell == cell && s.layout == layout);
                median(its.map(|sample| figure(&sample.measured)))
            };
            let name = format!("{} {} depth {depth}", layout.name(), way.name());
            let rate = |layout| of(layout, |measured| measured.rate / 1e3);
            let time = |layout| of(layout, |measured| measured.median_us);
            let other = |figure| ("nbdkit memory", figure);
            rows.push(Row::new(BENCH, &name, "kIOPS", rate(Some(layout)), other(rate(None))));
            let metric = format!("{name} p50");
            rows.push(Row::new(BENCH, metric, "us", time(Some(layout)), other(time(None))));
        }
    }
    rows
}

/// Starts an NBD server for a device with that layout. Returns it and its address.
fn serve(layout: Layout, lenders: &Lenders, folder: &Path) -> anyhow::Result<(Server, String)> {
    let first = lenders.loan(0)?;
    let second = match layout {
        Layout::OneLender => None,
        Layout::TwoLenders => Some(lenders.loan(1)?),
        Layout::LenderAndFile => {
            let file = BackupFile::open(&folder.join("backup"), device_bytes())?;
            Some(Holder::file(file)?)
        }
    };
    let settings = Settings { slab_bytes: 64 << 20, ..Settings::default() };
    let slabs = (0..(device_bytes() / settings.slab_bytes) as u32)
        .map(|slab| {
            let at = |holder: &Arc<Holder>| SlabLocation { holder: holder.clone(), slab };
            [Some(at(&first)), second.as_ref().map(at)]
        })
        .collect();
    let device = FanOut::open(settings, fresh_uuid()?, slabs, |report| eprintln!("{report}"))?;
    let registry = Arc::new(FakeRegistry { client: ClientId(1), device: Some(Arc::new(device)) });
    let path = folder.join(format!("{}.sock", layout.name().replace(' ', "-")));
    let listener = Listener::Unix(UnixListener::bind(&path)?);
    let server = Server::start(listener, registry.clone(), registry, Config::default())?;
    Ok((server, uri_of_socket(&path)))
}
