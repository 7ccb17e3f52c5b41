//! The catalogue as text: for Prometheus, and for people.

use std::fmt::Write;

use crate::catalogue::{CLIENT, DISK, LEND, LEND_DEVICE, LEND_PEER, PROGRAM, STORE};
use crate::command::{COMMAND, histogram};
use crate::connections::{CONNECTION, CONNECTION_REFUSED};
use crate::guests::{SECTIONS, SectionsSample, VM};
use crate::info::{BUILD, BuildSample};
use crate::metric::{Kind, Metric, Scale};
use crate::policy::{POLICY, REFUSED};
use crate::process::PROCESS;
use crate::resp::RESP;
use crate::sample::{LendSample, Sample};

/// The content type of [`render`]'s text.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Writes a sample in Prometheus' text format.
pub fn render(sample: &Sample) -> String {
    let mut out = String::new();
    let BuildSample { version, commit } = sample.build;
    for metric in &BUILD {
        head(&mut out, metric);
        let (version, commit) = (escaped(version), escaped(commit));
        let label = format!("{{version=\"{version}\",commit=\"{commit}\"}}");
        line(&mut out, metric, &label, (metric.value)(&sample.build));
    }
    if let Some(process) = &sample.process {
        for metric in &PROCESS {
            head(&mut out, metric);
            line(&mut out, metric, "", (metric.value)(process));
        }
    }
    for metric in &STORE {
        head(&mut out, metric);
        line(&mut out, metric, "", (metric.value)(&sample.store));
    }
    for metric in &POLICY {
        head(&mut out, metric);
        let label = format!("{{policy=\"{}\"}}", escaped(sample.policy.name));
        let label = if metric.name.ends_with("_info") { label.as_str() } else { "" };
        line(&mut out, metric, label, (metric.value)(&sample.policy));
    }
    for metric in &REFUSED {
        head(&mut out, metric);
        line(&mut out, metric, "", (metric.value)(&sample.refused));
    }
    render_connections(&mut out, sample);
    for metric in &COMMAND {
        head(&mut out, metric);
        for sample in &sample.commands {
            for (kind, latencies) in &sample.latencies {
                histogram(&mut out, metric, (sample.front_end, *kind), latencies);
            }
        }
    }
    for metric in &CLIENT {
        head(&mut out, metric);
        for client in &sample.clients {
            let label = format!("{{client=\"{}\"}}", escaped(&client.name));
            line(&mut out, metric, &label, (metric.value)(client));
        }
    }
    for metric in &PROGRAM {
        head(&mut out, metric);
        for program in &sample.programs {
            let name = escaped(&program.program);
            let label = format!("{{program=\"{name}\",number=\"{}\"}}", program.number);
            line(&mut out, metric, &label, (metric.value)(program));
        }
    }
    for metric in &DISK {
        head(&mut out, metric);
        for disk in &sample.disks {
            let label = format!("{{disk=\"{}\"}}", escaped(&disk.name));
            line(&mut out, metric, &label, (metric.value)(disk));
        }
    }
    if let Some(resp) = &sample.resp {
        for metric in &RESP {
            head(&mut out, metric);
            line(&mut out, metric, "", (metric.value)(resp));
        }
    }
    if let Some(lend) = &sample.lend {
        render_lending(&mut out, sample, lend);
    }
    if let Some(sections) = &sample.sections {
        render_guests(&mut out, sample, sections);
    }
    out
}

fn render_connections(out: &mut String, sample: &Sample) {
    for metric in &CONNECTION {
        head(out, metric);
        for its in &sample.connections {
            let label = format!("{{frontend=\"{}\"}}", its.front_end);
            line(out, metric, &label, (metric.value)(&its.open));
        }
    }
    for metric in &CONNECTION_REFUSED {
        head(out, metric);
        for its in &sample.connections {
            for (reason, count) in &its.refused {
                let label = format!("{{frontend=\"{}\",reason=\"{reason}\"}}", its.front_end);
                line(out, metric, &label, (metric.value)(count));
            }
        }
    }
}

fn render_lending(out: &mut String, sample: &Sample, lend: &LendSample) {
    for metric in &LEND {
        head(out, metric);
        line(out, metric, "", (metric.value)(lend));
    }
    for metric in &LEND_PEER {
        head(out, metric);
        for peer in &sample.lend_peers {
            let label = format!("{{peer=\"{}\"}}", escaped(&peer.name));
            line(out, metric, &label, (metric.value)(peer));
        }
    }
    for metric in &LEND_DEVICE {
        head(out, metric);
        for device in &sample.lend_devices {
            let label = format!("{{device=\"{}\"}}", device.device);
            line(out, metric, &label, (metric.value)(device));
        }
    }
}

