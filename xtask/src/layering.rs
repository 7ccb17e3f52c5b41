//! Checks which crates may depend on which, by cargo's metadata of the workspace.
//!
//! The rule: bin -> {clients, frontends, pager, control, observe} -> core -> types; pager and tiers -> platform.
//! ARCHITECTURE.md explains it.

use anyhow::bail;
use cargo_metadata::camino::Utf8Path;
use cargo_metadata::{DependencyKind, MetadataCommand, Package};

/// A place in the layering: a folder of the workspace, or a crate with its own rule.
type Folder = &'static str;

/// Each place, and the places on which it may depend. The longest matching name applies.
const RULES: &[(Folder, &[Folder])] = &[
    ("bin", &["clients", "frontends", "pager", "control", "observe", "core", "platform"]),
    // Of the tiers, it uses the trait of a transport to a blade.
    ("clients/preload", &["clients/blade", "pager", "core/tiers", "platform"]),
    ("clients/blade", &["clients/rust", "core", "platform"]),
    ("clients/c", &["clients/guest", "clients/rust"]),
    ("clients/cache", &["clients/rust"]),
    // Only the agent's protocol, which does no I/O.
    ("clients/guest", &["control/guests"]),
    ("clients/lender", &["clients/rust", "core", "platform"]),
    ("clients/python", &["clients/cache", "clients/rust"]),
    ("clients/valkey", &["clients/rust", "core/types"]),
    ("clients", &["frontends", "core", "platform"]),
    // It serves devices of any kind, and does not depend on the store.
    ("frontends/nbd", &["core/block", "core/serving", "core/types", "core/wire", "platform"]),
    ("frontends", &["core", "platform"]),
    ("pager", &["core", "platform"]),
    ("control/cost", &[]),
    ("control/lending", &[]),
    ("control/sections", &["platform"]),
    ("control", &["control", "core", "platform"]),
    ("observe", &["core"]),
    ("core/types", &[]),
    ("core/reuse", &["core/types"]),
    ("core/policy", &["core/types", "core/reuse"]),
    ("core/serving", &["core/types"]),
    ("core/wire", &["core/types"]),
    ("core/tiers", &["core/types", "platform"]),
    ("core/store", &["core/types", "core/reuse", "core/tiers"]),
    ("core/block", &["core/types"]),
    ("core/block-store", &["core/types", "core/block", "core/store"]),
    ("core/fanout", &["core/types", "core/block", "platform"]),
    ("platform/libvirt", &["platform"]),
    ("platform/qmp", &["platform"]),
    ("platform", &[]),
    // A low place, so that the tests of every other crate can use it without a circle.
    (TEST_SUPPORT, &["core/types", "platform/tls"]),
];
/// These may depend on anything, and no crate may depend on them, except [`TEST_SUPPORT`], which has a rule.
const FREE: [Folder; 4] = ["xtask", "bench", "sim", "lab"];
/// Helpers for tests: only dev-dependencies may name it.
const TEST_SUPPORT: Folder = "lab/test-support";
/// Async runtimes, on which the store and the policies must not depend.
const RUNTIMES: [&str; 4] = ["tokio", "async-std", "smol", "futures-executor"];
/// The crates without an async runtime.
const WITHOUT_RUNTIME: [Folder; 6] =
    ["core/types", "core/store", "core/tiers", "core/policy", "core/reuse", "control/lending"];

/// One dependency of a workspace crate.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edge {
    /// Folder of the depending crate, relative to the workspace.
    from: String,
    /// Folder of the dependency, or the name of an external crate.
    to: String,
}

/// Checks the workspace around the current directory.
///
/// # Errors
/// A line for each dependency that the rule forbids.
pub fn check() -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let edges: Vec<Edge> = metadata
        .workspace_packages()
        .into_iter()
        .flat_map(|package| edges_of(package, &metadata.workspace_root))
        .collect();
    let forbidden: Vec<String> = edges.iter().filter_map(objection).collect();
    if forbidden.is_empty() {
        println!("{} dependencies, all allowed", edges.len());
        return Ok(());
    }
    bail!("{}", forbidden.join("\n"))
}

/// A package's dependencies except its dev-dependencies, which may be wider.
fn edges_of(package: &Package, root: &Utf8Path) -> Vec<Edge> {
    let relative = |path: &Utf8Path| path.strip_prefix(root).unwrap_or(path).to_string();
    let folder = package.manifest_path.parent().unwrap_or(root);
    package
        .dependencies
        .iter()
        .filter(|dependency| dependency.kind != DependencyKind::Development)
        .map(|dependency| Edge {
            from: relative(folder),
            to: dependency.path.as_deref().map_or_else(|| dependency.name.clone(), relative),
        })
        .collect()
}

