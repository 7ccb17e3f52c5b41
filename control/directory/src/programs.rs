//! Paged programs of the host: clients of local frames instead of the store's.
//!
//! A program is listed while it is connected. An operator's settings of it are kept under its name, also across a
//! restart of the daemon, until it has been gone for the grace period.

use std::collections::HashSet;
use std::time::Duration;

use spillway_types::{
    ClientId, Denied, Identity, Orders, PROGRAM_PAGES_MIN, ProgramCounters, Programs, Registration,
};

use crate::changes;
use crate::error::Error;
use crate::program::{Program, REPORT_MS_MAX};
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::{Bounds, ClientChange};
use crate::views::{ClientView, ProgramSeries};

/// Most registered programs of a user.
const PROGRAMS_OF_USER_MAX: usize = 32;
/// First id of programs, above all ids of the store's clients.
const IDS_START: u64 = 1 << 63;
/// Longest part of a program's name.
const PROGRAM_NAME_MAX: usize = 32;

/// Whether an id is that of a program.
#[must_use]
pub const fn is_program(id: ClientId) -> bool {
    id.0 >= IDS_START
}

/// The program's own name, as far as that is valid, and a number.
fn series(state: &RegistryState, who: &Registration<'_>) -> ProgramSeries {
    let good = |c: &char| c.is_ascii_alphanumeric() || "._+-".contains(*c);
    let mut program: String = who.program.chars().filter(good).take(PROGRAM_NAME_MAX).collect();
    if program.is_empty() {
        "program".clone_into(&mut program);
    }
    let of_name = state.programs.programs.iter().filter(|it| it.series.program == program);
    let taken: HashSet<u32> = of_name.map(|it| it.series.number).collect();
    let number = (1..).find(|number| !taken.contains(number)).unwrap_or(u32::MAX);
    ProgramSeries { program, number }
}

/// A unique name for a program: its own name, and its process id.
fn name(state: &RegistryState, program: &str, pid: i32) -> String {
    let base = format!("{program}-{pid}");
    let mut name = base.clone();
    let mut number = 1;
    while state.find(&name).is_ok() || state.programs.has(&name) {
        number += 1;
        name = format!("{base}-{number}");
    }
    name
}

impl Programs for ClientRegistry {
    fn register(&self, who: Registration<'_>) -> Result<(ClientId, Orders), Denied> {
        let mut state = self.lock();
        if !state.lets_in(Identity::Peer { uid: who.uid, gid: who.gid, pid: who.pid }) {
            state.refusals.unknown += 1;
            return Err(Denied::Unknown);
        }
        let of_user = state.programs.programs.iter().filter(|it| it.uid == who.uid).count();
        if of_user >= PROGRAMS_OF_USER_MAX {
            return Err(Denied::Connections);
        }
        let series = series(&state, &who);
        let name = name(&state, &series.program, who.pid);
        let registry = &mut state.programs;
        let id = ClientId(IDS_START + registry.ids);
        registry.ids += 1;
        let program = Program {
            name,
            series,
            id,
            uid: who.uid,
            pid: who.pid,
            local_pages: who.local_pages.max(PROGRAM_PAGES_MIN),
            // A program with a target from another daemon keeps it until its share is computed here.
            target_pages: registry
                .first_target_pages
                .map_or(u64::MAX, |pages| pages.min(who.budget_pages.max(PROGRAM_PAGES_MIN))),
            counters: ProgramCounters::default(),
        };
        let orders = registry.orders(&program);
        tracing::debug!(program = program.name, uid = who.uid, "a program is counted");
        registry.programs.push(program);
        Ok((id, orders))
    }

    fn report(&self, program: ClientId, counters: ProgramCounters) -> Orders {
        let mut state = self.lock();
        let registry = &mut state.programs;
        let Some(at) = registry.programs.iter().position(|it| it.id == program) else {
            // It is gone: no one receives this.
            let interval_ms = REPORT_MS_MAX as u32;
            return Orders { target_pages: u64::MAX, beyond_local: false, interval_ms };
        };
        registry.programs[at].counters = counters;
        registry.orders(&registry.programs[at])
    }

    fn leave(&self, program: ClientId) {
        let registry = &mut self.lock().programs;
        if let Some(at) = registry.programs.iter().position(|it| it.id == program) {
            let gone = registry.programs.swap_remove(at);
            tracing::debug!(program = gone.name, "a program has ended");
        }
    }

    fn hello_late(&self) {
        self.lock().refusals.late_handshakes += 1;
    }
}

impl ClientRegistry {
    /// All paged programs, by name.
    pub fn programs(&self) -> Vec<ClientView> {
        self.lock().programs.views()
    }

    /// Sets the target of a program, in pages. Ignores a program that is gone.
    pub fn set_program_target(&self, program: ClientId, target_pages: u64) {
        let programs = &mut self.lock().programs.programs;
        if let Some(program) = programs.iter_mut().find(|it| it.id == program) {
            program.target_pages = target_pages;
        }
    }

    /// Sets the length of intervals, and the target of programs that register before the next one ends. None leaves
    /// all programs what their users gave them.
    pub fn set_programs_first_target(&self, interval: Duration, pages: Option<u64>) {
        let registry = &mut self.lock().programs;
        registry.interval_ms = interval.as_millis() as u64;
        registry.first_target_pages = pages;
        if pages.is_none() {
            registry.programs.iter_mut().for_each(|program| program.target_pages = u64::MAX);
        }
    }

    /// Applies an operator's settings of a client or a program, while the daemon runs. Gives the old and new values of
    /// what that changes; none if it changes nothing.
    ///
    /// # Errors
    /// [`Error::NoClient`], [`Error::FloorAboveCap`], [`Error::JournalFull`].
    pub fn change_client(&self, name: &str, change: ClientChange) -> Result<Option<String>, Error> {
        let mut state = self.lock();
        let found = state.find(name);
        if let (Err(_), Some(before)) = (&found, state.programs.bounds_of(name)) {
            // The floor that every program has is nobody's wish.
            let floor_pages = match before.floor_pages {
                PROGRAM_PAGES_MIN => 0,
                pages => pages,
            };
            change.of(name, Bounds { floor_pages, ..before })?;
            state.programs.change(name, change);
            state.remember()?;
            let after = state.programs.bounds_of(name).unwrap_or(before);
            return Ok(changes::set(&before, &after));
        }
        let at = found?;
        let before = state.clients[at].bounds();
        let after = change.of(name, before)?;
        if let Some(cap_pages) = change.cap_pages {
            self.cap(state.clients[at].id, cap_pages)?;
            state.clients[at].cap_pages = cap_pages;
        }
        let entry = &mut state.clients[at];
        (entry.floor_pages, entry.weight) = (after.floor_pages, after.weight);
        state.remember()?;
        Ok(changes::set(&before, &after))
    }
}
