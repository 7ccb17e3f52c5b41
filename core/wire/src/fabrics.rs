//! Fabrics commands (Base 2.1, section 6): opcode 7Fh, the type in byte 4.

use zerocopy::transmute;

use crate::nvme::{Command, DataPointer, SubmissionQueueEntry};

mod command;
mod connect;
mod properties;

pub use command::{
    AuthenticationCommand, ConnectCommand, DisconnectCommand, FabricsCommand, PropertyGetCommand,
    PropertySetCommand,
};
pub use connect::{
    ANY_CONTROLLER, ANY_STATIC_CONTROLLER, CONNECT_DATA_BYTES, ConnectCommandData, ConnectData,
    ConnectInvalidParameters, ConnectResponse, ConnectResult, DISCOVERY_NQN, NQN_BYTES,
    NQN_BYTES_MAX, decode_nqn, invalid_parameter,
};
pub use properties::{
    ControllerCapabilities, ControllerConfiguration, ControllerStatus, VERSION, property,
};

/// Types of fabrics commands (section 6, figure 540).
pub mod kind {
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTH_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTH_RECEIVE: u8 = 0x06;
    /// Disconnect (of an I/O queue).
    pub const DISCONNECT: u8 = 0x08;
}

/// A decoded fabrics command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabrics {
    /// Creates a queue. Data out is a [`ConnectData`].
    Connect(Connect),
    /// Reads a property.
    PropertyGet {
        /// The offset of the property.
        offset: u32,
        /// 8 bytes instead of 4.
        wide: bool,
    },
    /// Writes a property.
    PropertySet {
        /// The offset of the property.
        offset: u32,
        /// 8 bytes instead of 4.
        wide: bool,
        /// The new value.
        value: u64,
    },
    /// Sends a message of an authentication, the data out.
    AuthSend(AuthTransfer),
    /// Receives a message of an authentication, the data in.
    AuthReceive(AuthTransfer),
    /// Ends a queue.
    Disconnect,
}

/// Parameters of Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// Format of the command; 0.
    pub format: u16,
    /// Number of the queue; 0 is the admin queue.
    pub queue: u16,
    /// Entries of the submission queue, less one.
    pub queue_entries: u16,
    /// Bit 2: no flow control by the queue's head.
    pub attributes: u8,
    /// Keep alive timeout, ms; 0 is none. For the admin queue.
    pub keep_alive_ms: u32,
}

impl Connect {
    /// Attribute: no flow control by the queue's head.
    pub const NO_FLOW_CONTROL: u8 = 1 << 2;
}

/// Parameters of Authentication Send and Receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthTransfer {
    /// Security protocol; E9h for NVMe.
    pub protocol: u8,
    /// Specific to the protocol: 1 and 1 for in-band authentication.
    pub specific: [u8; 2],
    /// Bytes of the message, or of the buffer for it.
    pub bytes: u32,
}

impl AuthTransfer {
    /// The parameters of a message of in-band authentication.
    pub const fn in_band(bytes: u32) -> Self {
        Self { protocol: 0xe9, specific: [1, 1], bytes }
    }

    /// Whether the message belongs to in-band authentication.
    pub const fn is_in_band(&self) -> bool {
        self.protocol == 0xe9 && self.specific[0] == 1 && self.specific[1] == 1
    }
}

impl Fabrics {
    /// Decodes a command of opcode 7Fh. `None` for an unknown type.
    pub fn decode(command: &Command) -> Option<Self> {
        let entry = SubmissionQueueEntry::from(command);
        let disconnect: DisconnectCommand = transmute!(entry);
        Some(match disconnect.common.fabrics_command_type {
            kind::CONNECT => {
                let connect: ConnectCommand = transmute!(entry);
                Self::Connect(Connect {
                    format: connect.record_format.get(),
                    queue: connect.queue_id.get(),
                    queue_entries: connect.submission_queue_size.get(),
                    attributes: connect.connect_attributes,
                    keep_alive_ms: connect.keep_alive_timeout.get(),
                })
            }
            kind::PROPERTY_GET => {
                let get: PropertyGetCommand = transmute!(entry);
                Self::PropertyGet { offset: get.offset.get(), wide: is_wide(get.attributes) }
            }
            kind::PROPERTY_SET => {
                let set: PropertySetCommand = transmute!(entry);
                Self::PropertySet {
                    offset: set.offset.get(),
                    wide: is_wide(set.attributes),
                    value: set.value.get(),
                }
            }
            kind::AUTH_SEND => Self::AuthSend(AuthTransfer::read(&transmute!(entry))),
            kind::AUTH_RECEIVE => Self::AuthReceive(AuthTransfer::read(&transmute!(entry))),
            kind::DISCONNECT => Self::Disconnect,
            _ => return None,
        })
    }

