//! A connection that counts against its client.

use std::sync::Arc;

use spillway_types::{Access, Admitted, Denied, Identity};

/// A counted connection of a client. Dropping it reports the end of the connection.
pub struct Admission {
    access: Arc<dyn Access>,
    pub admitted: Admitted,
}

impl Admission {
    pub fn ask(access: &Arc<dyn Access>, who: Identity<'_>) -> Result<Self, Denied> {
        let admitted = access.admit(who)?;
        Ok(Self { access: access.clone(), admitted })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.access.leave(self.admitted.client);
    }
}
