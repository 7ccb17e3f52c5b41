//! docs/config.md, made from the table.

use std::fmt::Write;

use super::field::Setting;
use super::table::{
    BLOCK, CLIENT, DISK, LEND, LISTEN, MEMORY, PEER, PROCESS, SECTIONS, STORE, UNNAMED, VM,
};
use super::table_resp::RESP;

/// The page about all settings, in Markdown.
pub fn document() -> String {
    let mut out = String::from(
        "# The configuration of spillwayd\n\n\
         `spillwayd --config FILE` reads a TOML file (`/etc/spillway/spillwayd.toml` by custom);\n\
         without one every setting has its default. `--set SECTION.NAME=VALUE` overrides one. SIGHUP reads\n\
         the file again: settings marked *yes* change at once, changes to others are logged as needing a restart, and a\n\
         file with a mistake changes nothing. Sizes are bytes, or texts with K, M, G or T in steps of 1024.\n\n\
         This page is made from the table in bin/spillwayd/src/config/table.rs (a test compares them).\n",
    );
    section(&mut out, "[store]", &STORE);
    section(&mut out, "[listen]", &LISTEN);
    section(&mut out, "[resp]", &RESP);
    section(&mut out, "[process]", &PROCESS);
    section(&mut out, "[memory]", &MEMORY);
    section(&mut out, "[unnamed]", &UNNAMED);
    section(&mut out, "[[client]]", &CLIENT);
    section(&mut out, "[[block]]", &BLOCK);
    section(&mut out, "[[disk]]", &DISK);
    section(&mut out, "[lend]", &LEND);
    section(&mut out, "[[peer]]", &PEER);
    section(&mut out, "[sections]", &SECTIONS);
    section(&mut out, "[[vm]]", &VM);
    out
}

fn section<T>(out: &mut String, title: &str, settings: &[Setting<T>]) {
    // Writing to a string does not fail.
    let _ = write!(
        out,
        "\n## `{title}`\n\n| setting | default | may be | reload | meaning |\n|---|---|---|---|---|\n"
    );
    for setting in settings {
        let default = match setting.default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let _ = writeln!(
            out,
            "| `{}` | {default} | {} | {} | {} |",
            setting.name,
            setting.field.expected(),
            if setting.live { "yes" } else { "restart" },
            setting.help
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_the_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
        if std::env::var_os("SPILLWAY_WRITE_DOCS").is_some() {
            std::fs::write(path, document()).unwrap();
        }
        let page = std::fs::read_to_string(path).unwrap();
        assert!(page == document(), "docs/config.md differs: SPILLWAY_WRITE_DOCS=1 writes it");
    }
}
