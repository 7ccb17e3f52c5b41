//! A program's `--help` as a section of docs/commands.md.

use std::fmt::Write as _;

use clap::Command;

use crate::documents;

/// Compares the program's section of docs/commands.md with the help of `program` and of all its commands.
///
/// # Panics
/// If the section differs.
pub fn check_reference(mut program: Command) {
    program.build();
    let heading = format!("## {}", program.get_name());
    let mut text = String::new();
    describe(&mut program, &mut text);
    text.push('\n');
    documents::check_section("commands.md", &heading, &text);
}

/// Appends a command's help, then that of each of its commands that `--help` lists.
fn describe(command: &mut Command, text: &mut String) {
    let narrow = command.clone().term_width(100);
    let help = narrow.clone().render_long_help().to_string();
    // Only lines end with spaces that the help pads.
    let lines: Vec<_> = help.lines().map(str::trim_end).collect();
    let _ = write!(text, "\n```text\n{}\n```\n", lines.join("\n").trim_end());
    for inner in command.get_subcommands_mut() {
        if inner.is_hide_set() || inner.get_name() == "help" {
            continue;
        }
        let name = inner.get_bin_name().unwrap_or(inner.get_name()).to_owned();
        let _ = write!(text, "\n### {name}\n");
        describe(inner, text);
    }
}
