//! Reads the file and the command line's settings into a [`Config`].

use std::fmt;
use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::field::Setting;
use super::table::{
    BLOCK, CLIENT, DISK, LEND, LISTEN, MEMORY, PEER, PROCESS, SECTIONS, STORE, UNNAMED, VM,
};
use super::table_resp::RESP;
use super::values::{Config, Lend, Listen, Memory, Process, Resp, Sections, Unnamed};

/// Largest configuration file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// One line that says what is wrong, and where.
#[derive(Debug)]
pub struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl Error {
    pub fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }
}

/// Reads `path` and then `overrides`, each `SECTION.NAME=VALUE`.
///
/// # Errors
/// The first thing that is wrong.
pub fn read(path: Option<&Path>, overrides: &[String]) -> Result<Config, Error> {
    let mut config = defaults();
    if let Some(path) = path {
        let name = path.display();
        let text = read_bounded(path).map_err(|e| Error(format!("can't read {name}: {e}")))?;
        let text = String::from_utf8(text).map_err(|_| Error(format!("{name}: not UTF-8 text")))?;
        Text { name: name.to_string(), text: &text }.read(&mut config)?;
    }
    for setting in overrides {
        override_one(&mut config, setting)?;
    }
    Ok(config)
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.len() > FILE_BYTES_MAX {
        return Err(io::Error::other("larger than 4 MiB"));
    }
    fs::read(path)
}

fn override_one(config: &mut Config, setting: &str) -> Result<(), Error> {
    let name = format!("--set {setting}");
    let Some(((section, key), value)) =
        setting.split_once('=').and_then(|(left, value)| Some((left.split_once('.')?, value)))
    else {
        return Err(Error(format!("{name}: write it as SECTION.NAME=VALUE")));
    };
    // A value that is not valid TOML is taken as a string, so that the shell command needs no
    // nested quotes.
    let quoted = format!("[{section}]\n{key} = {value:?}");
    let plain = format!("[{section}]\n{key} = {value}");
    let text = if DeTable::parse(&plain).is_ok() { &plain } else { &quoted };
    if ["client", "block", "disk", "peer", "vm"].contains(&section) {
        return Err(Error(format!(
            "{name}: clients, block devices, disks, peers and guests can be set only in the file"
        )));
    }
    Text { name, text }.read(config)
}

/// The defaults.
fn defaults() -> Config {
    Config {
        store: section_defaults(&STORE),
        listen: section_defaults::<Listen>(&LISTEN),
        resp: section_defaults::<Resp>(&RESP),
        process: section_defaults::<Process>(&PROCESS),
        memory: section_defaults::<Memory>(&MEMORY),
        unnamed: section_defaults::<Unnamed>(&UNNAMED),
        clients: Vec::new(),
        blocks: Vec::new(),
        disks: Vec::new(),
        lend: section_defaults::<Lend>(&LEND),
        peers: Vec::new(),
        sections: section_defaults::<Sections>(&SECTIONS),
        vms: Vec::new(),
    }
}

fn section_defaults<T: Default>(settings: &[Setting<T>]) -> T {
    let mut section = T::default();
    for setting in settings.iter().filter(|setting| !setting.default.is_empty()) {
        let read = DeValue::parse(setting.default).map_err(|error| error.to_string());
        let read = read.and_then(|value| setting.field.read(&mut section, value.get_ref()));
        debug_assert_eq!(read, Ok(()), "{}", setting.name);
    }
    section
}

/// A text and its name, for error messages with a position.
struct Text<'a> {
    name: String,
    text: &'a str,
}

