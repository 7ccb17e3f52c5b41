//! Words and line widths of the pages: README and others of the root, and docs.
//!
//! docs/glossary.md ends with a table of retired words. Those in backticks have no second meaning, so prose must not
//! use them. Code, link targets and the decisions (docs/adr, which are records) are not checked.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};

use crate::command;

const GLOSSARY: &str = "docs/glossary.md";
const RETIRED_HEADING: &str = "## Retired words";
/// Pages outside docs.
const OF_THE_ROOT: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"];
/// The widest line of prose, in characters. Tables and link targets can't be broken, so they don't count.
const WIDTH_MAX: usize = 100;

/// A word or phrase that prose must not use.
#[derive(Debug, PartialEq, Eq)]
struct Retired {
    /// Its words, in lower case.
    words: Vec<String>,
    /// The second column of the table.
    instead: String,
}

/// Checks all pages.
///
/// # Errors
/// A line for each retired word and each line that is too wide.
pub fn check() -> anyhow::Result<()> {
    let root = command::root();
    let retired = retired_words(&read(&root.join(GLOSSARY))?)?;
    let pages = pages(root)?;
    let mut complaints = Vec::new();
    for page in &pages {
        let name = page.strip_prefix(root).unwrap_or(page).display();
        let of_page = complaints_about(&read(page)?, &retired);
        complaints.extend(of_page.iter().map(|(line, text)| format!("{name}:{line}: {text}")));
    }
    if complaints.is_empty() {
        println!("{} pages, {} retired words", pages.len(), retired.len());
        return Ok(());
    }
    bail!("{} complaints\n{}", complaints.len(), complaints.join("\n"))
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))
}

/// The pages to check, in order of their names.
fn pages(root: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages: Vec<_> = OF_THE_ROOT.iter().map(|page| root.join(page)).collect();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() && !path.ends_with("docs/adr") {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    Ok(pages)
}

/// Reads the table: each text in backticks in its first column.
fn retired_words(glossary: &str) -> anyhow::Result<Vec<Retired>> {
    let table = glossary.split_once(RETIRED_HEADING).map(|(_, rest)| rest);
    let table = table.with_context(|| format!("{GLOSSARY} has no heading {RETIRED_HEADING:?}"))?;
    let mut retired = Vec::new();
    for row in table.lines().filter(|line| line.starts_with('|')) {
        let mut cells = row.split('|').skip(1).map(str::trim);
        let (Some(words), Some(instead)) = (cells.next(), cells.next()) else { continue };
        // Every second part lies between backticks.
        retired.extend(words.split('`').skip(1).step_by(2).map(|phrase| Retired {
            words: phrase.split_whitespace().map(str::to_lowercase).collect(),
            instead: instead.to_owned(),
        }));
    }
    ensure!(!retired.is_empty(), "{GLOSSARY} names no retired word in backticks");
    Ok(retired)
}

/// The problems of a page, with line numbers.
fn complaints_about(page: &str, retired: &[Retired]) -> Vec<(usize, String)> {
    let prose = prose(page);
    let words = words(&prose);
    let mut complaints = Vec::new();
    for start in 0..words.len() {
        for phrase in retired.iter().filter(|phrase| phrase.begins(&words[start..])) {
            let found = phrase.words.join(" ");
            let text = format!("\"{found}\" is retired: use {}", phrase.instead);
            complaints.push((words[start].line, text));
        }
    }
    for (at, (line, prose)) in page.lines().zip(prose.lines()).enumerate() {
        // Fenced code is blank in the prose.
        let is_prose = !prose.trim().is_empty() && !line.starts_with('|');
        let width = without_targets(line).trim_end().chars().count();
        if is_prose && width > WIDTH_MAX {
            complaints.push((at + 1, format!("{width} columns: at most {WIDTH_MAX}")));
        }
    }
    complaints.sort();
    complaints
}

/// The page's prose, line for line: code, link targets and the table of retired words are blank.
fn prose(page: &str) -> String {
    let mut lines = Vec::new();
    let (mut fenced, mut of_table) = (false, false);
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if line.starts_with('#') && !fenced {
            of_table = line == RETIRED_HEADING;
        }
        lines.push(if fence || fenced || of_table { "" } else { line });
    }
    without_targets(&without_code(&lines.join("\n")))
}

/// Blanks inline code. A pair of backticks may span lines of a paragraph, but not rows of a table.
fn without_code(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('`') {
        kept.push_str(&rest[..at]);
        rest = &rest[at..];
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        let (fence, after) = rest.split_at(ticks);
        let in_table = kept.rsplit('\n').next().is_some_and(|line| line.starts_with('|'));
        let end = after.find(if in_table { "\n" } else { "\n\n" }).unwrap_or(after.len());
        // An unclosed backtick is a plain character.
        let code = after[..end].find(fence).map_or(0, |close| close + ticks);
        kept.extend(after[..code].chars().map(blank));
        rest = &after[code..];
    }
    kept + rest
}

