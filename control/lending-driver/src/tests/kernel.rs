//! A kernel in memory: its calls fail, or hang, as a test says.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use spillway_block::Device;
use spillway_host::{Memory, Pressure, Swap};

use crate::error::Error;
use crate::kernel::{AttachedDevice, HelperState, Kernel, RemoteDevice};

/// All memory of the host.
pub const TOTAL_BYTES: u64 = 1 << 30;

#[derive(Clone, Debug, Default)]
pub struct FakeKernel(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<FakeKernelState>,
    let_go: Condvar,
}

#[derive(Debug, Default)]
struct FakeKernelState {
    available_bytes: u64,
    swaps: Vec<Swap>,
    /// Calls that fail, and what they say.
    fails: BTreeMap<&'static str, &'static str>,
    /// Calls that hang.
    hangs: BTreeSet<&'static str>,
    /// All that was to change this host, in order.
    calls: Vec<String>,
    disks: BTreeMap<PathBuf, Arc<dyn Device>>,
    helper: HelperState,
}

impl FakeKernel {
    pub fn new(available_bytes: u64) -> Self {
        let kernel = Self::default();
        kernel.state().available_bytes = available_bytes;
        kernel
    }

    fn state(&self) -> MutexGuard<'_, FakeKernelState> {
        self.0.state.lock().unwrap()
    }

    pub fn set_available(&self, bytes: u64) {
        self.state().available_bytes = bytes;
    }

    /// Has so much lie on a disk that is swapped onto: half of it is free.
    pub fn set_swap_used(&self, bytes: u64) {
        let set = |swap: &mut Swap| (swap.bytes, swap.used_bytes) = (2 * bytes, bytes);
        self.state().swaps.iter_mut().for_each(set);
    }

    /// Has the kernel swap onto something.
    pub fn add_swap(&self, path: &str) {
        let swap = Swap { path: path.to_owned(), bytes: 1 << 20, used_bytes: 0, priority: 1 };
        self.state().swaps.push(swap);
    }

    pub fn set_helper(&self, helper: HelperState) {
        self.state().helper = helper;
    }

    pub fn fail(&self, call: &'static str, line: &'static str) {
        self.state().fails.insert(call, line);
    }

    pub fn heal(&self, call: &'static str) {
        self.state().fails.remove(call);
    }

    pub fn hang(&self, call: &'static str) {
        self.state().hangs.insert(call);
    }

    /// Ends all that hangs.
    pub fn let_go(&self) {
        self.state().hangs.clear();
        self.0.let_go.notify_all();
    }

    /// How often something was called.
    pub fn count(&self, call: &str) -> usize {
        let is_it = |line: &&String| line.split(' ').next() == Some(call);
        self.state().calls.iter().filter(is_it).count()
    }

    pub fn calls(&self) -> Vec<String> {
        self.state().calls.clone()
    }

    /// The disks and sockets that are there.
    pub fn disks(&self) -> Vec<Arc<dyn Device>> {
        self.state().disks.values().cloned().collect()
    }

    fn call(&self, name: &'static str, what: impl std::fmt::Display) -> Result<(), Error> {
        let mut state = self.state();
        state.calls.push(format!("{name} {what}"));
        while state.hangs.contains(name) {
            state = self.0.let_go.wait(state).unwrap();
        }
        match state.fails.get(name) {
            Some(line) => Err(Error::Kernel((*line).into())),
            None => Ok(()),
        }
    }

    fn read(&self, name: &'static str) -> io::Result<MutexGuard<'_, FakeKernelState>> {
        let mut state = self.state();
        while state.hangs.contains(name) {
            state = self.0.let_go.wait(state).unwrap();
        }
        match state.fails.get(name) {
            Some(line) => Err(io::Error::other(*line)),
            None => Ok(state),
        }
    }

    fn disk(&self, path: &Path, device: Arc<dyn Device>) -> Box<dyn AttachedDevice> {
        self.state().disks.insert(path.to_owned(), device);
        Box::new(FakeDisk { kernel: self.clone(), path: path.to_owned() })
    }
}

impl Kernel for FakeKernel {
    fn memory(&self) -> io::Result<Memory> {
        let available = self.read("memory")?.available_bytes;
        Ok(Memory { total: TOTAL_BYTES, available, ..Memory::default() })
    }

    fn swaps(&self) -> io::Result<Vec<Swap>> {
        Ok(self.read("swaps")?.swaps.clone())
    }

    fn pressure(&self) -> Option<Pressure> {
        None
    }

    fn helper(&self) -> HelperState {
        self.state().helper
    }

    fn attach(
        &self,
        device: Arc<dyn Device>,
        timeout: Duration,
    ) -> Result<Box<dyn AttachedDevice>, Error> {
        self.call("attach", format_args!("{timeout:?}"))?;
        let path = format!("/dev/nbd{}", self.state().disks.len());
        Ok(self.disk(Path::new(&path), device))
    }

    fn serve(
        &self,
        device: Arc<dyn Device>,
        path: &Path,
    ) -> Result<Box<dyn AttachedDevice>, Error> {
        self.call("serve", path.display())?;
        Ok(self.disk(path, device))
    }

    fn connect(&self, device: &RemoteDevice) -> Result<String, Error> {
        self.call("connect", format_args!("{} {}", device.address, device.nqn))?;
        Ok("/dev/nvme0n1".to_owned())
    }

    fn disconnect(&self, path: &str) -> Result<(), Error> {
        self.call("disconnect", path)
    }

    fn swap_on(&self, path: &str, _: Duration) -> Result<String, Error> {
        self.call("swap_on", path)?;
        self.add_swap(path);
        Ok("100".to_owned())
    }

    fn swap_off(&self, path: &str, limit: Duration) -> Result<(), Error> {
        self.call("swap_off", format_args!("{path} {limit:?}"))?;
        self.state().swaps.retain(|swap| swap.path != path);
        Ok(())
    }

    fn keep_free(&self, bytes: u64, may_change: bool) -> Result<(), Error> {
        self.call("keep_free", format_args!("{bytes} {may_change}"))
    }

    fn restore_free(&self) {
        // It can't fail.
        let _ = self.call("restore_free", "");
    }
}

#[derive(Debug)]
struct FakeDisk {
    kernel: FakeKernel,
    path: PathBuf,
}

impl AttachedDevice for FakeDisk {
    fn path(&self) -> &Path {
        &self.path
    }

    fn detach(self: Box<Self>) -> Result<(), Error> {
        self.kernel.call("detach", self.path.display())
    }
}

impl Drop for FakeDisk {
    fn drop(&mut self) {
        let device = self.kernel.state().disks.remove(&self.path);
        // The last to have it joins a thread: not under the lock.
        drop(device);
    }
}
