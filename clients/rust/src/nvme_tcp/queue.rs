//! One queue of a controller over one pipe: connection setup, command capsules, data in both directions, completions.
//! It turns bytes into events.
//!
//! Everything from the target is checked against the commands: an answer without a command, and data that is
//! unrequested, out of range, out of order or repeated, end the association.

use spillway_wire::nvme::{Command, Completion, DataPointer};
use spillway_wire::nvme_tcp::{
    self, Framing, HOST_DATA_BYTES_MIN, InitRequest, InitResponse, Pdu, ReadyToTransfer, Transfer,
};

use super::call::Trouble;

/// Longest PDU that is accepted from a target.
pub const PDU_BYTES_MAX: usize = 256 << 10;
/// Bytes of the send buffer.
const OUTGOING_BYTES: usize = 256 << 10;
/// A part of a long value is not made shorter than this to fit the free buffer space.
const PART_BYTES_MIN: usize = 4096;
/// Most commands in flight on a queue. The low bits of a command id are its slot.
const PLACES_MAX: u16 = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 8;

/// The digests that a connection uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Over each header.
    pub header: bool,
    /// Over each piece of data.
    pub data: bool,
}

/// The data of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload<'a> {
    /// None.
    None,
    /// These bytes go to the target: in the capsule if they fit.
    Out(&'a [u8]),
    /// Up to this many bytes come back.
    In(u32),
}

/// An event from the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event<'b> {
    /// The connection is set up: commands may be sent.
    Initialized,
    /// Data of a command.
    Data { tag: u16, offset: usize, bytes: &'b [u8] },
    /// The target requests part of the command's data: see [`Queue::supply`].
    Wanted { tag: u16 },
    /// A command has completed; this many bytes came back.
    Done { tag: u16, completion: Completion, bytes: u32 },
}

/// There is no free slot for another command, or no room for its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full;

/// Bytes to send on the pipe. The buffer never grows.
#[derive(Debug)]
pub struct Outgoing {
    bytes: Box<[u8]>,
    start: usize,
    end: usize,
}

impl Outgoing {
    /// An empty buffer.
    pub fn new() -> Self {
        Self { bytes: vec![0; OUTGOING_BYTES].into(), start: 0, end: 0 }
    }

    /// The bytes that are not sent yet.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    /// Removes the first `count` bytes, which were sent.
    pub fn sent(&mut self, count: usize) {
        self.start += count;
        if self.start >= self.end {
            self.clear();
        }
    }

    /// Drops all bytes.
    pub const fn clear(&mut self) {
        self.start = 0;
        self.end = 0;
    }

    /// Whether there are no bytes to send.
    pub const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    fn room(&self) -> usize {
        self.bytes.len() - self.end
    }

    fn push(&mut self, pdu: &Pdu<'_>, framing: Framing) -> Result<(), Full> {
        let length = pdu.encode(framing, &mut self.bytes[self.end..]).map_err(|_| Full)?;
        self.end += length;
        Ok(())
    }
}

impl Default for Outgoing {
    fn default() -> Self {
        Self::new()
    }
}

/// A command in flight.
#[derive(Clone, Copy, Debug, Default)]
struct CommandSlot {
    used: bool,
    /// Counts the slot's uses, to recognise a late answer to an earlier command.
    turn: u8,
    tag: u16,
    /// Bytes to send in all, and most bytes to receive, beyond those in the capsule.
    out_bytes: u32,
    in_bytes: u32,
    moved_bytes: u32,
    grant: Option<ReadyToTransfer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueState {
    Stopped,
    Initializing,
    Open,
}

/// See the module's documentation.
#[derive(Debug)]
pub(super) struct Queue {
    state: QueueState,
    asked: Digests,
    framing: Framing,
    capsule_data_bytes: u32,
    host_data_bytes_max: u32,
    places: Box<[CommandSlot]>,
    in_flight: usize,
    outgoing: Outgoing,
    /// A completion that came with the last data. The data is reported first.
    done: Option<(u16, Completion, u32)>,
}

impl Queue {
    /// A stopped queue for up to `depth` commands.
    pub(super) fn new(depth: u16) -> Self {
        Self {
            state: QueueState::Stopped,
            asked: Digests::default(),
            framing: Framing::default(),
            capsule_data_bytes: 0,
            host_data_bytes_max: HOST_DATA_BYTES_MIN,
            places: vec![CommandSlot::default(); depth.min(PLACES_MAX).into()].into(),
            in_flight: 0,
            outgoing: Outgoing::new(),
            done: None,
        }
    }

