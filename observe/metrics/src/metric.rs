//! What a metric is.

use spillway_types::PAGE_BYTES;

/// How a metric's value moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from the start of the daemon or of its store.
    Counter,
    /// It rises and falls.
    Gauge,
}

/// What a value that is one whole number counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The metric's unit.
    One,
    /// Millionths of the metric's unit.
    Millionth,
}

/// One metric over samples of `T`.
#[derive(Clone, Copy, Debug)]
pub struct Metric<T> {
    /// Its name, base unit last.
    pub name: &'static str,
    /// How it moves.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
    /// What its value counts.
    pub scale: Scale,
    /// Its value; none when there is no such thing, as a target without a limit.
    pub value: fn(&T) -> Option<u64>,
}

impl<T> Metric<T> {
    /// The same, where the value counts millionths of the unit.
    pub(crate) const fn in_millionths(self) -> Self {
        Self { scale: Scale::Millionth, ..self }
    }
}

pub(crate) const fn pages(count: u64) -> Option<u64> {
    Some(count.saturating_mul(PAGE_BYTES as u64))
}

pub(crate) const fn gauge<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<u64>,
) -> Metric<T> {
    Metric { name, kind: Kind::Gauge, help, scale: Scale::One, value }
}

pub(crate) const fn counter<T>(
    name: &'static str,
    help: &'static str,
    value: fn(&T) -> Option<u64>,
) -> Metric<T> {
    Metric { name, kind: Kind::Counter, help, scale: Scale::One, value }
}