/// Removes link targets and addresses.
fn without_targets(text: &str) -> String {
    let mut kept = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) =
        [rest.find("](").map(|at| at + 2), rest.find("http")].into_iter().flatten().min()
    {
        kept.push_str(&rest[..at]);
        let target = &rest[at..];
        let end = target.find(|it: char| it == ')' || it.is_whitespace());
        rest = &target[end.unwrap_or(target.len())..];
    }
    kept + rest
}

fn blank(it: char) -> char {
    if it == '\n' { it } else { ' ' }
}

/// A word in lower case, and its line. A path or a hyphenated name is one word.
#[derive(Debug)]
struct Word {
    text: String,
    line: usize,
}

fn words(prose: &str) -> Vec<Word> {
    let joins = |it: char| it.is_alphanumeric() || "-/._'".contains(it);
    let of_line = |(at, line): (usize, &str)| -> Vec<Word> {
        line.split(|it| !joins(it))
            .map(|word| word.trim_matches(|it: char| !it.is_alphanumeric()).to_lowercase())
            .filter(|word| !word.is_empty())
            .map(|text| Word { text, line: at + 1 })
            .collect()
    };
    prose.lines().enumerate().flat_map(of_line).collect()
}

impl Retired {
    /// Whether the words begin with this phrase. Its last word may have a plural s.
    fn begins(&self, words: &[Word]) -> bool {
        let Some((last, first)) = self.words.split_last() else { return false };
        let Some(found) = words.get(..self.words.len()) else { return false };
        let same = found.iter().zip(first).all(|(word, retired)| word.text == *retired);
        let end = found.last().and_then(|word| word.text.strip_prefix(last.as_str()));
        same && end.is_some_and(|end| ["", "s", "'s"].contains(&end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# Glossary\n\n| warden | x |\n\n## Retired words\n\n| retired | use instead |\n|---|---|\n\
        | cargo, lot | request |\n| `errand`, trip | operation |\n| `had back`, `hand-over` | restored |\n";

    fn lines(page: &str) -> Vec<usize> {
        let retired = retired_words(TABLE).unwrap();
        complaints_about(page, &retired).into_iter().map(|(line, _)| line).collect()
    }

    #[test]
    fn the_table_gives_the_words_in_backticks_of_its_first_column() {
        let phrases: Vec<_> =
            retired_words(TABLE).unwrap().iter().map(|it| it.words.join(" ")).collect();
        assert_eq!(phrases, ["errand", "had back", "hand-over"]);
    }

    #[test]
    fn a_glossary_without_retired_words_is_refused() {
        assert!(retired_words("# Glossary\n").is_err());
        assert!(retired_words("## Retired words\n\n| lot | request |\n").is_err());
    }

    #[test]
    fn a_retired_word_is_named_with_its_substitute() {
        let retired = retired_words(TABLE).unwrap();
        let complaints = complaints_about("One.\nAn Errand.\n", &retired);
        assert_eq!(complaints, [(2, "\"errand\" is retired: use operation".to_owned())]);
    }

    #[test]
    fn words_are_found_in_any_form_of_prose() {
        for page in [
            "errands",
            "the errand's end",
            "*errand*, trip",
            "# Errand",
            "[the errand](x.md)",
            "| a | errand |",
            "it is had\nback",
            "- a hand-over.",
            "`x`errand`y`",
            "a ` alone\n\nerrand ` here",
            "| ` | x |\n| errand | ` |",
        ] {
            assert_eq!(lines(page).len(), 1, "{page}");
        }
    }

    #[test]
    fn code_targets_and_other_words_are_not() {
        for page in [
            "errandless",
            "had it back",
            "handover",
            "`errand`",
            "``a ` errand``",
            "`an\nerrand`",
            "```sh\nerrand\n```",
            "[it](errand.md)",
            "see https://example.org/errand",
            "core/src/errand.rs",
            "## Retired words\n\n| `errand` | operation |",
        ] {
            assert!(lines(page).is_empty(), "{page}");
        }
    }

    #[test]
    fn what_follows_the_table_or_a_fence_is_checked() {
        assert_eq!(lines("## Retired words\nerrand\n## Next\nerrand"), [4]);
        assert_eq!(lines("```\nerrand\n```\nerrand"), [4]);
    }

    #[test]
    fn wide_prose_is_found_and_wide_tables_code_and_targets_are_not() {
        let wide = "x".repeat(WIDTH_MAX);
        assert_eq!(lines(&format!("{wide}\n{wide}y\n")), [2]);
        for page in [
            format!("| {wide} |"),
            format!("```sh\n{wide}y\n```"),
            format!("[text](docs/{wide}.md)"),
            format!("https://example.org/{wide}"),
            "ä".repeat(WIDTH_MAX),
        ] {
            assert!(lines(&page).is_empty(), "{page}");
        }
    }
}
