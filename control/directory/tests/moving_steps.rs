//! A move that stops between two of its steps, and what others do between them: nothing is lost, and nothing old comes back.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use spillway_directory::{
    BlockSettings, ClientRegistry, ClientSettings, Error, Journal, Policy, Users, Who,
};
use spillway_store::{Config, Key, PoolId, PoolSpec, Put, Refusal, Store};
use spillway_types::{Access, ClientId, Identity, Limits};

const POLICY: Policy = Policy {
    users: Users::All,
    hosts: false,
    exposed: false,
    target_pages: u64::MAX,
    limits: Limits { connections_max: 2, operations_max: 8, bytes_max: 1 << 20 },
    grace_s: 0,
};
const KEY: Key = Key::new(0, 1);
const PEER: Identity<'static> = Identity::Peer { uid: 7, gid: 7, pid: 0 };

/// A registry whose daemon can be killed: the store and the journal are kept.
struct Daemon {
    registry: ClientRegistry,
    store: Arc<Store>,
    journal: OwnedFd,
}

impl Daemon {
    fn start() -> Self {
        let journal = Journal::create(64 << 20).unwrap();
        let kept = journal.descriptor().try_clone_to_owned().unwrap();
        let store = Arc::new(Store::open(Config::embedded(64 << 20)).unwrap());
        let registry = ClientRegistry::open(Arc::clone(&store), journal, POLICY).unwrap();
        Self { registry, store, journal: kept }
    }

    fn with_client() -> Self {
        let daemon = Self::start();
        daemon.registry.add_client(&settings()).unwrap();
        daemon
    }

    fn restarted(self) -> Self {
        let journal = Journal::reopen(self.journal.try_clone().unwrap()).unwrap();
        let registry = ClientRegistry::open(Arc::clone(&self.store), journal, POLICY).unwrap();
        Self { registry, ..self }
    }

    fn client(&self) -> ClientId {
        self.registry.client("uid-7").unwrap().id
    }

    fn fill(&self) -> PoolId {
        let pool = self.store.create_pool(self.client(), PoolSpec::PERSISTENT).unwrap();
        for index in 0..50 {
            assert_eq!(self.store.put(pool, Key::new(0, index), &[1; 4096]), Put::Stored);
        }
        pool
    }

    fn export(&self) -> Vec<u8> {
        let mut stream = Vec::new();
        self.registry.export("uid-7", &mut stream).unwrap();
        stream
    }

    fn rest(&self) -> Result<Vec<u8>, Error> {
        let mut stream = Vec::new();
        self.registry.export_rest("uid-7", &mut stream).map(|_| stream)
    }

    fn import(&self, stream: &[u8]) {
        self.registry.import_again("uid-7", &mut &*stream).unwrap();
    }

    fn import_rest(&self, stream: &[u8]) -> Result<u64, Error> {
        self.registry.import_rest("uid-7", &mut &*stream).map(|moved| moved.flushes)
    }

    fn pool(&self) -> PoolId {
        self.store.pools(self.client()).unwrap()[0].id
    }

    fn connect(&self) {
        let admitted = self.registry.admit(PEER).unwrap();
        self.registry.leave(admitted.client);
    }
}

fn settings() -> ClientSettings {
    ClientSettings {
        name: "uid-7".into(),
        who: Who::User(7),
        secret: None,
        target_pages: u64::MAX,
        floor_pages: 0,
        weight: 1,
        limits: POLICY.limits,
        domain: None,
        shared: Vec::new(),
    }
}

/// Does something each time that a stream goes on.
struct Meanwhile<'a, F: FnMut()>(&'a [u8], F);

impl<F: FnMut()> Write for Meanwhile<'_, F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1();
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<F: FnMut()> Read for Meanwhile<'_, F> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.1();
        self.0.read(into)
    }
}

fn is_moving<T>(answer: Result<T, Error>) -> bool {
    matches!(answer, Err(Error::Moving(_)))
}

