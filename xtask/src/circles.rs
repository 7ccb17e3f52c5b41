//! Finds files of a crate that depend on each other in a circle: none of them can be read, moved or tested alone.
//!
//! A file depends on another if it names one of its items by a path. A re-export (`pub use`) counts for the file with
//! the item. A file may depend on its ancestors in the module tree: a folder's own file contains what several files of
//! the folder share.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use cargo_metadata::{MetadataCommand, TargetKind};
use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// A permitted circle: the package, the files that may depend on each other, and the reason.
type Allowed<'a> = (&'a str, &'a [&'a str], &'a str);

/// All permitted circles.
const ALLOWED: &[Allowed<'_>] = &[];

/// A module's path from the crate's root.
type Module = Vec<String>;

/// A file of a crate.
#[derive(Default)]
struct File {
    /// Paths that it names, from the root.
    names: BTreeSet<Module>,
    /// Its re-exports: a name, and the path from the root that it stands for.
    passes_on: BTreeMap<String, Module>,
}

type Files = BTreeMap<Module, File>;

/// Checks all crates of the workspace around the current directory.
///
/// # Errors
/// A line for each circle that is not permitted, and for each permission without a circle.
pub fn check() -> anyhow::Result<()> {
    let metadata = MetadataCommand::new().no_deps().exec()?;
    let mut found = Vec::new();
    for package in metadata.workspace_packages() {
        let is_code = |kind: &TargetKind| {
            !matches!(kind, TargetKind::Test | TargetKind::Example | TargetKind::CustomBuild)
        };
        for target in package.targets.iter().filter(|it| it.kind.iter().any(is_code)) {
            let mut files = Files::new();
            read(target.src_path.as_std_path(), &Module::new(), &mut files)?;
            found.extend(circles(&files).into_iter().map(|it| (package.name.to_string(), it)));
        }
    }
    let wrong = compare(&found, ALLOWED);
    if wrong.is_empty() {
        println!("{} circles of files, all allowed", found.len());
        return Ok(());
    }
    bail!("files that know each other in a circle:\n{}", wrong.join("\n"))
}

/// A line for each circle of a package that is not permitted, and for each permission without a circle.
fn compare(found: &[(String, Vec<String>)], allowed: &[Allowed<'_>]) -> Vec<String> {
    let (mut wrong, mut needed) = (Vec::new(), BTreeSet::new());
    for (package, circle) in found {
        let permission = allowed.iter().position(|&(of, files, _)| {
            of == package && circle.iter().all(|file| files.contains(&file.as_str()))
        });
        match permission {
            Some(at) => drop(needed.insert(at)),
            None => wrong.push(format!("{package}: {}", circle.join(", "))),
        }
    }
    let unneeded = (0..allowed.len()).filter(|at| !needed.contains(at));
    wrong.extend(unneeded.map(|at| format!("no circle any more: {:?}", allowed[at])));
    wrong
}

/// Reads a file and those of its modules, without tests.
fn read(path: &Path, module: &Module, files: &mut Files) -> anyhow::Result<()> {
    let text =
        fs::read_to_string(path).with_context(|| format!("can't read {}", path.display()))?;
    let tokens: TokenStream = match text.parse() {
        Ok(tokens) => tokens,
        Err(error) => bail!("{}: {error}", path.display()),
    };
    let mut file = File::default();
    let mut modules = Vec::new();
    walk(tokens, module, &mut file, &mut modules);
    files.insert(module.clone(), file);
    let folder = path.parent().unwrap_or(path);
    let is_folders_own = module.is_empty() || path.file_name().is_some_and(|name| name == "mod.rs");
    let folder = if is_folders_own { folder.to_owned() } else { path.with_extension("") };
    for (name, named) in modules {
        let usual = [folder.join(&name).with_extension("rs"), folder.join(&name).join("mod.rs")];
        let named = named.map(|named| path.with_file_name(named));
        let found: Option<PathBuf> = named.into_iter().chain(usual).find(|path| path.exists());
        let found = found.with_context(|| format!("{}: no file of mod {name}", path.display()))?;
        read(&found, &[&module[..], &[name]].concat(), files)?;
    }
    Ok(())
}

/// Collects the paths, re-exports and modules in the tokens of a module.
fn walk(
    tokens: TokenStream,
    module: &Module,
    file: &mut File,
    modules: &mut Vec<(String, Option<String>)>,
) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let (mut at, mut named) = (0, None);
    while at < tokens.len() {
        let rest = &tokens[at..];
        at += 1;
        match rest {
            [TokenTree::Punct(hash), TokenTree::Group(attribute), ..] if hash.as_char() == '#' => {
                let text = attribute.stream().to_string();
                if text == "cfg (test)" {
                    at += 1 + item(&tokens[at + 1..]);
                } else if let Some(path) = text.strip_prefix("path = ") {
                    named = Some(path.trim_matches('"').to_owned());
                    at += 1;
                }
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Punct(end), ..]
                if word == "mod" && end.as_char() == ';' =>
            {
                modules.push((name.to_string(), named.take()));
                at += 2;
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), TokenTree::Group(body), ..]
                if word == "mod" && body.delimiter() == Delimiter::Brace =>
            {
                walk(body.stream(), &[&module[..], &[name.to_string()]].concat(), file, modules);
                at += 2;
            }
            [TokenTree::Ident(word), ..] if word == "use" => {
                let mut paths = Vec::new();
                at += tree(&tokens[at..], &Module::new(), &mut paths);
                for (path, name) in paths {
                    if let Some(path) = absolute(&path, module, modules) {
                        file.names.insert(path.clone());
                        file.passes_on.insert(name, path);
                    }
                }
            }
            [TokenTree::Ident(word), ..] if is_start(&word.to_string()) => {
                let mut paths = Vec::new();
                let used = tree(rest, &Module::new(), &mut paths);
                // A single word such as `self` names no item.
                at += used.saturating_sub(1);
                file.names.extend(paths.iter().filter_map(|it| absolute(&it.0, module, modules)));
            }
            [TokenTree::Group(group), ..] => walk(group.stream(), module, file, modules),
            _ => {}
        }
    }
}

