//! Data that follows its command: the target asks the host for it, one grant (R2T) after another.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use spillway_wire::nvme::{Command, Status};
use spillway_wire::nvme_tcp::{ReadyToTransfer, Transfer};

use crate::error::Error;
use crate::outcome::{Failure, Outcome};
use crate::quota::QuotaGuard;
use crate::sink::{Sink, Taken};
use crate::source::Outgoing;

/// Most bytes of one grant.
const GRANT_BYTES_MAX: u32 = 1 << 20;

/// While commands with so many bytes of data are outstanding, a queue begins no further one. More would not be faster.
const ENOUGH_BYTES: u64 = 4 << 20;

/// Most bytes of short data that a queue collects at the same time.
const GATHERED_BYTES_MAX: usize = 64 << 10;

/// A command whose data is arriving.
#[derive(Debug)]
struct Incoming {
    command: Command,
    sink: Sink,
    received: u32,
    granted: u32,
    /// Why the command fails. The host still sends the data that it was granted, and the target drops it.
    failed: Option<Failure>,
    /// How long it took to begin, and the data that has arrived.
    worked: Duration,
    held: QuotaGuard,
}

/// What follows when data has arrived.
pub(crate) enum Next {
    /// More of the grant is to arrive.
    Nothing,
    /// The host gets a grant for the next part.
    Grant(ReadyToTransfer),
    /// The data is complete, and the command is executed with it.
    Execute(Command, Vec<u8>, QuotaGuard),
    /// The command has ended, after so much work.
    Done(Command, Outcome, Duration),
}

/// The commands of a queue that wait for their data or for room, and those whose long answers are being sent.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    /// By tag.
    incoming: Vec<Option<Incoming>>,
    waiting: VecDeque<Command>,
    pub(crate) outgoing: VecDeque<Outgoing>,
    /// Bytes of data that have arrived, of all commands.
    came_bytes: u64,
}

impl Transfers {
    /// The number of these commands.
    pub(crate) fn len(&self) -> usize {
        self.incoming.iter().flatten().count() + self.waiting.len() + self.outgoing.len()
    }

    /// Lets a command wait for room for its data or its long answer.
    pub(crate) fn wait(&mut self, command: Command) {
        self.waiting.push_back(command);
    }

    /// The command that has waited longest, unless enough data is arriving.
    pub(crate) fn next_waiting(&self) -> Option<Command> {
        let bytes = |it: &Incoming| u64::from(it.command.data.bytes);
        let on_their_way: u64 = self.incoming.iter().flatten().map(bytes).sum();
        let gathered: usize = self.incoming.iter().flatten().map(|it| it.sink.gathers()).sum();
        let enough = on_their_way >= ENOUGH_BYTES || gathered >= GATHERED_BYTES_MAX;
        self.waiting.front().copied().filter(|_| !enough)
    }

    /// Removes the command that has waited longest, because it begins.
    pub(crate) fn waited(&mut self) {
        self.waiting.pop_front();
    }

    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Bytes that were granted and have not arrived.
    pub(crate) fn owed_bytes(&self) -> u64 {
        let owed = |it: &Incoming| u64::from(it.granted - it.received);
        self.incoming.iter().flatten().map(owed).sum()
    }

    /// Bytes of data that have arrived, of all commands.
    pub(crate) const fn came_bytes(&self) -> u64 {
        self.came_bytes
    }

    /// Grants the first part of a command's data.
    pub(crate) fn begin(
        &mut self,
        command: Command,
        sink: Sink,
        worked: Duration,
        held: QuotaGuard,
    ) -> ReadyToTransfer {
        let mut incoming =
            Incoming { command, sink, received: 0, granted: 0, failed: None, worked, held };
        let free = self.incoming.iter().position(Option::is_none);
        let tag = free.unwrap_or_else(|| {
            self.incoming.push(None);
            self.incoming.len() - 1
        });
        let grant = incoming.grant(tag as u16);
        self.incoming[tag] = Some(incoming);
        grant
    }

    /// Takes data that arrived; `None` if it arrived damaged, so that its command fails.
    ///
    /// # Errors
    /// [`Error::Protocol`] if it does not match its grant.
    pub(crate) fn receive(&mut self, part: &Transfer, data: Option<&[u8]>) -> Result<Next, Error> {
        let slot = self.incoming.get_mut(usize::from(part.tag));
        let Some(slot) = slot.filter(|slot| slot.is_some()) else {
            return Err(Error::Protocol("data for a transfer that was not granted"));
        };
        let Some(incoming) = slot else { return Ok(Next::Nothing) };
        let end = part.offset.checked_add(part.bytes).filter(|&end| end <= incoming.granted);
        let (Some(end), true) = (end, part.offset == incoming.received) else {
            return Err(Error::Protocol("data outside what was granted"));
        };
        let whole = data.is_none_or(|data| data.len() == part.bytes as usize);
        let last = part.last == (end == incoming.granted);
        if part.command != incoming.command.id || !last || !whole {
            return Err(Error::Protocol("data that does not match its grant"));
        }
        if incoming.failed.is_none() {
            let began = Instant::now();
            incoming.failed = match data {
                Some(data) => incoming.sink.take(part.offset, data).err(),
                None => Some(Status::TRANSPORT.into()),
            };
            incoming.worked += began.elapsed();
        }
        incoming.received = end;
        self.came_bytes += u64::from(part.bytes);
        if end < incoming.granted {
            return Ok(Next::Nothing);
        }
        if end < incoming.command.data.bytes && incoming.failed.is_none() {
            return Ok(Next::Grant(incoming.grant(part.tag)));
        }
        Ok(slot.take().map_or(Next::Nothing, Incoming::end))
    }
}

