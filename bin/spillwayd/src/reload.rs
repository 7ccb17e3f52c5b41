//! Reloads the configuration while the daemon runs.
//!
//! Another thread reads the files, because a file can be on a disk or a host that does not answer: the control plane
//! continues meanwhile.

use std::mem;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use spillway_api::types::Reload;
use spillway_api::{ReloadOutcome, configure_policy, policy_change};
use spillway_host::Limits;
use spillway_types::{PAGE_BYTES, Size};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout_at};

use crate::arguments::Arguments;
use crate::config::{Clients, Config, needs_restart};
use crate::keys::{Keys, Renewal};
use crate::parts::Parts;
use crate::{capacity, manager, vm, warnings};

/// How long a reload waits for its files.
const READ_MAX: Duration = Duration::from_secs(30);

/// How the line of a failed reload begins.
const KEPT: &str = "configuration not reloaded, the old one stays in force";

/// Contents of the configuration file and of the files that it names, checked but not in force.
pub struct NewConfig {
    config: Config,
    clients: Clients,
    program_pages: u64,
    renewal: Renewal,
    /// Lines about what the configuration permits.
    warnings: Vec<String>,
}

impl NewConfig {
    fn read(arguments: &Arguments, limits: &Limits, keys: &Mutex<Keys>) -> anyhow::Result<Self> {
        let config = arguments.read()?;
        let clients = Clients::new(&config)?;
        let program_pages = capacity::program_pages(config.memory.programs, limits)?;
        let keys = keys.lock().unwrap_or_else(PoisonError::into_inner);
        let renewal = keys.read_again(&config, &clients.clients)?;
        let warnings = warnings::of(&config, limits);
        Ok(Self { config, clients, program_pages, renewal, warnings })
    }
}

/// The reload that reads its files, and the requests for the one after it.
pub struct Reloads<T> {
    read: Arc<dyn Fn() -> anyhow::Result<T> + Send + Sync>,
    read_max: Duration,
    reading: Option<Reading<T>>,
    /// Requests that came after the present reload had begun. None if there are no such.
    next: Option<Vec<ReloadOutcome>>,
}

struct Reading<T> {
    files: JoinHandle<anyhow::Result<T>>,
    deadline: Instant,
    /// Who waits for the outcome.
    asked: Vec<ReloadOutcome>,
    /// Whether the deadline has passed. The thread that reads can't be stopped, and another one would only wait too.
    is_late: bool,
}

impl Reloads<NewConfig> {
    /// Reloads of the files that `arguments` name.
    pub fn new(parts: &Parts, arguments: &Arguments) -> Self {
        let (arguments, limits) = (arguments.clone(), parts.limits);
        let keys = Arc::clone(&parts.keys);
        Self::of(READ_MAX, move || NewConfig::read(&arguments, &limits, &keys))
    }
}

impl<T: Send + 'static> Reloads<T> {
    fn of(
        read_max: Duration,
        read: impl Fn() -> anyhow::Result<T> + Send + Sync + 'static,
    ) -> Self {
        Self { read: Arc::new(read), read_max, reading: None, next: None }
    }

    /// Begins a reload, or notes that another one is wanted after the present one.
    ///
    /// # Errors
    /// The files of an earlier reload are still being read, after its deadline. Returns the request.
    pub fn request(&mut self, request: Option<ReloadOutcome>) -> Result<(), Option<ReloadOutcome>> {
        if self.reading.as_ref().is_some_and(|it| it.is_late && !it.files.is_finished()) {
            return Err(request);
        }
        self.next.get_or_insert_default().extend(request);
        self.begin();
        Ok(())
    }

    fn begin(&mut self) {
        if self.reading.is_some() {
            return;
        }
        let Some(asked) = self.next.take() else { return };
        manager::reloading();
        let read = Arc::clone(&self.read);
        let files = tokio::task::spawn_blocking(move || read());
        let deadline = Instant::now() + self.read_max;
        self.reading = Some(Reading { files, deadline, asked, is_late: false });
    }

    /// Waits until the files are read, or the deadline passes. Each result needs an [`answer`](Self::answer).
    pub async fn read(&mut self) -> anyhow::Result<T> {
        while let Some(reading) = &mut self.reading {
            if !reading.is_late {
                return match timeout_at(reading.deadline, &mut reading.files).await {
                    Ok(read) => read.map_err(anyhow::Error::from).flatten(),
                    Err(_) => {
                        reading.is_late = true;
                        Err(anyhow!("its files could not be read within {:?}", self.read_max))
                    }
                };
            }
            // Nobody waits for what it has read.
            let _ = (&mut reading.files).await;
            self.reading = None;
            self.begin();
        }
        std::future::pending().await
    }

    /// Reports the outcome to all who requested this reload, and begins the next one.
    pub fn answer(&mut self, outcome: &Result<Reload, String>) {
        let Some(reading) = &mut self.reading else { return };
        for request in mem::take(&mut reading.asked) {
            // A peer that went away does not take it.
            let _ = request.send(outcome.clone());
        }
        if !reading.is_late {
            self.reading = None;
            self.begin();
        }
    }
}

/// Refuses a request while the files of an earlier reload are still being read.
pub fn refuse(request: Option<ReloadOutcome>) {
    let line = format!("{KEPT}: the files of an earlier reload are still being read");
    tracing::error!("{line}");
    if let Some(request) = request {
        // A peer that went away does not take it.
        let _ = request.send(Err(line));
    }
}

