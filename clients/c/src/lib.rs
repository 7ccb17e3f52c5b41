//! The C library of a Spillway client; include/spillway.h documents each function.
//!
//! A panic does not cross into C: it aborts the process, as the header says.

mod batch;
mod guest;
mod result;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

use spillway_client::{Key, Lifetime, Pool, PoolInfo, PoolSpec, Sharing, Statistics, Store};

pub use batch::{COperation, spillway_batch};
pub use guest::{spillway_guest_give, spillway_guest_need};
use result::{OK, answer, argument, get, put, there};

const PERSISTENT: u32 = 1;
const SHARED: u32 = 2;

/// An open store, `spillway_store`.
pub struct CStore(Box<dyn Store>);

/// `spillway_key`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CKey {
    object: u64,
    index: u32,
}

impl From<CKey> for Key {
    fn from(key: CKey) -> Self {
        Self::new(key.object, key.index)
    }
}

/// `spillway_pool_info`.
#[repr(C)]
pub struct CPoolInfo {
    pool: u64,
    pages: u64,
    flags: u32,
    reserved: u32,
    uuid: [u8; 16],
    identity: [u8; 16],
}

impl From<PoolInfo> for CPoolInfo {
    fn from(info: PoolInfo) -> Self {
        let persistent = info.spec.lifetime == Lifetime::Persistent;
        let (shared, uuid) = match info.spec.sharing {
            Sharing::Private => (0, 0),
            Sharing::Shared { uuid } => (SHARED, uuid),
        };
        Self {
            pool: info.pool.0,
            pages: info.pages,
            flags: if persistent { PERSISTENT | shared } else { shared },
            reserved: 0,
            uuid: uuid.to_be_bytes(),
            identity: info.identity.to_be_bytes(),
        }
    }
}

/// `spillway_statistics`.
#[repr(C)]
pub struct CStatistics {
    puts: u64,
    puts_stored: u64,
    puts_refused_at_target: u64,
    puts_refused_full: u64,
    puts_refused_other: u64,
    gets: u64,
    hits: u64,
    misses: u64,
    flushed_pages: u64,
    evicted_pages: u64,
    used_pages: u64,
    target_pages: u64,
}

impl From<Statistics> for CStatistics {
    fn from(statistics: Statistics) -> Self {
        Self {
            puts: statistics.puts,
            puts_stored: statistics.puts_stored,
            puts_refused_at_target: statistics.puts_refused_at_target,
            puts_refused_full: statistics.puts_refused_node_full,
            puts_refused_other: statistics.puts_refused_other,
            gets: statistics.gets,
            hits: statistics.hits,
            misses: statistics.misses,
            flushed_pages: statistics.flushed_pages,
            evicted_pages: statistics.evicted_pages,
            used_pages: statistics.used_pages,
            target_pages: statistics.target_pages,
        }
    }
}

// The header's structures, byte for byte.
const _: () = assert!(size_of::<CKey>() == 16 && size_of::<CPoolInfo>() == 56);
const _: () = assert!(size_of::<COperation>() == 56 && size_of::<CStatistics>() == 96);

/// A value to read. `None` for an invalid length or null pointer.
///
/// # Safety
/// A pointer that is not null is valid for reading `bytes` bytes while the slice is used.
unsafe fn value<'a>(value: *const c_void, bytes: usize) -> Option<&'a [u8]> {
    if bytes == 0 {
        return Some(&[]);
    }
    let right = !value.is_null() && isize::try_from(bytes).is_ok();
    // SAFETY: not null, and of a length that slices can have; the rest is the caller's promise.
    right.then(|| unsafe { slice::from_raw_parts(value.cast(), bytes) })
}

