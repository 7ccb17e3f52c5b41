//! A call with its data, and what came of it.

use crate::nvme_tcp::call::{Call, Outcome};

/// The data of a call.
#[derive(Debug)]
pub enum Data<'a> {
    /// None.
    None,
    /// The value to store.
    Out(&'a [u8]),
    /// The buffer for data to receive.
    In(&'a mut [u8]),
}

/// A call with its data and its outcome.
#[derive(Debug)]
pub struct Request<'a> {
    /// The call.
    pub call: Call,
    /// Its data.
    pub data: Data<'a>,
    /// How it ended.
    pub outcome: Option<Outcome>,
}

impl<'a> Request<'a> {
    /// A request that has not run yet.
    pub const fn new(call: Call, data: Data<'a>) -> Self {
        Self { call, data, outcome: None }
    }

    pub(super) const fn value(&self) -> &[u8] {
        match &self.data {
            Data::Out(value) => value,
            _ => &[],
        }
    }

    pub(super) fn accept(&mut self, offset: usize, bytes: &[u8]) {
        // The queue has checked that the data is within the requested range.
        if let Data::In(room) = &mut self.data
            && let Some(place) = room.get_mut(offset..offset + bytes.len())
        {
            place.copy_from_slice(bytes);
        }
    }
}
