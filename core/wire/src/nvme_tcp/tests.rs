//! PDUs survive encoding and decoding, and invalid ones are refused.

use super::*;
use crate::nvme::{Status, block};

const LIMIT: usize = 1 << 16;

/// The ICReq of Linux 6.12's host, with both kinds of digests requested.
#[test]
fn reads_the_kernels_first_pdu() {
    let mut bytes = [0; 128];
    bytes[..8].copy_from_slice(&[0, 0, 128, 0, 128, 0, 0, 0]);
    bytes[11] = 3;
    let request = InitRequest { header_digest: true, data_digest: true, ..Default::default() };
    let read = decode(&bytes, Framing::default(), LIMIT).unwrap();
    assert_eq!(read, Some((Pdu::InitRequest(request), 128)));
    let mut written = [0xff; 128];
    assert_eq!(Pdu::InitRequest(request).encode(Framing::default(), &mut written), Ok(128));
    assert_eq!(written, bytes);
}

fn samples(data: &[u8]) -> Vec<Pdu<'_>> {
    let transfer = Transfer {
        command: 1,
        tag: 2,
        offset: 3,
        bytes: data.len() as u32,
        last: true,
        success: false,
    };
    vec![
        Pdu::InitResponse(InitResponse { host_data_bytes_max: 131_072, ..Default::default() }),
        Pdu::HostTerminate(Terminate { status: 1, detail: 4 }),
        Pdu::ControllerTerminate(Terminate { status: 5, detail: 0 }),
        Pdu::Command(Command::new(block::WRITE, 7, 1), data),
        Pdu::Command(Command::new(block::FLUSH, 8, 1), &[]),
        Pdu::Response(Completion { id: 7, status: Status::CAPACITY, ..Default::default() }),
        Pdu::HostData(transfer, data),
        Pdu::ControllerData(Transfer { success: true, ..transfer }, data),
        Pdu::ReadyToTransfer(ReadyToTransfer { command: 1, tag: 2, offset: 3, bytes: 4 }),
    ]
}

