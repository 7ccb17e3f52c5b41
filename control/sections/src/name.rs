//! Names of guests and of their files.

use crate::error::Error;
use crate::limits::{DEVICES_MAX, NAME_BYTES_MAX};

/// A file of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum GuestFile {
    /// The guest's boot memory.
    Boot,
    /// A virtio-mem device, 1 to [`DEVICES_MAX`].
    Device(u8),
    /// Memory from elsewhere that is only counted: 0 is boot memory, other numbers are devices.
    Counted(u8),
}

impl GuestFile {
    /// The file's name in the guest's folder.
    pub(crate) fn name(self) -> Result<String, Error> {
        match self {
            Self::Boot => Ok("boot".to_owned()),
            Self::Device(1) => Ok("device".to_owned()),
            Self::Device(number @ 2..=DEVICES_MAX) => Ok(format!("device{number}")),
            Self::Counted(0) => Ok("counted".to_owned()),
            Self::Counted(number @ 1..=DEVICES_MAX) => Ok(format!("counted{number}")),
            Self::Device(number) | Self::Counted(number) => Err(Error::DeviceNumber { number }),
        }
    }

    /// The file with this name.
    pub(crate) fn of(name: &str) -> Option<Self> {
        let devices = (1..=DEVICES_MAX).map(Self::Device);
        let counted = (0..=DEVICES_MAX).map(Self::Counted);
        [Self::Boot]
            .into_iter()
            .chain(devices)
            .chain(counted)
            .find(|file| file.name().is_ok_and(|it| it == name))
    }
}

/// Refuses a name that can't be a guest's folder.
pub fn check_guest(name: &str) -> Result<(), Error> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    let fits = (1..=NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(plain);
    if fits && name != "." && name != ".." {
        return Ok(());
    }
    Err(Error::GuestName { name: name.chars().take(NAME_BYTES_MAX + 1).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guests_names_are_names_of_folders() {
        for name in ["a", "db-1.example_x", "...", "..a", &"x".repeat(64)] {
            check_guest(name).unwrap();
        }
        for name in ["", ".", "..", "a/b", "a b", "a,b", "a\n", "ä", &"x".repeat(65)] {
            assert!(check_guest(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn files_are_found_by_their_names_alone() {
        let counted =
            [GuestFile::Counted(0), GuestFile::Counted(1), GuestFile::Counted(DEVICES_MAX)];
        let held = [GuestFile::Boot, GuestFile::Device(1), GuestFile::Device(DEVICES_MAX)];
        for file in held.into_iter().chain(counted) {
            assert_eq!(GuestFile::of(&file.name().unwrap()), Some(file));
        }
        for name in [
            "device0",
            "device1",
            "device02",
            "device17",
            "devices",
            "Boot",
            "counted0",
            "counted17",
            "",
        ] {
            assert_eq!(GuestFile::of(name), None, "{name}");
        }
        assert!(GuestFile::Device(0).name().is_err());
        assert!(GuestFile::Device(DEVICES_MAX + 1).name().is_err());
        assert!(GuestFile::Counted(DEVICES_MAX + 1).name().is_err());
    }
}
