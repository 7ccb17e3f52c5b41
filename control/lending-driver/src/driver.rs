//! The loop around the state machine.

use std::sync::Arc;
use std::time::Duration;

use spillway_api::LendOrder;
use spillway_lending::{Action, CopyLocation, Event, HostId, Message, Note, Order};
use spillway_registry::Host;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use crate::error::Error;
use crate::notes;
use crate::peers::Messenger;
use crate::shared::Shared;

/// Longest pause between two checks.
const IDLE: Duration = Duration::from_secs(3600);

/// Additional time to wait for pages in flight to a lender, beyond that of a request.
const FORGET_MARGIN: Duration = Duration::from_secs(2);

/// An operator's order, and the channel for its result.
pub type Asked = (LendOrder, oneshot::Sender<Result<(), String>>);

/// Inputs.
pub struct Inputs {
    pub messages: mpsc::Receiver<Event>,
    pub results: mpsc::UnboundedReceiver<Event>,
    pub orders: mpsc::Receiver<Asked>,
    pub hosts: watch::Receiver<Vec<Host>>,
}

/// Outputs.
pub struct Outputs {
    pub outbox: Box<dyn Messenger>,
    pub results: mpsc::UnboundedSender<Event>,
    /// This host's announcement for the registry.
    pub own: watch::Sender<Host>,
}

/// Runs forever.
pub async fn run(shared: Arc<Shared>, mut inputs: Inputs, mut outputs: Outputs) {
    let mut period = interval(shared.settings.period);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        let wake_at = shared.machine().wake_at().unwrap_or(Duration::MAX);
        let wake_at = shared.started + wake_at.min(shared.now() + IDLE);
        let event = tokio::select! {
            // Process completed actions before new requests: a borrower's pages are freed before others
            // request memory.
            biased;
            Some(event) = inputs.results.recv() => event,
            Some((order, hears)) = inputs.orders.recv() => {
                let done = follow_order(&shared, &mut outputs, order).await;
                // The requester may be gone.
                let _ = hears.send(told(done));
                continue;
            }
            _ = period.tick() => look(&shared),
            Ok(()) = inputs.hosts.changed() => {
                let hosts = inputs.hosts.borrow_and_update().clone();
                let peers = shared.peers.update(&hosts);
                // A host that may only lend has no requests to make.
                Event::Peers(if shared.settings.borrows { peers } else { Vec::new() })
            }
            Some(event) = inputs.messages.recv() => event,
            () = sleep_until(wake_at) => look(&shared),
        };
        handle(&shared, &mut outputs, event).await;
        tell_spare(&shared, &outputs);
    }
}

fn look(shared: &Shared) -> Event {
    match shared.reading() {
        Ok(reading) => Event::Memory(reading),
        Err(error) => {
            tracing::error!("can't read this host's memory: {error}");
            Event::Tick
        }
    }
}

/// Reports lost copies repeatedly, until the state machine has handled them. The immediate notification fires once
/// per lender and can arrive before the machine knows of a copy. Runs forever.
pub async fn watch_places(shared: Arc<Shared>, results: mpsc::UnboundedSender<Event>) {
    let mut period = interval(shared.settings.period);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        period.tick().await;
        let borrower = shared.borrower.clone();
        // It may wait for pages in flight.
        let lost = tokio::task::spawn_blocking(move || borrower.lost_places()).await;
        for event in lost.unwrap_or_default() {
            // The receiver is gone when the daemon ends.
            let _ = results.send(event);
        }
    }
}

async fn follow_order(
    shared: &Arc<Shared>,
    outputs: &mut Outputs,
    order: LendOrder,
) -> Result<(), Error> {
    let order = match order {
        LendOrder::Borrow(_) if !shared.settings.borrows => return Err(Error::LendsOnly),
        LendOrder::Borrow(bytes) => {
            let slabs = bytes.div_ceil(shared.settings.machine.slab_bytes);
            Order::Borrow(u32::try_from(slabs).unwrap_or(u32::MAX))
        }
        LendOrder::Return => Order::Return,
        LendOrder::Drain => Order::Drain,
        LendOrder::Resume => Order::Resume,
    };
    let refused = handle(shared, outputs, Event::Operator(order)).await;
    refused.map_or(Ok(()), |why| Err(Error::CannotBorrow(why)))
}

