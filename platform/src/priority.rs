//! Which of a process's threads run first when the processors are busy.

use rustix::process::{getpid, getpriority_process, setpriority_process};

/// By how much the nice value of a preferred thread is lower.
pub const PREFERENCE: i32 = 10;

/// Lowers the nice value of the calling thread, and of the threads that it starts, by [`PREFERENCE`]. For threads that do
/// little for each of many peers, as those that accept connections: a peer that keeps a processor busy with new
/// connections would else have the share of the thread that everybody waits for. Without CAP_SYS_NICE and RLIMIT_NICE
/// the thread keeps its nice value.
pub fn prefer() {
    if let Some(usual) = usual() {
        let _ = setpriority_process(None, (usual - PREFERENCE).max(-20));
    }
}

/// Gives the calling thread the nice value of the process's first thread again.
pub fn prefer_no_longer() {
    if let Some(usual) = usual() {
        // Everybody may raise it.
        let _ = setpriority_process(None, usual);
    }
}

fn usual() -> Option<i32> {
    getpriority_process(Some(getpid())).ok()
}

#[cfg(test)]
mod tests {
    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn only_the_calling_thread_is_preferred_as_long_as_it_wants() {
        let usual = usual().unwrap();
        let of_this = || getpriority_process(None).unwrap();
        // The limit is 20 less the least nice value.
        let limit = getrlimit(Resource::Nice).current.map_or(i32::MAX, |limit| limit as i32);
        let wanted = (usual - PREFERENCE).max(-20);
        let is_permitted = 20 - wanted <= limit || rustix::process::geteuid().is_root();
        let (preferred, child, then) = std::thread::spawn(move || {
            prefer();
            let child = std::thread::spawn(move || {
                prefer_no_longer();
                getpriority_process(None).unwrap()
            });
            let (preferred, child) = (of_this(), child.join().unwrap());
            prefer_no_longer();
            (preferred, child, of_this())
        })
        .join()
        .unwrap();
        assert_eq!(preferred, if is_permitted { wanted } else { usual });
        assert_eq!((child, then, of_this()), (usual, usual, usual));
    }
}