/// A buffer to write to. `None` for an invalid length or null pointer.
///
/// # Safety
/// A pointer that is not null is valid for writing `bytes` elements, and nothing else uses them while the
/// slice is in use.
unsafe fn buffer<'a, T>(buffer: *mut T, count: usize) -> Option<&'a mut [T]> {
    if count == 0 {
        return Some(&mut []);
    }
    let bytes = count.checked_mul(size_of::<T>())?;
    let right = !buffer.is_null() && buffer.is_aligned() && isize::try_from(bytes).is_ok();
    // SAFETY: not null, aligned, and of a length that slices can have; the rest is the caller's
    // promise.
    right.then(|| unsafe { slice::from_raw_parts_mut(buffer, count) })
}

/// The store behind a pointer from [`spillway_open`].
///
/// # Safety
/// The pointer is null, or from [`spillway_open`] and not closed yet.
unsafe fn store_of<'a>(store: *const CStore) -> Option<&'a dyn Store> {
    // SAFETY: the caller's promise.
    unsafe { store.as_ref() }.map(|store| &*store.0)
}

/// Writes through a pointer that may be null.
///
/// # Safety
/// A pointer that is not null is valid for writing.
unsafe fn give<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's promise.
        unsafe { to.write(value) };
    }
}

/// The UUID of 16 bytes at `uuid`.
///
/// # Safety
/// A pointer that is not null is valid for reading 16 bytes.
unsafe fn uuid_of(uuid: *const u8) -> Option<u128> {
    // SAFETY: the caller's promise; bytes need no alignment.
    unsafe { uuid.cast::<[u8; 16]>().as_ref() }.map(|bytes| u128::from_be_bytes(*bytes))
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says; `url` ends in a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_open(url: *const c_char, store: *mut *mut CStore) -> c_int {
    if url.is_null() || store.is_null() {
        return argument("a null pointer");
    }
    // SAFETY: the caller's promise.
    let Ok(url) = unsafe { CStr::from_ptr(url) }.to_str() else {
        return argument("a URL that is not UTF-8");
    };
    let opened = spillway_client::open(url);
    answer(opened, |opened| {
        // SAFETY: not null, and the caller's promise.
        unsafe { store.write(Box::into_raw(Box::new(CStore(opened)))) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointer is null, or from [`spillway_open`], not closed yet and not in use.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_close(store: *mut CStore) {
    if !store.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(store) });
    }
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_open_pool(
    store: *mut CStore,
    flags: u32,
    uuid: *const u8,
    pool: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, uuid) = unsafe { (store_of(store), uuid_of(uuid)) };
    let Some(store) = store.filter(|_| !pool.is_null()) else { return argument("a null pointer") };
    let lifetime = if flags & PERSISTENT == 0 { Lifetime::Ephemeral } else { Lifetime::Persistent };
    let sharing = match (flags & !PERSISTENT, uuid) {
        (0, _) => Sharing::Private,
        (SHARED, Some(uuid)) => Sharing::Shared { uuid },
        (SHARED, None) => return argument("a shared pool without a UUID"),
        _ => return argument("unknown pool flags"),
    };
    answer(store.open_pool(PoolSpec { lifetime, sharing }), |opened| {
        // SAFETY: not null, and the caller's promise.
        unsafe { pool.write(opened.0) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_join_pool(
    store: *mut CStore,
    uuid: *const u8,
    pool: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, uuid) = unsafe { (store_of(store), uuid_of(uuid)) };
    let (Some(store), Some(uuid), false) = (store, uuid, pool.is_null()) else {
        return argument("a null pointer");
    };
    answer(store.join_pool(uuid), |joined| {
        // SAFETY: not null, and the caller's promise.
        unsafe { pool.write(joined.0) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointer is null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_close_pool(store: *mut CStore, pool: u64) -> c_int {
    // SAFETY: the caller's promise.
    let Some(store) = (unsafe { store_of(store) }) else { return argument("a null pointer") };
    answer(store.close_pool(Pool(pool)), |()| OK)
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_put(
    store: *mut CStore,
    pool: u64,
    key: CKey,
    bytes: *const c_void,
    length: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, bytes) = unsafe { (store_of(store), value(bytes, length)) };
    let (Some(store), Some(bytes)) = (store, bytes) else { return argument("a null pointer") };
    answer(store.put(Pool(pool), key.into(), bytes), put)
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_get(
    store: *mut CStore,
    pool: u64,
    key: CKey,
    value: *mut c_void,
    room: usize,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, value) = unsafe { (store_of(store), buffer(value.cast::<u8>(), room)) };
    let (Some(store), Some(value), false) = (store, value, bytes.is_null()) else {
        return argument("a null pointer");
    };
    // SAFETY: not null, and the caller's promise.
    answer(store.get(Pool(pool), key.into(), value), |got| get(got, |n| unsafe { bytes.write(n) }))
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_take(
    store: *mut CStore,
    pool: u64,
    key: CKey,
    value: *mut c_void,
    room: usize,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, value) = unsafe { (store_of(store), buffer(value.cast::<u8>(), room)) };
    let (Some(store), Some(value), false) = (store, value, bytes.is_null()) else {
        return argument("a null pointer");
    };
    // SAFETY: not null, and the caller's promise.
    answer(store.take(Pool(pool), key.into(), value), |got| get(got, |n| unsafe { bytes.write(n) }))
}

/// See the header.
///
/// # Safety
/// The pointer is null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_flush(store: *mut CStore, pool: u64, key: CKey) -> c_int {
    // SAFETY: the caller's promise.
    let Some(store) = (unsafe { store_of(store) }) else { return argument("a null pointer") };
    answer(store.flush(Pool(pool), key.into()), there)
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_flush_object(
    store: *mut CStore,
    pool: u64,
    object: u64,
    pages: *mut u64,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(store) = (unsafe { store_of(store) }) else { return argument("a null pointer") };
    answer(store.flush_object(Pool(pool), object), |freed| {
        // SAFETY: the caller's promise.
        unsafe { give(pages, freed) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointer is null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_exists(store: *mut CStore, pool: u64, key: CKey) -> c_int {
    // SAFETY: the caller's promise.
    let Some(store) = (unsafe { store_of(store) }) else { return argument("a null pointer") };
    answer(store.exists(Pool(pool), key.into()), there)
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_list(
    store: *mut CStore,
    pool: u64,
    from: *const CKey,
    keys: *mut CKey,
    room: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, from, keys) = unsafe { (store_of(store), from.as_ref(), buffer(keys, room)) };
    let (Some(store), Some(keys), false) = (store, keys, count.is_null()) else {
        return argument("a null pointer");
    };
    let from = from.map(|&from| Key::from(from));
    answer(store.list(Pool(pool), from, keys.len()), |listed| {
        for (place, key) in keys.iter_mut().zip(&listed) {
            *place = CKey { object: key.object, index: key.index };
        }
        // SAFETY: not null, and the caller's promise.
        unsafe { count.write(listed.len()) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_pools(
    store: *mut CStore,
    pools: *mut CPoolInfo,
    room: usize,
    count: *mut usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, pools) = unsafe { (store_of(store), buffer(pools, room)) };
    let (Some(store), Some(pools), false) = (store, pools, count.is_null()) else {
        return argument("a null pointer");
    };
    answer(store.pools(), |found| {
        for (place, info) in pools.iter_mut().zip(&found) {
            *place = CPoolInfo::from(*info);
        }
        // SAFETY: not null, and the caller's promise.
        unsafe { count.write(found.len()) };
        OK
    })
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_read_statistics(
    store: *mut CStore,
    statistics: *mut CStatistics,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(store) = (unsafe { store_of(store) }) else { return argument("a null pointer") };
    if statistics.is_null() {
        return argument("a null pointer");
    }
    answer(store.statistics(), |read| {
        // SAFETY: not null, and the caller's promise.
        unsafe { statistics.write(read.into()) };
        OK
    })
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn spillway_last_error() -> *const c_char {
    result::last()
}

/// See the header.
#[unsafe(no_mangle)]
pub extern "C" fn spillway_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}