/// The header of every type (figures 20 to 28). Each field has other bytes.
#[test]
fn headers_are_laid_out_as_the_figures_say() {
    let mut init = [0; 128];
    init[..16].copy_from_slice(&[1, 0, 128, 0, 128, 0, 0, 0, 0x0a, 0x0b, 0x0c, 2, 1, 2, 3, 4]);
    let response = InitResponse {
        version: 0x0b0a,
        alignment: 0x0c,
        header_digest: false,
        data_digest: true,
        host_data_bytes_max: 0x0403_0201,
    };
    let terminate = Terminate { status: 0x0b0a, detail: 0x0403_0201 };
    let mut terminated = [0; 24];
    terminated[..14].copy_from_slice(&[2, 0, 24, 0, 24, 0, 0, 0, 0x0a, 0x0b, 1, 2, 3, 4]);
    let command = Command::new(block::FLUSH, 0x0b0a, 1);
    let mut capsule = [0; 72];
    capsule[..16].copy_from_slice(&[4, 0, 72, 0, 72, 0, 0, 0, 0, 0x40, 0x0a, 0x0b, 1, 0, 0, 0]);
    capsule[47] = 0x5a;
    let completion = Completion { result: 1, id: 0x0b0a, ..Default::default() };
    let answer = [5, 0, 24, 0, 24, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a, 0x0b, 0, 0];
    let transfer = Transfer {
        command: 0x0b0a,
        tag: 0x0d0c,
        offset: 0x0403_0201,
        bytes: 4,
        last: true,
        success: false,
    };
    let sent = [
        6, 4, 24, 24, 28, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 4, 0, 0, 0, 0, 0, 0, 0, 9,
        9, 9, 9,
    ];
    let mut received = sent;
    received[..2].copy_from_slice(&[7, 12]);
    let ready =
        ReadyToTransfer { command: 0x0b0a, tag: 0x0d0c, offset: 0x0403_0201, bytes: 0x0807_0605 };
    let asked =
        [9, 0, 24, 0, 24, 0, 0, 0, 0x0a, 0x0b, 0x0c, 0x0d, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0];
    let data = &[9; 4];
    let cases: [(Pdu<'_>, &[u8]); 7] = [
        (Pdu::InitResponse(response), &init),
        (Pdu::HostTerminate(terminate), &terminated),
        (Pdu::Command(command, &[]), &capsule),
        (Pdu::Response(completion), &answer),
        (Pdu::HostData(transfer, data), &sent),
        (Pdu::ControllerData(Transfer { success: true, ..transfer }, data), &received),
        (Pdu::ReadyToTransfer(ready), &asked),
    ];
    for (pdu, bytes) in cases {
        let mut out = [0xee; 128];
        let length = pdu.encode(Framing::default(), &mut out).unwrap();
        assert_eq!(&out[..length], bytes, "{pdu:?}");
        assert_eq!(decode(bytes, Framing::default(), LIMIT), Ok(Some((pdu, length))));
    }
}

#[test]
fn every_pdu_comes_back_under_every_framing() {
    let data: Vec<u8> = (0..500u32).map(|byte| byte as u8).collect();
    for framing in framings() {
        for pdu in samples(&data) {
            let mut out = [0xee; 1024];
            let length = pdu.encode(framing, &mut out).unwrap();
            let read = decode(&out, framing, LIMIT).unwrap();
            assert_eq!(read, Some((pdu, length)), "{framing:?}");
            assert_eq!(decode(&out[..length - 1], framing, LIMIT), Ok(None));
            assert!(pdu.encode(framing, &mut out[..length - 1]).is_err());
        }
    }
}

fn framings() -> Vec<Framing> {
    let mut all = Vec::new();
    for (header_digest, data_digest) in [(false, false), (true, false), (false, true), (true, true)]
    {
        for alignment in [0, 1, 7, 31] {
            all.push(Framing { header_digest, data_digest, alignment });
        }
    }
    all
}

#[test]
fn a_changed_byte_is_seen_by_the_digests() {
    let framing = Framing { header_digest: true, data_digest: true, alignment: 0 };
    let mut out = [0; 1024];
    let data = [5; 64];
    let length = samples(&data)[3].encode(framing, &mut out).unwrap();
    for (at, error) in [(20, Error::HeaderDigest), (length - 10, Error::DataDigest)] {
        out[at] ^= 1;
        assert_eq!(decode(&out, framing, LIMIT), Err(error));
        match error {
            Error::HeaderDigest => assert_eq!(decode_damaged(&out, framing, LIMIT), Err(error)),
            _ => {
                let Ok(Some((pdu, taken))) = decode_damaged(&out, framing, LIMIT) else {
                    panic!("the PDU with damaged data is not given");
                };
                assert_eq!(taken, length);
                assert!(matches!(pdu, Pdu::Command(_, damaged) if damaged != data));
            }
        }
        out[at] ^= 1;
    }
    assert!(decode(&out, framing, LIMIT).is_ok());
}

#[test]
fn each_flag_of_the_common_header_stands_where_figure_19_says() {
    let data = [5; 64];
    let transfer =
        Transfer { command: 4, tag: 0, offset: 0, bytes: 64, last: false, success: false };
    let flags = |header_digest, data_digest, transfer| {
        let framing = Framing { header_digest, data_digest, alignment: 0 };
        let mut out = [0; 256];
        Pdu::ControllerData(transfer, &data).encode(framing, &mut out).unwrap();
        out[1]
    };
    assert_eq!(flags(true, false, transfer), 0b0001, "HDGSTF");
    assert_eq!(flags(false, true, transfer), 0b0010, "DDGSTF");
    assert_eq!(flags(false, false, Transfer { last: true, ..transfer }), 0b0100, "LAST_PDU");
    assert_eq!(
        flags(false, false, Transfer { last: true, success: true, ..transfer }),
        0b1100,
        "SUCCESS"
    );
}

#[test]
fn lengths_that_lie_are_refused() {
    let mut out = [0; 1024];
    let data = [5; 64];
    let length = samples(&data)[6].encode(Framing::default(), &mut out).unwrap();
    let broken = |at: usize, value: u8| {
        let mut bytes = out;
        bytes[at] = value;
        decode(&bytes, Framing::default(), LIMIT).map(|_| ())
    };
    assert_eq!(broken(0, 0x0a), Err(Error::PduType(0x0a)));
    assert_eq!(broken(2, 23), Err(Error::PduField(2)));
    assert_eq!(broken(3, 8), Err(Error::PduField(3)), "data inside the header");
    assert_eq!(broken(3, 200), Err(Error::PduField(3)), "data beyond the PDU");
    assert_eq!(broken(4, 10), Err(Error::PduField(4)), "shorter than its header");
    assert_eq!(broken(16, 63), Err(Error::PduField(16)), "another length of the data");
    assert!(matches!(broken(6, 2), Err(Error::PduLength { .. })));
    assert_eq!(pdu_bytes(&out, LIMIT), Ok(Some(length)));
    assert_eq!(pdu_bytes(&out[..7], LIMIT), Ok(None));
}

#[test]
fn data_is_written_in_place() {
    let framing = Framing { header_digest: true, data_digest: true, alignment: 3 };
    let transfer =
        Transfer { command: 4, tag: 0, offset: 0, bytes: 100, last: true, success: true };
    let mut out = [0xaa; 256];
    let at = transfer.begin_controller_data(framing, &mut out).unwrap();
    assert_eq!(at, 32);
    out[at..at + 100].fill(0x77);
    let end = finish_data(&mut out, at..at + 100, framing).unwrap();
    assert_eq!(end, framing.data_bytes(100));
    let read = decode(&out, framing, LIMIT).unwrap();
    assert_eq!(read, Some((Pdu::ControllerData(transfer, &[0x77; 100]), end)));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic(
        mut bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300),
        kind in 0u8..10,
        length in 0u32..300,
        digests in 0u8..4,
    ) {
        if bytes.len() >= 8 {
            bytes[0] = kind;
            bytes[2] = [128, 128, 24, 24, 72, 24, 24, 24, 0, 24][usize::from(kind)];
            bytes[4..8].copy_from_slice(&length.to_le_bytes());
        }
        let framing = Framing {
            header_digest: digests & 1 != 0,
            data_digest: digests & 2 != 0,
            alignment: 0,
        };
        if let Ok(Some((_, taken))) = decode(&bytes, framing, LIMIT) {
            assert!(taken <= bytes.len());
        }
    }
}
