//! The HTTP interface of the daemon, its types and its OpenAPI document.