#[test]
fn nothing_is_removed_or_thawed_while_it_is_copied() {
    let (from, to) = (Daemon::with_client(), Daemon::with_client());
    from.fill();
    let refuses = |registry: &ClientRegistry| {
        assert!(is_moving(registry.remove_client("uid-7")));
        assert!(is_moving(registry.thaw("uid-7")));
        assert!(is_moving(registry.set_moved("uid-7")));
        assert!(is_moving(registry.export_rest("uid-7", &mut Vec::new())));
        assert!(is_moving(registry.export("uid-7", &mut Vec::new())));
        assert!(is_moving(registry.import_rest("uid-7", &mut io::empty())));
        assert!(is_moving(registry.create_pool("uid-7", PoolSpec::PERSISTENT)));
        for pool in registry.pools().unwrap() {
            assert!(is_moving(registry.destroy_pool(pool.number)));
        }
    };
    from.registry.export("uid-7", &mut Meanwhile(&[], || refuses(&from.registry))).unwrap();
    let stream = from.export();
    let mut source = Meanwhile(&stream, || refuses(&to.registry));
    to.registry.import_again("uid-7", &mut source).unwrap();
    assert_eq!(to.store.statistics(to.client()).unwrap().used_pages, 50);
}

#[test]
fn what_has_moved_is_removed_and_nothing_else() {
    for configured in [false, true] {
        let from = Daemon::with_client();
        from.fill();
        if configured {
            from.registry.configure(&[settings()], &[], POLICY).unwrap();
        }
        let not_yet = || from.registry.remove_moved("uid-7");
        assert!(matches!(not_yet(), Err(Error::NotMoved(_))));
        from.export();
        assert!(matches!(not_yet(), Err(Error::NotMoved(_))));
        from.registry.set_moved("uid-7").unwrap();
        // A second command with an old list does not copy it once more.
        let second = from.registry.export("uid-7", &mut Vec::new());
        assert!(matches!(second, Err(Error::HasMoved(_))));
        // One that has reason to takes the note away.
        from.registry.export_again("uid-7", &mut Vec::new()).unwrap();
        assert!(matches!(not_yet(), Err(Error::NotMoved(_))));
        from.registry.set_moved("uid-7").unwrap();
        from.registry.remove_moved("uid-7").unwrap();
        assert!(from.registry.pools().unwrap().is_empty());
        assert_eq!(from.registry.client("uid-7").is_ok(), configured);
    }
}

#[test]
fn what_arrived_at_an_unnamed_client_does_not_expire() {
    let (from, to) = (Daemon::with_client(), Daemon::start());
    from.fill();
    to.connect();
    let stream = from.export();
    let mut source = Meanwhile(&stream, || to.registry.expire());
    to.registry.import_again("uid-7", &mut source).unwrap();
    to.registry.expire();
    let to = to.restarted();
    to.registry.expire();
    assert_eq!(to.store.statistics(to.client()).unwrap().used_pages, 50);
    // Once it was used, it is as any other.
    to.connect();
    to.registry.expire();
    assert!(to.registry.client("uid-7").is_err());
}

#[test]
fn an_unnamed_client_does_not_expire_between_two_steps() {
    let from = Daemon::start();
    from.connect();
    from.fill();
    from.registry.export("uid-7", &mut Meanwhile(&[], || from.registry.expire())).unwrap();
    from.registry.expire();
    from.registry.set_moved("uid-7").unwrap();
    from.registry.expire();
    assert!(from.rest().is_ok());
}

#[test]
fn flushes_that_did_not_arrive_are_sent_again() {
    let (from, to) = (Daemon::with_client(), Daemon::with_client());
    let pool = from.fill();
    let second = from.fill();
    to.import(&from.export());
    from.registry.set_moved("uid-7").unwrap();
    from.store.flush(pool, KEY);
    let number = from.registry.pools().unwrap().iter().map(|pool| pool.number).max().unwrap();
    from.registry.destroy_pool(number).unwrap();
    assert!(
        from.store.get(second, KEY, &mut [0; 4096]).is_err() || !from.store.exists(second, KEY)
    );
    // The command ends here.
    from.rest().unwrap();
    let rest = from.rest().unwrap();
    assert_eq!(to.import_rest(&rest).unwrap(), 2);
    assert!(!to.store.exists(to.pool(), KEY));
    // All that can come twice.
    assert_eq!(to.import_rest(&from.rest().unwrap()).unwrap(), 2);
    assert_eq!(to.store.pools(to.client()).unwrap().len(), 1);
}

