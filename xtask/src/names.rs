//! A generic word may name at most one type in the whole tree. Elsewhere it needs a noun, as in `PageState`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cargo_metadata::MetadataCommand;

/// The words, and the file whose type may have that name.
const WORDS: [(&str, Option<&str>); 6] = [
    ("Client", Some("control/api/src/types.rs")),
    ("Held", None),
    ("Lock", Some("platform/src/lock.rs")),
    ("Place", None),
    ("Position", None),
    ("State", None),
];
const KEYWORDS: [&str; 5] = ["struct ", "enum ", "union ", "trait ", "type "];

/// Checks all crates of the workspace around the current directory.
///
/// # Errors
/// A line for each type whose name is a generic word.
pub fn check() -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let root = metadata.workspace_root.as_std_path();
    let mut complaints = Vec::new();
    for package in metadata.workspace_packages() {
        let folder = package.manifest_path.parent().context("a manifest without a folder")?;
        for part in ["src", "tests", "examples", "benches"] {
            for path in sources(&folder.join(part).into_std_path_buf())? {
                let name = path.strip_prefix(root).unwrap_or(&path).to_owned();
                let text = fs::read_to_string(&path)
                    .with_context(|| format!("can't read {}", path.display()))?;
                complaints.extend(complaints_about(&name, &text));
            }
        }
    }
    if complaints.is_empty() {
        println!("no type has only a generic word as its name");
        return Ok(());
    }
    bail!("types whose names lack a noun:\n{}", complaints.join("\n"))
}

/// The Rust files below a folder, if it exists.
fn sources(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let (mut folders, mut files) = (vec![folder.to_owned()], Vec::new());
    while let Some(folder) = folders.pop().filter(|it| it.is_dir()) {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    Ok(files)
}

fn complaints_about(name: &Path, text: &str) -> Vec<String> {
    let allowed: BTreeMap<_, _> = WORDS.into_iter().collect();
    let named = text.lines().enumerate().filter_map(|(at, line)| Some((at + 1, type_of(line)?)));
    let generic = named.filter(|(_, word)| {
        allowed.get(word).is_some_and(|file| file.is_none_or(|file| Path::new(file) != name))
    });
    generic.map(|(line, word)| format!("{}:{line}: {word}", name.display())).collect()
}

/// The name of the type that a line declares.
fn type_of(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let line = match line.strip_prefix("pub") {
        Some(rest) => rest.split_once(' ')?.1,
        None => line,
    };
    let name = KEYWORDS.iter().find_map(|keyword| line.strip_prefix(keyword))?;
    let end = name.find(|it: char| !it.is_alphanumeric() && it != '_').unwrap_or(name.len());
    Some(&name[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generic_word_alone_is_refused() {
        for line in [
            "struct State;",
            "pub struct State {",
            "    pub(crate) enum Place<'a> {",
            "pub(super) type Client = u32;",
            "trait Held: Send {}",
        ] {
            assert_eq!(complaints_about(Path::new("a.rs"), line).len(), 1, "{line}");
        }
    }

    #[test]
    fn words_with_a_noun_and_other_lines_are_not() {
        for line in [
            "struct PageState;",
            "struct StateFile;",
            "pub struct Entry { state: State }",
            "// struct State",
            "use crate::State;",
            "State => {}",
        ] {
            assert!(complaints_about(Path::new("a.rs"), line).is_empty(), "{line}");
        }
        let api = Path::new("control/api/src/types.rs");
        assert!(complaints_about(api, "pub struct Client {").is_empty());
        assert_eq!(complaints_about(api, "pub struct State {").len(), 1);
    }

    #[test]
    fn this_workspace_keeps_the_rule() {
        check().unwrap();
    }
}