/// Why an edge is forbidden, if it is.
fn objection(edge: &Edge) -> Option<String> {
    let Edge { from, to } = edge;
    if RUNTIMES.contains(&to.as_str()) {
        let free = !WITHOUT_RUNTIME.iter().any(|place| is_in(from, place));
        return (!free).then(|| format!("{from} must not know an async runtime: {to}"));
    }
    if is_in(to, TEST_SUPPORT) {
        return Some(format!("{from} must not know {to} but in its tests: a dev-dependency"));
    }
    let Some(target) = place_of(to) else {
        let ours = FREE.iter().any(|free| is_in(to, free)) && !is_free(from);
        return ours.then(|| format!("{from} must not know {to}"));
    };
    if is_free(from) {
        return None;
    }
    let Some((_, known)) = RULES.iter().find(|(place, _)| is_in(from, place)) else {
        return Some(format!(
            "{from} has no place in the layering: add it to xtask/src/layering.rs"
        ));
    };
    let allowed = known.iter().any(|place| is_in(target, place));
    (!allowed).then(|| format!("{from} must not know {to}: it may know {known:?}"))
}

/// The rule's name for a folder; `None` for an external crate.
fn place_of(folder: &str) -> Option<&str> {
    RULES.iter().any(|(place, _)| is_in(folder, place)).then_some(folder)
}

fn is_free(folder: &str) -> bool {
    FREE.iter().any(|free| is_in(folder, free)) && !is_in(folder, TEST_SUPPORT)
}

fn is_in(folder: &str, place: &str) -> bool {
    folder.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn objects_to(from: &str, to: &str) -> bool {
        objection(&Edge { from: from.into(), to: to.into() }).is_some()
    }

    #[test]
    fn the_way_down_is_allowed() {
        for (from, to) in [
            ("bin/spillway", "pager"),
            ("bin/spillwayd", "frontends/ring"),
            ("clients/preload", "pager"),
            ("clients/preload", "platform"),
            ("clients/preload", "core/tiers"),
            ("clients/rust", "platform"),
            ("clients/blade", "platform"),
            ("pager", "core/store"),
            ("pager", "platform"),
            ("core/store", "core/tiers"),
            ("core/tiers", "platform"),
            ("core/block-store", "core/block"),
            ("core/fanout", "core/block"),
            ("frontends/nbd", "core/block"),
            ("frontends/nbd", "core/serving"),
            ("frontends/nvme-tcp", "core/store"),
            ("core/policy", "core/types"),
            ("xtask", "core/store"),
            ("lab/load", "core/store"),
            ("lab/test-support", "core/types"),
            ("core/store", "lz4_flex"),
            ("control/api", "tokio"),
        ] {
            assert!(!objects_to(from, to), "{from} -> {to}");
        }
    }

    #[test]
    fn forbidden_edges_are_found() {
        for (from, to) in [
            ("core/store", "pager"),
            ("core/types", "core/store"),
            ("core/policy", "core/store"),
            ("core/store", "platform"),
            ("core/serving", "core/store"),
            ("core/store", "tokio"),
            ("core/block", "core/store"),
            ("core/block", "core/block-store"),
            ("core/fanout", "core/store"),
            ("core/fanout", "core/block-store"),
            ("frontends/nbd", "core/store"),
            ("frontends/nbd", "core/block-store"),
            ("frontends/ring", "frontends/nbd"),
            ("frontends/ring", "control/manager"),
            ("pager", "clients/preload"),
            ("clients/preload", "core/store"),
            ("clients/rust", "pager"),
            ("clients/rust", "control/guests"),
            ("clients/guest", "control/sections"),
            ("platform", "core/types"),
            ("control/lending", "core/store"),
            ("control/lending", "tokio"),
            ("bin/spillway", "bin/spillwayd"),
            ("bin/spillway", "xtask"),
            ("core/store", "lab/test-support"),
            ("sim", "lab/test-support"),
            ("lab/test-support", "core/store"),
            ("attic", "core/types"),
        ] {
            assert!(objects_to(from, to), "{from} -> {to}");
        }
    }

    #[test]
    fn this_workspace_keeps_the_rule() {
        check().unwrap();
    }
}
