//! The one catalogue of every metric, with unit and help.