/// Puts what was read into force, and logs the outcome.
///
/// # Errors
/// The line of the log. An error in any of the files changes nothing.
pub fn apply(
    parts: &mut Parts,
    read: anyhow::Result<NewConfig>,
    guests: Option<&vm::Handle>,
) -> Result<Reload, String> {
    let done = read.and_then(|new| put_in_force(parts, new, guests));
    let done = done.map_err(|error| format!("{KEPT}: {error:#}"));
    match &done {
        Ok(reload) => {
            for line in &reload.warnings {
                tracing::warn!("{line}");
            }
            if !reload.renewed.is_empty() {
                let files = reload.renewed.join(", ");
                tracing::info!(
                    files,
                    "renewed: new connections use the new contents of these files"
                );
            }
            tracing::info!("configuration reloaded");
        }
        Err(line) => tracing::error!("{line}"),
    }
    manager::state("READY=1");
    done
}

fn put_in_force(
    parts: &mut Parts,
    new: NewConfig,
    guests: Option<&vm::Handle>,
) -> anyhow::Result<Reload> {
    let NewConfig { config, clients, program_pages, renewal, mut warnings } = new;
    let registry = &parts.client_registry;
    let changes = registry.configure(&clients.clients, &clients.blocks, clients.policy)?;
    for line in changes {
        tracing::info!("{line}");
    }
    let memory = &config.memory;
    let (policy, interval_ms) =
        configure_policy(&parts.client_registry, memory.policy(), memory.interval_ms)?;
    let before = (parts.daemon.policy(), *parts.daemon.interval_ms.borrow());
    parts.daemon.apply_policy(policy, interval_ms);
    let programs_before = parts.daemon.program_pages.swap(program_pages, Ordering::Relaxed);
    let changes = [
        policy_change(before, (policy, interval_ms)),
        programs_change(programs_before, program_pages),
    ];
    for line in changes.into_iter().flatten() {
        tracing::info!("{line}");
    }
    warnings.extend(renewal.left.map(|left| {
        format!("{left} were not read again: one of them names another file than at the start")
    }));
    let fixed = needs_restart(&parts.config, &config);
    warnings.extend(fixed.iter().map(|name| format!("{name} has changed, which needs a restart")));
    let renewed = parts.keys.lock().unwrap_or_else(PoisonError::into_inner).renew(renewal);
    if let Some(guests) = guests {
        guests.configure(&parts.config.vms, &config.vms);
    }
    parts.config = Config {
        vms: config.vms,
        memory: config.memory,
        clients: config.clients,
        blocks: config.blocks,
        unnamed: config.unnamed,
        ..parts.config.clone()
    };
    Ok(Reload { renewed, warnings })
}

/// A line about the local frames of all programs together, 0 for none, if they change.
fn programs_change(before: u64, after: u64) -> Option<String> {
    let shown = |pages: u64| match pages {
        0 => "none".to_owned(),
        pages => Size(pages * PAGE_BYTES as u64).to_string(),
    };
    (before != after).then(|| format!("memory.programs {} (was {})", shown(after), shown(before)))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    /// Reloads that each read a number from a channel.
    fn reloads(read_max: Duration) -> (mpsc::Sender<u32>, Reloads<u32>) {
        let (file, content) = mpsc::channel();
        let content = Mutex::new(content);
        (file, Reloads::of(read_max, move || Ok(content.lock().unwrap().recv()?)))
    }

    /// Requests a reload; where its outcome arrives.
    fn request(reloads: &mut Reloads<u32>) -> oneshot::Receiver<Result<Reload, String>> {
        let (outcome, arrives) = oneshot::channel();
        assert!(reloads.request(Some(outcome)).is_ok());
        arrives
    }

    #[tokio::test]
    async fn a_request_during_a_reload_gets_one_of_its_own() {
        let (file, mut reloads) = reloads(Duration::from_secs(600));
        let mut first = request(&mut reloads);
        let mut others = [request(&mut reloads), request(&mut reloads)];
        file.send(1).unwrap();
        file.send(2).unwrap();
        assert_eq!(reloads.read().await.unwrap(), 1);
        reloads.answer(&Ok(Reload::default()));
        assert!(first.try_recv().unwrap().is_ok());
        assert!(others.iter_mut().all(|other| other.try_recv().is_err()), "they came later");
        assert_eq!(reloads.read().await.unwrap(), 2);
        reloads.answer(&Err("bad".to_owned()));
        assert!(others.iter_mut().all(|other| other.try_recv().unwrap().is_err()));
        assert!(reloads.reading.is_none() && reloads.next.is_none());
    }

    #[tokio::test]
    async fn files_that_do_not_come_end_a_reload_and_refuse_the_next_until_they_do() {
        let (file, mut reloads) = reloads(Duration::from_millis(20));
        let mut first = request(&mut reloads);
        let late = reloads.read().await.unwrap_err().to_string();
        assert!(late.contains("20ms"), "{late}");
        reloads.answer(&Err(late));
        assert!(first.try_recv().unwrap().is_err());
        assert!(reloads.request(None).is_err());
        // What comes late is not put in force.
        file.send(1).unwrap();
        assert!(tokio::time::timeout(Duration::from_millis(100), reloads.read()).await.is_err());
        reloads.read_max = Duration::from_secs(600);
        let mut second = request(&mut reloads);
        file.send(2).unwrap();
        assert_eq!(reloads.read().await.unwrap(), 2);
        reloads.answer(&Ok(Reload::default()));
        assert!(second.try_recv().unwrap().is_ok());
    }
}