    /// Starts over on a new pipe. Capsules hold `capsule_data_bytes` of data.
    pub(super) fn start(&mut self, digests: Digests, capsule_data_bytes: u32) {
        self.stop();
        self.state = QueueState::Initializing;
        self.asked = digests;
        self.capsule_data_bytes = capsule_data_bytes;
        let request = InitRequest {
            header_digest: digests.header,
            data_digest: digests.data,
            ..Default::default()
        };
        self.push(&Pdu::InitRequest(request)).expect("an empty buffer has room for the first PDU");
    }

    /// Forgets the commands in flight and the unsent bytes.
    pub(super) fn stop(&mut self) {
        self.state = QueueState::Stopped;
        self.framing = Framing::default();
        self.outgoing.clear();
        self.done = None;
        self.in_flight = 0;
        for place in &mut self.places {
            place.used = false;
        }
    }

    /// The number of commands in flight.
    pub(super) const fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Bytes to send.
    pub(super) const fn outgoing(&mut self) -> &mut Outgoing {
        &mut self.outgoing
    }

    fn push(&mut self, pdu: &Pdu<'_>) -> Result<(), Full> {
        self.outgoing.push(pdu, self.framing)
    }

    /// Sends a command. Sets its id and its data pointer. Events of the command carry `tag`.
    pub(super) fn submit(
        &mut self,
        tag: u16,
        mut command: Command,
        payload: Payload<'_>,
    ) -> Result<(), Full> {
        let number = self.places.iter().position(|place| !place.used).ok_or(Full)?;
        let turn = self.places[number].turn.wrapping_add(1);
        let mut place = CommandSlot { used: true, turn, tag, ..CommandSlot::default() };
        let mut inline: &[u8] = &[];
        match payload {
            Payload::None => command.data = DataPointer::transport(0),
            Payload::Out(bytes) if bytes.len() <= self.capsule_data_bytes as usize => {
                command.data = DataPointer::in_capsule(bytes.len() as u32);
                inline = bytes;
            }
            Payload::Out(bytes) => {
                place.out_bytes = bytes.len() as u32;
                command.data = DataPointer::transport(place.out_bytes);
            }
            Payload::In(bytes) => {
                place.in_bytes = bytes;
                command.data = DataPointer::transport(bytes);
            }
        }
        command.id = number as u16 | u16::from(turn) << PLACE_BITS;
        self.push(&Pdu::Command(command, inline))?;
        self.places[number] = place;
        self.in_flight += 1;
        Ok(())
    }

    /// Sends the part of a command's data that the target requested, as far as there is room. Returns whether all of it
    /// was sent. `value` is all of the command's data.
    pub(super) fn supply(&mut self, tag: u16, value: &[u8]) -> bool {
        let found = self.places.iter().position(|place| place.used && place.tag == tag);
        let Some(number) = found else { return true };
        while let Some(grant) = self.places[number].grant {
            let overhead = self.framing.data_bytes(1);
            let room = self.outgoing.room().saturating_sub(overhead) & !3;
            let bytes = (grant.bytes as usize).min(self.host_data_bytes_max as usize).min(room);
            if bytes < PART_BYTES_MIN.min(grant.bytes as usize) {
                return false;
            }
            let range = grant.offset as usize..grant.offset as usize + bytes;
            let Some(part) = value.get(range) else { return true };
            let transfer = Transfer {
                command: grant.command,
                tag: grant.tag,
                offset: grant.offset,
                bytes: bytes as u32,
                last: bytes == grant.bytes as usize,
                success: false,
            };
            if self.push(&Pdu::HostData(transfer, part)).is_err() {
                return false;
            }
            let place = &mut self.places[number];
            place.moved_bytes += transfer.bytes;
            place.grant = (!transfer.last).then_some(ReadyToTransfer {
                offset: grant.offset + transfer.bytes,
                bytes: grant.bytes - transfer.bytes,
                ..grant
            });
        }
        true
    }

