//! How a command ended: its result, or the status that tells the host why it failed.

use spillway_store::Error as StoreError;
use spillway_types::{Put, Refusal};
use spillway_wire::nvme::Status;

/// How a command ended: the result in its completion, or an error.
pub(crate) type Outcome = Result<u64, Failure>;

/// An error status and the result that goes with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: Status,
    pub(crate) result: u64,
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self { status, result: 0 }
    }
}

/// The failure of a command whose block device reported `error`.
pub(crate) fn device_failure(error: spillway_block::Error) -> Failure {
    use spillway_block::Error;
    let status = match error {
        Error::Range => Status::OUT_OF_RANGE.finally(),
        Error::Refused(Refusal::NoPool) | Error::Gone => Status::INVALID_NAMESPACE.finally(),
        // Temporary: the client is being moved to another store, or many commands read the same page.
        Error::Refused(Refusal::Frozen) | Error::Busy => Status::NOT_READY,
        Error::Refused(_) => Status::CAPACITY.finally(),
        Error::NotAPage(_) | Error::NoCopy(_) | Error::Unreadable(_) => {
            Status::UNRECOVERED_READ.finally()
        }
        Error::Failed(_) => Status::INTERNAL,
    };
    tracing::debug!(%status, %error, "block command failed");
    status.into()
}

/// The failure of a command for which the store reported `error`.
pub(crate) fn store_failure(error: &StoreError) -> Failure {
    let status = match error {
        StoreError::NoPool | StoreError::NoClient => Status::INVALID_NAMESPACE.finally(),
        StoreError::Busy => Status::NOT_READY,
        StoreError::Corrupt | StoreError::Disk(_) | StoreError::Gone | StoreError::NotAPage(_) => {
            Status::UNRECOVERED.finally()
        }
        StoreError::Unauthorised(_) | StoreError::NoSharedPool(_) => {
            Status::ACCESS_DENIED.finally()
        }
        StoreError::TableFull | StoreError::NoRoom(_) => Status::CAPACITY.finally(),
        StoreError::Lifetime(_)
        | StoreError::WrongSharing
        | StoreError::Unreservable
        | StoreError::Spec(_) => Status::INVALID_FIELD.finally(),
        error => {
            tracing::warn!(%error, "a command of a pool failed");
            Status::INTERNAL
        }
    };
    status.into()
}

/// The outcome of a command that put a value into the store.
pub(crate) fn stored(put: Put) -> Outcome {
    match put {
        Put::Stored => Ok(0),
        Put::Refused(refusal) => Err(refused(refusal)),
    }
}

/// The failure of a command whose value the store refused.
pub(crate) fn refused(refusal: Refusal) -> Failure {
    let status = match refusal {
        Refusal::AtTarget | Refusal::NodeFull => Status::CAPACITY.finally(),
        Refusal::Frozen => Status::NOT_READY,
        Refusal::Length => Status::VALUE_SIZE.finally(),
        Refusal::NoPool => Status::INVALID_NAMESPACE.finally(),
    };
    status.into()
}
