//! `spillway doctor`: what this kernel and user can do.

pub mod userfaultfd;
use crate::cli::Doctor;
use std::process::ExitCode;
pub fn run(options: &Doctor) -> anyhow::Result<ExitCode> {
    let _ = (options.output, &options.disk);
    anyhow::bail!("soon")
}
