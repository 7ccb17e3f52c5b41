//! `spillway run`: checks everything first, starts the program, and reports.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{self, Command, ExitCode};
use std::time::Instant;

use anyhow::Context;
use spillway_pager::tree::{self, ENV, PATH_MAX, Settings};

use crate::blade::Blades;
use crate::doctor::userfaultfd;
use crate::options::{Faults, Run, Switch};
use crate::outside::Outside;
use crate::program::{self, plain};
use crate::progress::Progress;
use crate::record::Recording;
use crate::refusal::Refusal;
use crate::register::Registration;
use crate::sample::Sampler;
use crate::shared_tree::SharedTree;
use crate::stats::{Report, Watch};
use crate::supervise::{Observer, Supervisor};
use crate::units::{PAGE_BYTES, show_size};
use spillway_host::Limits;
use spillway_platform::process::{Stat, own_number};

/// Below this the pages that one instruction and its system call touch might not fit.
const LEAST_LOCAL: u64 = 1 << 20;
/// The store that stages pages on their way to a blade: this part of the local memory, and at least
/// so much.
const STAGING_PART: u64 = 4;
const LEAST_STAGING: u64 = 8 << 20;
/// The least store with which a run begins under a limit on address space or data.
const LEAST_STORE: u64 = 16 << 20;
/// The preload library.
const LIBRARY: &str = "libspillway_preload.so";
/// Where an installed one is, relative to the command's directory.
const INSTALLED: &str = "../lib/spillway";
const PRELOAD: &str = "LD_PRELOAD";

/// Runs the program and ends with its exit status.
///
/// # Errors
/// A [`Refusal`] if nothing was started, or the statistics could not be written.
pub fn run(options: &Run) -> anyhow::Result<ExitCode> {
    let limits = Limits::read();
    let mut settings = check(options, &limits)?;
    let path = program::find(&options.program[0])?;
    let library = library()?;
    userfaultfd::check(options.faults == Faults::Signal)?;
    let sink = options.stats.as_deref().map(Sink::open).transpose()?;
    let recording = options.record.as_deref().map(Recording::open).transpose()?;
    let blades = Blades::claim(&options.remote, &mut settings.blade)?;

    let tree = SharedTree::new(&settings).map_err(|error| {
        Refusal::usage(format!("can't create the shared page of the run: {}", plain(&error)))
    })?;
    let mut command = Command::new(&path);
    command
        .arg0(&options.program[0])
        .args(&options.program[1..])
        .env(PRELOAD, preload_value(library, env::var_os(PRELOAD)))
        .env(ENV, tree.path());
    let start = Instant::now();
    let mut supervisor = Supervisor::start(command).map_err(|error| {
        let is_full = error.raw_os_error() == Some(rustix::io::Errno::MFILE.raw_os_error());
        let cure = if is_full { "; raise ulimit -n" } else { "" };
        Refusal::not_executable(format!("can't run {}: {}{cure}", path.display(), plain(&error)))
    })?;
    let mut eyes = Eyes {
        tree: &tree,
        watch: Watch::default(),
        sampler: sink.is_some().then(|| Sampler::new(process::id())),
        outside: Outside::new(),
        progress: options.progress.then(|| Progress::new(&tree)),
        registration: Registration::new(
            &options.register,
            &options.program[0],
            settings.local_pages,
            limits.most_local() / PAGE_BYTES,
        ),
        recording,
        blades: blades.as_ref(),
    };
    let ending = supervisor.run(&tree, &mut eyes)?;
    let took = start.elapsed();
    if let Some(line) = eyes.recording.take().and_then(|it| it.finish(&tree)) {
        eyes.say(&line);
    }
    if let Some(progress) = &eyes.progress {
        progress.finish(&tree, eyes.watch.fullest());
    }
    if let Some(sink) = sink {
        sink.write(&Report::new(options, &tree, &eyes.watch, ending.parts(), took))?;
    }
    if let Some(blades) = blades {
        blades.end(&tree);
    }
    Ok(ending.follow())
}

/// The observers of a run in progress.
struct Eyes<'a> {
    tree: &'a SharedTree,
    watch: Watch,
    sampler: Option<Sampler>,
    outside: Outside,
    progress: Option<Progress>,
    registration: Option<Registration>,
    recording: Option<Recording>,
    blades: Option<&'a Blades>,
}

