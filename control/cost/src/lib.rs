//! The cost over some years of servers with and without a memory blade, and their throughput per dollar: the cost model
//! of "System-level Implications of Disaggregated Memory" (K. Lim et al., HPCA 2012), sections 5 and 6.
//!
//! ```text
//! TOML --read--> Prices --model--> costs of five configurations --derivations--> Report --> text, JSON, SVG, HTML
//!                  ^ parameters          (claims of the file are compared with the derivations)
//! ```
//!
//! Pure functions from texts and parameters to a report. Prices are subtotals of whole servers, as in the paper, or
//! components.

#![forbid(unsafe_code)]

mod chart;
mod derivations;
mod document;
mod error;
mod figures;
mod html;
mod model;
mod prices;
mod read;
mod report;
mod text;

pub use error::Error;
pub use figures::{Figure, figures};
pub use html::page;
pub use prices::{ConfigurationName, Prices, Value};
pub use read::read;
pub use report::{Claim, Derived, Report, Verdict, report};
pub use text::text;

/// The paper's subtotals, each with the sentence it comes from.
pub const PAPER: &str = include_str!("../prices/paper.toml");

/// Prices of components, with dated sources.
pub const CURRENT: &str = include_str!("../prices/current.toml");
