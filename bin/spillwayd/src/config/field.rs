//! The kinds of settings, and how each is read and shown.

use std::net::SocketAddr;
use std::path::PathBuf;

use spillway_directory::Users;
use spillway_guests::agent::Profile;
use spillway_lending::{Backup, Mode};
use spillway_manager::{Percent, Policy};
use spillway_types::{Lifetime, parse_size};
use spillway_vhost_user_blk::Kind;
use toml::de::DeValue;

use super::values::{Capacity, DeviceUse, LendRoles, MemoryLock, RegistryKind, UsedBy};

/// Finds the place of a setting.
pub type At<T, V> = fn(&mut T) -> &mut V;

/// One setting of a section `T`.
pub struct Setting<T: 'static> {
    /// Its name within its section.
    pub name: &'static str,
    /// Its default, in the file's syntax; empty for none.
    pub default: &'static str,
    /// Whether a reload changes it.
    pub live: bool,
    /// Its kind and destination.
    pub field: Field<T>,
    /// Its description.
    pub help: &'static str,
}

/// A setting that a reload changes.
pub const fn live<T>(
    name: &'static str,
    default: &'static str,
    field: Field<T>,
    help: &'static str,
) -> Setting<T> {
    Setting { name, default, live: true, field, help }
}

/// A setting that needs a restart.
pub const fn fixed<T>(
    name: &'static str,
    default: &'static str,
    field: Field<T>,
    help: &'static str,
) -> Setting<T> {
    Setting { name, default, live: false, field, help }
}

/// A setting's kind, bounds and destination.
pub enum Field<T: 'static> {
    Capacity(At<T, Capacity>),
    OptionalCapacity(At<T, Option<Capacity>>),
    Size(At<T, u64>, u64, u64),
    OptionalSize(At<T, Option<u64>>),
    Count(At<T, u64>, u64, u64),
    OptionalCount(At<T, Option<u64>>, u64, u64),
    Switch(At<T, bool>),
    Path(At<T, Option<PathBuf>>),
    Address(At<T, Option<SocketAddr>>),
    Text(At<T, String>),
    Texts(At<T, Vec<String>>),
    MemoryLock(At<T, MemoryLock>),
    Users(At<T, Users>),
    Policy(At<T, String>),
    Percent(At<T, Percent>),
    Kind(At<T, Kind>),
    Roles(At<T, LendRoles>),
    Registry(At<T, RegistryKind>),
    Used(At<T, UsedBy>),
    Mode(At<T, Mode>),
    Device(At<T, DeviceUse>),
    Backup(At<T, Backup>),
    Profile(At<T, Profile>),
    Lifetime(At<T, Lifetime>),
}

const LOCKS: [(&str, MemoryLock); 3] =
    [("auto", MemoryLock::Auto), ("on", MemoryLock::On), ("off", MemoryLock::Off)];
const KINDS: [(&str, Kind); 2] = [("swap", Kind::Swap), ("cache", Kind::Cache)];
const USERS: [(&str, Users); 3] =
    [("same", Users::Same), ("all", Users::All), ("none", Users::None)];
const ROLES: [(&str, LendRoles); 5] = [
    ("off", LendRoles::Off),
    ("lend", LendRoles::Lend),
    ("borrow", LendRoles::Borrow),
    ("single", LendRoles::Single),
    ("both", LendRoles::Both),
];
const REGISTRIES: [(&str, RegistryKind); 2] =
    [("static", RegistryKind::Static), ("etcd", RegistryKind::Etcd)];
const USED: [(&str, UsedBy); 2] = [("available", UsedBy::Available), ("paper", UsedBy::Paper)];
const MODES: [(&str, Mode); 2] = [("fan-out", Mode::FanOut), ("direct", Mode::Direct)];
const DEVICES: [(&str, DeviceUse); 2] = [("swap", DeviceUse::Swap), ("socket", DeviceUse::Socket)];
const BACKUPS: [(&str, Backup); 3] =
    [("none", Backup::None), ("mirror", Backup::Mirror), ("file", Backup::File)];
const PROFILES: [(&str, Profile); 2] =
    [("returns-all", Profile::ReturnsAll), ("grows-far", Profile::GrowsFar)];

