//! What a program says of the commit that it was built from.

use std::path::Path;
use std::process::Command;

#[test]
fn the_version_names_the_commit() {
    let shown = Command::new(env!("CARGO_BIN_EXE_spillwayd")).arg("--version").output().unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    match env!("SPILLWAY_COMMIT") {
        "" => assert_eq!(shown, format!("spillwayd {version}\n")),
        commit => assert_eq!(shown, format!("spillwayd {version} ({commit})\n")),
    }
}

/// What the build script prints for a package in `package`, with SPILLWAY_COMMIT as given.
fn scripted(program: &Path, package: &Path, commit: Option<&str>) -> String {
    let mut command = Command::new(program);
    command.env("CARGO_MANIFEST_DIR", package).env("CARGO_PKG_VERSION", "1.2.3");
    match commit {
        Some(commit) => command.env("SPILLWAY_COMMIT", commit),
        None => command.env_remove("SPILLWAY_COMMIT"),
    };
    let output = command.output().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    if !output.status.success() {
        return "failed".to_owned();
    }
    let line =
        lines.lines().find_map(|line| line.strip_prefix("cargo::rustc-env=SPILLWAY_VERSION="));
    line.unwrap().to_owned()
}

fn git(dir: &Path, arguments: &[&str]) -> String {
    let name = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
    let output = Command::new("git").arg("-C").arg(dir).args(name).args(arguments).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[test]
fn a_build_asks_the_environment_and_then_its_own_tree() {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("build");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build.rs");
    let mut rustc = Command::new("rustc");
    rustc.args(["--edition", "2024", "-o"]).arg(&program).arg(source);
    assert!(rustc.status().unwrap().success());

    // A tarball, unpacked in the tree of another project.
    let outer = dir.path().join("outer");
    let package = outer.join("tarball/bin/spillwayd");
    std::fs::create_dir_all(&package).unwrap();
    assert_eq!(scripted(&program, &package, None), "1.2.3");
    git(&outer, &["init", "--quiet"]);
    git(&outer, &["commit", "--quiet", "--allow-empty", "--message", "another's"]);
    assert_eq!(scripted(&program, &package, None), "1.2.3");
    // The project's own tree.
    let tree = outer.join("tarball");
    git(&tree, &["init", "--quiet"]);
    assert_eq!(scripted(&program, &package, None), "1.2.3", "there is no commit yet");
    git(&tree, &["commit", "--quiet", "--allow-empty", "--message", "own"]);
    let own = git(&tree, &["rev-parse", "--short=12", "HEAD"]);
    assert_eq!(scripted(&program, &package, None), format!("1.2.3 ({own})"));
    // Who packages it knows better.
    assert_eq!(scripted(&program, &package, Some("v1.2.3-4")), "1.2.3 (v1.2.3-4)");
    assert_eq!(scripted(&program, &package, Some("")), "1.2.3");
    assert_eq!(scripted(&program, &package, Some("a\nb")), "failed");
}
