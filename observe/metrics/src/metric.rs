//! The definition of a metric.

use spillway_types::PAGE_BYTES;

/// How a metric's value changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It only grows, from the start of the daemon or of its store.
    Counter,
    /// It rises and falls.
    Gauge,
    /// Counts of values up to each of several bounds.
    Histogram,
}

/// The unit of a raw value.
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
    /// How it changes.
    pub kind: Kind,
    /// What it means.
    pub help: &'static str,
    /// The unit of its raw value.
    pub scale: Scale,
    /// Its value; `None` if it has none, such as a target without a limit.
    pub value: fn(&T) -> Option<u64>,
}

impl<T> Metric<T> {
    /// The same, with a raw value in millionths of the unit.
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