const LIFETIMES: [(&str, Lifetime); 2] =
    [("persistent", Lifetime::Persistent), ("ephemeral", Lifetime::Ephemeral)];

/// A setting that is switched off is an empty string in the file.
const NOTHING: &str = "";

impl<T> Field<T> {
    /// Reads a value into its destination, or returns what was expected.
    pub fn read(&self, section: &mut T, value: &DeValue<'_>) -> Result<(), String> {
        let text = value.as_str();
        let read = match self {
            Self::Capacity(at) => capacity(value).map(|it| *at(section) = it),
            Self::OptionalCapacity(at) => match text {
                Some("none") => Some(None),
                _ => capacity(value).map(Some),
            }
            .map(|it| *at(section) = it),
            Self::Size(at, min, max) => {
                size(value).filter(|it| (*min..=*max).contains(it)).map(|it| *at(section) = it)
            }
            Self::OptionalSize(at) => match text {
                Some("none") => Some(None),
                _ => size(value).map(Some),
            }
            .map(|it| *at(section) = it),
            Self::Count(at, min, max) => count(value, *min, *max).map(|it| *at(section) = it),
            Self::OptionalCount(at, min, max) => {
                count(value, *min, *max).map(|it| *at(section) = Some(it))
            }
            Self::Switch(at) => value.as_bool().map(|it| *at(section) = it),
            Self::Path(at) => text.map(|it| {
                *at(section) = (it != NOTHING).then(|| PathBuf::from(it));
            }),
            Self::Address(at) => match text {
                Some(NOTHING) => Some(None),
                text => text.and_then(|it| it.parse().ok()).map(Some),
            }
            .map(|it| *at(section) = it),
            Self::Text(at) => text.map(|it| it.clone_into(at(section))),
            Self::Texts(at) => texts(value).map(|it| *at(section) = it),
            Self::MemoryLock(at) => {
                text.and_then(|it| word(&LOCKS, it)).map(|it| *at(section) = it)
            }
            Self::Users(at) => text.and_then(|it| word(&USERS, it)).map(|it| *at(section) = it),
            Self::Kind(at) => text.and_then(|it| word(&KINDS, it)).map(|it| *at(section) = it),
            Self::Roles(at) => text.and_then(|it| word(&ROLES, it)).map(|it| *at(section) = it),
            Self::Registry(at) => {
                text.and_then(|it| word(&REGISTRIES, it)).map(|it| *at(section) = it)
            }
            Self::Used(at) => text.and_then(|it| word(&USED, it)).map(|it| *at(section) = it),
            Self::Device(at) => text.and_then(|it| word(&DEVICES, it)).map(|it| *at(section) = it),
            Self::Mode(at) => text.and_then(|it| word(&MODES, it)).map(|it| *at(section) = it),
            Self::Backup(at) => text.and_then(|it| word(&BACKUPS, it)).map(|it| *at(section) = it),
            Self::Profile(at) => {
                text.and_then(|it| word(&PROFILES, it)).map(|it| *at(section) = it)
            }
            Self::Lifetime(at) => {
                text.and_then(|it| word(&LIFETIMES, it)).map(|it| *at(section) = it)
            }
            Self::Policy(at) => {
                let known = text.filter(|text| Policy::NAMES.contains(text));
                known.map(|it| it.clone_into(at(section)))
            }
            Self::Percent(at) => percent(value).map(|it| *at(section) = it),
        };
        read.ok_or_else(|| self.expected())
    }

