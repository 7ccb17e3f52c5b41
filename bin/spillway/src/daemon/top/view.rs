//! The contents of `spillway top` and the effect of its keys, independent of a terminal.

use std::cmp::Ordering;

use clap::ValueEnum;

use crate::daemon::terminal::Key;

/// Least width of a client's name, in characters.
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

/// Number of columns.
pub const COLUMNS: usize = 9;

/// A client, in the order of [`Column`].
#[derive(Clone, Debug, Default)]
pub struct Row {
    pub cells: [String; COLUMNS],
    /// Sort key of rows: larger values first, equal ones by name.
    pub weights: [u64; COLUMNS],
}

/// The data to show.
pub struct Tables {
    pub head: String,
    pub clients: Vec<Row>,
    /// Further tables, after that of the clients.
    pub others: String,
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

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let by_weight = b.weights[self as usize].cmp(&a.weights[self as usize]);
        by_weight.then_with(|| a.cells[0].cmp(&b.cells[0]))
    }

    /// The column `steps` further, clamped to the existing ones.
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

    /// Applies a key; `lines` of the tables fit the screen.
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

    /// The tables in lines of `columns`.
    pub fn page(&self, tables: &Tables, columns: usize) -> Page {
        let mut clients: Vec<_> = tables.clients.iter().collect();
        clients.sort_by(|a, b| self.sort.compare(a, b));
        if self.reverse {
            clients.reverse();
        }
        let mut body = clients_table(&clients, columns);
        body.extend(tables.others.lines().map(str::to_owned));
        Page { head: wrapped(&tables.head, columns), body }
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

/// The table of clients. If it is too wide, the least useful columns are dropped and names are cut.
fn clients_table(clients: &[&Row], columns: usize) -> Vec<String> {
    let mut shown = Column::value_variants().to_vec();
    let mut widths = widths(clients);
    for spare in [Column::InFlight, Column::Conns] {
        let others: usize = shown[1..].iter().map(|&column| widths[column as usize] + 2).sum();
        if others + widths[0].min(NAME_CHARS_MIN) > columns {
            shown.retain(|&column| column != spare);
        }
    }
    let others: usize = shown[1..].iter().map(|&column| widths[column as usize] + 2).sum();
    widths[0] = widths[0].min(columns.saturating_sub(others).max(NAME_CHARS_MIN));
    let heads = line(&shown, &widths, |column| column.head());
    let row = |row: &&Row| line(&shown, &widths, |column| &row.cells[column as usize]);
    std::iter::once(heads).chain(clients.iter().map(row)).collect()
}

fn widths(clients: &[&Row]) -> [usize; COLUMNS] {
    let mut widths = [0; COLUMNS];
    for (&column, width) in Column::value_variants().iter().zip(&mut widths) {
        let cells = clients.iter().map(|row| row.cells[column as usize].chars().count());
        *width = cells.chain([column.head().len()]).max().unwrap_or_default();
    }
    widths
}

fn line<'a>(
    shown: &[Column],
    widths: &[usize; COLUMNS],
    cell: impl Fn(Column) -> &'a str,
) -> String {
    let mut text = cut(cell(Column::Client), widths[0]);
    for &column in &shown[1..] {
        let width = widths[column as usize];
        text.push_str(&format!("  {:>width$}", cell(column)));
    }
    text.truncate(text.trim_end().len());
    text
}

/// A name in a column of its width. A `+` stands for what is cut out of its middle: names differ more
/// often at their ends.
fn cut(name: &str, width: usize) -> String {
    let count = name.chars().count();
    if count <= width {
        return format!("{name:<width$}");
    }
    let kept = width.saturating_sub(1);
    let end = kept.div_ceil(2);
    name.chars().take(kept - end).chain(['+']).chain(name.chars().skip(count - end)).collect()
}

/// Breaks lines that are too long after a comma.
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
