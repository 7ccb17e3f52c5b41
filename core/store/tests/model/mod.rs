//! The reference model: what a page store is, in its plainest form.

use std::collections::HashMap;

use spillway_store::{Key, PAGE_BYTES};

/// A client's pools, by number.
pub type Handle = (usize, Key);

/// Pages that a value is billed as.
pub fn pages(value: &[u8]) -> u64 {
    value.len().div_ceil(PAGE_BYTES) as u64
}

/// What one client has stored.
#[derive(Debug, Default)]
pub struct Model {
    values: HashMap<Handle, Vec<u8>>,
    pub target_pages: u64,
    pub frozen: bool,
}

impl Model {
    pub fn new(target_pages: u64) -> Self {
        Self { target_pages, ..Self::default() }
    }

    pub fn used_pages(&self) -> u64 {
        self.values.values().map(|value| pages(value)).sum()
    }

    pub fn value(&self, handle: Handle) -> Option<&Vec<u8>> {
        self.values.get(&handle)
    }

    /// Whether a store with memory for it takes a put.
    pub fn takes(&self, handle: Handle, value: &[u8]) -> bool {
        let old = self.value(handle).map_or(0, |old| pages(old));
        let new = pages(value);
        let neutral = old >= new && old != 0;
        !self.frozen && (neutral || self.used_pages() - old + new <= self.target_pages)
    }

    pub fn put(&mut self, handle: Handle, value: Vec<u8>) {
        self.values.insert(handle, value);
    }

    pub fn remove(&mut self, handle: Handle) -> Option<Vec<u8>> {
        self.values.remove(&handle)
    }

    pub fn remove_object(&mut self, pool: usize, object: u64) -> u64 {
        let is_of = |handle: &Handle| handle.0 == pool && handle.1.object == object;
        let freed = self.values.iter().filter(|(handle, _)| is_of(handle));
        let freed = freed.map(|(_, value)| pages(value)).sum();
        self.values.retain(|handle, _| !is_of(handle));
        freed
    }

    pub fn remove_pool(&mut self, pool: usize) {
        self.values.retain(|handle, _| handle.0 != pool);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Handle, &Vec<u8>)> {
        self.values.iter()
    }
}
