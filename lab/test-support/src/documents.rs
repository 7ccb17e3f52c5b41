//! Pages of docs/ that are written from the code. Tests compare them; with `SPILLWAY_WRITE_DOCS=1` in the environment they
//! write them.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// Compares the page `name` of docs/ with `text`.
///
/// # Panics
/// When the page differs, or can't be read or written.
pub fn check(name: &str, text: &str) {
    let path = path(name);
    if env::var_os("SPILLWAY_WRITE_DOCS").is_some() {
        fs::write(&path, text).expect("the page is written");
    }
    let page = fs::read_to_string(&path).expect("the page is read");
    assert!(page == text, "docs/{name} differs: SPILLWAY_WRITE_DOCS=1 writes it");
}

/// Compares one section of the page `name`, from its `heading` to the next heading of the same level, with `text`, which
/// follows the heading.
///
/// # Panics
/// When the section differs, or the page has none, or can't be read or written.
pub fn check_section(name: &str, heading: &str, text: &str) {
    let path = path(name);
    let page = fs::read_to_string(&path).expect("the page is read");
    let start = page.find(&format!("\n{heading}\n")).expect("the heading is in the page");
    let start = start + heading.len() + 2;
    let level = heading.split(' ').next().unwrap_or_default();
    let end = page[start..].find(&format!("\n{level} ")).map_or(page.len(), |at| start + at + 1);
    let whole = [&page[..start], text, &page[end..]].concat();
    check(name, &whole);
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}
