//! Messages of lending, and a machine that receives them.

use core::time::Duration;

use spillway_lending::{
    Action, Backup, Epoch, Event, HostId, MESSAGE_BYTES_MAX, Machine, Message, Reading, Settings,
};

/// Lines of messages. Each valid message must decode to the same after encoding, and a machine receives it, whoever
/// sent it. The machine must not reserve more than the host has.
pub(super) fn messages(bytes: &[u8]) {
    const TOTAL_BYTES: u64 = 8 << 30;
    let host = HostId::new("b").expect("a name of a letter");
    let settings = Settings { backup: Backup::None, ..Settings::default() };
    let mut machine = Machine::new(host, Epoch(1), 1, settings, Vec::new(), Duration::ZERO);
    let mut actions = Vec::new();
    let reading = Reading { total_bytes: TOTAL_BYTES, ..Reading::default() };
    machine.handle(Duration::ZERO, Event::Memory(reading), &mut actions);
    for (line, bytes) in bytes.split(|byte| *byte == b'\n').enumerate() {
        let Ok(message) = Message::decode(bytes) else { continue };
        let written = message.encode();
        assert!(written.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Message::decode(&written).as_ref(), Ok(&message));
        let now = Duration::from_secs(line as u64);
        machine.handle(now, Event::Received(message), &mut actions);
        let view = machine.view(now);
        assert!(view.lent_bytes + view.spare_bytes <= TOTAL_BYTES && view.borrowed.is_empty());
        for action in actions.drain(..) {
            if let Action::Send(message) = action {
                assert!(message.encode().len() <= MESSAGE_BYTES_MAX);
            }
        }
    }
}