    /// Encodes the command. By its data pointer the transport moves the data. The data of Connect is in the capsule, as
    /// the transport requires.
    pub fn encode(&self, id: u16) -> Command {
        let new = |kind: u8| FabricsCommand::new(kind, id, DataPointer::transport(0));
        let entry: SubmissionQueueEntry = match self {
            Self::Connect(connect) => {
                let data = DataPointer::in_capsule(CONNECT_DATA_BYTES as u32);
                transmute!(ConnectCommand {
                    common: FabricsCommand::new(kind::CONNECT, id, data),
                    record_format: connect.format.into(),
                    queue_id: connect.queue.into(),
                    submission_queue_size: connect.queue_entries.into(),
                    connect_attributes: connect.attributes,
                    reserved_1: 0,
                    keep_alive_timeout: connect.keep_alive_ms.into(),
                    nvm_set_identifier: 0.into(),
                    reserved_2: [0; _],
                })
            }
            Self::PropertyGet { offset, wide } => transmute!(PropertyGetCommand {
                common: new(kind::PROPERTY_GET),
                attributes: u8::from(*wide),
                reserved_1: [0; _],
                offset: (*offset).into(),
                reserved_2: [0; _],
            }),
            Self::PropertySet { offset, wide, value } => transmute!(PropertySetCommand {
                common: new(kind::PROPERTY_SET),
                attributes: u8::from(*wide),
                reserved_1: [0; _],
                offset: (*offset).into(),
                value: (*value).into(),
                reserved_2: [0; _],
            }),
            Self::AuthSend(transfer) => transmute!(transfer.command(kind::AUTH_SEND, id)),
            Self::AuthReceive(transfer) => transmute!(transfer.command(kind::AUTH_RECEIVE, id)),
            Self::Disconnect => transmute!(DisconnectCommand {
                common: new(kind::DISCONNECT),
                record_format: 0.into(),
                reserved: [0; _],
            }),
        };
        (&entry).into()
    }
}

/// Whether the attributes of a property command mean 8 bytes.
const fn is_wide(attributes: u8) -> bool {
    attributes & 7 == 1
}

impl AuthTransfer {
    fn read(command: &AuthenticationCommand) -> Self {
        Self {
            protocol: command.security_protocol,
            specific: command.sp_specific,
            bytes: command.length.get(),
        }
    }

    fn command(&self, kind: u8, id: u16) -> AuthenticationCommand {
        AuthenticationCommand {
            common: FabricsCommand::new(kind, id, DataPointer::transport(self.bytes)),
            reserved_1: 0,
            sp_specific: self.specific,
            security_protocol: self.protocol,
            length: self.bytes.into(),
            reserved_2: [0; _],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvme::admin;

    #[test]
    fn commands_come_back() {
        let connect = Connect {
            format: 0,
            queue: 3,
            queue_entries: 127,
            attributes: Connect::NO_FLOW_CONTROL,
            keep_alive_ms: 5000,
        };
        for fabrics in [
            Fabrics::Connect(connect),
            Fabrics::PropertyGet { offset: property::CAP, wide: true },
            Fabrics::PropertySet { offset: property::CC, wide: false, value: 0x0046_0001 },
            Fabrics::AuthSend(AuthTransfer::in_band(136)),
            Fabrics::AuthReceive(AuthTransfer::in_band(4096)),
            Fabrics::Disconnect,
        ] {
            let command = Command::decode(&fabrics.encode(5).encode());
            assert_eq!(command.opcode, admin::FABRICS);
            assert_eq!(Fabrics::decode(&command), Some(fabrics));
        }
        assert_eq!(Fabrics::decode(&Command::new(admin::FABRICS, 0, 0x33)), None);
    }

    /// The fields that are specific to Connect, Property Get and Property Set (figures 545, 551 and 553).
    #[test]
    fn commands_are_laid_out_as_the_figures_say() {
        let connect = Connect {
            format: 0x0201,
            queue: 0x0403,
            queue_entries: 0x0605,
            attributes: 7,
            keep_alive_ms: 0x0c0b_0a09,
        };
        let bytes = Fabrics::Connect(connect).encode(0x0b0a).encode();
        assert_eq!(bytes[..8], [0x7f, 0x40, 0x0a, 0x0b, 1, 0, 0, 0]);
        assert_eq!(bytes[24..40], [0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0x01]);
        assert_eq!(bytes[40..56], [1, 2, 3, 4, 5, 6, 7, 0, 9, 10, 11, 12, 0, 0, 0, 0]);
        let offset = 0x0403_0201;
        let bytes = Fabrics::PropertyGet { offset, wide: true }.encode(0).encode();
        assert_eq!(bytes[39..48], [0x5a, 1, 0, 0, 0, 1, 2, 3, 4]);
        let value = 0x0807_0605_0403_0201;
        let bytes = Fabrics::PropertySet { offset, wide: false, value }.encode(0).encode();
        assert_eq!(bytes[40..56], [0, 0, 0, 0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7, 8]);
        let bytes = Fabrics::Disconnect.encode(0).encode();
        assert_eq!((bytes[4], &bytes[40..]), (8, &[0; 24][..]));
    }

    /// Words 10 and 11 of Authentication Send, as Linux's host writes its fields: a reserved byte, SPSP0,
    /// SPSP1, SECP, the length.
    #[test]
    fn authentication_is_laid_out_as_the_kernel_has_it() {
        let bytes = Fabrics::AuthSend(AuthTransfer::in_band(0x88)).encode(1).encode();
        assert_eq!(bytes[40..48], [0, 1, 1, 0xe9, 0x88, 0, 0, 0]);
    }
}
