//! The loop around the state machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use spillway_api::LendOrder;
use spillway_lending::{
    Action, CopyLocation, DeviceId, Event, HostId, LoanId, Message, Note, Order, Reading,
};
use spillway_registry::Host;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{MissedTickBehavior, interval, sleep_until, timeout};

use crate::error::Error;
use crate::forgets::Forgets;
use crate::kernel::HelperState;
use crate::notes;
use crate::peers::Messenger;
use crate::shared::Shared;

/// Longest pause between two checks.
const IDLE: Duration = Duration::from_secs(3600);

/// Most messages that are processed before a timer that is due.
const MESSAGES_MAX: usize = 64;

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

/// What a task of the driver has finished.
#[derive(Debug)]
enum Done {
    /// This host sends nothing more to a loan.
    Forgotten(LoanId),
    /// The memory was read, and the helper was looked at.
    Read(io::Result<Reading>, HelperState),
}

/// The loop's state. Nothing here waits: what may take long runs elsewhere, so that leases are renewed in time.
struct Driver {
    shared: Arc<Shared>,
    outputs: Outputs,
    forgets: Forgets,
    done: mpsc::UnboundedSender<Done>,
    /// Whether the memory is being read. The kernel may take its time for that.
    is_reading: bool,
    /// As it was last.
    helper: HelperState,
}

