//! What a guest's state machine is told, and what it wants done.

use crate::agent::{FromGuest, FromHost};

/// Names an order until its [`Outcome`].
pub type OrderId = u64;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed: to be told at the latest at [`crate::Guest::wake_at_us`].
    Tick,
    /// The monitor answers: what the VM has now. Also after a restart of the daemon or of QEMU.
    Attached(Facts),
    /// The monitor is out of reach: why.
    Detached(String),
    /// The devices' sizes were read: of each in order, size and requested size, bytes.
    Read(Vec<(u64, u64)>),
    /// The guest was reset: all devices are empty until its driver plugs what is requested.
    Reset,
    /// What came of [`Action::Reserve`]: what the device has set aside now, or why not.
    Reserved {
        /// The device.
        device: usize,
        /// Bytes that are set aside for the device now, or why no more are.
        result: Result<u64, String>,
    },
    /// What came of [`Action::Request`].
    Requested {
        /// The device.
        device: usize,
        /// What the guest is asked for now, bytes, or why the monitor refused.
        result: Result<u64, String>,
    },
    /// What came of [`Action::Release`]: what is still set aside for the device, bytes.
    Released {
        /// The device.
        device: usize,
        /// Bytes.
        set_aside_bytes: u64,
    },
    /// The agent says something. Before a wish of the guest, the devices' sizes are to be read.
    Agent(FromGuest),
    /// The agent's channel was connected: nothing is known of it.
    AgentConnected,
    /// The agent's channel is closed.
    AgentGone,
    /// Somebody wants another size. The devices' sizes are to be read right before.
    Order(Order),
    /// The operator lets the guest's size change by itself, or not.
    Auto(bool),
    /// The configuration was read again.
    Settings(crate::Settings),
}

/// What a VM has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// What it booted with, bytes.
    pub boot_bytes: u64,
    /// Its virtio-mem devices, in the order in which they are filled.
    pub devices: Vec<Device>,
}

/// A virtio-mem device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// What it can hold, bytes.
    pub max_bytes: u64,
    /// What the guest has plugged, bytes.
    pub size_bytes: u64,
    /// What the guest is asked to plug, bytes.
    pub requested_bytes: u64,
    /// What the pool has set aside for it, bytes.
    pub set_aside_bytes: u64,
}

/// Who wants another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The operator.
    Operator,
    /// The memory manager.
    Manager,
    /// The guest, by its agent.
    Guest {
        /// Comes back in [`FromHost::Answer`].
        need: u64,
        /// Why.
        cause: Cause,
        /// How long it may wait for memory that others have, microseconds of the machine's time.
        until_us: u64,
    },
    /// The daemon: what it found under way when it came to the VM.
    Daemon,
}

/// Why a guest wants another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its reserve is being used up: a program may be killed otherwise.
    LastMoment,
    /// Its agent foresees that it will be, or that it never will.
    Foreseen,
    /// A program has asked for it.
    Program,
}

/// A wish for another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Names it.
    pub id: OrderId,
    /// Who wants it.
    pub who: Who,
    /// The size that is wanted, bytes, what the guest booted with included.
    pub to_bytes: u64,
    /// Whether the guest goes back to the size that it had, when it can't reach this one in time.
    pub roll_back: bool,
    /// Whether to shrink the guest even if too little would be available in it.
    pub force: bool,
}

/// Something to be done, in order. `Reserve`, `Request` and `Release` are each answered by the event of that name before
/// any other event is handed in; the others have no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The pool is to set aside more for a device.
    Reserve {
        /// The device.
        device: usize,
        /// How much more than it has, bytes.
        more_bytes: u64,
    },
    /// The device is to ask the guest for a size.
    Request {
        /// The device.
        device: usize,
        /// The size, bytes.
        bytes: u64,
    },
    /// The pool gets back what the device does not use.
    Release {
        /// The device.
        device: usize,
        /// What is plugged; the guest is asked for no more.
        size_bytes: u64,
    },
    /// The agent is to be told something.
    Tell(FromHost),
    /// An order has come to its end.
    Done(Outcome),
    /// A line for the log.
    Say(String),
}

/// How an order ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The order.
    pub order: Order,
    /// How.
    pub end: End,
    /// The guest's size before, bytes.
    pub from_bytes: u64,
    /// The size that was aimed at, after rounding, bytes.
    pub aim_bytes: u64,
    /// The guest's size now, bytes.
    pub size_bytes: u64,
    /// How long each stage took.
    pub times: Times,
}

/// The end of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest has the size that was aimed at.
    Reached,
    /// Time was up: the guest went part of the way, and stays there.
    Partial,
    /// Time was up, and the guest has its former size again, or what it could take of it.
    RolledBack,
    /// A newer order took its place.
    Superseded,
    /// Nothing was changed: why.
    Refused(String),
    /// The VM went out of reach meanwhile: why.
    Lost(String),
}

/// How long the stages of a change took, microseconds; 0 for what was not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The pool set memory aside.
    pub reserve_us: u64,
    /// The agent set blocks offline.
    pub offline_us: u64,
    /// The guest plugged or unplugged, from the request to the size.
    pub guest_us: u64,
    /// The pool got memory back.
    pub release_us: u64,
    /// From the order to its end.
    pub total_us: u64,
}
