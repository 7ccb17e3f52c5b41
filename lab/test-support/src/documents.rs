//! Pages of docs/ that are written from the code. Tests compare them; with `SPILLWAY_WRITE_DOCS=1` in the environment they
//! write them.

use std::ops::Range;
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
    compare(name, &read(&path), text);
}

/// Compares one section of the page `name` with `text`: what stands below `heading`, up to the next heading of its level.
///
/// # Panics
/// When the section differs, or the page has none, or can't be read or written.
pub fn check_section(name: &str, heading: &str, text: &str) {
    let mut page = read(&path(name));
    let section = section(&page, heading);
    page.replace_range(section, text);
    check(name, &page);
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).expect("the page is read")
}

fn compare(name: &str, page: &str, text: &str) {
    assert!(page == text, "docs/{name} differs: SPILLWAY_WRITE_DOCS=1 writes it");
}

/// Where the section below `heading` lies in the page.
fn section(page: &str, heading: &str) -> Range<usize> {
    let line = format!("\n{heading}\n");
    let start = page.find(&line).expect("the heading is in the page") + line.len();
    let level = heading.split(' ').next().unwrap_or_default();
    let next = page[start..].find(&format!("\n{level} "));
    start..next.map_or(page.len(), |at| start + at + 1)
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn a_page_with_other_lines_at_its_end_differs() {
        compare("page", "a\nb\n", "a\nb\n");
        for page in ["a\n", "a\nb\nc\n", "a\nb", "a\nc\n"] {
            assert!(catch_unwind(|| compare("page", page, "a\nb\n")).is_err(), "{page:?}");
        }
    }

    #[test]
    fn a_section_ends_before_the_next_heading_of_its_level() {
        let page = "# page\n\n## one\n\n### inner\ntext\n\n## two\n\nend\n";
        assert_eq!(&page[section(page, "## one")], "\n### inner\ntext\n\n");
        assert_eq!(&page[section(page, "## two")], "\nend\n");
        assert_eq!(&page[section(page, "### inner")], "text\n\n## two\n\nend\n");
    }
}
