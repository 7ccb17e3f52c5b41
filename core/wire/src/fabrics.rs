//! Fabrics commands (Base 2.0, section 6): opcode 7Fh, the type in byte 4.

use crate::Error;
use crate::bytes::{array_at, head, put, u16_at};
use crate::nvme::{Command, DataPointer, admin};

/// Types of fabrics commands, in the low byte of the namespace id.
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

/// Offsets of a controller's properties (Base 2.0, figure 35).
pub mod property {
    /// Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
    /// NVM subsystem reset, 4 bytes.
    pub const NSSR: u32 = 0x20;
    /// Ready timeouts, 4 bytes.
    pub const CRTO: u32 = 0x68;
}

/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of the field of a name; the name ends with a zero byte before its end.
pub const NQN_BYTES: usize = 256;
/// Most bytes of a name.
pub const NQN_BYTES_MAX: usize = 223;
/// In Connect: any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;
/// In Connect: any controller of the static model.
pub const ANY_STATIC_CONTROLLER: u16 = 0xfffe;

/// A fabrics command, its parameters read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fabrics {
    /// Makes a queue. Data out is a [`ConnectData`].
    Connect(Connect),
    /// Reads a property.
    PropertyGet {
        /// Which.
        offset: u32,
        /// 8 bytes instead of 4.
        wide: bool,
    },
    /// Writes a property.
    PropertySet {
        /// Which.
        offset: u32,
        /// 8 bytes instead of 4.
        wide: bool,
        /// What.
        value: u64,
    },
    /// Data out is a message of an authentication.
    AuthSend(AuthTransfer),
    /// Data in is a message of an authentication.
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
    /// Bytes of the message, or of room for it.
    pub bytes: u32,
}

impl AuthTransfer {
    /// A message of in-band authentication.
    pub const fn in_band(bytes: u32) -> Self {
        Self { protocol: 0xe9, specific: [1, 1], bytes }
    }

    /// Whether it is of in-band authentication.
    pub const fn is_in_band(&self) -> bool {
        self.protocol == 0xe9 && self.specific[0] == 1 && self.specific[1] == 1
    }
}

impl Fabrics {
    /// Reads a command of opcode 7Fh; `None` for a type that is not known.
    pub fn decode(command: &Command) -> Option<Self> {
        let wide = command.cdw10 & 7 == 1;
        let transfer = AuthTransfer {
            protocol: (command.cdw10 >> 24) as u8,
            specific: [(command.cdw10 >> 8) as u8, (command.cdw10 >> 16) as u8],
            bytes: command.cdw11,
        };
        Some(match command.namespace as u8 {
            kind::CONNECT => Self::Connect(Connect {
                format: command.cdw10 as u16,
                queue: (command.cdw10 >> 16) as u16,
                queue_entries: command.cdw11 as u16,
                attributes: (command.cdw11 >> 16) as u8,
                keep_alive_ms: command.cdw12,
            }),
            kind::PROPERTY_GET => Self::PropertyGet { offset: command.cdw11, wide },
            kind::PROPERTY_SET => Self::PropertySet {
                offset: command.cdw11,
                wide,
                value: u64::from(command.cdw12) | u64::from(command.cdw13) << 32,
            },
            kind::AUTH_SEND => Self::AuthSend(transfer),
            kind::AUTH_RECEIVE => Self::AuthReceive(transfer),
            kind::DISCONNECT => Self::Disconnect,
            _ => return None,
        })
    }

    /// The command. The data pointer says that the transport moves the data; Connect's says that it is in
    /// the capsule, as the transport demands.
    pub fn encode(&self, id: u16) -> Command {
        let new = |kind: u8| Command::new(admin::FABRICS, id, u32::from(kind));
        let auth = |kind: u8, transfer: &AuthTransfer| {
            let [first, second] = transfer.specific;
            let mut command = new(kind);
            command.cdw10 = u32::from_le_bytes([0, first, second, transfer.protocol]);
            command.cdw11 = transfer.bytes;
            command.data = DataPointer::transport(transfer.bytes);
            command
        };
        match self {
            Self::Connect(connect) => {
                let mut command = new(kind::CONNECT);
                command.data = DataPointer::in_capsule(CONNECT_DATA_BYTES as u32);
                command.cdw10 = u32::from(connect.format) | u32::from(connect.queue) << 16;
                command.cdw11 =
                    u32::from(connect.queue_entries) | u32::from(connect.attributes) << 16;
                command.cdw12 = connect.keep_alive_ms;
                command
            }
            Self::PropertyGet { offset, wide } => {
                let mut command = new(kind::PROPERTY_GET);
                command.cdw10 = u32::from(*wide);
                command.cdw11 = *offset;
                command
            }
            Self::PropertySet { offset, wide, value } => {
                let mut command = new(kind::PROPERTY_SET);
                command.cdw10 = u32::from(*wide);
                command.cdw11 = *offset;
                command.cdw12 = *value as u32;
                command.cdw13 = (*value >> 32) as u32;
                command
            }
            Self::AuthSend(transfer) => auth(kind::AUTH_SEND, transfer),
            Self::AuthReceive(transfer) => auth(kind::AUTH_RECEIVE, transfer),
            Self::Disconnect => new(kind::DISCONNECT),
        }
    }
}

/// Bytes of what Connect sends.
pub const CONNECT_DATA_BYTES: usize = 1024;