impl Observer for Eyes<'_> {
    fn look(&mut self) {
        let usage = self.sampler.as_mut().and_then(|sampler| sampler.sample(self.tree));
        self.watch.update(self.tree, usage);
        if let Some(recording) = &mut self.recording {
            recording.look(self.tree);
        }
        if let Some(line) = self.registration.as_mut().and_then(|it| it.look(self.tree)) {
            self.say(&line);
        }
        if let Some(line) = self.outside.look(self.tree) {
            self.say(&line);
        }
        if let Some(progress) = &mut self.progress {
            progress.update(self.tree);
        }
    }

    fn unheld(&mut self, object: u64) {
        if let Some(blades) = self.blades {
            blades.flush_object(object);
        }
    }

    fn say(&mut self, line: &str) {
        if let Some(progress) = &self.progress {
            progress.clear();
        }
        // A closed standard error is the user's choice.
        let _ = writeln!(io::stderr(), "spillway: {line}");
    }
}

/// Turns the options into settings.
fn check(options: &Run, limits: &Limits) -> Result<Settings, Refusal> {
    let most = limits.most_local();
    if options.local < LEAST_LOCAL {
        return Err(Refusal::usage(format!(
            "--local {} is too little: give at least {}",
            show_size(options.local),
            show_size(LEAST_LOCAL)
        )));
    }
    if options.local > most {
        return Err(Refusal::usage(format!(
            "--local {} is more than this machine, cgroup or user has: give at most {}",
            show_size(options.local),
            show_size(most)
        )));
    }
    let fitting = store_within(limits, options.local);
    let store_bytes = options.store.unwrap_or_else(|| {
        let most = limits.default_store(options.local).min(fitting);
        if options.remote.blade.is_some() { most.min(staging(options.local)) } else { most }
    });
    if let Some((limit, command)) = limits.mapped()
        && (fitting < LEAST_STORE || fitting < store_bytes)
    {
        let wanted = options.store.unwrap_or(LEAST_STORE);
        let least = tree::reserved_bytes(wanted).saturating_add(options.local + wanted);
        return Err(Refusal::usage(format!(
            "{command} {} is too little: the pager reserves address space for the store; set at least {}{}",
            show_size(limit),
            show_size(least),
            if options.store.is_some() { ", or a smaller --store" } else { "" },
        )));
    }
    if store_bytes < PAGE_BYTES && options.disk.is_none() {
        return Err(Refusal::usage(
            "no memory is left for a store: give a smaller --local, a --store, or a --disk",
        ));
    }
    if options.faults == Faults::Signal && options.disk.is_some() {
        return Err(Refusal::usage(
            "--faults signal can't use --disk: use --faults thread, or omit --disk",
        ));
    }
    if options.faults == Faults::Signal && options.remote.blade.is_some() {
        return Err(Refusal::usage(
            "--faults signal can't use --blade: use --faults thread, or omit --blade",
        ));
    }
    let mut settings = Settings {
        local_pages: options.local / PAGE_BYTES,
        store_bytes,
        link_delay_ns: u64::try_from(options.link_delay.as_nanos()).unwrap_or(u64::MAX),
        disk_delay_ns: u64::try_from(options.disk_delay.as_nanos()).unwrap_or(u64::MAX),
        address_space_bytes: match limits.mapped() {
            None => tree::reserved_bytes(store_bytes),
            Some(_) => 0,
        },
        replacement: tree::Replacement::from(options.replacement) as u32,
        eviction: tree::Eviction::from(options.eviction) as u32,
        faults: tree::Faults::from(options.faults) as u32,
        prefetch: u32::from(options.prefetch == Switch::On),
        compress: u32::from(options.compress == Switch::On),
        record: u32::from(options.record.is_some()),
        disk_path_len: 0,
        disk_path: [0; PATH_MAX],
        supervisor_pid: own_number(),
        supervisor_start_ticks: Stat::of_caller().map_or(0, |stat| stat.start_ticks),
        blade: tree::BladeSettings::NONE,
    };
    if let Some(dir) = &options.disk {
        let dir = writable_dir(dir)?;
        let bytes = dir.as_os_str().as_bytes();
        let Some(place) = settings.disk_path.get_mut(..bytes.len()) else {
            return Err(Refusal::usage(format!(
                "--disk: the path is longer than {PATH_MAX} bytes"
            )));
        };
        place.copy_from_slice(bytes);
        settings.disk_path_len = bytes.len() as u32;
    }
    Ok(settings)
}

