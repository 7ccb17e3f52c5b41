//! What `spillway top` shows, and what keys change of it; without a terminal.

use std::cmp::Ordering;
use std::collections::HashMap;

use clap::ValueEnum;
use spillway_api::types::Client;
use spillway_types::Size;

use super::Rates;
use crate::daemon::show;
use crate::daemon::stat::Moment;
use crate::daemon::terminal::Key;

/// The least that a client's name is cut to, characters.
const NAME_CHARS_MIN: usize = 8;

const HELP: &str = "\
Keys
  < >  left right      sort by the column before or behind
  R                    sort the other way round
  up down  j k         move by a line
  Page Up  Page Down   move by a page
  Home End  g G        the first and the last lines
  Space                look again at once
  h ?                  this help; any key leaves it
  q  Ctrl-C            end
";

/// A column of clients, by which they can be sorted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Client,
    #[default]
    Used,
    Target,
    InFlight,
    Puts,
    Refused,
    Gets,
    Hits,
    Conns,
}

impl Column {
    const fn head(self) -> &'static str {
        match self {
            Self::Client => "client",
            Self::Used => "used",
            Self::Target => "target",
            Self::InFlight => "in flight",
            Self::Puts => "puts/s",
            Self::Refused => "refused/s",
            Self::Gets => "gets/s",
            Self::Hits => "hits",
            Self::Conns => "conns",
        }
    }

    fn cell(self, client: &Client, rates: Rates) -> String {
        match self {
            Self::Client => client.name.clone(),
            Self::Used => show::pages(client.statistics.used_pages),
            Self::Target => show::limit(client.statistics.target_pages),
            Self::InFlight => Size(client.in_flight_bytes).to_string(),
            Self::Puts => rates.puts.to_string(),
            Self::Refused => rates.refused.to_string(),
            Self::Gets => rates.gets.to_string(),
            Self::Hits => rates.hits.map_or_else(|| "-".to_owned(), |share| format!("{share}%")),
            Self::Conns => client.connections.to_string(),
        }
    }

    /// What is compared: more comes first.
    fn weight(self, client: &Client, rates: Rates) -> u64 {
        match self {
            Self::Client => 0,
            Self::Used => client.statistics.used_pages,
            Self::Target => client.statistics.target_pages.unwrap_or(u64::MAX),
            Self::InFlight => client.in_flight_bytes,
            Self::Puts => rates.puts,
            Self::Refused => rates.refused,
            Self::Gets => rates.gets,
            // A client without gets comes behind one whose gets found nothing.
            Self::Hits => rates.hits.map_or(0, |share| share + 1),
            Self::Conns => client.connections.into(),
        }
    }

    fn compare(self, a: (&Client, Rates), b: (&Client, Rates)) -> Ordering {
        let by_weight = self.weight(b.0, b.1).cmp(&self.weight(a.0, a.1));
        by_weight.then_with(|| a.0.name.cmp(&b.0.name))
    }

    /// The column `steps` further, within those that there are.
    fn moved(self, steps: isize) -> Self {
        let all = Self::value_variants();
        let at = all.iter().position(|&column| column == self).unwrap_or_default();
        all[at.saturating_add_signed(steps).min(all.len() - 1)]
    }
}

/// How it is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct View {
    pub sort: Column,
    pub reverse: bool,
    /// Lines of the tables above the first one that is shown.
    scrolled: usize,
    helps: bool,
}

/// A page: lines that stay, and lines that move.
pub struct Page {
    pub head: Vec<String>,
    pub body: Vec<String>,
}

impl View {
    /// Sorted by a column.
    pub fn new(sort: Column, reverse: bool) -> Self {
        Self { sort, reverse, ..Self::default() }
    }

    /// Does what a key means, where `lines` of the tables fit the screen.
    pub fn press(&mut self, key: Key, lines: usize) {
        if std::mem::take(&mut self.helps) {
            return;
        }
        let page = lines.saturating_sub(1).max(1);
        match key {
            Key::Left | Key::Char(b'<') => self.sort = self.sort.moved(-1),
            Key::Right | Key::Char(b'>') => self.sort = self.sort.moved(1),
            Key::Char(b'R') => self.reverse = !self.reverse,
            Key::Up | Key::Char(b'k') => self.scrolled = self.scrolled.saturating_sub(1),
            Key::Down | Key::Char(b'j') => self.scrolled += 1,
            Key::PageUp => self.scrolled = self.scrolled.saturating_sub(page),
            Key::PageDown => self.scrolled += page,
            Key::Home | Key::Char(b'g') => self.scrolled = 0,
            Key::End | Key::Char(b'G') => self.scrolled = usize::MAX / 2,
            Key::Char(b'h' | b'?') => self.helps = true,
            Key::Char(_) => {}
        }
    }