fn render_guests(out: &mut String, sample: &Sample, sections: &SectionsSample) {
    for metric in &SECTIONS {
        head(out, metric);
        line(out, metric, "", (metric.value)(sections));
    }
    for metric in &VM {
        head(out, metric);
        for vm in &sample.vms {
            let label = format!("{{vm=\"{}\"}}", escaped(&vm.name));
            line(out, metric, &label, (metric.value)(vm));
        }
    }
}

fn head<T>(out: &mut String, metric: &Metric<T>) {
    let Metric { name, kind, help, .. } = metric;
    // Writing to a string can't fail.
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
}

fn line<T>(out: &mut String, metric: &Metric<T>, label: &str, value: Option<u64>) {
    let Some(value) = value else { return };
    // Writing to a string can't fail.
    let _ = write!(out, "{}{label} ", metric.name);
    let _ = match metric.scale {
        Scale::One => writeln!(out, "{value}"),
        Scale::Millionth => writeln!(out, "{}.{:06}", value / 1_000_000, value % 1_000_000),
    };
}

/// Escapes a label's value for the text format.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Writes the catalogue in Markdown.
pub fn document() -> String {
    let mut out = String::from(
        "# Metrics\n\n\
         This page is for operators who monitor the daemon. It lists every metric. `GET /metrics` of the\n\
         daemon's API returns them in Prometheus' text format:\n\n    \
         curl --unix-socket /run/spillway/api.sock http://localhost/metrics\n\n\
         Prometheus reads them over TCP: set `listen.api_tcp`, or for another machine `listen.api_tls`, and\n\
         `listen.api_token_file` and `listen.api_read_token_file`\n\
         ([dashboard.md](dashboard.md#how-to-open-it) shows how). Give Prometheus the token of\n\
         `api_read_token_file` as a bearer token. That token permits only to read. Without TCP, let a timer\n\
         run the command above as the daemon's user and write the output to a file that the textfile\n\
         collector of node_exporter reads.\n\n\
         ## Alerts and a dashboard\n\n\
         `packaging/prometheus/spillway.rules.yml` has alerts for Prometheus, each with what to do and the\n\
         page that says more. `packaging/grafana/spillway.json` is a dashboard for Grafana: import it under\n\
         Dashboards, New, Import. The Debian package installs them in /usr/share/doc/spillway/examples.\n\
         Check and install the alerts:\n\n    \
         promtool check rules packaging/prometheus/spillway.rules.yml\n    \
         install -m 644 packaging/prometheus/spillway.rules.yml /etc/prometheus/\n\n\
         Alerts and dashboard expect a job with the name `spillway`. `packaging/prometheus/prometheus.yml`\n\
         has one that reads over https, for your /etc/prometheus/prometheus.yml: the token is that of\n\
         `api_read_token_file`, and `ca_file` has the authority that signed the daemon's certificate. For a\n\
         daemon on Prometheus' own host, leave out `scheme` and `tls_config`, and give the address of\n\
         `listen.api_tcp`.\n\n\
         | severity | meaning | alerts |\n|---|---|---|\n\
         | `critical` | pages are lost or unreachable, or the daemon is away | the daemon: `SpillwayDown`; the disk \
         tier: `SpillwayDiskReadsFail`, `SpillwayDiskCorrupt`; disks of guests: `SpillwayTmemDiskErrors`; lending: \
         `SpillwayLenderUnreachable`, `SpillwayPeerRefused`, `SpillwayLendHelperDown`, `SpillwayBorrowedPagesLost`, \
         `SpillwayBorrowedPagesWait` |\n\
         | `warning` | look at it today | the daemon: `SpillwayRestarted`, `SpillwayMemoryNotLocked`, \
         `SpillwayCommandsStall`, `SpillwayDescriptorsShort`; who gets in: `SpillwayFailedAuthentications`, \
         `SpillwayConnectionLimit`; the store: `SpillwayStoreFull`, `SpillwayDiskTakesNoPages`; lending: \
         `SpillwayPeerUnreachable`, `SpillwayPeerSlow`, `SpillwayMirrorMissing`, `SpillwayLongStall`; guests: \
         `SpillwayGuestShort`, `SpillwayGuestKills`, `SpillwayGuestResizesFail` |\n\
         | `info` | for your information | `SpillwayClientRefused`, `SpillwayPackingIneffective` |\n\n\
         lab/tests/alerts fires some of them at a real daemon.\n\n\
         ## The daemon and its store\n\n",
    );
    table(&mut out, &BUILD);
    rows(&mut out, &STORE);
    out.push_str(
        "\n## The daemon's process\n\nThe names are those of Prometheus' own clients.\n\n",
    );
    table(&mut out, &PROCESS);
    out.push_str("\n## The policy\n\n[policies.md](policies.md) explains the policies and their parameters.\n\n");
    table(&mut out, &POLICY);
    out.push_str("\n## Refused connections and data\n\n");
    table(&mut out, &REFUSED);
    out.push_str(
        "\n## Connections\n\nThe label `frontend` is `ring`, `programs`, `nvme-tcp`, `nbd`, `resp`, `http` (`api.sock` and\n\
         `api_tcp`), `https` (`api_tls`) or `lending`. The label `reason` is `displaced` (an unauthenticated\n\
         connection was closed for a newer one), `full` (all slots are taken) or `peer` (a user, address or\n\
         certificate has all the connections that one may have, or opens them too fast).\n\n",
    );
    table(&mut out, &CONNECTION);
    rows(&mut out, &CONNECTION_REFUSED);
    out.push_str(
        "\n## Commands\n\nThe label `frontend` is `ring`, `nvme-tcp`, `nbd`, `resp` or `vhost-user-blk`. The label `command`\n\
         is the kind of command: `get`, `put` and `remove` of values, `read`, `write`, `discard` and `flush`\n\
         of blocks, or `other`. A long value or range that its peer sends or receives in parts counts once,\n\
         with the sum of the times of its parts.\n\n",
    );
    table(&mut out, &COMMAND);
    out.push_str("\n## Each client\n\nThe label `client` is its name.\n\n");
    table(&mut out, &CLIENT);
    out.push_str(
        "\n## Each paged program\n\nThe label `program` is its name without the process id. The label `number` tells running\n\
         programs of one name apart: `spillway client list -o json` shows it as `metrics_number`. A later\n\
         program gets a number that has become free, and its counters begin at 0.\n\n",
    );
    table(&mut out, &PROGRAM);
    out.push_str("\n## Each tmem disk\n\nThe label `disk` is its name.\n\n");
    table(&mut out, &DISK);
    out.push_str("\n## RESP\n\nThe daemon reports these if a socket for RESP is configured.\n\n");
    table(&mut out, &RESP);
    out.push_str("\n## Lending\n\nThe daemon reports these if `lend.roles` is not \"off\".\n\n");
    table(&mut out, &LEND);
    out.push_str("\n## Each host that lends or borrows\n\nThe label `peer` is its name.\n\n");
    table(&mut out, &LEND_PEER);
    out.push_str("\n## Each borrowed device\n\nThe label `device` is its number.\n\n");
    table(&mut out, &LEND_DEVICE);
    out.push_str("\n## The section pool\n\nThe daemon reports these if there is a `[[vm]]`.\n\n");
    table(&mut out, &SECTIONS);
    out.push_str("\n## Each guest\n\nThe label `vm` is its name.\n\n");
    table(&mut out, &VM);
    out
}