fn is_start(word: &str) -> bool {
    ["crate", "self", "super"].contains(&word)
}

/// The number of tokens of the item that begins here, up to its end or its body.
fn item(tokens: &[TokenTree]) -> usize {
    let ends = |token: &TokenTree| match token {
        TokenTree::Punct(mark) => mark.as_char() == ';',
        TokenTree::Group(group) => group.delimiter() == Delimiter::Brace,
        _ => false,
    };
    tokens.iter().position(ends).map_or(tokens.len(), |end| end + 1)
}

/// The paths of a `use` tree, each with its name, and the number of tokens.
fn tree(tokens: &[TokenTree], before: &Module, paths: &mut Vec<(Module, String)>) -> usize {
    let mut path = before.clone();
    let mut at = 0;
    loop {
        match &tokens[at..] {
            [TokenTree::Ident(word), ..] => path.push(word.to_string()),
            [TokenTree::Group(group), ..] if group.delimiter() == Delimiter::Brace => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let is_comma = |token: &TokenTree| matches!(token, TokenTree::Punct(mark) if mark.as_char() == ',');
                for part in inner.split(is_comma).filter(|part| !part.is_empty()) {
                    tree(part, &path, paths);
                }
                return at + 1;
            }
            _ => break,
        }
        at += 1;
        match &tokens[at..] {
            [TokenTree::Punct(one), TokenTree::Punct(two), ..]
                if one.as_char() == ':' && two.as_char() == ':' =>
            {
                at += 2;
            }
            [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "as" => {
                paths.push((path, name.to_string()));
                return at + 2;
            }
            _ => break,
        }
    }
    let name = path.last().cloned().unwrap_or_default();
    if !path.is_empty() {
        paths.push((path, name));
    }
    at
}

/// A path from the root; `None` if it begins with another crate.
fn absolute(
    path: &Module,
    module: &Module,
    modules: &[(String, Option<String>)],
) -> Option<Module> {
    let (mut base, mut rest) = (module.clone(), &path[..]);
    match rest.first()?.as_str() {
        "crate" => (base, rest) = (Module::new(), &rest[1..]),
        "self" => rest = &rest[1..],
        "super" => {
            while rest.first().is_some_and(|word| word == "super") {
                base.pop();
                rest = &rest[1..];
            }
        }
        first if modules.iter().any(|(name, _)| name == first) => {}
        _ => return None,
    }
    base.extend(rest.iter().filter(|word| *word != "self").cloned());
    Some(base)
}