/// The store that stages pages on their way to a blade.
pub fn staging(local: u64) -> u64 {
    (local / STAGING_PART).max(LEAST_STAGING)
}

/// The largest store that fits under a limit on address space or data, beside the program's own memory.
fn store_within(limits: &Limits, local: u64) -> u64 {
    let Some((limit, _)) = limits.mapped() else { return u64::MAX };
    let left = limit.saturating_sub(tree::reserved_bytes(0)).saturating_sub(local);
    // A byte of the store takes address space twice: in the store, and in the program for the page
    // that it holds.
    left / 425 * 100
}

/// The absolute path of a directory in which a file can be created, as the disk tier will.
pub fn writable_dir(dir: &Path) -> Result<PathBuf, Refusal> {
    let refuse = |error: io::Error| {
        Refusal::usage(format!(
            "--disk {}: {}; name a directory that you can write to",
            dir.display(),
            plain(&error)
        ))
    };
    let absolute = fs::canonicalize(dir).map_err(refuse)?;
    if !absolute.is_dir() {
        return Err(refuse(io::Error::from_raw_os_error(rustix::io::Errno::NOTDIR.raw_os_error())));
    }
    let probe = absolute.join(format!(".spillway-probe-{}", std::process::id()));
    File::create_new(&probe).map_err(refuse)?;
    fs::remove_file(&probe).map_err(refuse)?;
    Ok(absolute)
}

/// The library beside this executable, or where `make install` puts it.
pub fn library() -> Result<PathBuf, Refusal> {
    let own = env::current_exe().map_err(|error| {
        Refusal::usage(format!("can't find the path of this command: {}", plain(&error)))
    })?;
    let beside = own.with_file_name(LIBRARY);
    let installed = own.with_file_name(INSTALLED).join(LIBRARY);
    // The program may change its working directory, and names are shorter without "..".
    let found = [&beside, &installed].into_iter().find_map(|path| path.canonicalize().ok());
    let Some(path) = found.filter(|path| path.is_file()) else {
        return Err(Refusal::usage(format!(
            "{} is missing: build it with `make build`, or put it beside the command",
            beside.display()
        )));
    };
    // The loader splits LD_PRELOAD at these (ld.so(8)) and knows no quoting.
    if path.as_os_str().as_bytes().iter().any(|byte| b" :\t\n".contains(byte)) {
        return Err(Refusal::usage(format!(
            "{} has a space or colon in its path, which LD_PRELOAD can't hold: move it",
            path.display()
        )));
    }
    Ok(path)
}

