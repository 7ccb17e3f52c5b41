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
    // Writing to a string can't fail.
    let _ = write!(
        out,
        "\n## `{title}`\n\n| setting | default | values | reload | meaning |\n|---|---|---|---|---|\n"
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
    use spillway_test_support::documents;

    use super::*;

    #[test]
    fn the_page_in_docs_is_the_table() {
        documents::check("config.md", &document());
    }
}
