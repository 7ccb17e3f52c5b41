//! A TOML text whose sections are read key by key. Errors name the line of a missing, unknown or out-of-bounds key.

use std::cell::RefCell;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Error, Fault};
use crate::prices::{Input, NUMBER_MAX, Value};

/// Bounds of a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    least: f64,
    most: f64,
    /// Whether `least` itself is excluded.
    above: bool,
    whole: bool,
    words: &'static str,
}

impl Bounds {
    pub const POSITIVE: Self = Self::new(0.0, NUMBER_MAX, true, false, "a number above 0");
    pub const NOT_NEGATIVE: Self = Self::new(0.0, NUMBER_MAX, false, false, "a number, 0 or more");
    pub const PART: Self = Self::new(0.0, 1.0, false, false, "a part of 1, 0 to 1");
    /// A saving is less than the whole.
    pub const SAVED: Self = Self::new(0.0, 0.99, false, false, "a part of 1, 0 to 0.99");
    pub const PUE: Self = Self::new(1.0, 100.0, false, false, "a number, 1 or more");
    pub const YEARS: Self = Self::new(0.0, 100.0, true, false, "a number of years, above 0 to 100");
    pub const COUNT: Self = Self::new(1.0, 1024.0, false, true, "a whole number, 1 to 1024");
    pub const INSTANCES: Self = Self::new(2.0, 64.0, false, true, "a whole number, 2 to 64");
    pub const ANY: Self = Self::new(-NUMBER_MAX, NUMBER_MAX, false, false, "a number");

    const fn new(least: f64, most: f64, above: bool, whole: bool, words: &'static str) -> Self {
        Self { least, most, above, whole, words }
    }

    fn has(&self, number: f64) -> bool {
        let over = if self.above { number > self.least } else { number >= self.least };
        over && number <= self.most && (!self.whole || number.fract() == 0.0)
    }
}

/// A named text.
#[derive(Debug)]
pub(crate) struct Document<'a> {
    file: &'a str,
    text: &'a str,
    inputs: RefCell<Vec<Input>>,
}

impl<'a> Document<'a> {
    pub fn new(file: &'a str, text: &'a str) -> Self {
        Self { file, text, inputs: RefCell::default() }
    }

    /// The text as a table.
    ///
    /// # Errors
    /// It is not TOML.
    pub fn parse(&self) -> Result<Spanned<DeTable<'a>>, Error> {
        DeTable::parse(self.text).map_err(|error| Error::Syntax {
            file: self.file.to_owned(),
            line: self.line(error.span().unwrap_or(0..0)),
            problem: error.message().lines().collect::<Vec<_>>().join(", "),
            remedy: "fix the line; spillway cost --print-prices paper prints an example".to_owned(),
        })
    }

    /// The table of the whole text as a section.
    ///
    /// # Errors
    /// Its sources or its date are invalid.
    pub fn root<'d>(&'d self, table: &'d Spanned<DeTable<'a>>) -> Result<Section<'d>, Error> {
        Section::new(self, String::new(), 1, table.get_ref())
    }

    /// Every number that was read, in the order of reading.
    pub fn into_inputs(self) -> Vec<Input> {
        self.inputs.into_inner()
    }

    fn no_section(&self, line: usize, key: String) -> Error {
        let remedy = format!("write [{key}] on a line of its own");
        let problem = "is not a section".to_owned();
        Error::Value { file: self.file.to_owned(), line, key, problem, remedy }
    }

    fn line(&self, at: Range<usize>) -> usize {
        let before = &self.text.as_bytes()[..at.start.min(self.text.len())];
        1 + before.iter().filter(|&&byte| byte == b'\n').count()
    }
}

/// A table of a document.
#[derive(Debug)]
pub(crate) struct Section<'d> {
    document: &'d Document<'d>,
    /// Empty for the whole text.
    name: String,
    line: usize,
    table: &'d DeTable<'d>,
    source: Option<String>,
    date: Option<String>,
    /// Sources of single keys.
    sources: Option<&'d DeTable<'d>>,
    known: RefCell<Vec<String>>,
}

impl<'d> Section<'d> {
    fn new(
        document: &'d Document<'d>,
        name: String,
        line: usize,
        table: &'d DeTable<'d>,
    ) -> Result<Self, Error> {
        let text = |key: &str| {
            let value = table.get(key)?.get_ref().as_str()?;
            Some(value.split_whitespace().collect::<Vec<_>>().join(" "))
        };
        let known = ["source", "date", "sources"].map(str::to_owned).to_vec();
        let (source, date) = (text("source"), text("date"));
        let sources = match table.get("sources").map(Spanned::get_ref) {
            None => None,
            Some(DeValue::Table(sources)) => Some(sources),
            Some(_) => {
                let path =
                    if name.is_empty() { "sources".into() } else { format!("{name}.sources") };
                return Err(document.no_section(line, path));
            }
        };
        let known = RefCell::new(known);
        let section = Self { document, name, line, table, source, date, sources, known };
        section.check_date()?;
        Ok(section)
    }