/// Our library first, then what was preloaded already.
fn preload_value(library: PathBuf, before: Option<OsString>) -> OsString {
    let mut value = OsString::from(library);
    if let Some(before) = before.filter(|text| !text.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

/// Where the statistics go. Opened before the program starts, so that a bad path is reported in
/// time.
pub enum Sink {
    Stdout,
    File(File, PathBuf),
}

impl Sink {
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        if path == Path::new("-") {
            return Ok(Self::Stdout);
        }
        let file = File::create(path).map_err(|error| {
            Refusal::usage(format!(
                "--stats {}: {}; name a file that you can write",
                path.display(),
                plain(&error)
            ))
        })?;
        Ok(Self::File(file, path.to_owned()))
    }

    pub fn write(self, report: &impl serde::Serialize) -> anyhow::Result<()> {
        let mut text = serde_json::to_string_pretty(report)?;
        text.push('\n');
        match self {
            Self::Stdout => io::stdout().write_all(text.as_bytes()).context("--stats -"),
            Self::File(mut file, path) => file
                .write_all(text.as_bytes())
                .with_context(|| format!("--stats {}", path.display())),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use clap::Parser;

    use super::*;

    const MACHINE: Limits = Limits {
        total: Some(8 << 30),
        available: Some(4 << 30),
        cgroup: None,
        address_space: None,
        data: None,
    };

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: Run,
    }

    fn checked(options: &str) -> Result<Settings, Refusal> {
        checked_on(options, &MACHINE)
    }

    fn checked_on(options: &str, limits: &Limits) -> Result<Settings, Refusal> {
        let words = ["run"].into_iter().chain(options.split_whitespace()).chain(["--", "true"]);
        check(&Line::parse_from(words).run, limits)
    }

    /// Settings as the defaults make them.
    pub fn settings() -> Settings {
        checked("--local 64M").unwrap()
    }

    #[test]
    fn defaults_are_those_that_the_help_names() {
        let settings = settings();
        assert_eq!(settings.local_pages, 16384);
        assert_eq!(settings.store_bytes, (4 << 30) - (64 << 20));
        assert_eq!(settings.replacement, tree::Replacement::Auto as u32);
        assert_eq!(settings.eviction, tree::Eviction::Auto as u32);
        assert_eq!(settings.faults, tree::Faults::Thread as u32);
        assert_eq!((settings.prefetch, settings.compress, settings.link_delay_ns), (1, 1, 0));
    }

    #[test]
    fn what_can_not_work_is_refused_in_one_line() {
        for (options, word) in [
            ("--local 0", "at least"),
            ("--local 4K", "at least"),
            ("--local 9G", "at most"),
            ("--local 5G", "no memory is left"),
            ("--local 1G --store 0", "no memory is left"),
            ("--local 1G --disk /no/such/dir", "--disk"),
            ("--local 1G --disk /proc", "--disk"),
            ("--local 1G --disk /dev/null", "Not a directory"),
            ("--local 1G --disk /tmp --faults signal", "--faults thread"),
            ("--local 1G --blade ring:/x --faults signal", "--faults thread"),
        ] {
            let refusal = checked(options).unwrap_err();
            assert_eq!(refusal.code(), 2, "{options}");
            let line = refusal.to_string();
            assert!(line.contains(word) && !line.contains('\n'), "{options}: {line}");
        }
    }

    #[test]
    fn under_a_limit_on_address_space_the_store_is_smaller_or_refused() {
        let within = |gib: u64, options: &str| {
            checked_on(options, &Limits { address_space: Some(gib << 30), ..MACHINE })
        };
        let settings = within(8, "--local 64M").unwrap();
        let needed = tree::reserved_bytes(settings.store_bytes) + (64 << 20) + settings.store_bytes;
        assert!(settings.store_bytes > 1 << 30 && needed <= 8 << 30, "{settings:?}");
        assert_eq!(settings.address_space_bytes, 0);
        assert_eq!(within(8, "--local 64M --store 1G").unwrap().store_bytes, 1 << 30);
        for (gib, options) in [(2, "--local 64M"), (4, "--local 64M --store 1G")] {
            let refusal = within(gib, options).unwrap_err();
            assert_eq!(refusal.code(), 2);
            assert!(refusal.to_string().contains("ulimit -v"), "{refusal}");
        }
        assert!(checked("--local 64M").unwrap().address_space_bytes > 9 << 30);
    }

    #[test]
    fn with_a_blade_the_store_is_a_small_staging_place_unless_it_is_said() {
        let store = |options: &str| checked(options).unwrap().store_bytes;
        assert_eq!(store("--local 1G --blade ring:/x"), 256 << 20);
        assert_eq!(store("--local 4M --blade ring:/x"), 8 << 20);
        assert_eq!(store("--local 1G --blade ring:/x --store 100M"), 100 << 20);
    }

    #[test]
    fn the_disk_path_is_absolute_and_nothing_is_left_in_it() {
        let dir = tempfile::tempdir().unwrap();
        let settings = checked(&format!("--local 1G --disk {}", dir.path().display())).unwrap();
        let len = settings.disk_path_len as usize;
        assert_eq!(&settings.disk_path[..len], dir.path().as_os_str().as_bytes());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn other_preloaded_libraries_stay() {
        let with = |before: Option<&str>| preload_value("/a/lib.so".into(), before.map(Into::into));
        assert_eq!(with(None), "/a/lib.so");
        assert_eq!(with(Some("")), "/a/lib.so");
        assert_eq!(with(Some("b.so c.so")), "/a/lib.so:b.so c.so");
    }
}
