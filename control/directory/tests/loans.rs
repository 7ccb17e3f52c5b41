//! Memory that is lent: whose it is, that it stays as long as the loan, and that it ends with it.

use std::sync::Arc;

use spillway_directory::{ClientSettings, Directory, Error, Journal, Loan, Policy, Users, Who};
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

fn directory() -> Directory {
    let store = Arc::new(Store::open(Config::embedded(32 << 20)).unwrap());
    Directory::open(store, Journal::create(32 << 20).unwrap(), POLICY).unwrap()
}

fn loan(number: u64, is_block: bool) -> Loan {
    Loan { borrower: "b.test".into(), number, slabs: 2, slab_bytes: SLAB, is_block }
}

#[test]
fn a_loan_is_for_its_borrower_and_takes_its_pages_alone() {
    let directory = directory();
    assert!(directory.admit(Identity::Name("b.test")).is_err(), "nobody has named it");
    let first = directory.create_loan(&loan(1, false)).unwrap();
    let second = directory.create_loan(&loan(2, false)).unwrap();
    assert_ne!(first.identity, second.identity);
    assert!(matches!(directory.create_loan(&loan(2, false)), Err(Error::LoanExists(_))));
    let client = directory.admit(Identity::Name("b.test")).unwrap().client;
    let store = directory.store();
    let pools = store.pools(client).unwrap();
    let numbers: Vec<_> = pools.iter().map(|pool| store.identity(pool.id)).collect();
    assert_eq!(numbers, [first.identity, second.identity]);
    let page = [7; 4096];
    for index in 0..2 * (SLAB / 4096) as u32 {
        assert_eq!(store.put(pools[0].id, Key::new(0, index), &page), Put::Stored);
    }
    assert_eq!(directory.loans()[0].pages, 512);
    let own = store.create_pool(client, PoolSpec::PERSISTENT).unwrap();
    let refused = store.put(own, Key::new(0, 0), &page);
    assert!(matches!(refused, Put::Refused(_)), "it may hold nothing but what it borrowed");
}

#[test]
fn a_loan_outlives_what_would_end_its_client_and_frees_its_memory_at_its_end() {
    let directory = directory();
    directory.create_loan(&loan(1, false)).unwrap();
    let pool = directory.pools().unwrap()[0].number;
    directory.expire();
    assert!(matches!(directory.remove_client("b.test"), Err(Error::HasLoan(_))));
    assert!(matches!(directory.destroy_pool(pool), Err(Error::HasLoan(_))));
    let all = Loan { slabs: 1 << 12, ..loan(3, false) };
    assert!(directory.create_loan(&all).is_err(), "more than the store has");
    assert_eq!(directory.loans().len(), 1);
    directory.destroy_loan("b.test", 1).unwrap();
    directory.destroy_loan("b.test", 1).unwrap();
    assert!(directory.loans().is_empty() && directory.pools().unwrap().is_empty());
    directory.expire();
    assert!(directory.clients().unwrap().is_empty());
}

#[test]
fn a_kernel_borrows_a_device_as_the_client_of_the_borrowers_name() {
    let directory = directory();
    assert!(matches!(directory.create_loan(&loan(1, true)), Err(Error::NoClient(_))));
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
    directory.add_client(&named).unwrap();
    let lent = directory.create_loan(&loan(1, true)).unwrap();
    let block = &directory.blocks()[0];
    assert_eq!((block.uuid, block.bytes), (lent.identity, 2 * SLAB));
    directory.destroy_loan("b.test", 1).unwrap();
    assert!(directory.blocks().is_empty() && directory.loans().is_empty());
}