fn table<T>(out: &mut String, metrics: &[Metric<T>]) {
    out.push_str("| name | kind | meaning |\n|---|---|---|\n");
    rows(out, metrics);
}

fn rows<T>(out: &mut String, metrics: &[Metric<T>]) {
    for Metric { name, kind, help, .. } in metrics {
        let _ = writeln!(out, "| `{name}` | {} | {help} |", kind.name());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use spillway_serving::{CommandKind, LatencyHistogram};
    use spillway_test_support::documents;

    use super::*;
    use crate::command::CommandSample;
    use crate::guests::VmSample;
    use crate::sample::{ClientSample, LendDeviceSample, LendPeerSample};

    #[test]
    fn names_are_unique_and_end_in_their_unit() {
        let rows = STORE.iter().map(|m| (m.name, m.kind));
        let rows: Vec<_> = rows
            .chain(BUILD.iter().map(|m| (m.name, m.kind)))
            .chain(PROCESS.iter().map(|m| (m.name, m.kind)))
            .chain(POLICY.iter().map(|m| (m.name, m.kind)))
            .chain(REFUSED.iter().map(|m| (m.name, m.kind)))
            .chain(CONNECTION.iter().map(|m| (m.name, m.kind)))
            .chain(CONNECTION_REFUSED.iter().map(|m| (m.name, m.kind)))
            .chain(COMMAND.iter().map(|m| (m.name, m.kind)))
            .chain(CLIENT.iter().map(|m| (m.name, m.kind)))
            .chain(PROGRAM.iter().map(|m| (m.name, m.kind)))
            .chain(DISK.iter().map(|m| (m.name, m.kind)))
            .chain(RESP.iter().map(|m| (m.name, m.kind)))
            .chain(LEND.iter().map(|m| (m.name, m.kind)))
            .chain(LEND_PEER.iter().map(|m| (m.name, m.kind)))
            .chain(LEND_DEVICE.iter().map(|m| (m.name, m.kind)))
            .chain(SECTIONS.iter().map(|m| (m.name, m.kind)))
            .chain(VM.iter().map(|m| (m.name, m.kind)))
            .collect();
        let unique: HashSet<_> = rows.iter().map(|row| row.0).collect();
        assert_eq!(unique.len(), rows.len());
        for (name, kind) in rows {
            // Names of the process have the usual prefix of dashboards.
            let is_process = PROCESS.iter().any(|metric| metric.name == name);
            let prefix = if is_process { "process_" } else { "spillway_" };
            assert!(name.starts_with(prefix), "{name}");
            assert_eq!(kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(!name.contains("pages"), "{name}: bytes are the base unit");
            assert!(
                !["_us", "_ms", "microseconds", "milliseconds"]
                    .iter()
                    .any(|unit| name.ends_with(unit)),
                "{name}: seconds are the base unit"
            );
        }
    }

    /// The metrics that a text names. A name ends before the first character that is not a letter, digit or underscore.
    fn named_in(text: &str) -> HashSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("spillway_") || word.starts_with("process_")).collect()
    }

    #[test]
    fn alerts_and_dashboard_use_metrics_of_the_catalogue() {
        let page = document();
        let rows: Vec<_> = page.lines().filter(|line| line.starts_with("| `")).collect();
        let rows = rows.join("\n");
        let mut catalogue: HashSet<_> = named_in(&rows).into_iter().map(String::from).collect();
        for metric in &COMMAND {
            // Prometheus knows a histogram only by these names.
            catalogue.remove(metric.name);
            let parts = ["bucket", "sum", "count"].map(|part| format!("{}_{part}", metric.name));
            catalogue.extend(parts);
        }
        for (path, least) in [("prometheus/spillway.rules.yml", 25), ("grafana/spillway.json", 40)]
        {
            let path = format!("{}/../../packaging/{path}", env!("CARGO_MANIFEST_DIR"));
            let text = std::fs::read_to_string(&path).unwrap();
            let used = named_in(&text);
            assert!(used.len() >= least, "{path}: {used:?}");
            for name in used {
                assert!(catalogue.contains(name), "{path}: no metric {name}");
            }
        }
    }

    #[test]
    fn the_page_names_each_alert_beside_its_severity() {
        let path =
            concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/prometheus/spillway.rules.yml");
        let rules = std::fs::read_to_string(path).unwrap();
        let page = document();
        let alerts: Vec<_> = rules.split("- alert: ").skip(1).collect();
        for alert in &alerts {
            let name = alert.lines().next().unwrap();
            let severity = alert.split_once("severity: ").unwrap().1.lines().next().unwrap();
            let row = page.lines().find(|line| line.starts_with(&format!("| `{severity}` |")));
            assert!(
                row.is_some_and(|row| row.contains(&format!("`{name}`"))),
                "{severity}: {name}"
            );
        }
        assert_eq!(page.matches("`Spillway").count(), alerts.len(), "the page names others");
    }

    #[test]
    fn the_build_is_told_by_labels() {
        let build = BuildSample { version: "1.2.3", commit: "0123abcd" };
        let text = render(&Sample { build, ..Sample::default() });
        let line = "\nspillway_build_info{version=\"1.2.3\",commit=\"0123abcd\"} 1\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_sample_is_written_as_prometheus_reads_it() {
        let mut client = ClientSample { name: "a\"b\\".into(), ..ClientSample::default() };
        client.statistics.used_pages = 2;
        client.statistics.target_pages = u64::MAX;
        let text = render(&Sample { clients: vec![client], ..Sample::default() });
        assert!(
            text.contains("\nspillway_client_used_bytes{client=\"a\\\"b\\\\\"} 8192\n"),
            "{text}"
        );
        assert!(!text.contains("spillway_client_target_bytes{"), "no limit is no value");
        assert!(text.contains("# TYPE spillway_client_puts_total counter\n"));
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            if name.ends_with("_seconds") {
                value.parse::<f64>().unwrap();
            } else {
                value.parse::<u64>().unwrap();
            }
        }
    }

    #[test]
    fn a_host_that_does_not_answer_has_its_own_metric() {
        let peer = |name: &str, health: &str| LendPeerSample {
            name: name.into(),
            health: health.into(),
            health_s: 6,
            ..LendPeerSample::default()
        };
        let lend_peers = vec![peer("b", "unreachable"), peer("c", "ok"), peer("d", "unknown")];
        let lend = Some(LendSample::default());
        let text = render(&Sample { lend, lend_peers, ..Sample::default() });
        for (name, values) in [
            ("ok", [0, 1, 0]),
            ("slow", [0, 0, 0]),
            ("unreachable", [1, 0, 0]),
            ("refused", [0, 0, 0]),
            ("health_seconds", [6, 6, 6]),
        ] {
            for (peer, value) in ["b", "c", "d"].into_iter().zip(values) {
                let line = format!("\nspillway_lend_peer_{name}{{peer=\"{peer}\"}} {value}\n");
                assert!(text.contains(&line), "{line} in {text}");
            }
        }
    }

    #[test]
    fn latencies_are_a_histogram_of_prometheus() {
        let mut latencies = LatencyHistogram::default();
        for (bucket, count) in [(0, 5), (2, 1), (12, 1), (14, 2)] {
            latencies.counts[bucket] = count;
        }
        latencies.sum_ns = 31_000_007_001;
        let commands =
            CommandSample { front_end: "nbd", latencies: vec![(CommandKind::Read, latencies)] };
        let text = render(&Sample { commands: vec![commands], ..Sample::default() });
        let expected = [
            "# TYPE spillway_command_duration_seconds histogram",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.000001\"} 5",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.000003\"} 5",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.00001\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.00003\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.0001\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.0003\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.001\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.003\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.01\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.03\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.1\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"0.3\"} 6",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"1\"} 7",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"10\"} 7",
            "_bucket{frontend=\"nbd\",command=\"read\",le=\"+Inf\"} 9",
            "_sum{frontend=\"nbd\",command=\"read\"} 31.000007001",
            "_count{frontend=\"nbd\",command=\"read\"} 9",
        ];
        let name = "spillway_command_duration_seconds";
        let lines: Vec<_> = text
            .lines()
            .filter(|line| line.contains(name) && !line.starts_with("# HELP"))
            .map(|line| line.strip_prefix(name).unwrap_or(line))
            .collect();
        assert_eq!(lines, expected);
    }

    #[test]
    fn a_stall_is_given_in_seconds() {
        let device = |device, longest_stall_us| LendDeviceSample {
            device,
            longest_stall_us,
            ..LendDeviceSample::default()
        };
        let lend_devices = vec![device(0, 1_200_034), device(1, 0)];
        let lend = Some(LendSample::default());
        let text = render(&Sample { lend, lend_devices, ..Sample::default() });
        for line in ["{device=\"0\"} 1.200034", "{device=\"1\"} 0.000000"] {
            let line = format!("\nspillway_lend_device_longest_stall_seconds{line}\n");
            assert!(text.contains(&line), "{line} in {text}");
        }
    }

    #[test]
    fn a_guest_out_of_reach_has_no_size() {
        let vm = VmSample { name: "web".into(), wanted_bytes: 7, ..VmSample::default() };
        let sections = Some(SectionsSample { capacity_bytes: 5, used_bytes: 3, lent_bytes: 1 });
        let text = render(&Sample { vms: vec![vm], sections, ..Sample::default() });
        assert!(text.contains("\nspillway_sections_used_bytes 3\n"), "{text}");
        assert!(text.contains("\nspillway_sections_lent_bytes 1\n"), "{text}");
        assert!(text.contains("\nspillway_vm_attached{vm=\"web\"} 0\n"), "{text}");
        assert!(text.contains("\nspillway_vm_wanted_bytes{vm=\"web\"} 7\n"), "{text}");
        assert!(!text.contains("spillway_vm_size_bytes{"), "{text}");
        assert!(!render(&Sample::default()).contains("spillway_vm"));
    }

    #[test]
    fn the_page_in_docs_is_the_catalogue() {
        documents::check("metrics.md", &document());
    }
}