/// The file that contains the item of a path.
fn owner(path: &[String], files: &Files, depth: u32) -> Module {
    let mut module = Module::new();
    for (at, word) in path.iter().enumerate() {
        let below = [&module[..], std::slice::from_ref(word)].concat();
        if files.contains_key(&below) {
            module = below;
            continue;
        }
        let passed_on = files.get(&module).and_then(|file| file.passes_on.get(word));
        return match passed_on {
            Some(onward) if depth > 0 && onward[..] != path[..=at] => {
                owner(&[&onward[..], &path[at + 1..]].concat(), files, depth - 1)
            }
            _ => module,
        };
    }
    module
}

/// The circles among the files, each as the names of its modules.
fn circles(files: &Files) -> Vec<Vec<String>> {
    let knows = |module: &Module| -> BTreeSet<Module> {
        let owners = files[module].names.iter().map(|path| owner(path, files, 8));
        owners.filter(|owner| !module.starts_with(owner)).collect()
    };
    let edges: BTreeMap<&Module, BTreeSet<Module>> =
        files.keys().map(|module| (module, knows(module))).collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        files.keys().map(|module| (module, reached(module, &edges))).collect();
    let mut found = BTreeSet::new();
    for (module, others) in &reached {
        if others.contains(module) {
            let circle = others.iter().filter(|other| reached[*other].contains(module));
            found.insert(circle.map(|module| module.join("::")).collect::<Vec<_>>());
        }
    }
    found.into_iter().collect()
}

/// All files on which a file depends, directly or indirectly.
fn reached<'a>(
    from: &'a Module,
    edges: &'a BTreeMap<&Module, BTreeSet<Module>>,
) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(edges[module].iter().filter(|&to| seen.insert(to)));
    }
    seen
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crate_of(sources: &[(&str, &str)]) -> Vec<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in sources {
            let path = folder.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let mut files = Files::new();
        read(&folder.path().join("lib.rs"), &Module::new(), &mut files).unwrap();
        circles(&files)
    }

    #[test]
    fn files_that_name_each_other_are_a_circle() {
        for (one, other) in [
            ("use crate::b::B;", "use crate::a::A;"),
            ("use super::b::B;", "fn f(_: super::a::A) {}"),
            ("use crate::{b::B, c};", "use {std::fmt, super::a::{self, A}};"),
            ("use crate::B;", "use crate::Renamed;"),
            ("fn f() { println!(\"{}\", crate::b::B) }", "#[cfg(test)] use x::y; use crate::a::A;"),
        ] {
            let root = "mod a; mod b; mod c; pub use a::A as Renamed; pub use b::{B, D};";
            let found = crate_of(&[("lib.rs", root), ("a.rs", one), ("b.rs", other), ("c.rs", "")]);
            assert_eq!(found, [["a", "b"]], "{one} {other}");
        }
    }

    #[test]
    fn a_longer_circle_is_found_whole_in_folders_too() {
        let sources = [
            ("lib.rs", "mod a; mod f;"),
            ("a.rs", "use crate::f::b::B;"),
            ("f/mod.rs", "pub mod b; pub mod c; pub struct Common;"),
            ("f/b.rs", "use super::c::C; use super::Common;"),
            ("f/c.rs", "mod inner { use super::super::super::a::A; }"),
        ];
        assert_eq!(crate_of(&sources), [["a", "f::b", "f::c"]]);
    }

    #[test]
    fn one_way_is_no_circle() {
        let sources = [
            ("lib.rs", "mod a; mod b; pub struct Common; fn f() { a::g() }"),
            ("a.rs", "use crate::Common; use crate::b::B; use self::own; // crate::b"),
            ("b.rs", "use crate::Common; #[cfg(test)] mod tests { use crate::a::A; }"),
        ];
        assert!(crate_of(&sources).is_empty());
    }

    #[test]
    fn a_permission_is_for_the_files_and_the_package_that_it_names() {
        let sources = [("lib.rs", "mod a; mod b;"), ("a.rs", "use crate::b::B;")];
        let circle = crate_of(&[&sources[..], &[("b.rs", "use crate::a::A;")]].concat());
        let found = [("p".to_owned(), circle.concat())];
        assert_eq!(compare(&found, &[("p", &["a", "b", "c"], "why")]), [""; 0]);
        assert_eq!(compare(&found, &[]), ["p: a, b"]);
        for other in [("p", &["a"][..], "why"), ("q", &["a", "b"], "why")] {
            let lines = ["p: a, b".to_owned(), format!("no circle any more: {other:?}")];
            assert_eq!(compare(&found, &[other]), lines);
        }
    }

    #[test]
    fn this_workspace_has_none_that_is_not_allowed() {
        check().unwrap();
    }
}
