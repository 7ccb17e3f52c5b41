//! The manual pages: what the command line's definition says, then exit status, examples and related pages.

use std::io;

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::sections::{Sections, of};

/// The name of each page's file, and its text.
///
/// # Errors
/// A part can't be rendered.
pub fn render(command: Command) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let version = format!("spillway {}", command.get_version().unwrap_or_default());
    let mut pages = Vec::new();
    render_all(&command, &version, &mut pages)?;
    Ok(pages)
}

fn render_all(
    command: &Command,
    version: &str,
    pages: &mut Vec<(String, Vec<u8>)>,
) -> io::Result<()> {
    for inner in shown(command) {
        render_all(inner, version, pages)?;
    }
    let man = Man::new(command.clone()).source(version).manual("Spillway");
    pages.push((man.get_filename(), page(&man, command)?));
    Ok(())
}

/// The commands that `--help` lists.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|inner| !inner.is_hide_set())
}

/// As it is typed, such as `spillway client add`.
fn full_name(command: &Command) -> &str {
    command.get_bin_name().unwrap_or_else(|| command.get_name())
}

fn page(man: &Man, command: &Command) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if shown(command).next().is_some() {
        man.render_subcommands_section(&mut text)?;
    }
    if let Some(sections) = of(full_name(command)) {
        render_sections(sections, command).to_writer(&mut text)?;
    }
    Ok(text)
}

fn render_sections(sections: &Sections, command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in sections.exit {
        roff.control("TP", []);
        roff.text([bold(*code)]);
        roff.text([roman(*meaning)]);
    }
    roff.control("SH", ["EXAMPLES"]);
    for (what, line) in sections.examples {
        roff.control("PP", []);
        roff.text([roman(*what)]);
        // The line as it is typed: no filling, no hyphenation.
        roff.control("RS", ["4"]).control("nf", []);
        roff.text([bold(*line)]);
        roff.control("fi", []).control("RE", []);
    }
    roff.control("SH", ["SEE ALSO"]);
    let mut related: Vec<Inline> = Vec::new();
    for (name, section) in related_to(sections, command) {
        if !related.is_empty() {
            related.push(roman(", "));
        }
        related.push(bold(name));
        related.push(roman(format!("({section})")));
    }
    roff.text(related);
    roff
}

/// The pages about a command's own commands, about the command that it belongs to, and those that the table names.
fn related_to(sections: &Sections, command: &Command) -> Vec<(String, char)> {
    let page = |name: &str| (name.replace(' ', "-"), '1');
    let name = full_name(command);
    let mut related: Vec<_> =
        shown(command).map(|inner| page(&format!("{name} {}", inner.get_name()))).collect();
    related.extend(name.rsplit_once(' ').map(|(outer, _)| page(outer)));
    related.extend(sections.see.iter().map(|&(name, section)| (name.to_owned(), section)));
    related
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::cli::CommandLine;

    /// Pages that are not made here.
    const OTHERS: [&str; 6] = [
        "spillwayd.8",
        "spillwayd.toml.5",
        "spillway-agent.8",
        "nvme-connect.1",
        "nvme-gen-dhchap-key.1",
        "nbd-client.8",
    ];

    fn commands(command: &Command, all: &mut Vec<String>) {
        all.push(full_name(command).to_owned());
        shown(command).filter(|inner| inner.get_name() != "help").for_each(|it| commands(it, all));
    }

    fn all_commands() -> Vec<String> {
        let (mut line, mut all) = (CommandLine::command(), Vec::new());
        line.build();
        commands(&line, &mut all);
        all
    }

    #[test]
    fn every_page_says_how_it_ends_what_to_type_and_where_to_read_on() {
        let pages = render(CommandLine::command()).unwrap();
        assert_eq!(pages.len(), all_commands().len());
        let names: BTreeSet<_> = pages.iter().map(|(name, _)| name.as_str()).collect();
        for (name, text) in &pages {
            let text = String::from_utf8_lossy(text);
            for heading in ["\"EXIT STATUS\"", "EXAMPLES", "\"SEE ALSO\""] {
                assert!(text.contains(&format!(".SH {heading}\n")), "{name}: no {heading}");
            }
            let (_, related) = text.rsplit_once(".SH \"SEE ALSO\"\n").unwrap();
            let related = ["\\fB", "\\fR", "\\"]
                .iter()
                .fold(related.to_owned(), |it, roff| it.replace(roff, ""));
            for page in related.trim().split(", ") {
                let file = page.replace('(', ".").replace(')', "");
                assert!(names.contains(&*file) || OTHERS.contains(&&*file), "{name}: {file}");
            }
        }
    }

    #[test]
    fn every_example_is_a_command_that_is_understood() {
        for command in all_commands() {
            let sections = of(&command).unwrap_or_else(|| panic!("{command} has no sections"));
            assert!(!sections.examples.is_empty(), "{command}");
            for (_, line) in sections.examples {
                // What a shell does with the rest.
                let words = line.split(' ').take_while(|word| !["<", ">", "|", "&"].contains(word));
                let words: Vec<_> = words.collect();
                let own = words.starts_with(&command.split(' ').collect::<Vec<_>>());
                assert!(own, "{command}: {line}");
                CommandLine::try_parse_from(words)
                    .unwrap_or_else(|error| panic!("{line}: {error}"));
            }
        }
    }
}