/// What Connect sends: who asks, and for what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData<'a> {
    /// Names the host among those of one name.
    pub host_id: [u8; 16],
    /// The controller: [`ANY_CONTROLLER`] for the admin queue, the given one for others.
    pub controller: u16,
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// Name of the host.
    pub host: &'a str,
}

impl<'a> ConnectData<'a> {
    /// Where the host id stands, for the result of a refused Connect.
    pub const HOST_ID_AT: u16 = 0;
    /// Where the controller stands.
    pub const CONTROLLER_AT: u16 = 16;
    /// Where the subsystem's name stands.
    pub const SUBSYSTEM_AT: u16 = 256;
    /// Where the host's name stands.
    pub const HOST_AT: u16 = 512;

    /// Reads it.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a name that is empty, too long or not UTF-8.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let bytes: &[u8; CONNECT_DATA_BYTES] = head(bytes)?;
        Ok(Self {
            host_id: array_at(bytes, 0),
            controller: u16_at(bytes, Self::CONTROLLER_AT.into()),
            subsystem: decode_nqn(&bytes[Self::SUBSYSTEM_AT.into()..][..NQN_BYTES])
                .ok_or(Error::Field("subsystem NQN"))?,
            host: decode_nqn(&bytes[Self::HOST_AT.into()..][..NQN_BYTES])
                .ok_or(Error::Field("host NQN"))?,
        })
    }

    /// Its bytes.
    ///
    /// # Errors
    /// [`Error::Field`] for a name that is too long.
    pub fn encode(&self) -> Result<[u8; CONNECT_DATA_BYTES], Error> {
        let mut bytes = [0; CONNECT_DATA_BYTES];
        put(&mut bytes, 0, &self.host_id);
        put(&mut bytes, Self::CONTROLLER_AT.into(), &self.controller.to_le_bytes());
        for (at, name) in [(Self::SUBSYSTEM_AT, self.subsystem), (Self::HOST_AT, self.host)] {
            if name.is_empty() || name.len() > NQN_BYTES_MAX {
                return Err(Error::Field("NQN"));
            }
            put(&mut bytes, at.into(), name.as_bytes());
        }
        Ok(bytes)
    }
}

/// Reads a name that ends with a zero byte.
pub fn decode_nqn(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let name = core::str::from_utf8(&field[..end]).ok()?;
    (1..=NQN_BYTES_MAX).contains(&end).then_some(name)
}

/// The result of Connect: the controller in bits 15 to 0, and whether the host must authenticate before
/// anything else (bit 17).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller.
    pub controller: u16,
    /// The host must authenticate.
    pub authenticate: bool,
}

impl ConnectResult {
    const AUTHENTICATE: u32 = 1 << 17;
    /// The controller can tell a host to authenticate by TLS concatenated; not served, read as one.
    const AUTHENTICATE_SECURE: u32 = 1 << 18;

    /// Reads it from a completion's result.
    pub const fn decode(result: u64) -> Self {
        let word = result as u32;
        Self {
            controller: word as u16,
            authenticate: word & (Self::AUTHENTICATE | Self::AUTHENTICATE_SECURE) != 0,
        }
    }

    /// As it stands in a completion's result.
    pub const fn encode(&self) -> u64 {
        let word = self.controller as u32 | if self.authenticate { Self::AUTHENTICATE } else { 0 };
        word as u64
    }
}

/// The result of a Connect that was refused for a parameter: where it stands (IATTR, IPO).
pub const fn invalid_parameter(in_data: bool, offset: u16) -> u64 {
    offset as u64 | (in_data as u64) << 16
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Words 10 and 11 of Authentication Send, as Linux's host writes its fields: a reserved byte, SPSP0,
    /// SPSP1, SECP, the length.
    #[test]
    fn authentication_is_laid_out_as_the_kernel_has_it() {
        let bytes = Fabrics::AuthSend(AuthTransfer::in_band(0x88)).encode(1).encode();
        assert_eq!(bytes[40..48], [0, 1, 1, 0xe9, 0x88, 0, 0, 0]);
    }

    #[test]
    fn connect_data_comes_back_and_bad_names_do_not() {
        let data = ConnectData {
            host_id: [7; 16],
            controller: ANY_CONTROLLER,
            subsystem: DISCOVERY_NQN,
            host: "nqn.2014-08.org.nvmexpress:uuid:1",
        };
        let mut bytes = data.encode().unwrap();
        assert_eq!(ConnectData::decode(&bytes), Ok(data));
        assert!(ConnectData::decode(&bytes[..1023]).is_err());
        bytes[512] = 0;
        assert_eq!(ConnectData::decode(&bytes), Err(Error::Field("host NQN")));
        bytes[256..512].fill(b'a');
        assert_eq!(ConnectData::decode(&bytes), Err(Error::Field("subsystem NQN")));
        let long = "n".repeat(224);
        assert!(ConnectData { host: &long, ..data }.encode().is_err());
    }

    #[test]
    fn the_result_says_whether_to_authenticate() {
        let result = ConnectResult { controller: 9, authenticate: true };
        assert_eq!(result.encode(), 0x2_0009);
        assert_eq!(ConnectResult::decode(0x2_0009), result);
        assert_eq!(invalid_parameter(true, 256), 0x1_0100);
    }
}
