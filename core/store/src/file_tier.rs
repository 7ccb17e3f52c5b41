//! The file tier of a store: made anew, or taken over.

use std::os::fd::OwnedFd;
use std::path::PathBuf;

use spillway_tiers::{Backing, Disk, Files, KeptFile};

use crate::config::{Config, DiskConfig};
use crate::error::Error;

/// An empty file tier, if configured.
pub(crate) fn open(config: &Config) -> Result<Option<Disk>, Error> {
    let Some(disk) = &config.disk else { return Ok(None) };
    Ok(Some(match config.backing {
        Backing::Memfd => Disk::Kept(Box::new(KeptFile::create(&disk.dir, disk.kept())?)),
        Backing::Anonymous => {
            Disk::Own(Box::new(Files::open(&disk.dir, disk.capacity_bytes, disk.delay_ns)?))
        }
    }))
}

/// The kept file tier, or a new one.
pub(crate) fn restore(config: &Config, kept: Option<[OwnedFd; 2]>) -> Result<Option<Disk>, Error> {
    let Some([file, sums]) = kept else { return open(config) };
    let disk = config.disk.clone().unwrap_or_else(|| DiskConfig::new(PathBuf::new(), u64::MAX));
    let disk =
        KeptFile::take_over(file, sums, disk.kept()).map_err(|error| match error.kind() {
            std::io::ErrorKind::InvalidData => Error::Damaged("the disk is not a store's"),
            _ => error.into(),
        })?;
    Ok(Some(Disk::Kept(Box::new(disk))))
}
