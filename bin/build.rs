//! Has a program know of which commit it is: SPILLWAY_VERSION and SPILLWAY_COMMIT.
//!
//! The environment's SPILLWAY_COMMIT is taken first, so that packages can say it. Else git is asked. A build of a tarball says
//! none.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Most characters of a commit's name.
const CHARS_MAX: usize = 64;

fn main() {
    println!("cargo::rerun-if-env-changed=SPILLWAY_COMMIT");
    println!("cargo::rerun-if-changed=../build.rs");
    let commit = match env::var("SPILLWAY_COMMIT") {
        Ok(named) => named.trim().to_owned(),
        Err(_) => of_git().unwrap_or_default(),
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || "-._+".contains(c);
    let is_sound = commit.len() <= CHARS_MAX && commit.chars().all(is_name);
    assert!(is_sound, "SPILLWAY_COMMIT is the name of a commit, not '{commit}'");
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    let shown = if commit.is_empty() { version } else { format!("{version} ({commit})") };
    println!("cargo::rustc-env=SPILLWAY_COMMIT={commit}");
    println!("cargo::rustc-env=SPILLWAY_VERSION={shown}");
}

/// The commit of the tree that this is in, if it is a tree of this project: not of one that a tarball was unpacked in.
fn of_git() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..").canonicalize().ok()?;
    if PathBuf::from(git(&root, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()? != root {
        return None;
    }
    // It is written at each commit and checkout. Without it, HEAD and what it names are.
    let log = root.join(git(&root, &["rev-parse", "--git-path", "logs/HEAD"])?);
    let mut watched = vec![log];
    if !watched[0].exists() {
        watched = vec![root.join(git(&root, &["rev-parse", "--git-path", "HEAD"])?)];
        if let Some(name) = git(&root, &["symbolic-ref", "HEAD"]) {
            watched.push(root.join(git(&root, &["rev-parse", "--git-path", &name])?));
        }
    }
    for file in watched.iter().filter(|file| file.exists()) {
        println!("cargo::rerun-if-changed={}", file.display());
    }
    git(&root, &["rev-parse", "--short=12", "HEAD"])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}
