//! Identifies peers for the front ends.

use std::time::Instant;

use spillway_types::{Access, Admitted, ClientId, Denied, Identity};

use crate::arrival::Arrival;
use crate::entry::{Entry, check_name};
use crate::registry::{ClientRegistry, RegistryState};
use crate::settings::{ClientSettings, NAME_BYTES_MAX, SECRET_BYTES_MAX, Users, Who};
use crate::views::{Origin, Refusals};
use crate::visits::Line;

impl Access for ClientRegistry {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        let mut state = self.lock();
        let admitted = self.let_in(&mut state, who);
        match (&admitted, who) {
            (Ok(_), _) => {}
            (Err(Denied::Connections), _) => state.refusals.at_limit += 1,
            (Err(Denied::Unknown), Identity::User { .. }) => state.refusals.authentications += 1,
            (Err(Denied::Unknown), _) => state.refusals.unknown += 1,
        }
        let lines = state.visits.take();
        drop(state);
        lines.into_iter().for_each(Line::log);
        admitted
    }

    fn authentication_failed(&self) {
        self.lock().refusals.authentications += 1;
    }

    fn handshake_late(&self) {
        self.lock().refusals.late_handshakes += 1;
    }

    fn leave(&self, client: ClientId) {
        if let Some(entry) = self.lock().of(client) {
            entry.connections = entry.connections.saturating_sub(1);
            entry.idle_since = Instant::now();
        }
    }

    fn name(&self, client: ClientId, tell: &mut dyn FnMut(&str)) {
        let name = self.lock().of(client).map(|entry| entry.name.clone());
        name.iter().for_each(|name| tell(name));
    }

    fn host_secret(&self, nqn: &str, secret: &mut [u8; SECRET_BYTES_MAX]) -> Option<usize> {
        let state = self.lock();
        let at = state.known(Identity::Host { nqn })?;
        state.clients[at].secret.as_ref().map(|known| known.write_to(secret))
    }
}

impl RegistryState {
    /// The client of an identity: a user counts before its group, one that was named before one that
    /// was not.
    fn known(&self, who: Identity<'_>) -> Option<usize> {
        let find = |wanted: &dyn Fn(&Who) -> bool| {
            let places = self.clients.iter().enumerate().filter(|(_, entry)| wanted(&entry.who));
            places.min_by_key(|(_, entry)| entry.origin == Origin::Unnamed).map(|(at, _)| at)
        };
        match who {
            Identity::Peer { uid, gid, .. } => {
                let user = find(&|who| *who == Who::User(uid));
                let group = || find(&|who| *who == Who::Group(gid));
                match user {
                    Some(at) if self.clients[at].origin != Origin::Unnamed => Some(at),
                    user => group().or_else(|| user.filter(|_| self.takes_user(uid))),
                }
            }
            Identity::Host { nqn } => {
                let host = find(&|who| matches!(who, Who::Host(known) if known == nqn));
                host.filter(|&at| {
                    let client = &self.clients[at];
                    (client.origin != Origin::Unnamed || self.policy.hosts)
                        && (client.secret.is_some() || !self.policy.exposed)
                })
            }
            Identity::User { name, password } => {
                let user = find(&|who| matches!(who, Who::Password(known) if known == name));
                user.filter(|&at| {
                    let secret = self.clients[at].secret.as_ref();
                    secret.is_some_and(|secret| secret.is_of(password))
                })
            }
            Identity::Name(name) => find(&|who| matches!(who, Who::Name(known) if known == name)),
            Identity::Client(name) => {
                let named = |entry: &Entry| entry.name == name && entry.origin != Origin::Unnamed;
                self.clients.iter().position(named)
            }
        }
    }

    /// Whether a peer would be admitted, as an existing client or a new one.
    pub(crate) fn lets_in(&self, who: Identity<'_>) -> bool {
        self.known(who).is_some()
            || matches!(who, Identity::Peer { uid, .. } if self.takes_user(uid))
    }

    /// Whether an unnamed user is admitted.
    fn takes_user(&self, uid: u32) -> bool {
        match self.policy.users {
            Users::Same => uid == 0 || uid == rustix::process::geteuid().as_raw(),
            Users::All => true,
            Users::None => false,
        }
    }
}

impl ClientRegistry {
    /// Refused peers since the daemon started.
    pub fn refusals(&self) -> Refusals {
        self.lock().refusals
    }

    fn let_in(&self, state: &mut RegistryState, who: Identity<'_>) -> Result<Admitted, Denied> {
        let at = match state.known(who) {
            Some(at) => at,
            None => self.welcome(state, who)?,
        };
        let entry = &mut state.clients[at];
        if entry.connections >= entry.limits.connections_max {
            return Err(Denied::Connections);
        }
        entry.connections += 1;
        let admitted = Admitted { client: entry.id, limits: entry.limits };
        if std::mem::take(&mut entry.arrival) != Arrival::None
            && let Err(error) = state.remember()
        {
            tracing::error!("{error}");
        }
        Ok(admitted)
    }

    /// Creates a client for an unnamed peer, if the settings admit it.
    fn welcome(&self, state: &mut RegistryState, who: Identity<'_>) -> Result<usize, Denied> {
        let (name, who) = match who {
            Identity::Peer { uid, .. } if state.takes_user(uid) => {
                (format!("uid-{uid}"), Who::User(uid))
            }
            Identity::Host { nqn } if state.policy.hosts && nqn.len() <= NAME_BYTES_MAX => {
                (nqn.to_owned(), Who::Host(nqn.to_owned()))
            }
            _ => return Err(Denied::Unknown),
        };
        if check_name(&name).is_err() || state.find(&name).is_ok() {
            return Err(Denied::Unknown);
        }
        let settings = ClientSettings {
            name,
            who,
            secret: None,
            target_pages: state.policy.target_pages,
            floor_pages: 0,
            weight: 1,
            limits: state.policy.limits,
            domain: None,
            shared: Vec::new(),
        };
        let admitted =
            self.insert(state, &settings, Origin::Unnamed).and_then(|_| state.remember());
        if let Err(error) = admitted {
            tracing::warn!(client = settings.name, "not admitted: {error}");
            return Err(Denied::Unknown);
        }
        state.visits.come(&settings.name, &settings.who);
        Ok(state.clients.len() - 1)
    }
}
