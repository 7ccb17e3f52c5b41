//! Generates the manual page spillwayd.toml(5) from the table.

use std::fmt::Write;

use super::document::{Row, sections};

const HEAD: &str = r#".SH NAME
spillwayd.toml \- configuration of spillwayd
.SH DESCRIPTION
The file configures
.BR spillwayd (8).
It is TOML: sections with settings.
A section in double brackets can be repeated.
The service reads
.IR /etc/spillway/spillwayd.toml .
Without a file, every setting has its default.
.PP
.BR spillway\-reload (1)
or SIGHUP has the daemon read the file again.
Settings with the note
.I reload
change then; the others need a restart, and the daemon logs which.
A file with an error changes nothing.
.PP
A size is a number of bytes, or a text with K, M, G or T (powers of 1024).
Pages such as daemon.md are in the folder docs of the source, and in
.I /usr/share/doc/spillway
where a package is installed.
"#;

const TAIL: &str = r#".SH FILES
.TP
.I /etc/spillway/spillwayd.toml
The configuration of the service.
.SH EXAMPLES
.PP
A store of 4 GiB, of which the processes of user 1000 may hold 1 GiB:
.PP
.RS 4
.nf
[store]
capacity = "4G"

[[client]]
name = "alice"
uid = 1000
target = "1G"
.fi
.RE
.PP
Check it before a start or reload:
.PP
.RS 4
.nf
spillwayd \-\-check \-\-config /etc/spillway/spillwayd.toml
.fi
.RE
.SH SEE ALSO
.BR spillwayd (8),
.BR spillway\-reload (1),
.BR spillway\-client\-add (1)
"#;

/// The manual page of the file, in roff.
pub fn manual() -> String {
    let version = env!("SPILLWAY_VERSION");
    let mut out = format!(".TH SPILLWAYD.TOML 5 \"\" \"spillwayd {version}\" \"Spillway\"\n{HEAD}");
    for section in sections() {
        // Writing to a string can't fail.
        let _ = writeln!(out, ".SH {}", section.title);
        for row in &section.rows {
            describe(&mut out, row);
        }
    }
    out + TAIL
}

fn describe(out: &mut String, row: &Row) {
    let default = match row.default {
        "" => String::new(),
        default => format!(" (default {})", escaped(default)),
    };
    let note = if row.live { "; reload" } else { "" };
    let (name, help, values) = (code(row.name), prose(row.help), escaped(&row.values));
    let _ = write!(out, ".TP\n{name}{default}\n{help}\n.br\n\\fIValues:\\fR {values}{note}\n");
}

/// A description, of which the table has Markdown: code becomes bold, and of a link the text stays.
fn prose(markdown: &str) -> String {
    let parts = markdown.split('`').enumerate();
    let line: String = parts
        .map(|(at, part)| if at % 2 == 1 { code(part) } else { escaped(&without_links(part)) })
        .collect();
    // At the start of a line, these begin a request.
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

fn code(text: &str) -> String {
    format!("\\fB{}\\fR", escaped(text).replace('-', "\\-"))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e")
}

fn without_links(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some((before, target)) = rest.split_once("](")
        && let Some((_, after)) = target.split_once(')')
        && let Some((head, shown)) = before.rsplit_once('[')
    {
        kept = kept + head + shown;
        rest = after;
    }
    kept + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_setting() {
        let page = manual();
        for section in sections() {
            let (_, rest) = page.split_once(&format!("\n.SH {}\n", section.title)).unwrap();
            let rest = rest.split("\n.SH ").next().unwrap();
            for row in section.rows {
                assert!(rest.contains(&format!(".TP\n{}", code(row.name))), "{}", row.name);
            }
        }
        for heading in ["NAME", "DESCRIPTION", "FILES", "EXAMPLES", "SEE ALSO"] {
            assert!(page.contains(&format!(".SH {heading}\n")), "{heading}");
        }
    }

    #[test]
    fn markdown_becomes_roff() {
        for (markdown, roff) in [
            ("a `b-c` [d](e.md#f) g", "a \\fBb\\-c\\fR d g"),
            ("[a](b) and [c](d).", "a and c."),
            ("[lend] of `[[vm]]`", "[lend] of \\fB[[vm]]\\fR"),
            (".conf \\ x", "\\&.conf \\e x"),
        ] {
            assert_eq!(prose(markdown), roff);
        }
    }
}