#[test]
fn flushes_that_a_restart_forgets_need_a_new_copy() {
    // Of the daemon that the client leaves.
    let (from, to) = (Daemon::with_client(), Daemon::with_client());
    let pool = from.fill();
    to.import(&from.export());
    from.registry.set_moved("uid-7").unwrap();
    from.store.flush(pool, KEY);
    let from = from.restarted();
    assert!(matches!(from.rest(), Err(Error::TooManyFlushes(_))));
    let mut stream = Vec::new();
    from.registry.export_again("uid-7", &mut stream).unwrap();
    to.import(&stream);
    from.registry.set_moved("uid-7").unwrap();
    assert_eq!(to.import_rest(&from.rest().unwrap()).unwrap(), 0);
    assert!(!to.store.exists(to.pool(), KEY));
    // Of the other.
    let other = Key::new(0, 2);
    from.store.flush(pool, other);
    let to = to.restarted();
    let rest = from.rest().unwrap();
    assert!(matches!(to.import_rest(&rest), Err(Error::Stream(_))));
    assert_eq!(from.rest().unwrap(), rest);
    stream.clear();
    from.registry.export_again("uid-7", &mut stream).unwrap();
    to.import(&stream);
    assert!(!to.store.exists(to.pool(), other));
}

#[test]
fn flushes_do_not_remove_what_was_put_since() {
    let (from, to) = (Daemon::with_client(), Daemon::with_client());
    let pool = from.fill();
    to.import(&from.export());
    from.registry.set_moved("uid-7").unwrap();
    from.store.flush(pool, KEY);
    to.connect();
    assert_eq!(to.store.put(to.pool(), KEY, &[2]), Put::Stored);
    assert!(matches!(to.import_rest(&from.rest().unwrap()), Err(Error::Used(_))));
    assert!(to.store.exists(to.pool(), KEY));
    // A daemon that has lost what arrived says so too.
    assert!(matches!(
        Daemon::with_client().import_rest(&from.rest().unwrap()),
        Err(Error::Used(_))
    ));
}

#[test]
fn what_a_connected_program_has_is_not_replaced() {
    let (from, to) = (Daemon::with_client(), Daemon::with_client());
    from.fill();
    let stream = from.export();
    let admitted = to.registry.admit(PEER).unwrap();
    let again = || to.registry.import_again("uid-7", &mut &*stream);
    assert!(matches!(again(), Err(Error::Connected(_))));
    to.registry.import("uid-7", &mut &*stream).unwrap();
    assert!(!to.registry.client("uid-7").unwrap().arrived);
    to.registry.leave(admitted.client);
    assert!(matches!(again(), Err(Error::NotEmpty(_))));
}

#[test]
fn what_the_operator_has_made_is_not_replaced() {
    let from = Daemon::with_client();
    from.fill();
    let stream = from.export();
    let block = BlockSettings {
        name: "d".into(),
        client: "uid-7".into(),
        bytes: 1 << 20,
        block_bytes: 512,
        reserve: false,
    };
    let changes: [&dyn Fn(&ClientRegistry); 3] = [
        &|registry| drop(registry.create_pool("uid-7", PoolSpec::PERSISTENT).unwrap()),
        &|registry| drop(registry.create_block(&block).unwrap()),
        &|registry| {
            registry.create_pool("uid-7", PoolSpec::EPHEMERAL).unwrap();
            let number = registry.pools().unwrap()[0].number;
            registry.destroy_pool(number).unwrap();
        },
    ];
    for change in changes {
        let to = Daemon::with_client();
        to.import(&stream);
        assert!(to.registry.client("uid-7").unwrap().arrived);
        change(&to.registry);
        let to = to.restarted();
        assert!(!to.registry.client("uid-7").unwrap().arrived);
        let again = to.registry.import_again("uid-7", &mut &*stream);
        assert!(matches!(again, Err(Error::NotEmpty(_))));
    }
}

#[test]
fn an_export_that_fails_leaves_a_frozen_client_frozen() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let from = Daemon::with_client();
    let pool = from.fill();
    from.export();
    from.registry.set_moved("uid-7").unwrap();
    assert!(from.registry.export_again("uid-7", &mut Full).is_err());
    assert_eq!(from.store.put(pool, KEY, &[2]), Put::Refused(Refusal::Frozen));
    assert!(matches!(from.rest(), Err(Error::TooManyFlushes(_))));
    from.export();
    assert!(from.rest().is_ok());
    from.registry.thaw("uid-7").unwrap();
    assert_eq!(from.store.put(pool, KEY, &[2]), Put::Stored);
}
