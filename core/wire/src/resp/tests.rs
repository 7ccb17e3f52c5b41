use super::*;
use proptest::prelude::*;

/// The commands in `bytes`, decoded in pieces of `step` bytes.
fn commands(bytes: &[u8], step: usize) -> Result<Vec<Vec<Vec<u8>>>, Error> {
    let mut decoder = Decoder::new();
    decoder.set_known(true);
    let (mut input, mut long, mut found) = (Vec::new(), Vec::new(), Vec::new());
    let mut left = 0_u64;
    for piece in bytes.chunks(step) {
        let mut piece = piece;
        if left > 0 {
            let now = piece.len().min(left as usize);
            left -= now as u64;
            piece = &piece[now..];
            if left == 0 {
                decoder.taken();
            }
        }
        input.extend_from_slice(piece);
        loop {
            match decoder.decode(&input)? {
                Step::More => break,
                Step::Command(used) => {
                    let text = decoder.text(&input[..used]);
                    let argument = |argument: &Argument| match *argument {
                        Argument::Bytes { at, length } => {
                            text[at as usize..][..length as usize].to_vec()
                        }
                        Argument::Long(number) => format!("long {number}").into_bytes(),
                    };
                    found.push(decoder.arguments().iter().map(argument).collect());
                    input.drain(..used);
                }
                Step::Long(length) => {
                    let at = decoder.at();
                    let now = (input.len() - at).min(length as usize);
                    input.drain(at..at + now);
                    left = length - now as u64;
                    long.push(length);
                    if left == 0 {
                        decoder.taken();
                    }
                }
            }
        }
    }
    Ok(found)
}

fn words(list: &[&[&str]]) -> Vec<Vec<Vec<u8>>> {
    let command = |words: &&[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect();
    list.iter().map(command).collect()
}

#[test]
fn commands_are_found_wherever_they_are_cut() {
    let long = "v".repeat(LONG_BYTES_MIN + 1);
    let bytes = format!(
        "*2\r\n$3\r\nGET\r\n$0\r\n\r\nPING  'a b'\r\n*0\r\n*4\r\n$3\r\nSET\r\n$1\r\nk\r\n${}\r\n{long}\r\n$2\r\nNX\r\n\r\nping\n",
        long.len()
    );
    let expected = words(&[
        &["GET", ""],
        &["PING", "a b"],
        &[],
        &["SET", "k", "long 0", "NX"],
        &[],
        &["ping"],
    ]);
    for step in [1, 2, 3, 7, 64, 1000, 65_539, bytes.len()] {
        assert_eq!(commands(bytes.as_bytes(), step).unwrap(), expected, "{step}");
    }
}

#[test]
fn what_is_wrong_is_said_as_redis_does() {
    for (bytes, line) in [
        ("*3\r\n$3\r\nSET\r\n$1\r\nx\r\nfooz\r\n", "expected '$', got 'f'"),
        ("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$-10\r\n", "invalid bulk length"),
        ("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$2000000000\r\n", "invalid bulk length"),
        ("*3\r\n$3\r\nSET\r\n$1\r\nx\r\n$blabla\r\n", "invalid bulk length"),
        ("*20000000\r\n", "invalid multibulk length"),
        ("*x\r\n", "invalid multibulk length"),
        ("a \"b\r\n", "unbalanced quotes in request"),
        ("a \"b\"c\r\n", "unbalanced quotes in request"),
        ("*00000000000000000000000000000000001", "too big mbulk count string"),
    ] {
        assert_eq!(commands(bytes.as_bytes(), 1).unwrap_err().to_string(), line, "{bytes}");
    }
    let line = vec![b'a'; LINE_BYTES_MAX + 1];
    assert_eq!(commands(&line, 1 << 20), Err(Error::Inline));
    let mut stranger = Decoder::new();
    assert_eq!(stranger.decode(b"*11\r\n"), Err(Error::StrangerCount));
    let mut stranger = Decoder::new();
    assert_eq!(stranger.decode(b"*1\r\n$16385\r\n"), Err(Error::StrangerLength));
}

#[test]
fn numbers_are_read_strictly() {
    for (text, number) in [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX)] {
        assert_eq!(integer(text.as_bytes()), Some(number));
    }
    assert_eq!(integer(i64::MIN.to_string().as_bytes()), Some(i64::MIN));
    for text in ["", "-", "+1", "01", "-0", " 1", "1 ", "9223372036854775808", "1.0"] {
        assert_eq!(integer(text.as_bytes()), None, "{text}");
    }
}

#[test]
fn replies_differ_by_version() {
    let write = |version| {
        let mut bytes = Vec::new();
        let mut encoder = Encoder::new(&mut bytes, version);
        encoder.map(1);
        encoder.null();
        encoder.integer(i64::MIN);
        encoder.text("a");
        encoder.error(b"ERR a\r\nb");
        String::from_utf8(bytes).unwrap()
    };
    let two = "*2\r\n$-1\r\n:-9223372036854775808\r\n$1\r\na\r\n-ERR a  b\r\n";
    assert_eq!(write(Version::Two), two);
    let three = "%1\r\n_\r\n:-9223372036854775808\r\n=5\r\ntxt:a\r\n-ERR a  b\r\n";
    assert_eq!(write(Version::Three), three);
}

proptest! {
    #[test]
    fn any_bytes_are_read_the_same_however_they_are_cut(
        bytes in proptest::collection::vec(
            prop_oneof![Just(b'*'), Just(b'$'), Just(b'\r'), Just(b'\n'), b'0'..b'3', any::<u8>()],
            0..200,
        ),
        step in 1..50_usize,
    ) {
        // Both find the commands before the error.
        let (whole, cut) = (commands(&bytes, 1 << 20), commands(&bytes, step));
        prop_assert_eq!(whole.is_ok(), cut.is_ok());
        if let (Ok(whole), Ok(cut)) = (whole, cut) {
            prop_assert_eq!(whole, cut);
        }
    }
}