    /// The key with its section.
    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }

    fn get(&self, key: &str) -> Option<&'d Spanned<DeValue<'d>>> {
        self.known.borrow_mut().push(key.to_owned());
        self.table.get(key)
    }

    /// The error that `key` is wrong.
    pub fn fault(&self, fault: Fault) -> Error {
        let line = self.table.get(fault.key).map_or(self.line, |it| self.document.line(it.span()));
        self.error(line, fault.key, fault.problem, fault.remedy)
    }

    fn error(
        &self,
        line: usize,
        key: &str,
        problem: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Error {
        Error::Value {
            file: self.document.file.to_owned(),
            line,
            key: self.path(key),
            problem: problem.into(),
            remedy: remedy.into(),
        }
    }

    fn missing(&self, key: &str, what: &str) -> Error {
        let remedy = match self.name.as_str() {
            "" => format!("add it: {what}"),
            name => match name.split_once('[') {
                Some((array, _)) => format!("add it below that [[{array}]]: {what}"),
                None => format!("add it below [{name}]: {what}"),
            },
        };
        self.error(self.line, key, "is missing", remedy)
    }

    /// Whether the file has this key.
    pub fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// A number with its source; `what` describes it, with its unit.
    ///
    /// # Errors
    /// It is missing, not a number, out of bounds, or has no source.
    pub fn number(&self, key: &str, bounds: Bounds, what: &str) -> Result<f64, Error> {
        let value = self.get(key).ok_or_else(|| self.missing(key, what))?;
        let number = self.bounded(key, value, bounds, what)?;
        self.remember(key, value, Value::Number(number))?;
        Ok(number)
    }

    /// A whole number of a few digits.
    ///
    /// # Errors
    /// As for [`Section::number`].
    pub fn count(&self, key: &str, bounds: Bounds, what: &str) -> Result<u32, Error> {
        self.number(key, bounds, what).map(|number| number as u32)
    }

    /// A number that needs no source: part of a statement.
    ///
    /// # Errors
    /// It is missing, not a number, or out of bounds.
    pub fn plain_number(&self, key: &str, bounds: Bounds, what: &str) -> Result<f64, Error> {
        let value = self.get(key).ok_or_else(|| self.missing(key, what))?;
        self.bounded(key, value, bounds, what)
    }

    /// A list of numbers with its source.
    ///
    /// # Errors
    /// As for [`Section::number`].
    pub fn numbers(&self, key: &str, bounds: Bounds, what: &str) -> Result<Vec<f64>, Error> {
        let value = self.get(key).ok_or_else(|| self.missing(key, what))?;
        let DeValue::Array(array) = value.get_ref() else {
            let line = self.document.line(value.span());
            return Err(self.error(line, key, "is not a list", format!("write [1, 2, 3]: {what}")));
        };
        let numbers = array.iter().map(|it| self.bounded(key, it, bounds, what));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        self.remember(key, value, Value::Numbers(numbers.clone()))?;
        Ok(numbers)
    }

    /// A text that is not empty.
    ///
    /// # Errors
    /// It is missing, empty, or not a text.
    pub fn text(&self, key: &str, what: &str) -> Result<String, Error> {
        let value = self.get(key).ok_or_else(|| self.missing(key, what))?;
        match value.get_ref().as_str() {
            Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
            _ => {
                let line = self.document.line(value.span());
                let remedy = format!("write {key} = \"...\": {what}");
                Err(self.error(line, key, "is not a text", remedy))
            }
        }
    }

    /// A list of texts.
    ///
    /// # Errors
    /// It is missing or contains other values than texts.
    pub fn texts(&self, key: &str, what: &str) -> Result<Vec<String>, Error> {
        let value = self.get(key).ok_or_else(|| self.missing(key, what))?;
        let texts = value.get_ref().as_array().and_then(|array| {
            array.iter().map(|it| it.get_ref().as_str().map(str::to_owned)).collect()
        });
        texts.filter(|texts: &Vec<String>| !texts.is_empty()).ok_or_else(|| {
            let line = self.document.line(value.span());
            self.error(line, key, "is not a list of texts", format!("write [\"...\"]: {what}"))
        })
    }

    /// A table within this one.
    ///
    /// # Errors
    /// It is missing or not a table.
    pub fn section(&self, key: &str, what: &str) -> Result<Section<'d>, Error> {
        let path = self.path(key);
        let value = self.get(key).ok_or_else(|| {
            self.error(self.line, key, "is missing", format!("add [{path}]: {what}"))
        })?;
        self.as_section(path, value)
    }

    /// All tables of an array of tables; none if the key is missing.
    ///
    /// # Errors
    /// It is not an array of tables.
    pub fn sections(&self, key: &str) -> Result<Vec<Section<'d>>, Error> {
        let Some(value) = self.get(key) else { return Ok(Vec::new()) };
        let DeValue::Array(array) = value.get_ref() else {
            let line = self.document.line(value.span());
            let remedy = format!("write [[{key}]], once for each");
            return Err(self.error(line, key, "can be given more than once", remedy));
        };
        let numbered = array.iter().zip(1..);
        numbered.map(|(it, number)| self.as_section(format!("{key}[{number}]"), it)).collect()
    }

    fn as_section(
        &self,
        path: String,
        value: &'d Spanned<DeValue<'d>>,
    ) -> Result<Section<'d>, Error> {
        let line = self.document.line(value.span());
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.document.no_section(line, path));
        };
        Self::new(self.document, path, line, table)
    }

    /// Refuses unknown keys.
    ///
    /// # Errors
    /// The first one.
    pub fn finish(&self) -> Result<(), Error> {
        let known = self.known.borrow();
        if let Some((key, _)) = self.table.iter().find(|(key, _)| !is_in(&known, key.get_ref())) {
            let mut names: Vec<_> = known.iter().map(String::as_str).collect();
            names.sort_unstable();
            names.dedup();
            let line = self.document.line(key.span());
            let remedy = format!("there are {}", names.join(", "));
            return Err(self.error(line, key.get_ref(), "is not known", remedy));
        }
        let Some(sources) = self.sources else { return Ok(()) };
        let stray =
            sources.iter().find(|(key, _)| !self.table.contains_key(key.get_ref().as_ref()));
        stray.map_or(Ok(()), |(key, _)| {
            let line = self.document.line(key.span());
            let path = format!("sources.{}", key.get_ref());
            let remedy = "name a key of its section, or remove it";
            Err(self.error(line, &path, "is the source of nothing", remedy))
        })
    }

    fn bounded(
        &self,
        key: &str,
        value: &Spanned<DeValue<'_>>,
        bounds: Bounds,
        what: &str,
    ) -> Result<f64, Error> {
        let refused = |problem: String| {
            let line = self.document.line(value.span());
            self.error(line, key, problem, format!("write {}: {what}", bounds.words))
        };
        let number = number_of(value.get_ref()).ok_or_else(|| refused("is not a number".into()))?;
        match number {
            it if bounds.has(it) => Ok(it),
            it if it < 0.0 => Err(refused(format!("is negative ({it})"))),
            it => Err(refused(format!("is {it}"))),
        }
    }

    /// Keeps a number for the list of inputs, with its source.
    fn remember(&self, key: &str, at: &Spanned<DeValue<'_>>, value: Value) -> Result<(), Error> {
        let own = self.sources.and_then(|sources| sources.get(key));
        let source = own.map_or(self.source.as_deref(), |own| own.get_ref().as_str());
        let Some(source) = source.filter(|source| !source.trim().is_empty()) else {
            let line = self.document.line(at.span());
            let remedy = "add source = \"...\" to its section: where the number is from, or \"assumed: why\"";
            return Err(self.error(line, key, "has no source", remedy));
        };
        // The section's date is that of the section's source.
        let date = self.date.clone().filter(|_| own.is_none());
        let (key, source) = (self.path(key), source.to_owned());
        let mut inputs = self.document.inputs.borrow_mut();
        // A memory module is read once for each configuration that has it.
        if !inputs.iter().any(|input| input.key == key) {
            inputs.push(Input { key, value, source, date });
        }
        Ok(())
    }

    /// A date is a year, a month or a day.
    fn check_date(&self) -> Result<(), Error> {
        let Some(value) = self.table.get("date") else { return Ok(()) };
        let digits = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|byte| byte.is_ascii_digit())
        };
        let is_date = |text: &str| {
            let parts: Vec<_> = text.split('-').collect();
            let in_range = |part: &str, most: u32| {
                digits(part, 2) && part.parse().is_ok_and(|it: u32| (1..=most).contains(&it))
            };
            match parts[..] {
                [year] => digits(year, 4),
                [year, month] => digits(year, 4) && in_range(month, 12),
                [year, month, day] => digits(year, 4) && in_range(month, 12) && in_range(day, 31),
                _ => false,
            }
        };
        if self.date.as_deref().is_some_and(is_date) {
            return Ok(());
        }
        let line = self.document.line(value.span());
        let remedy = "write it in quotes, as in \"2026-04-26\", \"2026-04\" or \"2026\"";
        Err(self.error(line, "date", "is not a date", remedy))
    }
}

fn is_in(known: &[String], key: &str) -> bool {
    known.iter().any(|it| it == key)
}

/// An integer or a float, in decimal.
fn number_of(value: &DeValue<'_>) -> Option<f64> {
    match value {
        DeValue::Integer(number) if number.radix() == 10 => number.as_str().parse().ok(),
        DeValue::Float(number) => number.as_str().parse().ok(),
        _ => None,
    }
}
