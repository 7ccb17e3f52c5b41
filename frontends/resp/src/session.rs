//! Who a connection is, and what it has agreed on.

use std::sync::Arc;

use spillway_types::{Access, Admitted, Denied, Identity};

use crate::database::Database;
use crate::keyspace::Keyspace;
use crate::shared::{Described, Shared};
use crate::trouble::Refused;

/// A place among the client's connections, given back when this goes.
pub struct Admission {
    access: Arc<dyn Access>,
    /// Who was let in.
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

/// Who a peer is before it says so itself.
#[derive(Clone, Debug)]
pub enum Origin {
    /// A process of this host, by its user and group.
    Process {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Process.
        pid: i32,
    },
    /// A name that a certificate, or the configuration, vouches for.
    Name(String),
    /// Somebody who has to say who he is.
    Stranger,
}

/// Which replies are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replies {
    /// All.
    #[default]
    On,
    /// None.
    Off,
    /// Not that of the next command.
    Skip,
    /// Not that of the command that is carried out.
    Skipped,
}

/// A connection as the commands see it.
#[derive(Debug)]
pub struct Session {
    /// Its number.
    pub id: u64,
    /// Who the peer was at first.
    pub origin: Origin,
    admission: Option<Admission>,
    keyspace: Option<Arc<Keyspace>>,
    /// The database that is selected; none for a stranger.
    pub database: Option<Arc<Database>>,
    /// Its number.
    pub number: u32,
    /// What others are told of it.
    pub described: Described,
    /// Which replies are sent.
    pub replies: Replies,
    /// The connection ends when its replies have left.
    pub ends: bool,
}

impl Session {
    /// A connection of somebody who has not been asked yet.
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

    /// Lets the peer in by what is known of it without its saying so. It stays a stranger if that is nobody.
    ///
    /// # Errors
    /// It may not have another connection, or its database can't be had.
    pub fn begin(&mut self, shared: &Shared) -> Result<(), Refused> {
        self.leave();
        let origin = self.origin.clone();
        let who = match &origin {
            Origin::Stranger => return Ok(()),
            Origin::Name(name) => Identity::Name(name),
            &Origin::Process { uid, gid, pid } => Identity::Peer { uid, gid, pid },
        };
        match Admission::ask(&shared.access, who) {
            // It can say who it is.
            Err(Denied::Unknown) => Ok(()),
            Err(denied) => Err(refusal(denied)),
            Ok(admission) => self.admit(shared, admission, "default"),
        }
    }

    /// Makes it a connection of the client that was let in, in the database of the same number.
    fn admit(&mut self, shared: &Shared, admission: Admission, user: &str) -> Result<(), Refused> {
        let client = admission.admitted.client;
        let keyspace = shared.keyspaces.of(client);
        // Before anything is changed: a connection has its client's database, or all is as it was.
        self.database = Some(keyspace.database(self.number)?);
        self.described.client = Some(client);
        user.clone_into(&mut self.described.user);
        self.keyspace = Some(keyspace);
        self.admission = Some(admission);
        shared.places.prove(self.id);
        self.tell(shared);
        Ok(())
    }

    /// Has others see what the connection is now.
    pub fn tell(&self, shared: &Shared) {
        shared.sessions.lock().insert(self.id, self.described.clone());
    }

    /// Lets a user in by its password.
    ///
    /// # Errors
    /// It is not known by these, may not have another connection, or its database can't be had. Then the connection is as
    /// it was.
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

    /// Changes the database.
    ///
    /// # Errors
    /// It can't be had.
    pub fn select(&mut self, number: u32) -> Result<(), Refused> {
        self.database = Some(keyspace(self)?.database(number)?);
        (self.number, self.described.number) = (number, number);
        Ok(())
    }

    /// Makes it as it was at first.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub fn reset(&mut self, shared: &Shared) -> Result<(), Refused> {
        self.described.name.clear();
        self.replies = Replies::On;
        self.begin(shared)
    }

    /// What the client may have; nothing for a stranger.
    pub fn bytes_max(&self) -> Option<u64> {
        let limits = self.admission.as_ref()?.admitted.limits;
        Some(limits.bytes_max / u64::from(limits.connections_max.max(1)))
    }
}

/// The databases of a connection's client.
///
/// # Errors
/// It has not said who it is.
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
