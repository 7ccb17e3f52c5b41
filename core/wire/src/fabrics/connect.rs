//! The data of Connect, and its result.

use core::mem::offset_of;

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, transmute};

use crate::Error;
use crate::bytes::{prefix, put};

/// The well-known name of discovery subsystems.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";
/// Bytes of the field of a name. A zero byte ends the name within the field.
pub const NQN_BYTES: usize = 256;
/// Longest name, bytes.
pub const NQN_BYTES_MAX: usize = 223;
/// In Connect: any controller.
pub const ANY_CONTROLLER: u16 = 0xffff;
/// In Connect: any controller of the static model.
pub const ANY_STATIC_CONTROLLER: u16 = 0xfffe;

/// Bytes of the data of Connect.
pub const CONNECT_DATA_BYTES: usize = size_of::<ConnectCommandData>();

/// The data of a Connect command (Base 2.1, section 6.3, figure 546).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectCommandData {
    /// Host identifier (HOSTID).
    pub host_identifier: [u8; 16],
    /// Controller ID (CNTLID).
    pub controller_id: U16,
    /// Reserved.
    pub reserved_1: [u8; 238],
    /// NVM subsystem NVMe qualified name (SUBNQN).
    pub nvm_subsystem_nqn: [u8; NQN_BYTES],
    /// Host NVMe qualified name (HOSTNQN).
    pub host_nqn: [u8; NQN_BYTES],
    /// Reserved.
    pub reserved_2: [u8; 256],
}

const _: () = assert!(size_of::<ConnectCommandData>() == 1024);

/// Dwords 0 and 1 of a response to Connect that succeeded (Base 2.1, section 6.3, figures 547 and 548).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectResponse {
    /// Controller ID (CNTLID).
    pub controller_id: U16,
    /// Authentication and security requirements (AUTHREQ).
    pub authentication_and_security_requirements: U16,
    /// Reserved.
    pub reserved: [u8; 4],
}

const _: () = assert!(size_of::<ConnectResponse>() == 8);

/// Of AUTHREQ: authentication transaction required (ATR).
const AUTHENTICATION_REQUIRED: u16 = 1 << 1;
/// Of AUTHREQ: authentication and secure channel required (ASCR); not served, read as ATR.
const SECURE_CHANNEL_REQUIRED: u16 = 1 << 2;

/// Dwords 0 and 1 of a response to Connect with the status Connect Invalid Parameters (Base 2.1, section
/// 6.3, figures 547 and 548).
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ConnectInvalidParameters {
    /// Invalid parameter offset (IPO).
    pub invalid_parameter_offset: U16,
    /// Invalid attributes (IATTR): 1 for a parameter of the data, 0 for one of the command.
    pub invalid_attributes: u8,
    /// Reserved.
    pub reserved: [u8; 5],
}

const _: () = assert!(size_of::<ConnectInvalidParameters>() == 8);

/// The data of Connect, a [`ConnectCommandData`]: the host, and the subsystem that it connects to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectData<'a> {
    /// The host identifier. It tells hosts of the same name apart.
    pub host_id: [u8; 16],
    /// The controller: [`ANY_CONTROLLER`] for the admin queue; for I/O queues the one that the admin queue got.
    pub controller: u16,
    /// Name of the subsystem.
    pub subsystem: &'a str,
    /// Name of the host.
    pub host: &'a str,
}

impl<'a> ConnectData<'a> {
    /// The offset of the host id, for the result of a refused Connect.
    pub const HOST_ID_AT: u16 = offset_of!(ConnectCommandData, host_identifier) as u16;
    /// The offset of the controller.
    pub const CONTROLLER_AT: u16 = offset_of!(ConnectCommandData, controller_id) as u16;
    /// The offset of the subsystem's name.
    pub const SUBSYSTEM_AT: u16 = offset_of!(ConnectCommandData, nvm_subsystem_nqn) as u16;
    /// The offset of the host's name.
    pub const HOST_AT: u16 = offset_of!(ConnectCommandData, host_nqn) as u16;

