//! The store, its pools and block devices.

use axum::Json;
use axum::extract::rejection::JsonRejection;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use spillway_directory::{BlockSettings, BlockView, PoolView};
use spillway_types::{Lifetime as StoreLifetime, PAGE_BYTES, PoolSpec, Sharing, Size};

use crate::asker::Changed;
use crate::parts::{Shared, aside};
use crate::problem::Error;
use crate::types::{
    Block, Lifetime, NewBlock, NewPool, Pool, Problem, StoreDisk, StoreSharing, StoreStatus,
};

/// How full the store is.
#[utoipa::path(get, path = "/v1/store", operation_id = "get_store", tag = "store", responses((status = 200, body = StoreStatus)))]
pub(crate) async fn status(State(daemon): Shared) -> Json<StoreStatus> {
    let store = daemon.client_registry.store();
    Json(StoreStatus {
        capacity_bytes: store.capacity_bytes(),
        program_pages: daemon.program_pages(),
        memory_bytes: store.memory_bytes(),
        in_flight_bytes: store.in_flight_bytes(),
        free_frame_bytes: store.free_frame_bytes(),
        disk_bytes: store.disk_bytes(),
        disk: store.disk_counters().map(|disk| StoreDisk {
            capacity_bytes: disk.capacity_pages * PAGE_BYTES as u64,
            read_bytes: disk.read_pages * PAGE_BYTES as u64,
            written_bytes: disk.written_pages * PAGE_BYTES as u64,
            refused_pages: disk.refused_pages,
            failed_reads: disk.failed_reads,
            corrupt_reads: disk.corrupt_pages,
            trouble: disk.trouble.map(|trouble| trouble.to_string()),
            last_error: disk.last_error.map(|(error, _)| error.to_string()),
            last_error_s: disk.last_error.map(|(_, at)| at.elapsed().as_secs()),
        }),
        same_filled_pages: store.same_filled_pages(),
        compressed_pages: store.compressed_pages(),
        sharing: store.shared_memory().map(|shared| StoreSharing {
            values: shared.values,
            saved_bytes: shared.saved_bytes,
            merged_values: shared.merged_values,
            unshared_values: shared.unshared_values,
        }),
    })
}

/// All pools, by number; a shared one once for each member.
#[utoipa::path(get, path = "/v1/pools", operation_id = "list_pools", tag = "pools", responses((status = 200, body = [Pool])))]
pub(crate) async fn pools(State(daemon): Shared) -> Result<Json<Vec<Pool>>, Error> {
    let pools = daemon.client_registry.pools()?;
    let blocks = daemon.client_registry.blocks();
    let with_uuid = |pool: PoolView| {
        let block = blocks.iter().find(|block| block.number == pool.number);
        Pool { block_uuid: block.map(|block| show_uuid(block.uuid)), ..pool.into() }
    };
    Ok(Json(pools.into_iter().map(with_uuid).collect()))
}

/// Creates a pool. Joins a shared one that exists.
#[utoipa::path(
    post,
    path = "/v1/pools",
    operation_id = "create_pool",
    tag = "pools",
    request_body = NewPool,
    responses((status = 201, body = Pool), (status = "4XX", body = Problem), (status = 507, body = Problem))
)]
pub(crate) async fn create_pool(
    State(daemon): Shared,
    pool: Result<Json<NewPool>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(pool) = pool?;
    let lifetime = match pool.lifetime {
        Lifetime::Persistent => StoreLifetime::Persistent,
        Lifetime::Ephemeral => StoreLifetime::Ephemeral,
    };
    let sharing = match &pool.uuid {
        None => Sharing::Private,
        Some(text) => Sharing::Shared { uuid: parse_uuid(text)? },
    };
    let client_registry = daemon.client_registry.clone();
    let spec = PoolSpec { lifetime, sharing };
    let made = aside(move || client_registry.create_pool(&pool.client, spec)).await?;
    let changed = Changed::of(Some(describe_pool(&made)));
    Ok((StatusCode::CREATED, changed, Json(Pool::from(made))))
}

/// Destroys a pool with its values, and the block device in it.
#[utoipa::path(
    delete,
    path = "/v1/pools/{number}",
    operation_id = "destroy_pool",
    tag = "pools",
    params(("number" = u32, Path)),
    responses((status = 204), (status = "4XX", body = Problem))
)]
pub(crate) async fn destroy_pool(
    State(daemon): Shared,
    Path(number): Path<String>,
) -> Result<impl IntoResponse, Error> {
    let number: u32 =
        number.parse().map_err(|_| Error::Input("a pool is identified by its number".into()))?;
    let pools = daemon.client_registry.pools()?;
    let changed = pools.iter().find(|pool| pool.number == number).map(describe_pool);
    let client_registry = daemon.client_registry.clone();
    aside(move || client_registry.destroy_pool(number)).await?;
    Ok((StatusCode::NO_CONTENT, Changed::of(changed), ()))
}

