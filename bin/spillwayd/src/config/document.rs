//! Generates docs/config.md from the table.

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
         This page is for operators of the daemon. It lists every setting. To begin, write a file\n\
         `spillwayd.toml`:\n\n    \
         [store]\n    \
         capacity = \"4G\"\n\n    \
         [[client]]\n    \
         name = \"alice\"\n    \
         uid = 1000\n    \
         target = \"1G\"\n\n\
         Check it, and start the daemon with it:\n\n    \
         spillwayd --config spillwayd.toml --check\n    \
         spillwayd --config spillwayd.toml\n\n\
         The check reads the files that a start reads, and prints the first thing that a start would refuse.\n\
         It binds no socket, takes no memory and changes no file of a disk.\n\n\
         The usual file is `/etc/spillway/spillwayd.toml`. Without `--config`, every setting has its default.\n\
         `--set SECTION.NAME=VALUE` overrides a setting. `spillway reload` (or SIGHUP) has the daemon read\n\
         the file again: settings marked *yes* under *reload* change at once; for others the daemon logs\n\
         that they need a restart. A file with an error changes nothing. The reload also reads again all\n\
         files with keys, certificates, secrets, passwords and tokens, under the names that they had at the\n\
         start; only `client.secret_file` and `client.password_file` may name another file then\n\
         ([daemon.md](daemon.md#renew-keys-certificates-and-tokens)). A size is a number of bytes, or a text\n\
         with K, M, G or T (powers of 1024).\n\n\
         A test compares this page with its source, the tables in bin/spillwayd/src/config (table*.rs).\n",
    );
    for section in sections() {
        write_section(&mut out, &section);
    }
    out
}

fn write_section(out: &mut String, section: &Section) {
    // Writing to a string can't fail.
    let _ = write!(
        out,
        "\n## `{}`\n\n| setting | default | values | reload | meaning |\n|---|---|---|---|---|\n",
        section.title
    );
    for Row { name, default, values, live, help } in &section.rows {
        let default = match *default {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let reload = if *live { "yes" } else { "restart" };
        let _ = writeln!(out, "| `{name}` | {default} | {values} | {reload} | {help} |");
    }
}

/// A section of the file, as text.
pub(super) struct Section {
    /// As the file writes it.
    pub title: &'static str,
    pub rows: Vec<Row>,
}

/// A setting, as text.
pub(super) struct Row {
    pub name: &'static str,
    /// Empty for none.
    pub default: &'static str,
    pub values: String,
    /// Whether a reload changes it.
    pub live: bool,
    /// In Markdown.
    pub help: &'static str,
}

/// All sections.
pub(super) fn sections() -> Vec<Section> {
    vec![
        section("[store]", &STORE),
        section("[listen]", &LISTEN),
        section("[resp]", &RESP),
        section("[process]", &PROCESS),
        section("[memory]", &MEMORY),
        section("[unnamed]", &UNNAMED),
        section("[[client]]", &CLIENT),
        section("[[block]]", &BLOCK),
        section("[[disk]]", &DISK),
        section("[lend]", &LEND),
        section("[[peer]]", &PEER),
        section("[sections]", &SECTIONS),
        section("[[vm]]", &VM),
    ]
}

fn section<T>(title: &'static str, settings: &'static [Setting<T>]) -> Section {
    let row = |setting: &'static Setting<T>| Row {
        name: setting.name,
        default: setting.default,
        values: setting.field.expected(),
        live: setting.live,
        help: setting.help,
    };
    Section { title, rows: settings.iter().map(row).collect() }
}

#[cfg(test)]
mod tests {
    use spillway_test_support::documents;

    use super::*;

    #[test]
    fn the_page_in_docs_is_the_table() {
        documents::check("config.md", &document());
    }
}
