//! The server's commands that read or change a string's bytes, or say what kind of value a key has.

use std::ffi::{CStr, c_int};

use crate::server::Told;

/// What is done for a command before the server's own runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Its keys' values come back.
    Keys,
    /// Nothing, if the answer can be given from what is known of a value in the store: then that is the answer.
    Answer,
    /// The keys of its patterns come back too.
    Patterns,
    /// The keys behind its word KEYS come back.
    Listed,
}

/// A command of the server's.
#[derive(Debug)]
pub struct Native {
    /// Its name.
    pub name: &'static CStr,
    /// The module's name for it under which the server itself checks who asks.
    pub checked: &'static CStr,
    /// The module's name for it under which the server lets in every user.
    pub letting_in: &'static CStr,
    /// Its flags.
    pub flags: &'static CStr,
    /// Where its keys are.
    pub keys: (c_int, c_int, c_int),
    /// How it is told to others.
    pub told: Told,
    /// What it needs.
    pub need: Need,
}

/// What names begin with under which the server lets in every user.
pub const LETTING_IN: &[u8] = b"spill.as.";

/// One key, the first argument.
const ONE: (c_int, c_int, c_int) = (1, 1, 1);
/// All arguments are keys.
const ALL: (c_int, c_int, c_int) = (1, -1, 1);

macro_rules! natives {
    ($($name:literal $flags:literal $keys:expr, $told:ident, $need:ident;)*) => {
        /// All of them.
        pub const NATIVES: &[Native] = &[$(Native {
            name: match CStr::from_bytes_with_nul(concat!($name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            },
            checked: match CStr::from_bytes_with_nul(concat!("spill.do.", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            },
            letting_in: match CStr::from_bytes_with_nul(concat!("spill.as.", $name, "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => panic!("a name without zeros"),
            },
            flags: match CStr::from_bytes_with_nul(concat!($flags, "\0").as_bytes()) {
                Ok(flags) => flags,
                Err(_) => panic!("flags without zeros"),
            },
            keys: $keys,
            told: Told::$told,
            need: Need::$need,
        },)*];
    };
}

natives! {
    "get" "readonly fast" ONE, Never, Answer;
    "strlen" "readonly fast" ONE, Never, Answer;
    "type" "readonly fast" ONE, Never, Answer;
    "mget" "readonly fast" ALL, Never, Keys;
    "getrange" "readonly" ONE, Never, Keys;
    "substr" "readonly" ONE, Never, Keys;
    "getbit" "readonly fast" ONE, Never, Keys;
    "bitcount" "readonly" ONE, Never, Keys;
    "bitpos" "readonly" ONE, Never, Keys;
    "bitfield_ro" "readonly fast" ONE, Never, Keys;
    "lcs" "readonly" (1, 2, 1), Never, Keys;
    "dump" "readonly" ONE, Never, Keys;
    "object" "readonly" (2, 2, 1), Never, Keys;
    "pfcount" "readonly may-replicate" ALL, Never, Keys;
    "sort_ro" "readonly" ONE, Never, Patterns;
    "scan" "readonly" (0, 0, 0), Never, Answer;
    "set" "write deny-oom" ONE, AsItIs, Keys;
    "getset" "write deny-oom fast" ONE, AsItIs, Keys;
    "getdel" "write fast" ONE, AsItIs, Keys;
    "getex" "write fast" ONE, AsItIs, Keys;
    "incrbyfloat" "write deny-oom fast" ONE, AsItIs, Keys;
    "append" "write deny-oom fast" ONE, UnderOurName, Keys;
    "setrange" "write deny-oom" ONE, UnderOurName, Keys;
    "incr" "write deny-oom fast" ONE, UnderOurName, Keys;
    "decr" "write deny-oom fast" ONE, UnderOurName, Keys;
    "incrby" "write deny-oom fast" ONE, UnderOurName, Keys;
    "decrby" "write deny-oom fast" ONE, UnderOurName, Keys;
    "setbit" "write deny-oom" ONE, UnderOurName, Keys;
    "bitfield" "write deny-oom" ONE, UnderOurName, Keys;
    "bitop" "write deny-oom" (2, -1, 1), UnderOurName, Keys;
    "pfadd" "write deny-oom fast" ONE, UnderOurName, Keys;
    "pfmerge" "write deny-oom" ALL, UnderOurName, Keys;
    "sort" "write deny-oom" ONE, UnderOurName, Patterns;
    "migrate" "write" (3, 3, 1), AsItIs, Listed;
}

/// The command of a name, in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    // Names are short, and most commands of a string's end here after a comparison of lengths or two.
    NATIVES.iter().position(|native| native.name.to_bytes().eq_ignore_ascii_case(name))
}
