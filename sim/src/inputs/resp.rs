//! RESP commands on a connection to a small store.

use std::cell::RefCell;
use std::sync::Arc;

use spillway_resp::{Config, Connection, Described, Origin, Session, Shared};
use spillway_store::{ClientConfig, ClientId, Store};
use spillway_types::{Access, Admitted, Denied, Identity, Limits};

use super::Source;

/// Bytes of the store.
const STORE_BYTES: u64 = 4 << 20;
/// Most bytes that arrive at a time.
const PIECE_BYTES_MAX: usize = 64;
/// The time of the first command, milliseconds since 1970.
const BEGAN_MS: u64 = 1_700_000_000_000;

struct Anyone(ClientId);

impl Access for Anyone {
    fn admit(&self, who: Identity<'_>) -> Result<Admitted, Denied> {
        let limits = Limits { connections_max: 4, operations_max: 4, bytes_max: 1 << 20 };
        match who {
            Identity::User { password, .. } if password != b"right" => Err(Denied::Unknown),
            _ => Ok(Admitted { client: self.0, limits }),
        }
    }

    fn leave(&self, _: ClientId) {}

    fn host_secret(&self, _: &str, _: &mut [u8; 64]) -> Option<usize> {
        None
    }
}

thread_local! {
    static SHARED: RefCell<Option<Arc<Shared>>> = const { RefCell::new(None) };
}

fn shared() -> Arc<Shared> {
    let open = || {
        let store = Store::open(spillway_store::Config::embedded(STORE_BYTES)).expect("a store");
        let client = store.add_client(ClientConfig::default()).expect("a client");
        let access = Arc::new(Anyone(client));
        Arc::new(Shared::new(Arc::new(store), access, Config::default()))
    };
    SHARED.with(|shared| Arc::clone(shared.borrow_mut().get_or_insert_with(open)))
}

/// A client, authenticated or not, whose bytes arrive in pieces while time passes.
pub fn read(bytes: &[u8]) {
    let mut source = Source(bytes);
    let (choice, step) = (source.byte(), source.byte());
    let shared = shared();
    let origin = match choice & 1 {
        0 => Origin::Name("name".into()),
        _ => Origin::Stranger,
    };
    let mut connection = Connection::new(Session::new(1, origin, Described::default()));
    let recorder = shared.latencies.recorder();
    let begun = connection.session.begin(&shared);
    assert!(begun.is_ok(), "the database of the first command is there");
    connection.begun();
    let mut now_ms = BEGAN_MS;
    for piece in source.0.chunks(1 + usize::from(step) % PIECE_BYTES_MAX) {
        let wanted = connection.wanted();
        let room = connection.input.room(wanted);
        assert!(room.len() >= piece.len(), "no room for what comes");
        room[..piece.len()].copy_from_slice(piece);
        connection.input.filled(piece.len());
        now_ms += u64::from(choice);
        while connection.process(&shared, &recorder, now_ms) {
            let sent =
                connection.output.send(|parts| Ok(parts.iter().map(|part| part.len()).sum()));
            assert!(matches!(sent, Ok(true)));
        }
    }
    let used = shared.keyspaces.store().memory_bytes();
    assert!(used <= STORE_BYTES, "{used} bytes of memory for a store of {STORE_BYTES}");
}