    /// Describes the accepted values.
    pub fn expected(&self) -> String {
        let shown = |bytes: u64| spillway_types::Size(bytes).to_string();
        match self {
            Self::Capacity(_) => {
                r#"a size such as "4G", or a share such as "25%" (1% to 90%)"#.into()
            }
            Self::OptionalCapacity(_) => {
                r#"a size such as "4G", a share such as "25%" (1% to 90%), or "none""#.into()
            }
            Self::Size(_, min, max) => {
                format!(r#"a size such as "64M", {} to {}"#, shown(*min), shown(*max))
            }
            Self::OptionalSize(_) => r#"a size such as "64M", or "none""#.into(),
            Self::Count(_, min, max) | Self::OptionalCount(_, min, max) => {
                format!("a number from {min} to {max}")
            }
            Self::Switch(_) => "true or false".into(),
            Self::Path(_) => r#"a path, or "" for none"#.into(),
            Self::Address(_) => {
                r#"an address and port such as "127.0.0.1:4420", or "" for none"#.into()
            }
            Self::Text(_) => "a text".into(),
            Self::Texts(_) => "an array of texts".into(),
            Self::MemoryLock(_) => words(&LOCKS),
            Self::Users(_) => words(&USERS),
            Self::Kind(_) => words(&KINDS),
            Self::Roles(_) => words(&ROLES),
            Self::Registry(_) => words(&REGISTRIES),
            Self::Used(_) => words(&USED),
            Self::Device(_) => words(&DEVICES),
            Self::Mode(_) => words(&MODES),
            Self::Backup(_) => words(&BACKUPS),
            Self::Profile(_) => words(&PROFILES),
            Self::Lifetime(_) => words(&LIFETIMES),
            Self::Policy(_) => words(&Policy::NAMES.map(|name| (name, ()))),
            Self::Percent(_) => "a percentage above 0 and up to 100, such as 0.75".into(),
        }
    }

    /// The value as text. Different values give different texts.
    pub fn show(&self, section: &mut T) -> String {
        match self {
            Self::Capacity(at) => format!("{:?}", at(section)),
            Self::OptionalCapacity(at) => format!("{:?}", at(section)),
            Self::Size(at, ..) | Self::Count(at, ..) => at(section).to_string(),
            Self::OptionalSize(at) | Self::OptionalCount(at, ..) => format!("{:?}", at(section)),
            Self::Switch(at) => at(section).to_string(),
            Self::Path(at) => format!("{:?}", at(section)),
            Self::Address(at) => format!("{:?}", at(section)),
            Self::Text(at) => at(section).clone(),
            Self::Texts(at) => at(section).join(","),
            Self::MemoryLock(at) => format!("{:?}", at(section)),
            Self::Users(at) => format!("{:?}", at(section)),
            Self::Kind(at) => format!("{:?}", at(section)),
            Self::Roles(at) => format!("{:?}", at(section)),
            Self::Registry(at) => format!("{:?}", at(section)),
            Self::Used(at) => format!("{:?}", at(section)),
            Self::Device(at) => format!("{:?}", at(section)),
            Self::Mode(at) => format!("{:?}", at(section)),
            Self::Backup(at) => format!("{:?}", at(section)),
            Self::Profile(at) => format!("{:?}", at(section)),
            Self::Lifetime(at) => format!("{:?}", at(section)),
            Self::Policy(at) => at(section).clone(),
            Self::Percent(at) => at(section).to_string(),
        }
    }
}

fn capacity(value: &DeValue<'_>) -> Option<Capacity> {
    let Some(percent) = value.as_str().and_then(|text| text.strip_suffix('%')) else {
        return size(value).map(Capacity::Bytes);
    };
    percent.parse().ok().filter(|share| (1..=90).contains(share)).map(Capacity::Percent)
}

fn size(value: &DeValue<'_>) -> Option<u64> {
    match value {
        DeValue::String(text) => parse_size(text).ok(),
        value => count(value, 0, u64::MAX),
    }
}

fn percent(value: &DeValue<'_>) -> Option<Percent> {
    match value {
        DeValue::String(text) => text.parse().ok(),
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    }
}

fn count(value: &DeValue<'_>, min: u64, max: u64) -> Option<u64> {
    let DeValue::Integer(number) = value else { return None };
    let number = u64::from_str_radix(number.as_str(), number.radix()).ok()?;
    (min..=max).contains(&number).then_some(number)
}

fn texts(value: &DeValue<'_>) -> Option<Vec<String>> {
    let array = value.as_array()?;
    array.iter().map(|entry| entry.get_ref().as_str().map(str::to_owned)).collect()
}

fn word<V: Copy>(words: &[(&str, V)], text: &str) -> Option<V> {
    words.iter().find(|(word, _)| *word == text).map(|(_, value)| *value)
}

fn words<V>(words: &[(&str, V)]) -> String {
    let quoted: Vec<_> = words.iter().map(|(word, _)| format!("\"{word}\"")).collect();
    quoted.join(" or ")
}
