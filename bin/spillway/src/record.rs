//! `spillway run --record`: records a run's requests to its store, for `spillway sim --trace`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use spillway_pager::link::now_ns;
use spillway_pager::record::{Asked, Reader, Record};
use spillway_pager::tree::Tree;
use spillway_replay::recorded::HEADER;

use crate::program::plain;
use crate::refusal::Refusal;

/// A recording under way.
pub struct Recording {
    path: PathBuf,
    out: BufWriter<File>,
    reader: Reader,
    /// The write error, after which nothing more is written.
    error: Option<io::Error>,
}

impl Recording {
    /// Opens the file before the program starts, so that a bad path is reported in time.
    ///
    /// # Errors
    /// It can't be written.
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let refuse = |error: io::Error| {
            Refusal::usage(format!(
                "--record {}: {}; name a file that you can write",
                path.display(),
                plain(&error)
            ))
        };
        let mut out = BufWriter::with_capacity(1 << 20, File::create(path).map_err(refuse)?);
        writeln!(out, "{HEADER}").and_then(|()| out.flush()).map_err(refuse)?;
        Ok(Self { path: path.to_owned(), out, reader: Reader::default(), error: None })
    }

    /// Writes the requests since the last call.
    pub fn look(&mut self, tree: &Tree) {
        self.take(tree, false);
    }

    fn take(&mut self, tree: &Tree, all: bool) {
        let Self { out, reader, error, .. } = self;
        tree.records.take(reader, now_ns(), all, |Record { at_ns, asked, page }| {
            let op = match asked {
                Asked::Out => "out",
                Asked::Take => "take",
                Asked::Get => "get",
                Asked::Free => "free",
            };
            if error.is_none() {
                *error = writeln!(out, "{at_ns},{op},{page}").err();
            }
        });
    }

    /// Writes the rest. Returns a line for the user if the recording is incomplete.
    pub fn finish(mut self, tree: &Tree) -> Option<String> {
        self.take(tree, true);
        let path = self.path.display();
        let error = self.error.take().or_else(|| self.out.flush().err());
        if let Some(error) = error {
            return Some(format!("--record {path}: {}; the recording ends early", plain(&error)));
        }
        let lost = tree.records.lost();
        (lost > 0).then(|| {
            format!("--record {path}: {lost} requests are missing: the program made them faster than they could be written")
        })
    }
}