    /// What the daemon does, in lines of `columns`.
    pub fn page(&self, moment: &Moment, rates: &HashMap<String, Rates>, columns: usize) -> Page {
        let rates_of = |client: &Client| rates.get(&client.name).copied().unwrap_or_default();
        let mut clients: Vec<_> = moment.store_clients().map(|it| (it, rates_of(it))).collect();
        clients.sort_by(|&a, &b| self.sort.compare(a, b));
        if self.reverse {
            clients.reverse();
        }
        let programs = moment.programs_table(|client| Some(rates_of(client).program));
        let mut body = clients_table(&clients, columns);
        body.extend(programs.lines().chain(moment.guests_table().lines()).map(str::to_owned));
        Page { head: wrapped(&moment.head(), columns), body }
    }

    /// The lines of a screen of `rows`: the head, the tables from where they are scrolled to, and a line of status.
    pub fn screen(&mut self, page: &Page, rows: usize) -> Vec<String> {
        if self.helps {
            return HELP.lines().map(str::to_owned).collect();
        }
        let mut lines = page.head.clone();
        let room = self.room(page, rows);
        self.scrolled = self.scrolled.min(page.body.len().saturating_sub(room));
        let end = page.body.len().min(self.scrolled + room);
        lines.extend_from_slice(&page.body[self.scrolled..end]);
        lines.resize(rows.saturating_sub(1).max(lines.len()), String::new());
        let way = if self.reverse { ", reversed" } else { "" };
        lines.push(format!(
            "lines {} to {end} of {}, sorted by {}{way}; h for help, q to quit",
            end.min(self.scrolled + 1),
            page.body.len(),
            self.sort.head()
        ));
        lines
    }

    /// Lines of the tables that fit.
    pub fn room(&self, page: &Page, rows: usize) -> usize {
        rows.saturating_sub(page.head.len() + 1).max(1)
    }
}

/// The table of clients. Where it is too wide, columns that say least go, and names are cut.
fn clients_table(clients: &[(&Client, Rates)], columns: usize) -> Vec<String> {
    let mut shown = Column::value_variants().to_vec();
    for spare in [None, Some(Column::InFlight), Some(Column::Conns)] {
        shown.retain(|&column| Some(column) != spare);
        let widths = widths(&shown, clients);
        let others: usize = widths[1..].iter().map(|width| width + 2).sum();
        let most = columns.saturating_sub(others);
        if most >= widths[0].min(NAME_CHARS_MIN) || spare == Some(Column::Conns) {
            let name = widths[0].min(most.max(NAME_CHARS_MIN));
            let row = |cells: Vec<String>| line(&cells, &widths, name);
            let heads = row(shown.iter().map(|column| column.head().to_owned()).collect());
            let cells = |&(client, rates): &(&Client, Rates)| {
                row(shown.iter().map(|column| column.cell(client, rates)).collect())
            };
            return std::iter::once(heads).chain(clients.iter().map(cells)).collect();
        }
    }
    Vec::new()
}

fn widths(shown: &[Column], clients: &[(&Client, Rates)]) -> Vec<usize> {
    let width = |column: &Column| {
        let cells = clients.iter().map(|&(client, rates)| column.cell(client, rates));
        let cells = cells.map(|cell| cell.chars().count());
        cells.chain([column.head().len()]).max().unwrap_or_default()
    };
    shown.iter().map(width).collect()
}

fn line(cells: &[String], widths: &[usize], name_chars: usize) -> String {
    let mut name: String = cells[0].chars().take(name_chars).collect();
    if name.len() < cells[0].len() {
        name.pop();
        name.push('+');
    }
    let mut text = format!("{name:<name_chars$}");
    for (cell, width) in cells.iter().zip(widths).skip(1) {
        text.push_str(&format!("  {cell:>width$}"));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Lines that are broken behind a comma where they are too long.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for long in text.lines() {
        let mut line = String::new();
        for part in long.split_inclusive(", ") {
            if !line.is_empty() && line.chars().count() + part.trim_end().chars().count() > columns
            {
                lines.push(std::mem::replace(&mut line, "  ".to_owned()).trim_end().to_owned());
            }
            line.push_str(part);
        }
        lines.push(line);
    }
    lines
}

#[cfg(test)]
mod tests;
