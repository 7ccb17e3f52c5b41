//! `spillway pool`: pools and block devices.

use std::process::ExitCode;

use clap::{Args, Subcommand};
use hyper::Method;
use spillway_api::types::{self, Lifetime, NewBlock, NewPool};
use spillway_types::Size;

use crate::daemon::api::{Api, segment};
use crate::daemon::names;
use crate::daemon::options::Daemon;
use crate::refusal::Refusal;
use crate::show::{self, Output};
use crate::units::parse_size;

/// Lists, creates and destroys pools and block devices.
#[derive(Debug, Args)]
pub struct Pool {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Lists all pools, and the block devices in them, with the UUIDs of devices and shared pools.
    List {
        #[command(flatten)]
        daemon: Daemon,
    },
    Create(Create),
    Destroy(Destroy),
}

/// Creates a pool, or a block device in a pool of its own.
#[derive(Debug, Args)]
struct Create {
    /// The client that owns it.
    #[arg(long, value_name = "NAME", add = names::clients())]
    client: String,

    /// Makes the pool ephemeral: the store may drop its values under memory pressure.
    #[arg(long, conflicts_with = "block")]
    ephemeral: bool,

    /// Joins the shared pool with this UUID, and creates it if it does not exist.
    #[arg(long, value_name = "UUID", conflicts_with = "block")]
    shared: Option<String>,

    /// Creates a block device of this size. Without --unreserved, that much memory is reserved.
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "name")]
    block: Option<u64>,

    /// Name of the block device.
    #[arg(long, requires = "block")]
    name: Option<String>,

    /// Block size of the device in bytes: 512 or 4096.
    #[arg(long, value_name = "BYTES", requires = "block")]
    block_bytes: Option<u32>,

    /// Reserves no memory for the device. Its pages are packed and move to the store's disk like others. A
    /// write fails when the store is full or the client is at its target.
    #[arg(long, requires = "block")]
    unreserved: bool,

    #[command(flatten)]
    daemon: Daemon,
}

/// Destroys a pool with its values, or a block device.
#[derive(Debug, Args)]
#[group(id = "which", required = true, multiple = false, args = ["number", "name"])]
struct Destroy {
    /// The pool's number, as `spillway pool list` shows it.
    #[arg(add = names::pools())]
    number: Option<u32>,

    /// The block device's name.
    #[arg(long, add = names::blocks())]
    name: Option<String>,

    #[command(flatten)]
    daemon: Daemon,
}

/// Runs the command.
///
/// # Errors
/// The daemon can't be reached, or says no.
pub fn run(options: &Pool) -> anyhow::Result<ExitCode> {
    match &options.action {
        Action::List { daemon } => {
            let pools: Vec<types::Pool> = Api::new(daemon)?.get("/v1/pools")?;
            show_pools(daemon.output, &pools, &pools)?;
        }
        Action::Create(options) => create(options)?,
        Action::Destroy(options) => {
            let path = match (&options.number, &options.name) {
                (Some(number), _) => format!("/v1/pools/{number}"),
                (None, Some(name)) => format!("/v1/blocks/{}", segment(name)),
                (None, None) => return Err(Refusal::usage("give a number or --name").into()),
            };
            Api::new(&options.daemon)?.order(Method::DELETE, &path)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn create(options: &Create) -> anyhow::Result<()> {
    let api = Api::new(&options.daemon)?;
    let client = options.client.clone();
    if let (Some(bytes), Some(name)) = (options.block, &options.name) {
        let block = NewBlock {
            name: name.clone(),
            client,
            bytes,
            block_bytes: options.block_bytes,
            reserve: Some(!options.unreserved),
        };
        let made: types::Block = api.send(Method::POST, "/v1/blocks", &block)?;
        let row = [
            made.name.clone(),
            made.client.clone(),
            made.number.to_string(),
            Size(made.bytes).to_string(),
            made.uuid.clone(),
        ];
        let heads = ["block device", "client", "pool", "size", "uuid"];
        return show::answer(options.daemon.output, &made, heads, [row]);
    }
    let lifetime = if options.ephemeral { Lifetime::Ephemeral } else { Lifetime::Persistent };
    let pool = NewPool { client, lifetime, uuid: options.shared.clone() };
    let made: types::Pool = api.send(Method::POST, "/v1/pools", &pool)?;
    show_pools(options.daemon.output, &made, std::slice::from_ref(&made))
}

fn show_pools(
    output: Output,
    answer: &impl serde::Serialize,
    pools: &[types::Pool],
) -> anyhow::Result<()> {
    let heads = ["pool", "client", "kind", "pages", "reserved", "block device", "uuid"];
    let rows = pools.iter().map(|pool| {
        let lifetime = match pool.lifetime {
            Lifetime::Persistent => "persistent",
            Lifetime::Ephemeral => "ephemeral",
        };
        let kind = match &pool.uuid {
            None => lifetime.to_owned(),
            Some(_) => format!("{lifetime}, shared"),
        };
        [
            pool.number.to_string(),
            pool.client.clone(),
            kind,
            pool.pages.to_string(),
            show::pages(pool.reserved_pages),
            pool.block.clone().unwrap_or_default(),
            pool.block_uuid.as_ref().or(pool.uuid.as_ref()).cloned().unwrap_or_default(),
        ]
    });
    show::answer(output, answer, heads, rows)
}
