//! The server's commands that read or change a string's bytes, or report the type of a value.

use std::ffi::{CStr, c_int};

use crate::server::{Arity, Told};

/// What to do before the server's own command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Bring back the values of its keys.
    Keys,
    /// Reply, if it meets a value of the module: from its metadata or its bytes, without bringing it back.
    Answer,
    /// Also bring back the values of the keys that its patterns refer to.
    Patterns,
    /// Bring back the values of the keys after its word KEYS.
    Listed,
    /// Bring back all values, or those of the keys after its word DIGEST-VALUE: a digest also covers the type.
    Digest,
}

/// A command of the server's.
#[derive(Debug)]
pub struct Native {
    /// Its name.
    pub name: &'static CStr,
    /// The module's name for it under which the server itself checks the user.
    pub checked: &'static CStr,
    /// The module's name for it that is open to every user.
    pub letting_in: &'static CStr,
    /// Its flags.
    pub flags: &'static CStr,
    /// How many arguments it takes, its name included.
    pub arity: Arity,
    /// Positions of its keys.
    pub keys: (c_int, c_int, c_int),
    /// How it is propagated.
    pub told: Told,
    /// What to do before it runs.
    pub need: Need,
}

/// The prefix of the names that are open to every user.
pub const LETTING_IN: &[u8] = b"spill.as.";

/// One key, the first argument.
const ONE: (c_int, c_int, c_int) = (1, 1, 1);
/// All arguments are keys.
const ALL: (c_int, c_int, c_int) = (1, -1, 1);
/// None that the server need know: it has none, or the server's own command checks them. The keys of MIGRATE have no
/// fixed place, and in a cluster it may name keys that have moved.
const NONE: (c_int, c_int, c_int) = (0, 0, 0);

macro_rules! natives {
    ($($name:literal $arity:ident($count:literal) $flags:literal $keys:expr, $told:ident, $need:ident;)*) => {
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
            arity: Arity::$arity($count),
            keys: $keys,
            told: Told::$told,
            need: Need::$need,
        },)*];
    };
}

natives! {
    "get" Exactly(2) "readonly fast" ONE, Never, Answer;
    "strlen" Exactly(2) "readonly fast" ONE, Never, Answer;
    "type" Exactly(2) "readonly fast" ONE, Never, Answer;
    "mget" AtLeast(2) "readonly fast" ALL, Never, Answer;
    "getrange" Exactly(4) "readonly" ONE, Never, Keys;
    "substr" Exactly(4) "readonly" ONE, Never, Keys;
    "getbit" Exactly(3) "readonly fast" ONE, Never, Keys;
    "bitcount" AtLeast(2) "readonly" ONE, Never, Keys;
    "bitpos" AtLeast(3) "readonly" ONE, Never, Keys;
    "bitfield_ro" AtLeast(2) "readonly fast" ONE, Never, Keys;
    "lcs" AtLeast(3) "readonly" (1, 2, 1), Never, Keys;
    "dump" Exactly(2) "readonly" ONE, Never, Keys;
    "object" Exactly(3) "readonly" (2, 2, 1), Never, Keys;
    "pfcount" AtLeast(2) "readonly may-replicate" ALL, UnderOurName, Keys;
    "sort_ro" AtLeast(2) "readonly" ONE, Never, Patterns;
    "scan" AtLeast(2) "readonly" NONE, Never, Answer;
    "set" AtLeast(3) "write deny-oom" ONE, AsItIs, Keys;
    "getset" Exactly(3) "write deny-oom fast" ONE, AsItIs, Keys;
    "getdel" Exactly(2) "write fast" ONE, AsItIs, Keys;
    "getex" AtLeast(2) "write fast" ONE, AsItIs, Keys;
    "incrbyfloat" Exactly(3) "write deny-oom fast" ONE, AsItIs, Keys;
    "append" Exactly(3) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "setrange" Exactly(4) "write deny-oom" ONE, UnderOurNameIfWritten, Keys;
    "incr" Exactly(2) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "decr" Exactly(2) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "incrby" Exactly(3) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "decrby" Exactly(3) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "setbit" Exactly(4) "write deny-oom" ONE, UnderOurNameIfWritten, Keys;
    "bitfield" AtLeast(2) "write deny-oom" ONE, UnderOurNameIfWritten, Keys;
    "bitop" AtLeast(4) "write deny-oom" (2, -1, 1), UnderOurName, Keys;
    "pfadd" AtLeast(2) "write deny-oom fast" ONE, UnderOurNameIfWritten, Keys;
    "pfmerge" AtLeast(2) "write deny-oom" ALL, UnderOurName, Keys;
    "sort" AtLeast(2) "write deny-oom" ONE, UnderOurName, Patterns;
    "debug" AtLeast(2) "admin deny-script allow-loading allow-stale" NONE, Never, Digest;
    "migrate" AtLeast(6) "write" NONE, AsItIs, Listed;
}

/// The index of a command, by its name in any case.
pub fn find(name: &[u8]) -> Option<usize> {
    // Names are short: for most commands of strings this ends after one or two comparisons of lengths.
    NATIVES.iter().position(|native| native.name.to_bytes().eq_ignore_ascii_case(name))
}
