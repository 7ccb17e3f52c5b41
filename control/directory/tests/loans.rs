//! Memory that is lent: whose it is, that it stays as long as the loan, and that it ends with it.

use std::sync::Arc;

use spillway_directory::{
    ClientRegistry, ClientSettings, Error, Journal, Loan, Policy, Users, Who,
};
use spillway_store::{Config, Key, PoolSpec, Put, Store};
use spillway_types::{Access, Identity, Limits};

const LIMITS: Limits = Limits { connections_max: 8, operations_max: 8, bytes_max: 1 << 20 };
const POLICY: Policy = Policy {
    users: Users::All,
    hosts: false,
    exposed: false,
    target_pages: 100,
    limits: LIMITS,
    grace_s: 0,
};
const SLAB: u64 = 1 << 20;

fn registry() -> ClientRegistry {
    let store = Arc::new(Store::open(Config::embedded(32 << 20)).unwrap());
    ClientRegistry::open(store, Journal::create(32 << 20).unwrap(), POLICY).unwrap()
}

fn loan(number: u64, is_block: bool) -> Loan {
    Loan { borrower: "b.test".into(), number, slabs: 2, slab_bytes: SLAB, is_block }
}

#[test]
fn a_loan_is_for_its_borrower_and_takes_its_pages_alone() {
    let registry = registry();
    assert!(registry.admit(Identity::Name("b.test")).is_err(), "nobody has named it");
    let first = registry.create_loan(&loan(1, false)).unwrap();
    let second = registry.create_loan(&loan(2, false)).unwrap();
    assert_ne!(first.identity, second.identity);
    assert!(matches!(registry.create_loan(&loan(2, false)), Err(Error::LoanExists(_))));
    let client = registry.admit(Identity::Name("b.test")).unwrap().client;
    let store = registry.store();
    let pools = store.pools(client).unwrap();
    let numbers: Vec<_> = pools.iter().map(|pool| store.identity(pool.id)).collect();
    assert_eq!(numbers, [first.identity, second.identity]);
    let page = [7; 4096];
    for index in 0..2 * (SLAB / 4096) as u32 {
        assert_eq!(store.put(pools[0].id, Key::new(0, index), &page), Put::Stored);
    }
    assert_eq!(registry.loans()[0].pages, 512);
    let own = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    let refused = store.put(own, Key::new(0, 0), &page);
    assert!(matches!(refused, Put::Refused(_)), "it may hold nothing but what it borrowed");
}

#[test]
fn a_loan_outlives_what_would_end_its_client_and_frees_its_memory_at_its_end() {
    let registry = registry();
    registry.create_loan(&loan(1, false)).unwrap();
    let pool = registry.pools().unwrap()[0].number;
    registry.expire();
    assert!(matches!(registry.remove_client("b.test"), Err(Error::HasLoan(_))));
    assert!(matches!(registry.destroy_pool(pool), Err(Error::HasLoan(_))));
    let all = Loan { slabs: 1 << 12, ..loan(3, false) };
    assert!(registry.create_loan(&all).is_err(), "more than the store has");
    assert_eq!(registry.loans().len(), 1);
    registry.destroy_loan("b.test", 1).unwrap();
    registry.destroy_loan("b.test", 1).unwrap();
    assert!(registry.loans().is_empty() && registry.pools().unwrap().is_empty());
    registry.expire();
    assert!(registry.clients().unwrap().is_empty());
}

#[test]
fn a_kernel_borrows_a_device_as_the_client_of_the_borrowers_name() {
    let registry = registry();
    assert!(matches!(registry.create_loan(&loan(1, true)), Err(Error::NoClient(_))));
    let named = ClientSettings {
        name: "b.test".into(),
        who: Who::Host("nqn.2014-08.org.nvmexpress:b".into()),
        secret: None,
        target_pages: 0,
        floor_pages: 0,
        weight: 1,
        limits: LIMITS,
        domain: None,
        shared: Vec::new(),
    };
    registry.add_client(&named).unwrap();
    let lent = registry.create_loan(&loan(1, true)).unwrap();
    let block = &registry.blocks()[0];
    assert_eq!((block.uuid, block.bytes), (lent.identity, 2 * SLAB));
    registry.destroy_loan("b.test", 1).unwrap();
    assert!(registry.blocks().is_empty() && registry.loans().is_empty());
}
