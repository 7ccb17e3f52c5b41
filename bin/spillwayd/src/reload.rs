//! Reloads the configuration while the daemon runs.

use std::sync::atomic::Ordering;

use spillway_api::configure_policy;
use spillway_api::types::Reload;

use crate::arguments::Arguments;
use crate::config::{Clients, Config, needs_restart};
use crate::parts::Parts;
use crate::{capacity, manager, secret_files, vm};

/// Reads the configuration file again, and the files with keys, certificates and secrets that it names. Logs the
/// outcome.
///
/// # Errors
/// The line of the log. An error in any of the files changes nothing.
pub fn reload(
    parts: &mut Parts,
    arguments: &Arguments,
    guests: Option<&vm::Handle>,
) -> Result<Reload, String> {
    manager::reloading();
    let done = apply(parts, arguments, guests).map_err(|error| {
        format!("configuration not reloaded, the old one stays in force: {error:#}")
    });
    match &done {
        Ok(reload) => {
            for line in &reload.warnings {
                tracing::warn!("{line}");
            }
            if !reload.renewed.is_empty() {
                let files = reload.renewed.join(", ");
                tracing::info!(
                    files,
                    "renewed: new connections use the new contents of these files"
                );
            }
            tracing::info!("configuration reloaded");
        }
        Err(line) => tracing::error!("{line}"),
    }
    manager::state("READY=1");
    done
}

fn apply(
    parts: &mut Parts,
    arguments: &Arguments,
    guests: Option<&vm::Handle>,
) -> anyhow::Result<Reload> {
    let config = arguments.read()?;
    let clients = Clients::new(&config)?;
    let program_pages = capacity::program_pages(config.memory.programs, &parts.limits)?;
    let renewal = parts.keys.read_again(&config, &clients.clients)?;
    parts.client_registry.configure(&clients.clients, &clients.blocks, clients.policy)?;
    let memory = &config.memory;
    let (policy, interval_ms) =
        configure_policy(&parts.client_registry, memory.policy(), memory.interval_ms)?;
    parts.daemon.apply_policy(policy, interval_ms);
    parts.daemon.program_pages.store(program_pages, Ordering::Relaxed);
    let mut warnings = secret_files::open_to_all(&config);
    warnings.extend(renewal.left.map(|left| {
        format!("{left} were not read again: one of them names another file than at the start")
    }));
    let fixed = needs_restart(&parts.config, &config);
    warnings.extend(fixed.iter().map(|name| format!("{name} has changed, which needs a restart")));
    let renewed = parts.keys.renew(renewal);
    if let Some(guests) = guests {
        guests.configure(&parts.config.vms, &config.vms);
    }
    parts.config = Config {
        vms: config.vms,
        memory: config.memory,
        clients: config.clients,
        blocks: config.blocks,
        unnamed: config.unnamed,
        ..parts.config.clone()
    };
    Ok(Reload { renewed, warnings })
}
