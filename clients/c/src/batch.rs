//! Batches.

use std::ffi::{c_int, c_void};

use spillway_client::{Error, Operation, Outcome, Pool};

use crate::result::{OK, answer, argument, get, put, there};
use crate::{CKey, CStore, buffer, store_of, value};

/// `spillway_operation`.
#[repr(C)]
pub struct COperation {
    kind: i32,
    result: i32,
    pool: u64,
    key: CKey,
    value: *mut c_void,
    bytes: usize,
    count: u64,
}

const PUT: i32 = 1;
const GET: i32 = 2;
const TAKE: i32 = 3;
const FLUSH: i32 = 4;
const FLUSH_OBJECT: i32 = 5;
const EXISTS: i32 = 6;

impl COperation {
    /// Converts the operation for the library. `None` for an invalid kind, pointer or length.
    ///
    /// # Safety
    /// The value's pointer is null or valid as the header says while the operation is used.
    unsafe fn open<'a>(&self) -> Option<Operation<'a>> {
        let (pool, key) = (Pool(self.pool), self.key.into());
        // SAFETY: the caller's promise.
        unsafe {
            Some(match self.kind {
                PUT => Operation::Put { pool, key, value: value(self.value, self.bytes)? },
                GET => Operation::Get { pool, key, value: buffer(self.value.cast(), self.bytes)? },
                TAKE => {
                    Operation::Take { pool, key, value: buffer(self.value.cast(), self.bytes)? }
                }
                FLUSH => Operation::Flush { pool, key },
                FLUSH_OBJECT => Operation::FlushObject { pool, object: self.key.object },
                EXISTS => Operation::Exists { pool, key },
                _ => return None,
            })
        }
    }

    fn close(&mut self, outcome: Result<Outcome, Error>) {
        self.count = 0;
        self.result = answer(outcome, |outcome| match outcome {
            Outcome::Put(stored) => put(stored),
            Outcome::Get(got) => get(got, |bytes| self.count = bytes as u64),
            Outcome::Flushed(pages) if self.kind == FLUSH_OBJECT => {
                self.count = pages;
                OK
            }
            Outcome::Flushed(values) => there(values != 0),
            Outcome::Exists(found) => there(found),
        });
    }
}

/// See the header.
///
/// # Safety
/// The pointers are null or valid as the header says, those of the operations too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn spillway_batch(
    store: *mut CStore,
    operations: *mut COperation,
    count: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    let (store, operations) = unsafe { (store_of(store), buffer(operations, count)) };
    let (Some(store), Some(operations)) = (store, operations) else {
        return argument("a null pointer");
    };
    let mut opened = Vec::with_capacity(operations.len());
    for operation in &*operations {
        // SAFETY: the caller's promise.
        match unsafe { operation.open() } {
            Some(operation) => opened.push(operation),
            None => {
                return argument("an operation of a batch: its kind, a null pointer or a length");
            }
        }
    }
    let mut outcomes = Vec::new();
    store.batch(&mut opened, &mut outcomes);
    for (operation, outcome) in operations.iter_mut().zip(outcomes) {
        operation.close(outcome);
    }
    OK
}