/// Passes an event to the machine, and executes its actions. Returns why an operator's order can't
/// be followed.
async fn handle(shared: &Arc<Shared>, outputs: &mut Outputs, event: Event) -> Option<&'static str> {
    if let Event::Placed { place: CopyLocation::Lender { loan, .. }, result: Ok(()), .. } = &event {
        shared.health.loan_works(loan.number);
    }
    let mut actions = Vec::new();
    shared.machine().handle(shared.now(), event, &mut actions);
    let mut refused = None;
    for action in actions {
        if let Action::Note(Note::CannotBorrow { why }) = action {
            refused = Some(why);
        }
        carry_out(shared, outputs, action).await;
    }
    refused
}

async fn carry_out(shared: &Arc<Shared>, outputs: &mut Outputs, action: Action) {
    match action {
        Action::Send(message) => send(shared, outputs, &message),
        Action::Note(note) => notes::log(&note, &shared.peers),
        Action::Reserve { loan, slabs, slab_bytes, mode } => {
            let lender = shared.lender.clone();
            aside(outputs, move || {
                let result = lender.reserve(&loan, slabs, slab_bytes, mode);
                Event::Reserved { loan, result: told(result) }
            });
        }
        Action::Release { loan } => {
            let lender = shared.lender.clone();
            aside(outputs, move || {
                lender.release(&loan);
                Event::Released { loan }
            });
        }
        Action::Open { device, loan, lender, access, slabs: _ } => {
            shared.health.loan_opened(loan.number, lender.clone());
            shared.borrower.open(device, loan, lender, access);
        }
        Action::Attach { device, slabs } => {
            let (borrower, results) = (shared.borrower.clone(), outputs.results.clone());
            aside(outputs, move || {
                let result = borrower.attach(device, &slabs, results);
                Event::Attached { device, result: told(result) }
            });
        }
        Action::Detach { device } => {
            let borrower = shared.borrower.clone();
            aside(outputs, move || {
                let result = borrower.detach(device);
                Event::Detached { device, result: told(result) }
            });
        }
        Action::Place { device, slab, copy, place } => {
            let borrower = shared.borrower.clone();
            aside(outputs, move || {
                let result = borrower.place(device, slab, copy, &place);
                Event::Placed { device, slab, copy, place, result: told(result) }
            });
        }
        Action::Forget { device, loan } => {
            let borrower = shared.borrower.clone();
            // It must be complete before the next action, and may wait for pages in flight: a batch tries at most three
            // places one after the other. A local disk that hangs must not delay the renewal of other loans.
            let limit = 3 * shared.settings.request_timeout + FORGET_MARGIN;
            let name = loan.to_string();
            let lender = shared.health.lender(loan.number);
            shared.health.loan_ended(loan.number);
            let forgotten = tokio::task::spawn_blocking(move || borrower.forget(device, &loan));
            if timeout(limit, forgotten).await.is_err() {
                let address = lender.as_ref().and_then(|host| shared.peers.address(host));
                tracing::error!(
                    loan = name,
                    lender = lender.as_ref().map(HostId::as_str),
                    address = address.map(|address| address.to_string()),
                    "a loan ends while pages are in flight to it or to the local file"
                );
            }
        }
    }
}

/// Turns an error into a log line for the machine.
fn told<T>(result: Result<T, Error>) -> Result<T, String> {
    result.map_err(|error| error.to_string())
}

/// Executes a slow action on a thread of its own; its result becomes an event.
fn aside(outputs: &Outputs, work: impl FnOnce() -> Event + Send + 'static) {
    let results = outputs.results.clone();
    tokio::task::spawn_blocking(move || {
        // The receiver is gone when the daemon ends.
        let _ = results.send(work());
    });
}

fn send(shared: &Shared, outputs: &mut Outputs, message: &Message) {
    let Some(address) = shared.peers.address(&message.to) else {
        tracing::debug!(to = %message.to, "the registry has no address for it");
        return;
    };
    let key = format!("{} {}", message.body.name(), message.body.loan());
    let sent = outputs.outbox.send(message.to.as_str(), address, key, message.encode());
    if let Err(error) = sent {
        tracing::warn!(to = %message.to, %address, "can't send: {error}");
    }
}

/// Updates what other hosts see.
fn tell_spare(shared: &Shared, outputs: &Outputs) {
    let spare_bytes = if shared.settings.lends {
        let view = shared.machine().view(shared.now());
        shared.lender.bounded(view.spare_bytes, view.lent_bytes)
    } else {
        0
    };
    shared.peers.set_spare_bytes(spare_bytes);
    outputs.own.send_if_modified(|own| {
        let changed = own.spare_bytes != spare_bytes;
        own.spare_bytes = spare_bytes;
        changed
    });
}
