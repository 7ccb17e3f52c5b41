//! The values that a client may find under its keys, given its earlier answers.
//!
//! Each key has one writer, an actor that does one operation at a time. So a get may return only the last acknowledged
//! value or, after an error, nothing: a failed write is deleted before any other call is answered.

/// Identifies a write. Versions are unique.
pub type Version = u64;

/// The bytes of a version. They contain the version, and every byte depends on it.
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

/// The known state of a key.
#[derive(Clone, Debug, Default)]
pub struct Slot {
    /// The value that certainly exists, and its length; `None` if none certainly exists.
    pub stored: Option<(Version, usize)>,
    /// Whether that value may be gone: an exclusive get ended without an answer.
    pub may_be_gone: bool,
    /// The last version that was acknowledged or read: no reader may get an older one.
    pub floor: Version,
}

impl Slot {
    /// Records an acknowledged put.
    pub fn put(&mut self, version: Version, bytes: usize) {
        *self = Self { stored: Some((version, bytes)), may_be_gone: false, floor: version };
    }

    /// Records that the value is gone, by a delete, a refused put, or a failed write.
    pub fn clear(&mut self, version: Version) {
        *self = Self { stored: None, may_be_gone: false, floor: self.floor.max(version) };
    }

    /// Checks the value that the writer itself found.
    ///
    /// # Errors
    /// The expected value.
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

/// The version that a value contains.
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
