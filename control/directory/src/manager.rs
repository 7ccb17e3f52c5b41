//! The memory manager's settings, which survive the daemon's death like those of clients.

use crate::error::Error;
use crate::journal::ManagerRecord;
use crate::registry::ClientRegistry;
use crate::settings::ManagerSettings;

impl ClientRegistry {
    /// Applies the configuration of the memory manager, and returns the effective settings. A setting
    /// that an operator changed stays, unless the file's has changed.
    ///
    /// # Errors
    /// [`Error::JournalFull`] and errors of the journal's file: then nothing has changed.
    pub fn configure_manager(&self, configured: ManagerSettings) -> Result<ManagerSettings, Error> {
        let mut current = configured.clone();
        let mut state = self.lock();
        if let Some(was) = &state.manager {
            if was.configured.policy == configured.policy {
                current.policy.clone_from(&was.current.policy);
            }
            if was.configured.interval_ms == configured.interval_ms {
                current.interval_ms = was.current.interval_ms;
            }
        }
        let before = state.manager.replace(ManagerRecord { configured, current: current.clone() });
        if let Err(error) = state.remember() {
            state.manager = before;
            return Err(error);
        }
        Ok(current)
    }

    /// Changes the effective settings of the memory manager, until the configuration file changes.
    ///
    /// # Errors
    /// As [`Self::configure_manager`].
    pub fn change_manager(&self, current: ManagerSettings) -> Result<(), Error> {
        let mut state = self.lock();
        let configured =
            state.manager.as_ref().map_or_else(|| current.clone(), |was| was.configured.clone());
        let before = state.manager.replace(ManagerRecord { configured, current });
        let remembered = state.remember();
        if remembered.is_err() {
            state.manager = before;
        }
        remembered
    }
}
