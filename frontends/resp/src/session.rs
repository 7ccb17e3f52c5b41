//! The identity of a connection, and the settings that its commands change.

use std::sync::Arc;

use spillway_types::{Access, Admitted, Denied, Identity};

use crate::database::Database;
use crate::keyspace::Keyspace;
use crate::shared::{Described, Shared};
use crate::trouble::Refused;

/// An admitted connection of a client. A drop reports its end.
pub struct Admission {
    access: Arc<dyn Access>,
    /// The client, and its limits.
    pub admitted: Admitted,
}

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.admitted.fmt(f)
    }
}

impl Admission {
    fn ask(access: &Arc<dyn Access>, who: Identity<'_>) -> Result<Self, Denied> {
        let admitted = access.admit(who)?;
        Ok(Self { access: Arc::clone(access), admitted })
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.access.leave(self.admitted.client);
    }
}

/// The identity of a peer before it authenticates.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A process of this host, by its user and group.
    Process {
        /// The user's ID.
        uid: u32,
        /// The group's ID.
        gid: u32,
        /// The process's ID.
        pid: i32,
    },
    /// A name from a certificate or from the configuration.
    Name(String),
    /// An unknown peer, which has to authenticate.
    Stranger,
}

/// The mode of CLIENT REPLY.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// All replies are sent.
    #[default]
    On,
    /// No reply is sent.
    Off,
    /// The reply to the next command is not sent.
    Skip,
    /// The reply to the present command is not sent.
    Skipped,
}

/// The state of a connection that commands use.
#[derive(Debug)]
pub struct Session {
    /// The number of the connection.
    pub id: u64,
    /// The identity of the peer before it authenticated.
    pub origin: Origin,
    admission: Option<Admission>,
    keyspace: Option<Arc<Keyspace>>,
    /// The selected database. `None` for an unauthenticated connection.
    pub database: Option<Arc<Database>>,
    /// The number of the database.
    pub number: u32,
    /// The data that CLIENT LIST shows.
    pub described: Described,
    /// The mode of CLIENT REPLY.
    pub replies: Replies,
    /// The connection ends when its replies are sent.
    pub ends: bool,
}

impl Session {
    /// A session whose peer is not identified yet.
    pub const fn new(id: u64, origin: Origin, described: Described) -> Self {
        Self {
            id,
            origin,
            admission: None,
            keyspace: None,
            database: None,
            number: 0,
            described,
            replies: Replies::On,
            ends: false,
        }
    }

    /// Admits the peer by its origin. A peer of unknown origin stays unauthenticated.
    ///
    /// # Errors
    /// The client may not have another connection, or its database can't be opened.
    pub fn begin(&mut self, shared: &Shared) -> Result<(), Refused> {
        self.leave();
        let origin = self.origin.clone();
        let who = match &origin {
            Origin::Stranger => return Ok(()),
            Origin::Name(name) => Identity::Name(name),
            &Origin::Process { uid, gid, pid } => Identity::Peer { uid, gid, pid },
        };
        match Admission::ask(&shared.access, who) {
            // The peer can still authenticate.
            Err(Denied::Unknown) => Ok(()),
            Err(denied) => Err(refusal(denied)),
            Ok(admission) => self.admit(shared, admission, "default"),
        }
    }

    /// Makes this a connection of the admitted client. The number of the database stays the same.
    fn admit(&mut self, shared: &Shared, admission: Admission, user: &str) -> Result<(), Refused> {
        let client = admission.admitted.client;
        let keyspace = shared.keyspaces.of(client);
        // Before other changes: if this fails, the session is unchanged.
        self.database = Some(keyspace.database(self.number)?);
        self.described.client = Some(client);
        user.clone_into(&mut self.described.user);
        self.keyspace = Some(keyspace);
        self.admission = Some(admission);
        shared.places.prove(self.id);
        self.tell(shared);
        Ok(())
    }

    /// Publishes the connection's description for CLIENT LIST.
    pub fn tell(&self, shared: &Shared) {
        shared.sessions.lock().insert(self.id, self.described.clone());
    }

    /// Authenticates a user by its password.
    ///
    /// # Errors
    /// The name or password is wrong, the client may not have another connection, or its database can't be opened. The
    /// session is unchanged.
    pub fn authenticate(
        &mut self,
        shared: &Shared,
        user: &str,
        password: &[u8],
    ) -> Result<(), Refused> {
        let who = Identity::User { name: user, password };
        let admission = Admission::ask(&shared.access, who).map_err(refusal)?;
        self.admit(shared, admission, user)
    }

    fn leave(&mut self) {
        (self.admission, self.keyspace, self.database, self.number) = (None, None, None, 0);
        (self.described.client, self.described.number) = (None, 0);
    }

    /// Selects a database.
    ///
    /// # Errors
    /// The database can't be opened.
    pub fn select(&mut self, number: u32) -> Result<(), Refused> {
        self.database = Some(keyspace(self)?.database(number)?);
        (self.number, self.described.number) = (number, number);
        Ok(())
    }

    /// Resets the session to its state at the beginning.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub fn reset(&mut self, shared: &Shared) -> Result<(), Refused> {
        self.described.name.clear();
        self.replies = Replies::On;
        self.begin(shared)
    }

    /// The most bytes of the client's commands. `None` for an unauthenticated connection.
    pub fn bytes_max(&self) -> Option<u64> {
        let limits = self.admission.as_ref()?.admitted.limits;
        Some(limits.bytes_max / u64::from(limits.connections_max.max(1)))
    }
}

/// The databases of a connection's client.
///
/// # Errors
/// The connection is unauthenticated.
pub fn keyspace(session: &Session) -> Result<&Arc<Keyspace>, Refused> {
    session.keyspace.as_ref().ok_or(Refused::line("NOAUTH Authentication required."))
}

fn refusal(denied: Denied) -> Refused {
    match denied {
        Denied::Unknown => {
            Refused::line("WRONGPASS invalid username-password pair or user is disabled.")
        }
        Denied::Connections => Refused::line("ERR max number of clients reached"),
    }
}
