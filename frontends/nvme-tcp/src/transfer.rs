//! Data that hosts send after their commands: grants, and what came of them.

use std::collections::VecDeque;

use spillway_wire::nvme::Command;
use spillway_wire::nvme_tcp::{ReadyToTransfer, Transfer};

use crate::error::Error;
use crate::quota::{Held, Quota};

/// Most bytes that a host is granted at once.
const GRANT_BYTES_MAX: u32 = 1 << 20;

/// While so much is on its way to a queue, it takes up nothing more. More would make nothing faster, and a process that locks its
/// memory keeps what it has once taken for it.
const ENOUGH_BYTES: u64 = 4 << 20;

/// A command whose data is on its way.
#[derive(Debug)]
struct Incoming {
    command: Command,
    data: Vec<u8>,
    received: u32,
    granted: u32,
    held: Held,
}

/// What is to be done after data came.
pub(crate) enum Next {
    /// More is to come.
    Nothing,
    /// The host is granted another part.
    Grant(ReadyToTransfer),
    /// All is there.
    Done(Command, Vec<u8>, Held),
}

/// The commands of a queue that wait: for data, or for room to take it.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// By tag.
    incoming: Vec<Option<Incoming>>,
    waiting: VecDeque<Command>,
}

impl Transfers {
    /// Commands that wait.
    pub(crate) fn len(&self) -> usize {
        self.incoming.iter().flatten().count() + self.waiting.len()
    }

    /// Takes up a command that has data to come, or that needs room for its answer, when there is room.
    pub(crate) fn wait(&mut self, command: Command) {
        self.waiting.push_back(command);
    }

