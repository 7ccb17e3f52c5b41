//! The benchmarks, each side by side with what it is measured against.

/// Runs the benchmark `name`; prints a table, or one JSON row a line when `json` is set.
///
/// # Errors
/// An unknown name, or what the benchmark itself met.
pub fn run(name: &str, json: bool) -> anyhow::Result<()> {
    anyhow::bail!("no benchmark is called {name} (json: {json})")
}
