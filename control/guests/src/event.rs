//! Events and actions of a guest's state machine.

use crate::agent::{FromGuest, FromHost};

/// Names an order until its [`Outcome`].
pub type OrderId = u64;

/// Something that has happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Time has passed: send it at the latest at [`crate::Guest::wake_at_us`].
    Tick,
    /// The monitor answers: the VM's present memory. Also after a restart of the daemon or of QEMU.
    Attached(Facts),
    /// The monitor is out of reach: why.
    Detached(String),
    /// The devices' sizes were read: of each in order, size and requested size, bytes.
    Read(Vec<(u64, u64)>),
    /// The guest was reset: all devices are empty until its driver plugs what is requested.
    Reset,
    /// The result of [`Action::Reserve`]: what is reserved for the device now, or the error.
    Reserved {
        /// The device.
        device: usize,
        /// Bytes that are reserved for the device now, or why no more are.
        result: Result<u64, String>,
    },
    /// The result of [`Action::Request`].
    Requested {
        /// The device.
        device: usize,
        /// The requested size now, bytes, or why the monitor refused.
        result: Result<u64, String>,
    },
    /// The result of [`Action::Release`]: what is still reserved for the device, bytes.
    Released {
        /// The device.
        device: usize,
        /// Bytes.
        set_aside_bytes: u64,
    },
    /// A message of the agent. Read the devices' sizes before a guest's request.
    Agent(FromGuest),
    /// The agent's channel was connected; its state is unknown.
    AgentConnected,
    /// The agent's channel is closed.
    AgentGone,
    /// An order for another size. Read the devices' sizes right before.
    Order(Order),
    /// The operator sets whether the guest's size changes automatically.
    Auto(bool),
    /// The configuration was read again.
    Settings(crate::Settings),
}

/// A VM's memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Its boot memory, bytes.
    pub boot_bytes: u64,
    /// Its virtio-mem devices, in the order in which they are filled.
    pub devices: Vec<Device>,
}

/// A virtio-mem device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its capacity, bytes.
    pub max_bytes: u64,
    /// Plugged bytes.
    pub size_bytes: u64,
    /// Requested bytes.
    pub requested_bytes: u64,
    /// Reserved bytes.
    pub set_aside_bytes: u64,
}

/// The source of an order.
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
        /// Until when it may wait for memory of others, microseconds of the machine's time.
        until_us: u64,
    },
    /// The daemon: a change in progress that it found when it attached to the VM.
    Daemon,
}

/// Why a guest wants another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Its reserve is being used up: a program may be killed otherwise.
    LastMoment,
    /// Its agent predicts that its reserve will be used up (need) or will stay unused (give).
    Foreseen,
    /// A program has requested it.
    Program,
}

/// An order for another size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Names it.
    pub id: OrderId,
    /// Its source.
    pub who: Who,
    /// The size, boot memory included, bytes.
    pub to_bytes: u64,
    /// Whether to restore the former size if this one is not reached in time.
    pub roll_back: bool,
    /// Whether to shrink the guest even if too little would be available in it.
    pub force: bool,
}

/// An action; execute them in order. Answer `Reserve`, `Request` and `Release` by the event of that name before any
/// other event; the others have no answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reserve more memory of the pool for a device.
    Reserve {
        /// The device.
        device: usize,
        /// How much more than it has, bytes.
        more_bytes: u64,
    },
    /// Request a size of the device from the guest.
    Request {
        /// The device.
        device: usize,
        /// The size, bytes.
        bytes: u64,
    },
    /// Return memory that the device does not use to the pool.
    Release {
        /// The device.
        device: usize,
        /// The plugged bytes; no more is requested.
        size_bytes: u64,
    },
    /// Send a message to the agent.
    Tell(FromHost),
    /// An order has ended.
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
    /// The aim, after rounding, bytes.
    pub aim_bytes: u64,
    /// The guest's size now, bytes.
    pub size_bytes: u64,
    /// How long each stage took.
    pub times: Times,
}

/// The end of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The guest has reached the aim.
    Reached,
    /// Timeout: the guest reached part of the change, and stays there.
    Partial,
    /// Timeout: the guest has its former size again, or as much of it as it could take.
    RolledBack,
    /// A newer order took its place.
    Superseded,
    /// Nothing was changed: why.
    Refused(String),
    /// The VM went out of reach meanwhile: why.
    Lost(String),
}

/// Durations of the stages of a change, microseconds; 0 for a stage that was not needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// The pool reserved memory.
    pub reserve_us: u64,
    /// The agent set blocks offline.
    pub offline_us: u64,
    /// The guest plugged or unplugged, from the request to the size.
    pub guest_us: u64,
    /// The pool freed memory.
    pub release_us: u64,
    /// From the order to its end.
    pub total_us: u64,
}
