//! How many tasks a pager has at most, and their places in [`Rest`](crate::rest::Rest).

/// Threads that can answer faults at the same time.
pub(crate) const ANSWERERS: usize = 32;
/// Most fault-handling threads of a process.
pub(crate) const HANDLERS_MAX: usize = 32;
/// Tasks with counters: handlers, and threads that answer their own faults at the same time.
pub(crate) const COUNTING_TASKS: usize = HANDLERS_MAX + ANSWERERS;
/// Place of the evictor in [`Rest`](crate::rest::Rest); handlers have the places below it.
pub(crate) const EVICTOR_PLACE: usize = HANDLERS_MAX;
/// Place of the program's own threads in [`Rest`](crate::rest::Rest), shared by all of them.
pub(crate) const PROGRAM_PLACE: usize = HANDLERS_MAX + 1;
/// Place of the main task in [`Rest`](crate::rest::Rest).
pub(crate) const MAIN_TASK_PLACE: usize = HANDLERS_MAX + 2;
