//! Threads that wait for a disk on behalf of callers, which wait no longer than a deadline.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Stack of a thread.
const STACK_BYTES: usize = 128 << 10;

type Job = Box<dyn FnOnce() + Send>;

/// A few threads, started when they are needed.
#[derive(Debug)]
pub(super) struct Workers {
    name: &'static str,
    most: usize,
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<JobQueue>,
    rung: Condvar,
}

#[derive(Default)]
struct JobQueue {
    /// With numbers, so that one can be taken back.
    jobs: VecDeque<(u64, Job)>,
    handed_over: u64,
    idle: usize,
    stopping: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

/// What somebody waits for.
enum Ticket<T> {
    Open,
    Done(T),
    /// Nobody waits any more.
    GivenUp,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Workers {
    /// At most `most` threads; none is there yet.
    pub(super) fn new(name: &'static str, most: usize) -> Self {
        Self { name, most, queue: Arc::default(), threads: Mutex::default() }
    }

    /// Has `work` done by a thread, and waits for what it gives until `deadline` from now. Work that
    /// is done too late drops what it gives. Work that is not begun in time is dropped here, so that
    /// a disk that does not answer leaves no more behind than there are threads.
    ///
    /// # Errors
    /// `TimedOut`; of starting the first thread.
    pub(super) fn wait_for<T: Send + 'static>(
        &self,
        deadline: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let until = Instant::now() + deadline;
        let place = Arc::new((Mutex::new(Ticket::Open), Condvar::new()));
        let its = Arc::clone(&place);
        let number = self.hand_over(Box::new(move || {
            let done = work();
            let mut ticket = lock(&its.0);
            if matches!(*ticket, Ticket::Open) {
                *ticket = Ticket::Done(done);
                its.1.notify_one();
            }
        }))?;
        let mut ticket = lock(&place.0);
        loop {
            if let Ticket::Done(_) = *ticket
                && let Ticket::Done(done) = std::mem::replace(&mut *ticket, Ticket::GivenUp)
            {
                return Ok(done);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                *ticket = Ticket::GivenUp;
                drop(ticket);
                drop(self.take_back(number));
                return Err(io::ErrorKind::TimedOut.into());
            }
            let waited = place.1.wait_timeout(ticket, left);
            ticket = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// A job that no thread has begun.
    fn take_back(&self, number: u64) -> Option<Job> {
        let mut state = lock(&self.queue.state);
        let at = state.jobs.iter().position(|(its, _)| *its == number)?;
        state.jobs.remove(at).map(|(_, job)| job)
    }

    /// Has `job` done some time. Gives its number.
    ///
    /// # Errors
    /// Of starting the first thread.
    pub(super) fn hand_over(&self, job: Job) -> io::Result<u64> {
        let mut threads = lock(&self.threads);
        let mut state = lock(&self.queue.state);
        if state.idle <= state.jobs.len() && threads.len() < self.most {
            let queue = Arc::clone(&self.queue);
            let thread = std::thread::Builder::new().name(self.name.into());
            match thread.stack_size(STACK_BYTES).spawn(move || queue.serve()) {
                Ok(thread) => threads.push(thread),
                Err(error) if threads.is_empty() => return Err(error),
                // Those that are there do it later.
                Err(_) => {}
            }
        }
        state.handed_over += 1;
        let number = state.handed_over;
        state.jobs.push_back((number, job));
        drop(state);
        self.queue.rung.notify_one();
        Ok(number)
    }
}

impl Queue {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some((_, job)) = state.jobs.pop_front() {
                drop(state);
                job();
                state = lock(&self.state);
            } else if state.stopping {
                return;
            } else {
                state.idle += 1;
                state = self.rung.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Workers {
    /// Ends the threads, after all that was handed over.
    fn drop(&mut self) {
        lock(&self.queue.state).stopping = true;
        self.queue.rung.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // A panic ends the process before.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn who_waits_gets_the_answer_or_goes_on_at_the_deadline() {
        let workers = Workers::new("test", 2);
        let long = Duration::from_secs(60);
        assert_eq!(workers.wait_for(long, || 7).unwrap(), 7);
        let (go, wait) = channel::<()>();
        let (told, dropped) = channel();
        struct Tell(std::sync::mpsc::Sender<()>);
        impl Drop for Tell {
            fn drop(&mut self) {
                self.0.send(()).unwrap();
            }
        }
        let tell = Tell(told.clone());
        let late = workers.wait_for(Duration::from_millis(20), move || {
            wait.recv().unwrap();
            tell
        });
        assert_eq!(late.err().unwrap().kind(), io::ErrorKind::TimedOut);
        assert!(dropped.try_recv().is_err(), "it is still under way");
        // The other thread serves meanwhile.
        assert_eq!(workers.wait_for(long, || 8).unwrap(), 8);
        go.send(()).unwrap();
        dropped.recv_timeout(long).unwrap();
    }

    #[test]
    fn of_two_that_come_at_once_none_waits_for_the_other() {
        let long = Duration::from_secs(20);
        let workers = Workers::new("test", 2);
        workers.wait_for(long, || ()).unwrap();
        let (go, wait) = channel::<()>();
        loop {
            let mut state = lock(&workers.queue.state);
            if state.idle == 1 {
                // The idle thread has still to hear of this one.
                state.jobs.push_back((0, Box::new(move || wait.recv().unwrap())));
                break;
            }
            drop(state);
            std::thread::yield_now();
        }
        workers.wait_for(long, || ()).unwrap();
        go.send(()).unwrap();
    }

    #[test]
    fn work_that_nobody_waits_for_is_not_begun_and_leaves_nothing() {
        let workers = Workers::new("test", 1);
        let (go, wait) = channel::<()>();
        let (busy, is_busy) = channel::<()>();
        let work = move || {
            busy.send(()).unwrap();
            wait.recv().unwrap();
        };
        workers.hand_over(Box::new(work)).unwrap();
        is_busy.recv_timeout(Duration::from_secs(60)).unwrap();
        let begun = Arc::new(Mutex::new(false));
        let its = Arc::clone(&begun);
        let late = workers.wait_for(Duration::from_millis(20), move || *lock(&its) = true);
        assert!(late.is_err());
        // The thread is still busy, and what the work had is gone.
        assert_eq!(Arc::strong_count(&begun), 1);
        assert!(lock(&workers.queue.state).jobs.is_empty());
        go.send(()).unwrap();
        workers.wait_for(Duration::from_secs(60), || ()).unwrap();
        assert!(!*lock(&begun));
    }
}
