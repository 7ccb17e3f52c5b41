//! The connection of a guest's QEMU: the messages of vhost-user.

use std::fs::File;
use std::sync::{Arc, PoisonError};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVirtioFeatures,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ,
    VIRTIO_BLK_F_SEG_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};

use crate::config_space;
use crate::disk::Disk;
use crate::inflight::{Inflight, QueueInflight};
use crate::memory::Memory;
use crate::queue::{Call, RunningQueue, Setup, notify};

/// Longest queue.
const QUEUE_SIZE_MAX: u16 = 1024;

/// One guest's device while its QEMU is connected.
pub struct Connection {
    disk: Arc<Disk>,
    features: u64,
    memory: Option<Arc<Memory>>,
    inflight: Option<Arc<Inflight>>,
    queues: Vec<QueueState>,
    /// Why the peer's last message was refused.
    refusal: Option<String>,
}

/// The settings of a queue, from vhost-user's messages.
#[derive(Default)]
struct QueueState {
    size: u16,
    /// Addresses in the peer's own address space.
    descriptors: u64,
    available: u64,
    used: u64,
    next: u16,
    kick: Option<File>,
    call: Call,
    enabled: bool,
    running: Option<RunningQueue>,
}

impl QueueState {
    /// Stops the queue's thread. Afterwards the queue's memory is not accessed.
    fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.next = running.stop();
        }
    }
}

/// Makes a descriptor of the peer non-blocking, so that no thread waits for the peer.
fn never_wait(file: &File) -> Result<()> {
    let set = || fcntl_setfl(file, fcntl_getfl(file)? | OFlags::NONBLOCK);
    set().map_err(|errno| Error::ReqHandlerError(errno.into()))
}

const fn bit(number: u32) -> u64 {
    1 << number
}

/// The features that the device offers.
fn features() -> u64 {
    VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits()
        | bit(VIRTIO_F_VERSION_1)
        | bit(VIRTIO_RING_F_EVENT_IDX)
        | bit(VIRTIO_RING_F_INDIRECT_DESC)
        | bit(VIRTIO_BLK_F_SEG_MAX)
        | bit(VIRTIO_BLK_F_BLK_SIZE)
        | bit(VIRTIO_BLK_F_TOPOLOGY)
        | bit(VIRTIO_BLK_F_FLUSH)
        | bit(VIRTIO_BLK_F_MQ)
        | bit(VIRTIO_BLK_F_DISCARD)
        | bit(VIRTIO_BLK_F_WRITE_ZEROES)
}

/// The features of the protocol that the device offers.
pub fn protocol_features() -> VhostUserProtocolFeatures {
    VhostUserProtocolFeatures::MQ
        | VhostUserProtocolFeatures::CONFIG
        | VhostUserProtocolFeatures::REPLY_ACK
        | VhostUserProtocolFeatures::INFLIGHT_SHMFD
        | VhostUserProtocolFeatures::RESET_DEVICE
}

impl Connection {
    pub fn new(disk: Arc<Disk>, queues: u16) -> Self {
        let queues = (0..queues).map(|_| QueueState::default()).collect();
        Self { disk, features: 0, memory: None, inflight: None, queues, refusal: None }
    }

    /// Whether the guest uses a queue.
    pub fn has_queues(&self) -> bool {
        self.queues.iter().any(|queue| queue.running.is_some())
    }

    /// The reason why the peer's last message was refused, if there was one.
    pub fn take_refusal(&mut self) -> Option<String> {
        self.refusal.take()
    }

    fn queue(&mut self, index: u32) -> Result<&mut QueueState> {
        self.queues.get_mut(index as usize).ok_or(Error::InvalidParam)
    }

    /// Starts serving a queue, if its settings are complete.
    fn start(&mut self, index: u32) -> Result<()> {
        let event_index = self.features & bit(VIRTIO_RING_F_EVENT_IDX) != 0;
        let (disk, inflight) = (Arc::clone(&self.disk), self.inflight.clone());
        let Some(memory) = self.memory.clone() else { return Ok(()) };
        let queue = self.queue(index)?;
        if queue.running.is_some() || !queue.enabled || queue.descriptors == 0 {
            return Ok(());
        }
        let Some(kick) = &queue.kick else { return Ok(()) };
        let place = |user| memory.translate(user).ok_or(Error::InvalidParam);
        let (number, size) = (index as u16, queue.size);
        let inflight = match inflight {
            Some(region) => {
                Some(QueueInflight::of(region, number, size).ok_or(Error::InvalidParam)?)
            }
            None => None,
        };
        let setup = Setup {
            disk,
            number,
            size,
            descriptors: place(queue.descriptors)?,
            available: place(queue.available)?,
            used: place(queue.used)?,
            next: queue.next,
            event_index,
            kick: kick.try_clone().map_err(Error::ReqHandlerError)?,
            call: Arc::clone(&queue.call),
            inflight,
            memory,
        };
        queue.running = Some(RunningQueue::start(setup).map_err(Error::ReqHandlerError)?);
        Ok(())
    }

