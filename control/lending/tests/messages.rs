//! What is read is bounded, and what is written can be read.

use proptest::prelude::*;
use spillway_lending::{
    Access, Body, Epoch, Error, HostId, LoanId, MESSAGE_BYTES_MAX, MemBorAck, MemBorFin, MemBorRej,
    MemBorReq, MemLenFin, Message, Mode, PoolIdentity, Reason,
};

fn host() -> impl Strategy<Value = HostId> {
    "[A-Za-z0-9._-]{1,253}".prop_map(|name| HostId::new(&name).unwrap())
}

fn body(borrower: HostId) -> impl Strategy<Value = Body> {
    let loan = any::<u64>().prop_map(move |number| LoanId { borrower: borrower.clone(), number });
    let mode = prop_oneof![Just(Mode::FanOut), Just(Mode::Direct)];
    let request =
        (loan.clone(), any::<u32>(), 1..=65_536_u32, 20..=30_u32, mode, any::<Option<u128>>())
            .prop_map(|(loan, sequence, slabs, bits, mode, holds)| {
                let (slab_bytes, holds) = (1 << bits, holds.map(PoolIdentity));
                Body::MemBorReq(MemBorReq { loan, sequence, slabs, slab_bytes, mode, holds })
            });
    let access = ("[a-z0-9.-]{1,253}:[0-9]{1,5}", any::<u128>(), any::<Option<bool>>()).prop_map(
        |(address, pool, direct)| Access {
            address,
            pool: PoolIdentity(pool),
            nqn: direct.map(|_| "nqn.2026-01.example:".to_owned() + &"x".repeat(200)),
        },
    );
    let ack = (loan.clone(), any::<u32>(), access, 0..=604_800_000_u64).prop_map(
        |(loan, sequence, access, lease_ms)| {
            Body::MemBorAck(MemBorAck { loan, sequence, access, lease_ms })
        },
    );
    let rej =
        (loan.clone(), any::<u32>(), 0..=65_536_u32).prop_map(|(loan, sequence, spare_slabs)| {
            Body::MemBorRej(MemBorRej { loan, sequence, reason: Reason::NoRoom, spare_slabs })
        });
    let fin = loan.clone().prop_map(|loan| Body::MemBorFin(MemBorFin { loan }));
    let recall = (loan, 0..=604_800_000_u64)
        .prop_map(|(loan, deadline_ms)| Body::MemLenFin(MemLenFin { loan, deadline_ms }));
    prop_oneof![request, ack, rej, fin, recall]
}

fn message() -> impl Strategy<Value = Message> {
    let hosts = (host(), host()).prop_filter("two hosts", |(one, other)| one != other);
    (hosts, any::<u64>())
        .prop_flat_map(|((borrower, lender), epoch)| {
            (Just(borrower.clone()), Just(lender), Just(Epoch(epoch)), body(borrower))
        })
        .prop_map(|(borrower, lender, epoch, body)| {
            let is_answer = !matches!(body, Body::MemBorReq(_) | Body::MemBorFin(_));
            let (from, to) = if is_answer { (lender, borrower) } else { (borrower, lender) };
            Message { from, to, epoch, body }
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_as_before(message in message()) {
        let written = message.encode();
        prop_assert!(written.len() <= MESSAGE_BYTES_MAX);
        prop_assert_eq!(Message::decode(&written), Ok(message));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..5_000)) {
        let _ = Message::decode(&bytes);
    }
}

#[test]
fn names_have_no_case() {
    let upper = HostId::new("A.Example").unwrap();
    assert_eq!(upper, HostId::new("a.example").unwrap());
    for name in ["", "a b", "ä", &"x".repeat(254)] {
        assert!(matches!(HostId::new(name), Err(Error::Host(_))), "{name}");
    }
}

#[test]
fn what_is_out_of_bounds_or_of_another_host_is_refused() {
    let good = r#"{"from":"a","to":"b","epoch":"00000000000000ff","body":{"mem_bor_req":{"loan":{"borrower":"a","number":"0000000100000000"},"sequence":1,"slabs":4,"slab_bytes":67108864,"mode":"fan-out","holds":null}}}"#;
    assert!(Message::decode(good.as_bytes()).is_ok());
    for (from, to) in [
        (r#""slabs":4"#, r#""slabs":0"#),
        (r#""slabs":4"#, r#""slabs":65537"#),
        (r#""slabs":4"#, r#""slabs":-1"#),
        (r#""slabs":4"#, r#""slabs":4,"more":1"#),
        ("67108864", "67108865"),
        ("67108864", "2147483648"),
        ("00000000000000ff", "ff"),
        ("fan-out", "fanout"),
        (r#""from":"a""#, r#""from":"c""#),
        (r#""to":"b""#, r#""to":"a""#),
    ] {
        let bad = good.replace(from, to);
        let error = Message::decode(bad.as_bytes()).unwrap_err();
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    assert_eq!(Message::decode(&[b' '; 4097]), Err(Error::Long(4097)));
}
