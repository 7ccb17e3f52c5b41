//! Get Log Page.

use std::net::SocketAddr;

use spillway_wire::identify::{LIST_ENTRIES, namespace_list};
use spillway_wire::kv;
use spillway_wire::log_page::{self, DiscoveryEntry, ERROR_ENTRY_BYTES, GetLogPage, Health, log};
use spillway_wire::nvme::{ALL_NAMESPACES, Command, Status, admin, block};

use super::{Admin, FEATURES};
use crate::context::Context;
use crate::subsystem::Subsystem;

/// Most bytes of a log that one command may ask for.
const LOG_BYTES_MAX: u64 = 1 << 20;
const MS_PER_HOUR: u64 = 3_600_000;

impl Admin {
    /// The part of a log page that the command asks for.
    pub(super) fn log(
        &mut self,
        context: &Context<'_>,
        local: SocketAddr,
        command: &Command,
    ) -> Result<Vec<u8>, Status> {
        let get = GetLogPage::decode(command);
        if get.bytes > LOG_BYTES_MAX || get.bytes > command.data.bytes.into() {
            return Err(Status::INVALID_FIELD);
        }
        let subsystem = context.controller.subsystem;
        if !of(subsystem).contains(&get.log) {
            return Err(Status::INVALID_LOG);
        }
        let page = match get.log {
            log::SUPPORTED => log_page::supported(of(subsystem)).to_vec(),
            log::ERRORS => vec![0; ERROR_ENTRY_BYTES],
            log::HEALTH => health(context),
            log::FIRMWARE => log_page::firmware(env!("CARGO_PKG_VERSION")).to_vec(),
            log::CHANGED_NAMESPACES => self.changed_namespaces(&get),
            log::COMMANDS => commands(subsystem, get.command_set),
            log::FEATURES => log_page::features(&FEATURES).to_vec(),
            log::DISCOVERY => discovery(context, local),
            _ => return Err(Status::INVALID_LOG),
        };
        let start = usize::try_from(get.offset).ok().filter(|&start| start <= page.len());
        let mut rest = page[start.ok_or(Status::INVALID_FIELD)?..].to_vec();
        rest.resize(get.bytes as usize, 0);
        Ok(rest)
    }

    fn changed_namespaces(&mut self, get: &GetLogPage) -> Vec<u8> {
        let ids: Vec<u32> = if self.changed.len() > LIST_ENTRIES {
            vec![ALL_NAMESPACES]
        } else {
            self.changed.iter().copied().collect()
        };
        if !get.retain_event {
            self.changed.clear();
            self.told = false;
        }
        namespace_list(ids.into_iter()).to_vec()
    }
}

/// The discovery log. Every host gets the same two subsystems, whether it may connect to them or not.
fn discovery(context: &Context<'_>, local: SocketAddr) -> Vec<u8> {
    let entries = [Subsystem::Blocks, Subsystem::Pools].map(|subsystem| DiscoveryEntry {
        subsystem: context.target.nqn(subsystem).to_owned(),
        address: local,
        secure: context.controller.host.name.is_some(),
    });
    log_page::discovery(1, &entries)
}

/// The logs that controllers of a subsystem have.
fn of(subsystem: Subsystem) -> &'static [u8] {
    match subsystem {
        Subsystem::Discovery => &[
            log::SUPPORTED,
            log::ERRORS,
            log::HEALTH,
            log::FIRMWARE,
            log::COMMANDS,
            log::FEATURES,
            log::DISCOVERY,
        ],
        Subsystem::Blocks | Subsystem::Pools => &[
            log::SUPPORTED,
            log::ERRORS,
            log::HEALTH,
            log::FIRMWARE,
            log::CHANGED_NAMESPACES,
            log::COMMANDS,
            log::FEATURES,
        ],
    }
}

/// The health log. Its counts are those of this controller.
fn health(context: &Context<'_>) -> Vec<u8> {
    let traffic = context.controller.traffic.counts();
    Health { hours: context.now_ms / MS_PER_HOUR, ..traffic }.encode().to_vec()
}

fn commands(subsystem: Subsystem, command_set: u8) -> Vec<u8> {
    const COMMON: [u8; 7] = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::ABORT,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
    ];
    const OF_POOLS: [u8; 5] = [
        kv::admin::CREATE_POOL,
        kv::admin::JOIN_POOL,
        kv::admin::DESTROY_POOL,
        kv::admin::STATISTICS,
        kv::admin::LIST_POOLS,
    ];
    let blocks = [
        (block::FLUSH, false),
        (block::WRITE, true),
        (block::READ, false),
        (block::COMPARE, false),
        (block::WRITE_ZEROES, true),
        (block::DATASET_MANAGEMENT, true),
    ];
    let values = [
        (kv::io::STORE, true),
        (kv::io::RETRIEVE, false),
        (kv::io::LIST, false),
        (kv::io::DELETE, true),
        (kv::io::EXIST, false),
        (kv::io::FLUSH_OBJECT, true),
        (kv::io::TAKE, true),
    ];
    let page = match (subsystem, command_set) {
        (Subsystem::Pools, 1) => {
            log_page::commands(&[COMMON.as_slice(), OF_POOLS.as_slice()].concat(), &values)
        }
        (Subsystem::Blocks, 0) => log_page::commands(&COMMON, &blocks),
        _ => log_page::commands(&COMMON, &[]),
    };
    page.to_vec()
}
