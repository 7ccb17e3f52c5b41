//! The functions that the server lends to a module, with the names and types of redismodule.h.

use std::ffi::{c_char, c_int, c_longlong, c_ulonglong, c_void};
use std::sync::OnceLock;

/// Declares opaque structures of the server.
macro_rules! opaque {
    ($($(#[$text:meta])* $name:ident;)*) => {
        $($(#[$text])* #[repr(C)] #[derive(Debug)] pub struct $name { _private: [u8; 0] })*
    };
}

opaque! {
    /// `RedisModuleCtx`.
    RawContext;
    /// `RedisModuleString`.
    RawString;
    /// `RedisModuleKey`.
    RawKey;
    /// `RedisModuleType`.
    RawType;
    /// `RedisModuleIO`.
    RawIo;
    /// `RedisModuleDigest`.
    RawDigest;
    /// `RedisModuleCallReply`.
    RawReply;
    /// `RedisModuleInfoCtx`.
    RawInfo;
    /// `RedisModuleCommandFilterCtx`.
    RawFilter;
    /// `RedisModuleUser`.
    RawUser;
    /// `RedisModuleCommandFilter`.
    RawFilterHandle;
    /// `RedisModuleCommand`.
    RawCommand;
    /// `RedisModuleBlockedClient`.
    RawBlockedClient;
}

/// A command's entry point.
pub type CommandEntry = unsafe extern "C" fn(*mut RawContext, *mut *mut RawString, c_int) -> c_int;
/// A callback for an event.
pub type EventEntry = unsafe extern "C" fn(*mut RawContext, Event, u64, *mut c_void);
/// Adds fields to INFO.
pub type InfoEntry = unsafe extern "C" fn(*mut RawInfo, c_int);

/// Frees the work for a blocked client.
pub type FreeEntry = unsafe extern "C" fn(*mut RawContext, *mut c_void);
/// A callback for a keyspace event.
pub type KeyEntry =
    unsafe extern "C" fn(*mut RawContext, c_int, *const c_char, *mut RawString) -> c_int;
/// A filter of arriving commands.
pub type FilterEntry = unsafe extern "C" fn(*mut RawFilter);

/// `RedisModuleEvent`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Event {
    /// The event's number.
    pub id: u64,
    /// The version of the event's data.
    pub version: u64,
}

/// `RedisModuleTypeMethods`, version 4.
#[derive(Debug)]
#[repr(C)]
pub struct TypeMethods {
    pub version: u64,
    pub rdb_load: unsafe extern "C" fn(*mut RawIo, c_int) -> *mut c_void,
    pub rdb_save: unsafe extern "C" fn(*mut RawIo, *mut c_void),
    pub aof_rewrite: unsafe extern "C" fn(*mut RawIo, *mut RawString, *mut c_void),
    pub mem_usage: unsafe extern "C" fn(*const c_void) -> usize,
    pub digest: unsafe extern "C" fn(*mut RawDigest, *mut c_void),
    pub free: unsafe extern "C" fn(*mut c_void),
    pub aux_load: *const c_void,
    pub aux_save: *const c_void,
    pub aux_save_triggers: c_int,
    pub free_effort: *const c_void,
    pub unlink: *const c_void,
    pub copy: unsafe extern "C" fn(*mut RawString, *mut RawString, *const c_void) -> *mut c_void,
    pub defrag: *const c_void,
    pub mem_usage2: *const c_void,
    pub free_effort2: *const c_void,
    pub unlink2: *const c_void,
    pub copy2: *const c_void,
}

/// `RedisModuleCommandInfoVersion`.
#[derive(Debug)]
#[repr(C)]
pub struct CommandInfoVersion {
    pub version: c_int,
    pub history_entry_bytes: usize,
    pub key_spec_bytes: usize,
    pub argument_bytes: usize,
}

/// `RedisModuleCommandKeySpec`, for keys in a range that begins at an index. An all-zero entry ends a list.
#[derive(Debug)]
#[repr(C)]
pub struct KeySpec {
    pub notes: *const c_char,
    pub flags: u64,
    pub begin_search_type: c_int,
    /// A union, of which the index is one member.
    pub begin: KeySpecBegin,
    pub find_keys_type: c_int,
    pub last_key: c_int,
    pub key_step: c_int,
    pub limit: c_int,
}

/// Where the keys of a [`KeySpec`] begin: the size and alignment of the largest variant, a word and a number.
#[derive(Debug)]
#[repr(C, align(8))]
pub struct KeySpecBegin {
    pub index: c_int,
    pub others: [c_int; 3],
}

/// `RedisModuleCommandInfo`, version 1.
#[derive(Debug)]
#[repr(C)]
pub struct CommandInfo {
    pub version: *const CommandInfoVersion,
    pub summary: *const c_char,
    pub complexity: *const c_char,
    pub since: *const c_char,
    pub history: *const c_void,
    pub tips: *const c_char,
    pub arity: c_int,
    pub key_specs: *const KeySpec,
    pub arguments: *const c_void,
}

/// `RedisModule_GetApi`.
type GetApi = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;

/// Declares the table of functions and its lookup.
macro_rules! functions {
    (
        all { $($name:ident($($argument:ty),* $(; $dots:tt)?) $(-> $result:ty)?;)* }
        newer { $($newer:ident($($newer_argument:ty),*) -> $newer_result:ty;)* }
    ) => {
        /// The server's functions. Those that are newer than Redis 7.0 may be `None`.
        #[allow(non_snake_case)]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument,)* $($dots)?) $(-> $result)?,)*
            $(pub $newer: Option<unsafe extern "C" fn($($newer_argument),*) -> $newer_result>,)*
        }

        impl Functions {
            /// Looks up each function. Fails with the name of the first that the server lacks.
            ///
            /// # Safety
            /// `get` must be the server's.
            unsafe fn ask(get: GetApi) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        let mut found: *mut c_void = std::ptr::null_mut();
                        let name = concat!("RedisModule_", stringify!($name), "\0");
                        // SAFETY: the name is null-terminated, and `found` holds a pointer.
                        let status = unsafe { get(name.as_ptr().cast(), &mut found) };
                        if status != OK || found.is_null() {
                            return Err(stringify!($name));
                        }
                        // SAFETY: redismodule.h declares a function of this type under this name.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument,)* $($dots)?) $(-> $result)?,
                            >(found)
                        }
                    },)*
                    $($newer: {
                        let mut found: *mut c_void = std::ptr::null_mut();
                        let name = concat!("RedisModule_", stringify!($newer), "\0");
                        // SAFETY: the name is null-terminated, and `found` holds a pointer.
                        let status = unsafe { get(name.as_ptr().cast(), &mut found) };
                        (status == OK && !found.is_null()).then(|| {
                            // SAFETY: redismodule.h declares a function of this type under this name.
                            unsafe {
                                std::mem::transmute::<
                                    *mut c_void,
                                    unsafe extern "C" fn($($newer_argument),*) -> $newer_result,
                                >(found)
                            }
                        })
                    },)*
                })
            }
        }
    };
}

