//! The table of paged programs: who is connected, and what the operator has said of each.

use std::time::{Duration, Instant};

use spillway_types::{ClientId, Limits, Orders, PROGRAM_PAGES_MIN, ProgramCounters};

use crate::journal::ProgramRecord;
use crate::settings::{Bounds, ClientChange, Who};
use crate::views::{ClientView, Origin, ProgramSeries};

/// Longest time until a program reports again, and so learns a new target, milliseconds.
pub(crate) const REPORT_MS_MAX: u64 = 1000;

/// A connected program.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) series: ProgramSeries,
    pub(crate) id: ClientId,
    pub(crate) uid: u32,
    pub(crate) pid: i32,
    pub(crate) local_pages: u64,
    /// Its target; `u64::MAX` if it has none.
    pub(crate) target_pages: u64,
    pub(crate) counters: ProgramCounters,
}

/// An operator's settings of a program.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) record: ProgramRecord,
    /// When its program was last seen, or the registry opened.
    pub(crate) seen: Instant,
}

/// All programs.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    pub(crate) programs: Vec<Program>,
    pub(crate) terms: Vec<Terms>,
    pub(crate) ids: u64,
    /// The target of a new program; none if programs only get counted.
    pub(crate) first_target_pages: Option<u64>,
    pub(crate) interval_ms: u64,
}

impl Registry {
    pub(crate) fn reopened(records: Vec<ProgramRecord>) -> Self {
        let seen = Instant::now();
        let terms = records.into_iter().map(|record| Terms { record, seen }).collect();
        Self { terms, ..Self::default() }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.programs.iter().any(|program| program.name == name)
    }

    fn terms_of(&self, name: &str) -> Option<&ProgramRecord> {
        self.terms.iter().map(|terms| &terms.record).find(|record| record.name == name)
    }

    /// Forgets settings of programs that have been gone for this long.
    pub(crate) fn expire(&mut self, grace: Duration) {
        let Self { programs, terms, .. } = self;
        terms.retain_mut(|terms| {
            let is_here = programs.iter().any(|program| program.name == terms.record.name);
            if is_here {
                terms.seen = Instant::now();
            }
            is_here || terms.seen.elapsed() < grace
        });
    }

    /// What a program is told.
    pub(crate) fn orders(&self, program: &Program) -> Orders {
        let cap_pages = self.terms_of(&program.name).and_then(|terms| terms.cap_pages);
        Orders {
            target_pages: program.target_pages.min(cap_pages.unwrap_or(u64::MAX)),
            beyond_local: cap_pages.is_some_and(|cap_pages| cap_pages > program.local_pages),
            interval_ms: self.interval_ms.clamp(1, REPORT_MS_MAX) as u32,
        }
    }

    fn bounds(&self, program: &Program) -> Bounds {
        let terms = self.terms_of(&program.name);
        Bounds {
            cap_pages: terms.and_then(|it| it.cap_pages).unwrap_or(program.local_pages),
            floor_pages: terms.map_or(0, |it| it.floor_pages).max(PROGRAM_PAGES_MIN),
            weight: terms.map_or(1, |it| it.weight),
        }
    }

    /// What bounds the target of a program.
    pub(crate) fn bounds_of(&self, name: &str) -> Option<Bounds> {
        self.programs.iter().find(|it| it.name == name).map(|it| self.bounds(it))
    }

    fn view(&self, program: &Program) -> ClientView {
        let Bounds { cap_pages, floor_pages, weight } = self.bounds(program);
        let target_pages = self.orders(program).target_pages;
        ClientView {
            name: program.name.clone(),
            id: program.id,
            who: Who::Program(program.pid),
            origin: Origin::Unnamed,
            connections: 1,
            in_flight_bytes: 0,
            limits: Limits { connections_max: 1, operations_max: 0, bytes_max: 0 },
            cap_pages,
            floor_pages,
            weight,
            domain: None,
            shared: Vec::new(),
            importing: false,
            arrived: false,
            moved: false,
            frozen: false,
            statistics: program.counters.statistics(target_pages),
            reserve_pages: program.counters.reserve_pages,
            series: Some(program.series.clone()),
        }
    }

    /// Views of all, by name.
    pub(crate) fn views(&self) -> Vec<ClientView> {
        let mut views: Vec<_> = self.programs.iter().map(|it| self.view(it)).collect();
        views.sort_by(|a, b| a.name.cmp(&b.name));
        views
    }

    pub(crate) fn view_of(&self, name: &str) -> Option<ClientView> {
        self.programs.iter().find(|it| it.name == name).map(|it| self.view(it))
    }

    /// Stores an operator's settings of a program.
    pub(crate) fn change(&mut self, name: &str, change: ClientChange) {
        if !self.terms.iter().any(|terms| terms.record.name == name) {
            let record =
                ProgramRecord { name: name.to_owned(), cap_pages: None, floor_pages: 0, weight: 1 };
            self.terms.push(Terms { record, seen: Instant::now() });
        }
        let Some(terms) = self.terms.iter_mut().find(|terms| terms.record.name == name) else {
            return;
        };
        let record = &mut terms.record;
        if let Some(cap_pages) = change.cap_pages {
            // Without an operator's limit, only that of the program's user applies.
            record.cap_pages = Some(cap_pages).filter(|&pages| pages != u64::MAX);
        }
        record.floor_pages = change.floor_pages.unwrap_or(record.floor_pages);
        record.weight = change.weight.unwrap_or(record.weight);
    }
}