/// Runs forever.
pub async fn run(shared: Arc<Shared>, mut inputs: Inputs, outputs: Outputs) {
    let (done, mut finished) = mpsc::unbounded_channel();
    let mut period = interval(shared.settings.period);
    period.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let forgets = Forgets::default();
    let helper = HelperState::Ok;
    let mut driver = Driver { shared, outputs, forgets, done, is_reading: false, helper };
    loop {
        let wake_at = driver.shared.machine().wake_at().unwrap_or(Duration::MAX);
        let wake_at = driver.shared.started + wake_at.min(driver.shared.now() + IDLE);
        tokio::select! {
            // Process completed actions before new requests: a borrower's pages are freed before others
            // request memory.
            biased;
            Some(done) = finished.recv() => driver.finish(done, &mut inputs.messages),
            Some(event) = inputs.results.recv() => {
                driver.take_messages(&mut inputs.messages);
                driver.handle(event);
            }
            Some((order, hears)) = inputs.orders.recv() => {
                driver.take_messages(&mut inputs.messages);
                let done = driver.follow_order(order);
                // The requester may be gone.
                let _ = hears.send(told(done));
            }
            _ = period.tick() => {
                driver.take_messages(&mut inputs.messages);
                driver.read_memory();
            }
            Ok(()) = inputs.hosts.changed() => {
                driver.take_messages(&mut inputs.messages);
                let hosts = inputs.hosts.borrow_and_update().clone();
                let peers = driver.shared.peers.update(&hosts);
                // A host that may only lend has no requests to make.
                driver.handle(Event::Peers(if driver.shared.settings.borrows { peers } else { Vec::new() }));
            }
            Some(event) = inputs.messages.recv() => {
                driver.handle(event);
            }
            () = sleep_until(wake_at) => {
                driver.take_messages(&mut inputs.messages);
                driver.handle(Event::Tick);
                // Memory that was short for long enough shows only in what is read then.
                driver.read_memory();
            }
        }
        driver.tell_spare();
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

impl Driver {
    /// Processes messages that have arrived, before any other event: each tells the machine the time, at which a lease
    /// may be over, and among the messages may be the answer that renewed it.
    fn take_messages(&mut self, messages: &mut mpsc::Receiver<Event>) {
        for _ in 0..MESSAGES_MAX {
            let Ok(event) = messages.try_recv() else { return };
            self.handle(event);
        }
    }

    /// Starts to read the memory, unless that is under way.
    fn read_memory(&mut self) {
        if self.is_reading {
            return;
        }
        self.is_reading = true;
        let (shared, done) = (self.shared.clone(), self.done.clone());
        tokio::task::spawn_blocking(move || {
            // The receiver is gone when the daemon ends.
            let _ = done.send(Done::Read(shared.reading(), shared.kernel.helper()));
        });
    }

    fn finish(&mut self, done: Done, messages: &mut mpsc::Receiver<Event>) {
        match done {
            Done::Forgotten(loan) => {
                for action in self.forgets.end(&loan) {
                    self.carry_out(action);
                }
            }
            Done::Read(reading, helper) => {
                self.take_messages(messages);
                self.is_reading = false;
                self.note_helper(helper);
                let event = match reading {
                    Ok(reading) => Event::Memory(reading),
                    Err(error) => {
                        tracing::error!("can't read this host's memory: {error}");
                        Event::Tick
                    }
                };
                self.handle(event);
            }
        }
    }

    /// Logs each change of the helper's state, and has the machine borrow nothing that could not be returned.
    fn note_helper(&mut self, helper: HelperState) {
        if std::mem::replace(&mut self.helper, helper) == helper {
            return;
        }
        match helper {
            HelperState::Gone => tracing::error!(
                "the helper has ended: this host can't swap onto or off borrowed memory until spillwayd is restarted; \
                 before you do that, swapoff each borrowed device"
            ),
            HelperState::Silent => tracing::error!(
                "the helper does not answer: this host can't swap onto or off borrowed memory until it does"
            ),
            HelperState::Ok => tracing::info!("the helper answers again"),
            HelperState::Unneeded => {}
        }
        self.handle(Event::Obstacle(helper.obstacle()));
    }

    fn follow_order(&mut self, order: LendOrder) -> Result<(), Error> {
        let settings = &self.shared.settings;
        let order = match order {
            LendOrder::Borrow(_) if !settings.borrows => return Err(Error::LendsOnly),
            LendOrder::Borrow(bytes) => {
                let slabs = bytes.div_ceil(settings.machine.slab_bytes);
                Order::Borrow(u32::try_from(slabs).unwrap_or(u32::MAX))
            }
            LendOrder::Return => Order::Return,
            LendOrder::Drain => Order::Drain,
            LendOrder::Resume => Order::Resume,
        };
        let refused = self.handle(Event::Operator(order));
        refused.map_or(Ok(()), |why| Err(Error::CannotBorrow(why)))
    }

    /// Passes an event to the machine, and executes its actions. Returns why an operator's order can't
    /// be followed.
    fn handle(&mut self, event: Event) -> Option<&'static str> {
        if let Event::Placed { place: CopyLocation::Lender { loan, .. }, result: Ok(()), .. } =
            &event
        {
            self.shared.health.loan_works(loan.number);
        }
        let mut actions = Vec::new();
        self.shared.machine().handle(self.shared.now(), event, &mut actions);
        let mut refused = None;
        for action in actions {
            if let Action::Note(Note::CannotBorrow { why }) = action {
                refused = Some(why);
            }
            if let Some(action) = self.forgets.admit(action) {
                self.carry_out(action);
            }
        }
        refused
    }

    fn carry_out(&mut self, action: Action) {
        let (shared, outputs) = (&self.shared, &mut self.outputs);
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
                    let result = result.map_err(|error| error.of_placing());
                    Event::Placed { device, slab, copy, place, result }
                });
            }
            Action::Forget { device, loan } => self.forget(device, loan),
        }
    }

    /// Stops using a loan. That may wait for pages in flight, so what must come after it is held back meanwhile; a
    /// batch tries at most three places one after the other.
    fn forget(&mut self, device: DeviceId, loan: LoanId) {
        let shared = self.shared.clone();
        let limit = 3 * shared.settings.request_timeout + FORGET_MARGIN;
        let lender = shared.health.lender(loan.number);
        shared.health.loan_ended(loan.number);
        self.forgets.begin(loan.clone(), device);
        let (borrower, its) = (shared.borrower.clone(), loan.clone());
        let forgotten = tokio::task::spawn_blocking(move || borrower.forget(device, &its));
        let done = self.done.clone();
        tokio::spawn(async move {
            if timeout(limit, forgotten).await.is_err() {
                let address = lender.as_ref().and_then(|host| shared.peers.address(host));
                tracing::error!(
                    loan = loan.to_string(),
                    lender = lender.as_ref().map(HostId::as_str),
                    address = address.map(|address| address.to_string()),
                    "a loan ends while pages are in flight to it or to the local file"
                );
            }
            // The receiver is gone when the daemon ends.
            let _ = done.send(Done::Forgotten(loan));
        });
    }

    /// Updates what other hosts see.
    fn tell_spare(&self) {
        let shared = &self.shared;
        let spare_bytes = if shared.settings.lends {
            let machine = shared.machine();
            let (spare_bytes, lent_bytes) = (machine.spare_bytes(), machine.lent_bytes());
            drop(machine);
            shared.lender.bounded(spare_bytes, lent_bytes)
        } else {
            0
        };
        shared.peers.set_spare_bytes(spare_bytes);
        self.outputs.own.send_if_modified(|own| {
            let changed = own.spare_bytes != spare_bytes;
            own.spare_bytes = spare_bytes;
            changed
        });
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