functions! {
    all {
        TryAlloc(usize) -> *mut c_void;
        Calloc(usize, usize) -> *mut c_void;
        Realloc(*mut c_void, usize) -> *mut c_void;
        Free(*mut c_void);
        SetModuleAttribs(*mut RawContext, *const c_char, c_int, c_int);
        IsModuleNameBusy(*const c_char) -> c_int;
        SetModuleOptions(*mut RawContext, c_int);
        GetServerVersion() -> c_int;
        Log(*mut RawContext, *const c_char, *const c_char; ...);
        CreateCommand(*mut RawContext, *const c_char, CommandEntry, *const c_char, c_int, c_int, c_int) -> c_int;
        CreateDataType(*mut RawContext, *const c_char, c_int, *const TypeMethods) -> *mut RawType;
        SubscribeToServerEvent(*mut RawContext, Event, EventEntry) -> c_int;
        RegisterInfoFunc(*mut RawContext, InfoEntry) -> c_int;
        InfoAddSection(*mut RawInfo, *const c_char) -> c_int;
        InfoAddFieldULongLong(*mut RawInfo, *const c_char, u64) -> c_int;
        Milliseconds() -> c_longlong;
        StringPtrLen(*const RawString, *mut usize) -> *const c_char;
        CreateString(*mut RawContext, *const c_char, usize) -> *mut RawString;
        FreeString(*mut RawContext, *mut RawString);
        OpenKey(*mut RawContext, *mut RawString, c_int) -> *mut RawKey;
        CloseKey(*mut RawKey);
        KeyType(*mut RawKey) -> c_int;
        ModuleTypeGetType(*mut RawKey) -> *mut RawType;
        ModuleTypeGetValue(*mut RawKey) -> *mut c_void;
        ModuleTypeSetValue(*mut RawKey, *mut RawType, *mut c_void) -> c_int;
        StringSet(*mut RawKey, *mut RawString) -> c_int;
        StringDMA(*mut RawKey, *mut usize, c_int) -> *const c_char;
        GetAbsExpire(*mut RawKey) -> c_longlong;
        SetAbsExpire(*mut RawKey, c_longlong) -> c_int;
        SignalModifiedKey(*mut RawContext, *mut RawString) -> c_int;
        NotifyKeyspaceEvent(*mut RawContext, c_int, *const c_char, *mut RawString) -> c_int;
        Replicate(*mut RawContext, *const c_char, *const c_char; ...) -> c_int;
        GetSelectedDb(*mut RawContext) -> c_int;
        SelectDb(*mut RawContext, c_int) -> c_int;
        Call(*mut RawContext, *const c_char, *const c_char; ...) -> *mut RawReply;
        FreeCallReply(*mut RawReply);
        CallReplyLength(*mut RawReply) -> usize;
        CallReplyArrayElement(*mut RawReply, usize) -> *mut RawReply;
        CallReplyStringPtr(*mut RawReply, *mut usize) -> *const c_char;
        CallReplyType(*mut RawReply) -> c_int;
        ReplyWithCallReply(*mut RawContext, *mut RawReply) -> c_int;
        ReplicateVerbatim(*mut RawContext) -> c_int;
        GetContextFlags(*mut RawContext) -> c_int;
        RegisterCommandFilter(*mut RawContext, FilterEntry, c_int) -> *mut RawFilterHandle;
        CommandFilterArgsCount(*mut RawFilter) -> c_int;
        CommandFilterArgGet(*mut RawFilter, c_int) -> *mut RawString;
        CommandFilterArgReplace(*mut RawFilter, c_int, *mut RawString) -> c_int;
        RetainString(*mut RawContext, *mut RawString);
        GetCurrentUserName(*mut RawContext) -> *mut RawString;
        GetModuleUserFromUserName(*mut RawString) -> *mut RawUser;
        ACLCheckCommandPermissions(*mut RawUser, *mut *mut RawString, c_int) -> c_int;
        FreeModuleUser(*mut RawUser);
        GetUsedMemoryRatio() -> f32;
        AvoidReplicaTraffic() -> c_int;
        ValueLength(*mut RawKey) -> usize;
        GetLRU(*mut RawKey, *mut c_longlong) -> c_int;
        SetLRU(*mut RawKey, c_longlong) -> c_int;
        GetLFU(*mut RawKey, *mut c_longlong) -> c_int;
        SetLFU(*mut RawKey, c_longlong) -> c_int;
        ReplyWithError(*mut RawContext, *const c_char) -> c_int;
        ReplyWithSimpleString(*mut RawContext, *const c_char) -> c_int;
        ReplyWithStringBuffer(*mut RawContext, *const c_char, usize) -> c_int;
        ReplyWithLongLong(*mut RawContext, c_longlong) -> c_int;
        ReplyWithNull(*mut RawContext) -> c_int;
        ReplyWithArray(*mut RawContext, std::ffi::c_long) -> c_int;
        ReplyWithMap(*mut RawContext, std::ffi::c_long) -> c_int;
        WrongArity(*mut RawContext) -> c_int;
        IsIOError(*mut RawIo) -> c_int;
        SaveUnsigned(*mut RawIo, u64);
        SaveStringBuffer(*mut RawIo, *const c_char, usize);
        LoadUnsigned(*mut RawIo) -> u64;
        LoadStringBuffer(*mut RawIo, *mut usize) -> *mut c_char;
        EmitAOF(*mut RawIo, *const c_char, *const c_char; ...);
        DigestAddStringBuffer(*mut RawDigest, *const c_char, usize);
        DigestEndSequence(*mut RawDigest);
        GetCommand(*mut RawContext, *const c_char) -> *mut RawCommand;
        SetCommandInfo(*mut RawCommand, *const CommandInfo) -> c_int;
        GetClientUserNameById(*mut RawContext, u64) -> *mut RawString;
        SubscribeToKeyspaceEvents(*mut RawContext, c_int, KeyEntry) -> c_int;
        GetNotifyKeyspaceEvents() -> c_int;
        BlockClient(*mut RawContext, CommandEntry, *const c_void, FreeEntry, c_longlong) -> *mut RawBlockedClient;
        UnblockClient(*mut RawBlockedClient, *mut c_void) -> c_int;
        GetBlockedClientPrivateData(*mut RawContext) -> *mut c_void;
        GetDetachedThreadSafeContext(*mut RawContext) -> *mut RawContext;
    }
    newer {
        CommandFilterGetClientId(*mut RawFilter) -> c_ulonglong;
    }
}

/// `REDISMODULE_OK`.
pub const OK: c_int = 0;

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The functions, once the server has lent them.
pub fn lent() -> Option<&'static Functions> {
    FUNCTIONS.get()
}

/// The functions. Every callback runs after the server has lent them.
pub fn functions() -> &'static Functions {
    FUNCTIONS.get().expect("the server lends its functions before it calls")
}

/// Takes the functions of the server that loads this. Fails with the name of the first one that it lacks.
///
/// # Safety
/// `context` must be the one that the server passed to the module's entry point.
pub unsafe fn take(context: *mut RawContext) -> Result<&'static Functions, &'static str> {
    if let Some(functions) = lent() {
        return Ok(functions);
    }
    // SAFETY: by the module interface, a context begins with the address of GetApi.
    let get = unsafe { *context.cast::<GetApi>() };
    // SAFETY: `get` is the server's.
    let functions = unsafe { Functions::ask(get) }?;
    Ok(FUNCTIONS.get_or_init(|| functions))
}