impl Incoming {
    fn grant(&mut self, tag: u16) -> ReadyToTransfer {
        let bytes = (self.command.data.bytes - self.granted).min(GRANT_BYTES_MAX);
        let offset = self.granted;
        self.granted += bytes;
        ReadyToTransfer { command: self.command.id, tag, offset, bytes }
    }

    fn end(self) -> Next {
        let Self { command, sink, failed, worked, held, .. } = self;
        if let Some(failure) = failed {
            return Next::Done(command, Err(failure), worked);
        }
        let began = Instant::now();
        match sink.end() {
            Taken::Short(data) => Next::Execute(command, data, held),
            Taken::Done(outcome) => Next::Done(command, outcome, worked + began.elapsed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;
    use crate::sink::SHORT_BYTES_MAX;
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

    fn short() -> Sink {
        Sink::Short(Vec::new())
    }

    #[test]
    fn long_data_is_granted_part_by_part() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let total = GRANT_BYTES_MAX + 100;
        let first = transfers.begin(
            command(5, total),
            short(),
            Duration::ZERO,
            quota.hold(total.into()).unwrap(),
        );
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
        assert!(matches!(transfers.receive(&part(0, half, false), Some(&data)), Ok(Next::Nothing)));
        let Ok(Next::Grant(second)) = transfers.receive(&part(half, half, true), Some(&data))
        else {
            panic!("no second grant");
        };
        assert_eq!((second.offset, second.bytes), (GRANT_BYTES_MAX, 100));
        let end = part(GRANT_BYTES_MAX, 100, true);
        let Ok(Next::Execute(done, all, _)) = transfers.receive(&end, Some(&[2; 100])) else {
            panic!("not done");
        };
        assert_eq!((done.id, all.len(), all[all.len() - 1]), (5, total as usize, 2));
        assert!(transfers.receive(&end, Some(&[2; 100])).is_err(), "the tag is free again");
    }

    #[test]
    fn data_that_was_not_granted_is_refused() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let grant =
            transfers.begin(command(5, 100), short(), Duration::ZERO, quota.hold(100).unwrap());
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
            assert!(
                transfers.receive(&bad, Some(&vec![0; bad.bytes as usize])).is_err(),
                "{bad:?}"
            );
        }
        assert!(matches!(transfers.receive(&good, Some(&[0; 100])), Ok(Next::Execute(..))));
    }

    #[test]
    fn nothing_more_is_taken_up_while_enough_is_on_its_way() {
        let limits = Limits { connections_max: 1, operations_max: 8, bytes_max: 64 << 20 };
        let (mut transfers, quota) = (Transfers::default(), Arc::new(Quota::new(limits)));
        for (id, bytes) in [(1, 1), (2, ENOUGH_BYTES as u32), (3, 1)] {
            transfers.wait(command(id, bytes));
        }
        for id in 1..=2 {
            let command = transfers.next_waiting().unwrap();
            assert_eq!(command.id, id);
            transfers.waited();
            transfers.begin(
                command,
                short(),
                Duration::ZERO,
                quota.hold(command.data.bytes.into()).unwrap(),
            );
        }
        assert!(transfers.next_waiting().is_none());
        assert_eq!(transfers.owed_bytes(), 1 + u64::from(GRANT_BYTES_MAX));
        let end = Transfer { command: 1, tag: 0, offset: 0, bytes: 1, last: true, success: false };
        assert!(matches!(transfers.receive(&end, Some(&[1])), Ok(Next::Execute(..))));
        assert!(transfers.next_waiting().is_none(), "the long one is on its way still");
        assert_eq!((transfers.owed_bytes(), transfers.came_bytes()), (GRANT_BYTES_MAX.into(), 1));
        assert_eq!((transfers.len(), transfers.has_waiting()), (2, true));
    }

    #[test]
    fn a_queue_gathers_little_at_the_same_time() {
        let (mut transfers, quota) = (Transfers::default(), quota());
        let full = GATHERED_BYTES_MAX / SHORT_BYTES_MAX as usize;
        for id in 0..=full as u16 {
            transfers.wait(command(id, SHORT_BYTES_MAX));
        }
        for _ in 0..full {
            let command = transfers.next_waiting().unwrap();
            transfers.waited();
            let gathers = Sink::Short(Vec::with_capacity(SHORT_BYTES_MAX as usize));
            transfers.begin(
                command,
                gathers,
                Duration::ZERO,
                quota.hold(SHORT_BYTES_MAX.into()).unwrap(),
            );
        }
        assert!(transfers.next_waiting().is_none());
    }
}
