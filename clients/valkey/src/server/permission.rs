//! The user of a command, and the server's ACL rules.

use std::ffi::{CStr, c_int};

use super::context::{Context, OwnText, Text};
use super::table::{OK, RawString, functions};

/// `REDISMODULE_CTX_FLAGS_LUA` and `REDISMODULE_CTX_FLAGS_MULTI`.
const WITHIN: c_int = 1 | 1 << 1;
/// `REDISMODULE_CTX_FLAGS_REPLICATED` and `REDISMODULE_CTX_FLAGS_LOADING`: the command was permitted at its origin.
const FROM_ELSEWHERE: c_int = 1 << 12 | 1 << 13;
/// `REDISMODULE_CTX_FLAGS_SLAVE`.
const REPLICA: c_int = 1 << 3;
/// `REDISMODULE_CTX_FLAGS_ASYNC_LOADING`.
const LOADS_BESIDE: c_int = 1 << 23;
/// Redis 7.0's prefix of an ACL error; the denied action follows.
const DENIED: &[u8] = b"acl verification failed, ";

/// The originator of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asker {
    /// The master, the append-only file, or another module: everything is permitted.
    Trusted,
    /// A user of this name.
    User(Vec<u8>),
}

impl Context<'_> {
    /// Whether the command runs in a script or at EXEC. Only an authenticated client can start either.
    pub fn is_within(&self) -> bool {
        self.flags() & WITHIN != 0
    }

    /// Whether a replica is loading its next content beside the one that it serves.
    pub(super) fn loads_beside(&self) -> bool {
        self.flags() & LOADS_BESIDE != 0
    }

    /// Whether the server is a replica.
    pub(super) fn is_replica(&self) -> bool {
        self.flags() & REPLICA != 0
    }

    /// The originator of the running command.
    pub fn asker(&self) -> Asker {
        if self.flags() & FROM_ELSEWHERE != 0 || self.has_no_user() {
            return Asker::Trusted;
        }
        // SAFETY: the context's client has a user; the name is this module's to free.
        let name = unsafe { (functions().GetCurrentUserName)(self.raw()) };
        Asker::User(self.owned(name))
    }

    /// Whether `asker` may run one of the server's commands with these arguments.
    pub fn permits<'b, 'text: 'b>(
        &self,
        asker: &Asker,
        native: &CStr,
        arguments: impl IntoIterator<Item = &'b Text<'text>>,
    ) -> bool {
        let native = OwnText::new(native.to_bytes());
        let arguments = arguments.into_iter().map(Text::raw);
        permits(asker, std::iter::once(native.text().raw()).chain(arguments).collect())
    }

    pub(super) fn flags(&self) -> c_int {
        // SAFETY: the call takes the context alone.
        unsafe { (functions().GetContextFlags)(self.raw()) }
    }

    /// Whether the client of this context has no user. The server has no function for this: asking for the name of no
    /// user reads through a null pointer. Instead, call a command that does not exist, as the user: without a user the
    /// server fails with ENOTSUP.
    fn has_no_user(&self) -> bool {
        // SAFETY: errno is this thread's own; the server sets it when it refuses a call. `C` requires a user first.
        unsafe {
            *libc::__errno_location() = 0;
            let reply = (functions().Call)(self.raw(), c"spill.nobody".as_ptr(), c"C".as_ptr());
            debug_assert!(reply.is_null(), "there is no such command");
        }
        std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOTSUP)
    }

    /// The bytes of a string that the server made for the module. Frees the string. Empty for null.
    fn owned(&self, raw: *mut RawString) -> Vec<u8> {
        if raw.is_null() {
            return Vec::new();
        }
        // SAFETY: the string is the module's, and is freed once, here.
        unsafe {
            let bytes = Text::from_raw(raw).bytes().to_vec();
            (functions().FreeString)(self.raw(), raw);
            bytes
        }
    }

    /// The name of the user of the client with this id; `None` when there is no such client or no user.
    pub fn user_of(&self, client: u64) -> Option<Vec<u8>> {
        // SAFETY: the server looks the id up, and returns null when it finds nothing.
        let name = unsafe { (functions().GetClientUserNameById)(self.raw(), client) };
        (!name.is_null()).then(|| self.owned(name))
    }
}

/// Whether the ACL rules let `asker` run a command with its arguments.
pub(super) fn permits(asker: &Asker, mut command: Vec<*mut RawString>) -> bool {
    let Asker::User(name) = asker else { return true };
    let functions = functions();
    let name = OwnText::new(name);
    // SAFETY: this block frees the user that it gets; the strings live until it ends.
    unsafe {
        let user = (functions.GetModuleUserFromUserName)(name.text().raw());
        if user.is_null() {
            return false;
        }
        let count = command.len() as c_int;
        let permitted =
            (functions.ACLCheckCommandPermissions)(user, command.as_mut_ptr(), count) == OK;
        (functions.FreeModuleUser)(user);
        permitted
    }
}

/// The reply to a user who may not run a command, worded as the server words it. `said` is what the server replied to
/// the module; empty if it was not asked.
pub fn denied(native: &CStr, said: &[u8]) -> String {
    let said = said.strip_prefix(b"-").unwrap_or(said);
    if said.starts_with(b"NOPERM") {
        return String::from_utf8_lossy(said).trim_end().to_owned();
    }
    let what = said.strip_prefix(DENIED).unwrap_or(said);
    if what.windows(3).any(|word| word == b"key") {
        return "NOPERM this user has no permissions to access one of the keys used as arguments"
            .to_owned();
    }
    format!("NOPERM this user has no permissions to run the '{}' command", native.to_string_lossy())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denials_are_told_as_the_server_tells_them() {
        for (said, told) in [
            (
                "-NOPERM User x has no permissions to run the 'get' command\r\n",
                "NOPERM User x has no permissions to run the 'get' command",
            ),
            (
                "acl verification failed, can't run this command or subcommand.",
                "NOPERM this user has no permissions to run the 'get' command",
            ),
            (
                "acl verification failed, can't access at least one of the keys mentioned in the command arguments.",
                "NOPERM this user has no permissions to access one of the keys used as arguments",
            ),
        ] {
            assert_eq!(denied(c"get", said.as_bytes()), told);
        }
    }
}