    fn start_all(&mut self) -> Result<()> {
        (0..self.queues.len() as u32).try_for_each(|index| self.start(index))
    }

    fn stop_all(&mut self) {
        // Asks all queues to end before it waits for the first.
        self.queues.iter().filter_map(|queue| queue.running.as_ref()).for_each(RunningQueue::ask);
        self.queues.iter_mut().for_each(QueueState::stop);
    }

    /// Logs the reason of a refusal for the operator. The peer gets only an error.
    fn refused(&mut self, error: &crate::Error) -> Error {
        self.refusal = Some(error.to_string());
        tracing::error!(disk = self.disk.name(), "the guest is not served: {error}");
        Error::InvalidParam
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl VhostUserBackendReqHandlerMut for Connection {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.reset_device()
    }

    fn reset_device(&mut self) -> Result<()> {
        self.stop_all();
        self.queues.iter_mut().for_each(|queue| *queue = QueueState::default());
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(features())
    }

    fn set_features(&mut self, wanted: u64) -> Result<()> {
        if wanted & !features() != 0 {
            return Err(Error::InvalidParam);
        }
        self.features = wanted;
        // Without protocol features, no message enables a queue, so queues start enabled.
        if wanted & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0 {
            self.queues.iter_mut().for_each(|queue| queue.enabled = true);
        }
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        self.stop_all();
        self.memory = None;
        let memory = Memory::map(regions, files).map_err(|error| self.refused(&error))?;
        self.memory = Some(Arc::new(memory));
        self.start_all()?;
        Ok(None)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let size = u16::try_from(num).ok().filter(|size| size.is_power_of_two());
        let size = size.filter(|&size| size <= QUEUE_SIZE_MAX).ok_or(Error::InvalidParam)?;
        let queue = self.queue(index)?;
        queue.stop();
        queue.size = size;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        let queue = self.queue(index)?;
        queue.stop();
        (queue.descriptors, queue.available, queue.used) = (descriptor, available, used);
        self.start(index)
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        let queue = self.queue(index)?;
        queue.stop();
        queue.next = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        let queue = self.queue(index)?;
        queue.stop();
        queue.kick = None;
        Ok(VhostUserVringState::new(index, u32::from(queue.next)))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        queue.stop();
        // Without a kick descriptor the queue would have to be polled, which is not supported.
        let kick = fd.ok_or(Error::InvalidParam)?;
        never_wait(&kick)?;
        queue.kick = Some(kick);
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let queue = self.queue(index.into())?;
        fd.as_ref().map_or(Ok(()), never_wait)?;
        *queue.call.lock().unwrap_or_else(PoisonError::into_inner) = fd.map(Arc::new);
        // Notifies the guest of requests that were completed while there was no call descriptor.
        notify(&queue.call);
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _fd: Option<File>) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(protocol_features())
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.queues.len() as u64)
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let queue = self.queue(index)?;
        queue.enabled = enable;
        if enable {
            return self.start(index);
        }
        queue.stop();
        Ok(())
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let queues = self.queues.len() as u16;
        // The vhost crate has checked offset and size.
        Ok(config_space::read(self.disk.blocks(), queues, offset as usize, size as usize))
    }

    fn set_config(
        &mut self,
        _offset: u32,
        _buf: &[u8],
        _flags: VhostUserConfigFlags,
    ) -> Result<()> {
        Err(Error::InvalidOperation("nothing of the device can be set"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if usize::from(queues) > self.queues.len() || size > QUEUE_SIZE_MAX {
            return Err(Error::InvalidParam);
        }
        let (bytes, file) = Inflight::create(queues, size).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight { mmap_size: bytes, mmap_offset: 0, ..*wanted }, file))
    }

    fn set_inflight_fd(&mut self, region: &VhostUserInflight, file: File) -> Result<()> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues, queue_size } = *region;
        self.stop_all();
        let mapped = Inflight::map(file, mmap_offset, mmap_size, num_queues, queue_size);
        let mapped = mapped.map_err(|error| self.refused(&error))?;
        self.inflight = Some(Arc::new(mapped));
        self.start_all()
    }

    fn set_gpu_socket(&mut self, _: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("a disk is no display"))
    }

    fn get_shared_object(&mut self, _: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("a disk shares no objects"))
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Err(Error::InvalidOperation("the memory comes as a whole"))
    }

    fn add_mem_region(
        &mut self,
        _: &VhostUserSingleMemoryRegion,
        _: File,
        _: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        Err(Error::InvalidOperation("the memory comes as a whole"))
    }

    fn remove_mem_region(&mut self, _: &VhostUserSingleMemoryRegion) -> Result<()> {
        Err(Error::InvalidOperation("the memory comes as a whole"))
    }

    fn set_device_state_fd(
        &mut self,
        _: VhostTransferStateDirection,
        _: VhostTransferStatePhase,
        _: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("a disk is not moved with its guest"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("a disk is not moved with its guest"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("a disk has no shared memory"))
    }

    fn set_log_base(&mut self, _: &VhostUserLog, _: File) -> Result<()> {
        Err(Error::InvalidOperation("a disk is not moved with its guest"))
    }
}
