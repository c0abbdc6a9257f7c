//! Sums over the devices of several processes or machines, by NCCL.

use super::buffer::DeviceBuffer;
use super::device::Gpu;
use crate::error::Error;
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, PoisonError};

/// What ranks find each other by: made by one of them, and brought to the others by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorId([u8; 128]);

impl CommunicatorId {
    /// A new one.
    ///
    /// # Errors
    /// [`Error::Nccl`], also where the library is not installed.
    pub fn new() -> Result<CommunicatorId, Error> {
        is_there()?;
        let id = result::get_uniqueid().map_err(failed("making an id"))?;
        Ok(CommunicatorId(id.internal.map(|byte| byte as u8)))
    }

    /// From its bytes.
    pub fn from_bytes(bytes: [u8; 128]) -> CommunicatorId {
        CommunicatorId(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; 128] {
        self.0
    }
}

/// A device as one of several ranks that add up what each of them has: in threads, processes or machines.
///
/// A sum is enqueued on the device's stream behind what made its operand. **Every rank has to enqueue the same sums in the same order**; where
/// one does not, or is gone, the others wait for ever, as is NCCL's way.
#[derive(Debug)]
pub struct Communicator {
    gpu: Arc<Gpu>,
    handle: Mutex<Handle>,
    rank: usize,
    ranks: usize,
}

#[derive(Debug)]
struct Handle(sys::ncclComm_t);

// SAFETY: NCCL's communicators may be used by any thread, by one at a time; a lock is around it.
unsafe impl Send for Handle {}

impl Communicator {
    /// Joins as rank `rank` of `ranks` with this device, and waits until all have.
    ///
    /// # Errors
    /// [`Error::Nccl`], also where the library is not installed; [`Error::Capturing`].
    pub fn join(
        gpu: &Arc<Gpu>,
        id: &CommunicatorId,
        rank: usize,
        ranks: usize,
    ) -> Result<Arc<Communicator>, Error> {
        is_there()?;
        let doing = "joining the other ranks";
        let number = |count: usize| i32::try_from(count).ok();
        let (Some(rank_number), Some(ranks_number)) = (number(rank), number(ranks).filter(|_| rank < ranks))
        else {
            let help = "ranks are numbered from 0 on";
            return Err(Error::Nccl { doing, why: format!("there is no rank {rank} of {ranks}"), help });
        };
        let _bound = gpu.bind()?;
        let mut comm = MaybeUninit::uninit();
        let id = sys::ncclUniqueId { internal: id.0.map(|byte| byte as std::ffi::c_char) };
        // SAFETY: the pointer is to room for a communicator, and the device's context is current.
        unsafe { result::comm_init_rank(comm.as_mut_ptr(), ranks_number, id, rank_number) }
            .map_err(failed(doing))?;
        // SAFETY: it was made just now.
        let handle = Mutex::new(Handle(unsafe { comm.assume_init() }));
        Ok(Arc::new(Communicator { gpu: Arc::clone(gpu), handle, rank, ranks }))
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Which of the ranks it is, from 0 on.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks there are.
    pub fn ranks(&self) -> usize {
        self.ranks
    }

    /// Enqueues the sum over all ranks of `values`, of which each has as many, in their place. In which order numbers are added is NCCL's affair, so
    /// the bits of a sum are too; they are the same on all ranks.
    ///
    /// # Errors
    /// [`Error::WrongDevice`] for memory elsewhere; [`Error::Nccl`]; [`Error::Capturing`]: no graph holds a sum.
    pub fn sum(&self, values: &mut DeviceBuffer<f32>) -> Result<(), Error> {
        if !Arc::ptr_eq(values.gpu(), &self.gpu) {
            return Err(Error::WrongDevice { kernel: "ncclAllReduce", index: self.gpu.profile().index });
        }
        if values.is_empty() {
            return Ok(());
        }
        let (address, count) = (values.output(), values.len());
        // Taken in front of the stream's lock by all who take both.
        let handle = self.handle.lock().unwrap_or_else(PoisonError::into_inner);
        let enqueued = self.gpu.outside_capture("summed over devices", |stream| {
            // SAFETY: `count` values are there, on this device; what is dropped before the sum has run is freed behind it. The
            // communicator lives until it is dropped, and is this thread's alone now.
            unsafe {
                result::all_reduce(
                    address as *const _,
                    address as *mut _,
                    count,
                    sys::ncclDataType_t::ncclFloat32,
                    sys::ncclRedOp_t::ncclSum,
                    handle.0,
                    stream.cast(),
                )
            }
        })?;
        enqueued.map(drop).map_err(failed("enqueueing a sum"))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        let handle = self.handle.get_mut().unwrap_or_else(PoisonError::into_inner);
        // What was enqueued is waited for; where that fails, it is given up.
        let waited = self.gpu.synchronize();
        let _bound = self.gpu.bind();
        // SAFETY: nobody uses it any more. Whoever drops it can't be told of an error.
        let _ = unsafe {
            match waited {
                Ok(()) => result::comm_destroy(handle.0),
                Err(_) => result::comm_abort(handle.0),
            }
        };
    }
}

/// Whether the library can be loaded, by the name by which cudarc then loads it.
fn is_there() -> Result<(), Error> {
    #[cfg(unix)]
    // SAFETY: opening a library runs its initializers; this is NVIDIA's. It stays open.
    let found = !unsafe { libc::dlopen(c"libnccl.so".as_ptr(), libc::RTLD_NOW) }.is_null();
    #[cfg(not(unix))]
    let found = false;
    if found {
        return Ok(());
    }
    let (doing, why) = ("opening the library", String::from("libnccl.so can't be loaded"));
    let help = "install NCCL with its development files, or make a link of that name to libnccl.so.2 where the loader looks (LD_LIBRARY_PATH)";
    Err(Error::Nccl { doing, why, help })
}

fn failed(doing: &'static str) -> impl FnOnce(NcclError) -> Error {
    move |error| Error::Nccl {
        doing,
        why: format!("{:?} ({})", error.0, error.0 as u32),
        help: "NCCL_DEBUG=WARN in the environment of each rank says more",
    }
}