    /// Takes the next PDU that is an event from `bytes`. `None` when no PDU is complete.
    pub(super) fn next<'b>(&mut self, bytes: &mut &'b [u8]) -> Result<Option<Event<'b>>, Trouble> {
        if let Some((tag, completion, bytes)) = self.done.take() {
            return Ok(Some(Event::Done { tag, completion, bytes }));
        }
        let read = nvme_tcp::decode(bytes, self.framing, PDU_BYTES_MAX)?;
        let Some((pdu, length)) = read else { return Ok(None) };
        *bytes = &bytes[length..];
        let event = match (self.state, pdu) {
            (QueueState::Initializing, Pdu::InitResponse(response)) => {
                self.initialized(&response)?
            }
            (QueueState::Open, Pdu::Response(completion)) => self.completed(completion)?,
            (QueueState::Open, Pdu::ControllerData(transfer, data)) => {
                self.data(&transfer, data)?
            }
            (QueueState::Open, Pdu::ReadyToTransfer(grant)) => self.granted(grant)?,
            (_, Pdu::ControllerTerminate(terminate)) => {
                return Err(Trouble::Terminated(terminate.status));
            }
            _ => return Err(Trouble::Protocol("a PDU that does not belong here")),
        };
        Ok(Some(event))
    }

    fn initialized(&mut self, response: &InitResponse) -> Result<Event<'static>, Trouble> {
        if response.version != 0 || response.alignment > 31 {
            return Err(Trouble::Protocol("an ICResp of a format that is not known"));
        }
        let granted = Digests { header: response.header_digest, data: response.data_digest };
        if granted != self.asked {
            return Err(Trouble::Protocol("other digests than were asked for"));
        }
        let most = response.host_data_bytes_max;
        if most < HOST_DATA_BYTES_MIN || !most.is_multiple_of(4) {
            return Err(Trouble::Protocol("a MAXH2CDATA that is not allowed"));
        }
        self.host_data_bytes_max = most;
        self.framing = Framing {
            header_digest: granted.header,
            data_digest: granted.data,
            alignment: response.alignment,
        };
        self.state = QueueState::Open;
        Ok(Event::Initialized)
    }

    /// The slot of the command with this id.
    fn place(&mut self, id: u16) -> Result<&mut CommandSlot, Trouble> {
        let turn = (id >> PLACE_BITS) as u8;
        self.places
            .get_mut(usize::from(id % PLACES_MAX))
            .filter(|place| place.used && place.turn == turn)
            .ok_or(Trouble::Protocol("an answer to a command that is not under way"))
    }

    fn completed(&mut self, completion: Completion) -> Result<Event<'static>, Trouble> {
        let place = self.place(completion.id)?;
        place.used = false;
        let (tag, bytes) = (place.tag, place.moved_bytes);
        if completion.status.is_success() && place.out_bytes != 0 && bytes != place.out_bytes {
            return Err(Trouble::Protocol("success before all data was sent"));
        }
        self.in_flight -= 1;
        Ok(Event::Done { tag, completion, bytes })
    }

    fn data<'b>(&mut self, transfer: &Transfer, bytes: &'b [u8]) -> Result<Event<'b>, Trouble> {
        let place = self.place(transfer.command)?;
        let end = place.moved_bytes.checked_add(transfer.bytes);
        if transfer.offset != place.moved_bytes || end.is_none_or(|end| end > place.in_bytes) {
            return Err(Trouble::Protocol("data that was not asked for"));
        }
        if transfer.success && !transfer.last {
            return Err(Trouble::Protocol("success before the last data"));
        }
        place.moved_bytes += transfer.bytes;
        let (tag, moved) = (place.tag, place.moved_bytes);
        if transfer.success {
            place.used = false;
            self.in_flight -= 1;
            let completion = Completion { id: transfer.command, ..Completion::default() };
            self.done = Some((tag, completion, moved));
        }
        Ok(Event::Data { tag, offset: transfer.offset as usize, bytes })
    }

    fn granted(&mut self, grant: ReadyToTransfer) -> Result<Event<'static>, Trouble> {
        let place = self.place(grant.command)?;
        let end = grant.offset.checked_add(grant.bytes);
        let in_order = place.grant.is_none() && grant.offset == place.moved_bytes;
        if !in_order || grant.bytes == 0 || end.is_none_or(|end| end > place.out_bytes) {
            return Err(Trouble::Protocol("a grant for data that is not there"));
        }
        place.grant = Some(grant);
        Ok(Event::Wanted { tag: place.tag })
    }
}

#[cfg(test)]
mod tests;