impl Text<'_> {
    fn error(&self, at: Range<usize>, line: impl fmt::Display) -> Error {
        let number = 1 + self.text.as_bytes()[..at.start].iter().filter(|&&b| b == b'\n').count();
        Error(if self.name.starts_with("--set") {
            format!("{}: {line}", self.name)
        } else {
            format!("{} line {number}: {line}", self.name)
        })
    }

    fn read(&self, config: &mut Config) -> Result<(), Error> {
        let document = DeTable::parse(self.text).map_err(|error| {
            let message = error.message().lines().collect::<Vec<_>>().join(" ");
            self.error(error.span().unwrap_or(0..0), message)
        })?;
        for (key, value) in document.get_ref() {
            match key.get_ref().as_ref() {
                "store" => self.section(&STORE, "store", value, &mut config.store)?,
                "listen" => self.section(&LISTEN, "listen", value, &mut config.listen)?,
                "resp" => self.section(&RESP, "resp", value, &mut config.resp)?,
                "process" => self.section(&PROCESS, "process", value, &mut config.process)?,
                "memory" => self.section(&MEMORY, "memory", value, &mut config.memory)?,
                "unnamed" => self.section(&UNNAMED, "unnamed", value, &mut config.unnamed)?,
                "client" => self.array(&CLIENT, "client", value, &mut config.clients)?,
                "block" => self.array(&BLOCK, "block", value, &mut config.blocks)?,
                "disk" => self.array(&DISK, "disk", value, &mut config.disks)?,
                "lend" => self.section(&LEND, "lend", value, &mut config.lend)?,
                "peer" => self.array(&PEER, "peer", value, &mut config.peers)?,
                "sections" => {
                    self.section(&SECTIONS, "sections", value, &mut config.sections)?;
                }
                "vm" => self.array(&VM, "vm", value, &mut config.vms)?,
                other => {
                    let line = format!(
                        "there is no section '{other}'; there are [store], [listen], [resp], [process], \
                         [memory], [unnamed], [[client]], [[block]], [[disk]], [lend], [[peer]], \
                         [sections] and [[vm]]"
                    );
                    return Err(self.error(key.span(), line));
                }
            }
        }
        Ok(())
    }

    fn section<T>(
        &self,
        settings: &[Setting<T>],
        name: &str,
        value: &Spanned<DeValue<'_>>,
        section: &mut T,
    ) -> Result<(), Error> {
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.error(value.span(), format!("{name} is a section: write [{name}]")));
        };
        for (key, value) in table {
            let known = settings.iter().find(|setting| setting.name == key.get_ref().as_ref());
            let Some(setting) = known else {
                let names: Vec<_> = settings.iter().map(|setting| setting.name).collect();
                let line = format!(
                    "there is no setting '{}' in {name}; there are {}",
                    key.get_ref(),
                    names.join(", ")
                );
                return Err(self.error(key.span(), line));
            };
            setting.field.read(section, value.get_ref()).map_err(|expected| {
                self.error(value.span(), format!("{name}.{} must be {expected}", setting.name))
            })?;
        }
        Ok(())
    }

    fn array<T: Default>(
        &self,
        settings: &[Setting<T>],
        name: &str,
        value: &Spanned<DeValue<'_>>,
        sections: &mut Vec<T>,
    ) -> Result<(), Error> {
        let DeValue::Array(array) = value.get_ref() else {
            let line = format!("there can be more than one {name}: write [[{name}]]");
            return Err(self.error(value.span(), line));
        };
        for value in array {
            let mut section = section_defaults(settings);
            self.section(settings, name, value, &mut section)?;
            sections.push(section);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Capacity, MemoryLock};
    use spillway_manager::{Percent, Policy, SmartAlloc, Utility};

    fn parsed(text: &str) -> Result<Config, Error> {
        let mut config = defaults();
        Text { name: "file".into(), text }.read(&mut config).map(|()| config)
    }

    #[test]
    fn the_defaults_are_those_of_the_table() {
        let config = defaults();
        assert_eq!(config.store.capacity, Capacity::Percent(25));
        assert!(config.store.compress && !config.store.dedup && config.store.disk.is_none());
        assert_eq!(config.unnamed.bytes_max, 256 << 20);
        assert_eq!(config.listen.path(Path::new("a")), Path::new("/run/spillway/a"));
        assert_eq!(config.listen.path(Path::new("/a")), Path::new("/a"));
    }

    #[test]
    fn a_file_sets_what_it_names() {
        let config = parsed(
            "[store]\ncapacity = \"2G\"\n[process]\nlock_memory = \"off\"\n[[client]]\nname = \"a\"\n\
             uid = 7\n[[client]]\nname = \"b\"\ntarget = \"1M\"\n\
             [memory]\npolicy = \"smart-alloc\"\np = 0.75\nthreshold = \"1M\"\n",
        )
        .unwrap();
        assert_eq!(config.store.capacity, Capacity::Bytes(2 << 30));
        assert_eq!(config.process.lock_memory, MemoryLock::Off);
        assert_eq!(config.clients[0].uid, Some(7));
        let smart = SmartAlloc { p: Percent::hundredths(75), threshold_pages: Some(256) };
        assert_eq!(config.memory.policy(), Policy::SmartAlloc(smart));
        assert_eq!((config.clients[1].floor_bytes, config.clients[1].weight), (0, 1));
        assert_eq!(config.clients[1].target_bytes, Some(1 << 20));
    }

    #[test]
    fn utility_has_settings_of_its_own() {
        let utility = "[memory]\npolicy = \"utility\"\nmiss_us = 150\nfairness_percent = 40\n\
                       [[client]]\nname = \"a\"\nuid = 7\nfloor = \"8M\"\nweight = 3\n";
        let config = parsed(utility).unwrap();
        let expected = Utility { miss_us: 150, fairness_percent: 40, ..Utility::default() };
        assert_eq!(config.memory.policy(), Policy::Utility(expected));
        assert_eq!((config.clients[0].floor_bytes, config.clients[0].weight), (8 << 20, 3));
    }

    #[test]
    fn what_is_wrong_is_one_line_with_the_place() {
        for (text, expected) in [
            (
                "[store]\n\ncapcity = \"1G\"\n",
                "file line 3: there is no setting 'capcity' in store",
            ),
            ("[stoer]\n", "file line 1: there is no section 'stoer'"),
            ("[store]\ncapacity = true\n", "file line 2: store.capacity must be a size"),
            ("[store]\ncapacity = \"91%\"\n", "must be a size such as"),
            ("[memory]\npolicy = \"fair\"\n", "\"greedy\" or \"static-alloc\""),
            ("[memory]\np = 0\n", "memory.p must be a percentage above 0"),
            ("[unnamed]\ngrace_s = -1\n", "must be a number from 0"),
            ("[unnamed]\nusers = \"some\"\n", "\"same\" or \"all\" or \"none\""),
            ("[listen]\nnvme_tcp = \"localhost\"\n", "an address and port"),
            ("[client]\nname = \"a\"\n", "write [[client]]"),
            ("[store\n", "file line 1: "),
            ("store = 1\n", "write [store]"),
            ("[[disk]]\nkind = \"tape\"\n", "disk.kind must be \"swap\" or \"cache\""),
            ("[[disk]]\nqueues = 0\n", "must be a number from 1"),
        ] {
            let line = parsed(text).unwrap_err().to_string();
            assert!(line.contains(expected) && !line.contains('\n'), "{text:?}: {line}");
        }
    }

    #[test]
    fn the_command_line_overrides() {
        let set = |setting: &str| {
            let mut config = defaults();
            override_one(&mut config, setting).map(|()| config)
        };
        assert_eq!(set("store.capacity=1G").unwrap().store.capacity, Capacity::Bytes(1 << 30));
        assert!(!set("process.sandbox=false").unwrap().process.sandbox);
        assert!(set("listen.nbd=").unwrap().listen.nbd.is_none());
        for bad in ["store", "store.capacity", "store.capacity=x", "client.name=a"] {
            let line = set(bad).unwrap_err().to_string();
            assert!(line.starts_with("--set ") && !line.contains('\n'), "{line}");
        }
    }
}