    /// Decodes the data.
    ///
    /// # Errors
    /// [`Error::Short`]; [`Error::Field`] for a name that is empty, too long or not UTF-8.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, Error> {
        let data: &ConnectCommandData = prefix(bytes)?;
        Ok(Self {
            host_id: data.host_identifier,
            controller: data.controller_id.get(),
            subsystem: decode_nqn(&data.nvm_subsystem_nqn).ok_or(Error::Field("subsystem NQN"))?,
            host: decode_nqn(&data.host_nqn).ok_or(Error::Field("host NQN"))?,
        })
    }

    /// Encodes the data.
    ///
    /// # Errors
    /// [`Error::Field`] for a name that is empty or too long.
    pub fn encode(&self) -> Result<[u8; CONNECT_DATA_BYTES], Error> {
        Ok(transmute!(ConnectCommandData {
            host_identifier: self.host_id,
            controller_id: self.controller.into(),
            reserved_1: [0; _],
            nvm_subsystem_nqn: encode_nqn(self.subsystem)?,
            host_nqn: encode_nqn(self.host)?,
            reserved_2: [0; _],
        }))
    }
}

/// The field of a name: the name, then zeros.
fn encode_nqn(name: &str) -> Result<[u8; NQN_BYTES], Error> {
    if name.is_empty() || name.len() > NQN_BYTES_MAX {
        return Err(Error::Field("NQN"));
    }
    let mut field = [0; NQN_BYTES];
    put(&mut field, 0, name.as_bytes());
    Ok(field)
}

/// Decodes a name that ends with a zero byte. `None` if it is empty, too long or not UTF-8.
pub fn decode_nqn(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let name = core::str::from_utf8(&field[..end]).ok()?;
    (1..=NQN_BYTES_MAX).contains(&end).then_some(name)
}

/// The result of Connect, a [`ConnectResponse`]: the controller, and whether the host must authenticate first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectResult {
    /// The controller.
    pub controller: u16,
    /// The host must authenticate.
    pub authenticate: bool,
}

impl ConnectResult {
    /// Decodes the result of a completion.
    pub fn decode(result: u64) -> Self {
        let response: ConnectResponse = transmute!(U64::new(result));
        let required = response.authentication_and_security_requirements.get();
        Self {
            controller: response.controller_id.get(),
            authenticate: required & (AUTHENTICATION_REQUIRED | SECURE_CHANNEL_REQUIRED) != 0,
        }
    }

    /// Encodes the result for a completion.
    pub fn encode(&self) -> u64 {
        let required = if self.authenticate { AUTHENTICATION_REQUIRED } else { 0 };
        let response: U64 = transmute!(ConnectResponse {
            controller_id: self.controller.into(),
            authentication_and_security_requirements: required.into(),
            reserved: [0; _],
        });
        response.get()
    }
}

/// The result of a Connect with an invalid parameter: whether the parameter is in the data or in the command, and its
/// offset there.
pub fn invalid_parameter(in_data: bool, offset: u16) -> u64 {
    let response: U64 = transmute!(ConnectInvalidParameters {
        invalid_parameter_offset: offset.into(),
        invalid_attributes: u8::from(in_data),
        reserved: [0; _],
    });
    response.get()
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn connect_data_is_laid_out_as_figure_546_says() {
        let host_id = core::array::from_fn(|at| at as u8 + 1);
        let data = ConnectData { host_id, controller: 0x0b0a, subsystem: "ab", host: "cde" };
        let mut bytes = [0; 1024];
        bytes[..16].copy_from_slice(&host_id);
        bytes[16..18].copy_from_slice(&[0x0a, 0x0b]);
        bytes[256..258].copy_from_slice(b"ab");
        bytes[512..515].copy_from_slice(b"cde");
        assert_eq!(data.encode(), Ok(bytes));
    }

    #[test]
    fn the_result_says_whether_to_authenticate() {
        let result = ConnectResult { controller: 9, authenticate: true };
        assert_eq!(result.encode(), 0x2_0009);
        assert_eq!(ConnectResult::decode(0x2_0009), result);
        assert_eq!(invalid_parameter(true, 256), 0x1_0100);
    }
}