/// A pool in a log line.
fn describe_pool(pool: &PoolView) -> String {
    let kind = match pool.spec.lifetime {
        StoreLifetime::Persistent => "persistent",
        StoreLifetime::Ephemeral => "ephemeral",
    };
    let size = Size(pool.pages * PAGE_BYTES as u64);
    format!("{kind} pool {} of client {}, {size}", pool.number, pool.client)
}

/// All block devices.
#[utoipa::path(get, path = "/v1/blocks", operation_id = "list_blocks", tag = "blocks", responses((status = 200, body = [Block])))]
pub(crate) async fn blocks(State(daemon): Shared) -> Json<Vec<Block>> {
    Json(daemon.client_registry.blocks().into_iter().map(Block::from).collect())
}

/// Creates a block device, and reserves all its memory unless the request says otherwise.
#[utoipa::path(
    post,
    path = "/v1/blocks",
    operation_id = "create_block",
    tag = "blocks",
    request_body = NewBlock,
    responses((status = 201, body = Block), (status = "4XX", body = Problem), (status = 507, body = Problem))
)]
pub(crate) async fn create_block(
    State(daemon): Shared,
    block: Result<Json<NewBlock>, JsonRejection>,
) -> Result<impl IntoResponse, Error> {
    let Json(block) = block?;
    let block_bytes = block.block_bytes.unwrap_or(4096);
    if ![512, 4096].contains(&block_bytes) {
        return Err(Error::Input("block_bytes is 512 or 4096".into()));
    }
    let settings = BlockSettings {
        name: block.name,
        client: block.client,
        bytes: block.bytes,
        block_bytes,
        reserve: block.reserve.unwrap_or(true),
    };
    let client_registry = daemon.client_registry.clone();
    let made = aside(move || client_registry.create_block(&settings)).await?;
    let changed = Changed::of(Some(describe_block(&made)));
    Ok((StatusCode::CREATED, changed, Json(Block::from(made))))
}

/// Destroys a block device.
#[utoipa::path(
    delete,
    path = "/v1/blocks/{name}",
    operation_id = "destroy_block",
    tag = "blocks",
    params(("name" = String, Path)),
    responses((status = 204), (status = "4XX", body = Problem))
)]
pub(crate) async fn destroy_block(
    State(daemon): Shared,
    Path(name): Path<String>,
) -> Result<impl IntoResponse, Error> {
    let blocks = daemon.client_registry.blocks();
    let changed = blocks.iter().find(|block| block.name == name).map(describe_block);
    let client_registry = daemon.client_registry.clone();
    aside(move || client_registry.destroy_block(&name)).await?;
    Ok((StatusCode::NO_CONTENT, Changed::of(changed), ()))
}

/// A block device in a log line.
fn describe_block(block: &BlockView) -> String {
    format!("block device {} of client {}, {}", block.name, block.client, Size(block.bytes))
}

impl From<PoolView> for Pool {
    fn from(view: PoolView) -> Self {
        Self {
            number: view.number,
            client: view.client,
            lifetime: match view.spec.lifetime {
                StoreLifetime::Persistent => Lifetime::Persistent,
                StoreLifetime::Ephemeral => Lifetime::Ephemeral,
            },
            uuid: match view.spec.sharing {
                Sharing::Private => None,
                Sharing::Shared { uuid } => Some(show_uuid(uuid)),
            },
            pages: view.pages,
            reserved_pages: view.reserved_pages,
            block: view.block,
            // The list of pools adds it. A new pool has no device.
            block_uuid: None,
        }
    }
}

impl From<BlockView> for Block {
    fn from(view: BlockView) -> Self {
        Self {
            name: view.name,
            client: view.client,
            number: view.number,
            bytes: view.bytes,
            block_bytes: view.block_bytes,
            uuid: show_uuid(view.uuid),
            opened: view.opened as u64,
        }
    }
}

/// Reads a UUID: 32 hexadecimal digits, with or without hyphens.
pub(crate) fn parse_uuid(text: &str) -> Result<u128, Error> {
    let digits: String = text.chars().filter(|&c| c != '-').collect();
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| digits.len() == 32);
    number.ok_or_else(|| Error::Input(format!("'{text}' is not a UUID; create one with uuidgen")))
}

/// Writes a UUID as RFC 9562 does.
pub(crate) fn show_uuid(uuid: u128) -> String {
    let hex = format!("{uuid:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_written() {
        let text = "0123abcd-0000-4fff-8000-00000000000e";
        assert_eq!(show_uuid(parse_uuid(text).unwrap()), text);
        for bad in ["", "0123", "0123abcd-0000-4fff-8000-00000000000g", &text.repeat(2)] {
            assert!(parse_uuid(bad).is_err(), "{bad}");
        }
    }
}