    /// The command that has waited longest for room, and the room, if there is enough now.
    pub(crate) fn next_waiting(
        &mut self,
        quota: &std::sync::Arc<Quota>,
    ) -> Option<(Command, Held)> {
        let bytes = |it: &Incoming| u64::from(it.command.data.bytes);
        if self.incoming.iter().flatten().map(bytes).sum::<u64>() >= ENOUGH_BYTES {
            return None;
        }
        let held = quota.hold(self.waiting.front()?.data.bytes.into())?;
        self.waiting.pop_front().map(|command| (command, held))
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Grants the first part of a command's data.
    pub(crate) fn begin(&mut self, command: Command, held: Held) -> ReadyToTransfer {
        let mut incoming = Incoming {
            data: vec![0; command.data.bytes as usize],
            command,
            received: 0,
            granted: 0,
            held,
        };
        let free = self.incoming.iter().position(Option::is_none);
        let tag = free.unwrap_or_else(|| {
            self.incoming.push(None);
            self.incoming.len() - 1
        });
        let grant = incoming.grant(tag as u16);
        self.incoming[tag] = Some(incoming);
        grant
    }

    /// Data that came.
    ///
    /// # Errors
    /// [`Error::Protocol`] when it is not what was granted.
    pub(crate) fn receive(&mut self, part: &Transfer, data: &[u8]) -> Result<Next, Error> {
        let slot = self.incoming.get_mut(usize::from(part.tag));
        let Some(slot) = slot.filter(|slot| slot.is_some()) else {
            return Err(Error::Protocol("data for a transfer that was not granted"));
        };
        let Some(incoming) = slot else { return Ok(Next::Nothing) };
        let end = part.offset.checked_add(part.bytes).filter(|&end| end <= incoming.granted);
        let (Some(end), true) = (end, part.offset == incoming.received) else {
            return Err(Error::Protocol("data outside what was granted"));
        };
        if part.command != incoming.command.id || part.last != (end == incoming.granted) {
            return Err(Error::Protocol("data that does not match its grant"));
        }
        incoming.data[part.offset as usize..end as usize].copy_from_slice(data);
        incoming.received = end;
        if end < incoming.granted {
            return Ok(Next::Nothing);
        }
        if end < incoming.command.data.bytes {
            return Ok(Next::Grant(incoming.grant(part.tag)));
        }
        let done = slot.take();
        Ok(done.map_or(Next::Nothing, |all| Next::Done(all.command, all.data, all.held)))
    }
}

impl Incoming {
    fn grant(&mut self, tag: u16) -> ReadyToTransfer {
        let bytes = (self.command.data.bytes - self.granted).min(GRANT_BYTES_MAX);
        let offset = self.granted;
        self.granted += bytes;
        ReadyToTransfer { command: self.command.id, tag, offset, bytes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use spillway_types::Limits;
    use std::sync::Arc;

    fn quota() -> Arc<Quota> {
        let limits = Limits { connections_max: 1, operations_max: 8, bytes_max: 4 << 20 };
        Arc::new(Quota::new(limits))
    }

    fn command(id: u16, bytes: u32) -> Command {
        let mut command = Command::new(1, id, 1);
        command.data.bytes = bytes;
        command
    }

    #[test]
    fn long_data_is_granted_part_by_part() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let total = GRANT_BYTES_MAX + 100;
        let first = transfers.begin(command(5, total), quota.hold(total.into()).unwrap());
        assert_eq!((first.offset, first.bytes), (0, GRANT_BYTES_MAX));
        let part = |offset, bytes, last| Transfer {
            command: 5,
            tag: first.tag,
            offset,
            bytes,
            last,
            success: false,
        };
        let half = GRANT_BYTES_MAX / 2;
        let data = vec![1; half as usize];
        assert!(matches!(transfers.receive(&part(0, half, false), &data), Ok(Next::Nothing)));
        let Ok(Next::Grant(second)) = transfers.receive(&part(half, half, true), &data) else {
            panic!("no second grant");
        };
        assert_eq!((second.offset, second.bytes), (GRANT_BYTES_MAX, 100));
        let end = part(GRANT_BYTES_MAX, 100, true);
        let Ok(Next::Done(done, all, _)) = transfers.receive(&end, &[2; 100]) else {
            panic!("not done");
        };
        assert_eq!((done.id, all.len(), all[all.len() - 1]), (5, total as usize, 2));
        assert!(transfers.receive(&end, &[2; 100]).is_err(), "the tag is free again");
    }

    #[test]
    fn data_that_was_not_granted_is_refused() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let grant = transfers.begin(command(5, 100), quota.hold(100).unwrap());
        let good = Transfer {
            command: 5,
            tag: grant.tag,
            offset: 0,
            bytes: 100,
            last: true,
            success: false,
        };
        for bad in [
            Transfer { tag: 1, ..good },
            Transfer { command: 6, ..good },
            Transfer { offset: 4, ..good },
            Transfer { offset: u32::MAX, ..good },
            Transfer { bytes: 101, ..good },
            Transfer { last: false, ..good },
        ] {
            assert!(transfers.receive(&bad, &vec![0; bad.bytes as usize]).is_err(), "{bad:?}");
        }
        assert!(matches!(transfers.receive(&good, &[0; 100]), Ok(Next::Done(..))));
    }

    #[test]
    fn commands_wait_for_room_in_their_order() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let held = quota.hold(3 << 20).unwrap();
        transfers.wait(command(1, 2 << 20));
        transfers.wait(command(2, 1));
        assert!(transfers.next_waiting(&quota).is_none(), "the first is not passed over");
        drop(held);
        assert_eq!(transfers.next_waiting(&quota).unwrap().0.id, 1);
        assert_eq!((transfers.len(), transfers.has_waiting()), (1, true));
    }

    #[test]
    fn nothing_more_is_taken_up_while_enough_is_on_its_way() {
        let limits = Limits { connections_max: 1, operations_max: 8, bytes_max: 64 << 20 };
        let (mut transfers, quota) = (Transfers::default(), Arc::new(Quota::new(limits)));
        for (id, bytes) in [(1, 1), (2, ENOUGH_BYTES as u32), (3, 1)] {
            transfers.wait(command(id, bytes));
        }
        for id in 1..=2 {
            let (command, held) = transfers.next_waiting(&quota).unwrap();
            assert_eq!(command.id, id);
            transfers.begin(command, held);
        }
        assert!(transfers.next_waiting(&quota).is_none());
        let end = Transfer { command: 1, tag: 0, offset: 0, bytes: 1, last: true, success: false };
        assert!(matches!(transfers.receive(&end, &[1]), Ok(Next::Done(..))));
        assert!(transfers.next_waiting(&quota).is_none(), "the long one is on its way still");
    }
}
