//! What a client may find under its keys, after what it was told.
//!
//! Each key has one writer, an actor that does one thing after another. So there is little that a get
//! may bring: exactly the last value that was acknowledged, or, after an error, nothing: a write that
//! failed is deleted before anything else is answered.

/// Names one write: no two have the same.
pub type Version = u64;

/// The bytes of a version. They say which it is, and every byte depends on it.
pub fn value_of(version: Version, bytes: usize) -> Vec<u8> {
    let mut value = Vec::with_capacity(bytes + 8);
    let mut word = version;
    while value.len() < bytes {
        value.extend_from_slice(&word.to_le_bytes());
        word = word.wrapping_mul(0x2545_f491_4f6c_dd1d).rotate_left(23) ^ version;
    }
    value.truncate(bytes);
    value
}

/// What is known of one key.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// The value that is there for certain, and its length; none when nothing is for certain.
    pub stored: Option<(Version, usize)>,
    /// The value above may be gone: an exclusive get ended without an answer.
    pub may_be_gone: bool,
    /// No reader may see anything older: the last version that was acknowledged or seen.
    pub floor: Version,
}

impl Slot {
    /// A put was acknowledged.
    pub fn put(&mut self, version: Version, bytes: usize) {
        *self = Self { stored: Some((version, bytes)), may_be_gone: false, floor: version };
    }

    /// The value is gone: by a delete, a refused put, or a write that failed.
    pub fn clear(&mut self, version: Version) {
        *self = Self { stored: None, may_be_gone: false, floor: self.floor.max(version) };
    }

    /// Checks what the writer itself found.
    ///
    /// # Errors
    /// What it should have found.
    pub fn found(&mut self, value: Option<&[u8]>) -> Result<(), String> {
        match (value, self.stored) {
            (None, None) => Ok(()),
            (None, Some(_)) if self.may_be_gone => {
                self.clear(0);
                Ok(())
            }
            (None, Some((version, _))) => {
                Err(format!("a miss, where version {version} was stored"))
            }
            (Some(value), Some((version, bytes))) if value == value_of(version, bytes) => {
                self.may_be_gone = false;
                Ok(())
            }
            (Some(value), stored) => {
                Err(format!("version {}, where {stored:?} was stored", version_of(value)))
            }
        }
    }
}

/// Which version a value says it is.
pub fn version_of(value: &[u8]) -> Version {
    value.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_knows_what_may_be_found() {
        let mut slot = Slot::default();
        assert!(slot.found(None).is_ok());
        slot.put(7, 100);
        assert!(slot.found(Some(&value_of(7, 100))).is_ok());
        assert!(slot.found(Some(&value_of(6, 100))).is_err(), "an older version");
        assert!(slot.found(None).is_err(), "lost");
        slot.may_be_gone = true;
        assert!(slot.found(None).is_ok());
        assert!(slot.found(Some(&value_of(7, 100))).is_err(), "back again");
    }
}
