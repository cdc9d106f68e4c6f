//! Commands to an open `/dev/infiniband/uverbs*` of the module.

#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io;
use std::mem::{size_of, size_of_val};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::abi::{
    Answered, CommandHead, CreateCq, CreateQp, CreateSrq, Destroy, GetContextAnswer, Handle,
    MethodAttr, MethodHead, RegMr, RegMrAnswer, DRIVER_ID, DRIVER_NAMESPACE, KERNEL_ABI,
    VERBS_IOCTL,
};

/// Numbers of the commands (`rdma/ib_user_verbs.h`).
mod command {
    pub(super) const GET_CONTEXT: u32 = 0;
    pub(super) const ALLOC_PD: u32 = 3;
    pub(super) const DEALLOC_PD: u32 = 4;
    pub(super) const REG_MR: u32 = 9;
    pub(super) const DEREG_MR: u32 = 13;
    pub(super) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(super) const CREATE_CQ: u32 = 18;
    pub(super) const DESTROY_CQ: u32 = 20;
    pub(super) const CREATE_QP: u32 = 24;
    pub(super) const DESTROY_QP: u32 = 27;
    pub(super) const CREATE_SRQ: u32 = 32;
    pub(super) const DESTROY_SRQ: u32 = 35;
}

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Protection domain.
    Pd,
    /// Memory region.
    Mr,
    /// Completion queue.
    Cq,
    /// Queue pair.
    Qp,
    /// Shared receive queue.
    Srq,
}

/// A context of the module: the command file of a device after GET_CONTEXT.
#[derive(Debug)]
pub struct Uverbs {
    file: OwnedFd,
    run_dir: PathBuf,
}

/// The result of [`Uverbs::open`].
#[derive(Debug)]
pub struct Opened {
    /// The context.
    pub uverbs: Uverbs,
    /// The descriptor from which asynchronous events are read.
    pub async_fd: OwnedFd,
}

/// The arguments of CREATE_QP.
#[derive(Clone, Copy, Debug)]
pub struct QpRequest {
    /// The engine's number.
    pub qpn: u32,
    /// The user value in the queue pair's events.
    pub user_handle: u64,
    /// Protection domain.
    pub pd: u32,
    /// Completion queue of the send queue.
    pub send_cq: u32,
    /// Completion queue of the receive queue.
    pub recv_cq: u32,
    /// Shared receive queue.
    pub srq: Option<u32>,
}

/// The arguments of REG_MR.
#[derive(Clone, Copy, Debug)]
pub struct MrRequest {
    /// Protection domain.
    pub pd: u32,
    /// Address of the first octet.
    pub start: u64,
    /// Length in octets.
    pub length: u64,
    /// `IBV_ACCESS_*`
    pub access: u32,
    /// The engine's key.
    pub key: u32,
}

/// A command with its header in front, as it is written.
#[repr(C)]
struct Packet<C> {
    head: CommandHead,
    command: C,
}

/// A command that contains the address of its answer.
trait WithAnswer: Copy {
    fn set_response(&mut self, address: u64);
}

macro_rules! with_answer {
    ($($command:ty),*) => {
        $(impl WithAnswer for $command {
            fn set_response(&mut self, address: u64) {
                self.response = address;
            }
        })*
    };
}
with_answer!(Answered, RegMr, CreateCq, CreateQp, CreateSrq, Destroy);

impl Uverbs {
    /// Creates a context on a command file that the caller has opened, and keeps its own duplicate
    /// of the descriptor.
    ///
    /// # Errors
    /// ENODEV if no urdmad serves the device; EPROTO for a module of another version; errors of the
    /// kernel.
    pub fn open(file: BorrowedFd<'_>) -> io::Result<Opened> {
        let file = file.try_clone_to_owned()?;
        let answer: GetContextAnswer = answered(&file, command::GET_CONTEXT, Answered::default())?;
        // SAFETY: the kernel has just created this descriptor for this call.
        let async_fd = unsafe { OwnedFd::from_raw_fd(answer.async_fd) };
        check_version(answer.private.abi)?;
        let path = &answer.private.run_dir;
        let len = path.iter().position(|&octet| octet == 0);
        let run_dir = PathBuf::from(OsString::from_vec(
            path[..len.unwrap_or(path.len())].to_vec(),
        ));
        let uverbs = Self { file, run_dir };
        Ok(Opened { uverbs, async_fd })
    }

    /// Run directory of the urdmad that serves the device.
    pub fn run_dir(&self) -> &std::path::Path {
        &self.run_dir
    }

    /// # Errors
    /// Errors of the kernel.
    pub fn alloc_pd(&self) -> io::Result<u32> {
        self.create(command::ALLOC_PD, Answered::default(), [0; 1])
    }

    /// Registers and pins memory.
    ///
    /// # Errors
    /// ENOMEM beyond RLIMIT_MEMLOCK; EFAULT for memory that is not mapped with the requested
    /// rights.
    pub fn reg_mr(&self, request: &MrRequest) -> io::Result<u32> {
        let command = RegMr {
            response: 0,
            start: request.start,
            length: request.length,
            // The engines agree on the address in remote accesses; the kernel requires the same
            // offset within a page.
            hca_va: request.start,
            pd_handle: request.pd,
            access_flags: request.access,
            key: request.key,
            reserved: 0,
        };
        let answer: RegMrAnswer = answered(&self.file, command::REG_MR, command)?;
        Ok(answer.handle)
    }

    /// Creates a completion channel: the descriptor from which its events are read.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn create_comp_channel(&self) -> io::Result<OwnedFd> {
        let fd = self.create(command::CREATE_COMP_CHANNEL, Answered::default(), [0; 1])?;
        // SAFETY: the kernel has just created this descriptor for this call.
        Ok(unsafe { OwnedFd::from_raw_fd(fd.cast_signed()) })
    }

    /// Creates a completion queue whose events carry `user_handle`.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn create_cq(&self, user_handle: u64, cqe: u32, channel: Option<RawFd>) -> io::Result<u32> {
        let command = CreateCq {
            response: 0,
            user_handle,
            cqe,
            comp_vector: 0,
            comp_channel: channel.unwrap_or(-1),
            reserved: 0,
        };
        self.create(command::CREATE_CQ, command, [0; 2])
    }

    /// Creates a queue pair of type RC.
    ///
    /// # Errors
    /// EBUSY if the device has a queue pair with this number; errors of the kernel.
    pub fn create_qp(&self, request: &QpRequest) -> io::Result<u32> {
        let command = CreateQp {
            response: 0,
            user_handle: request.user_handle,
            pd_handle: request.pd,
            send_cq_handle: request.send_cq,
            recv_cq_handle: request.recv_cq,
            srq_handle: request.srq.unwrap_or(0),
            // The queues are the engine's; the kernel only requires that there are some.
            capacity: [1, 1, 1, 1, 0],
            sq_sig_all: 0,
            qp_type: 2,
            is_srq: u8::from(request.srq.is_some()),
            reserved: 0,
            qpn: request.qpn,
            private_reserved: 0,
        };
        self.create(command::CREATE_QP, command, [0; 8])
    }

    /// Creates a shared receive queue.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn create_srq(&self, user_handle: u64, pd: u32) -> io::Result<u32> {
        let command = CreateSrq {
            response: 0,
            user_handle,
            pd_handle: pd,
            max_wr: 1,
            max_sge: 1,
            srq_limit: 0,
        };
        self.create(command::CREATE_SRQ, command, [0; 4])
    }

    /// Destroys an object and its unread events.
    ///
    /// # Errors
    /// EBUSY if another object uses it; errors of the kernel.
    pub fn destroy(&self, kind: Kind, handle: u32) -> io::Result<()> {
        let destroy = Destroy {
            response: 0,
            handle,
            reserved: 0,
        };
        match kind {
            Kind::Pd => plain(&self.file, command::DEALLOC_PD, Handle { handle }),
            Kind::Mr => plain(&self.file, command::DEREG_MR, Handle { handle }),
            Kind::Cq => self.create(command::DESTROY_CQ, destroy, [0; 2]).map(drop),
            Kind::Qp => self.create(command::DESTROY_QP, destroy, [0; 1]).map(drop),
            Kind::Srq => self.create(command::DESTROY_SRQ, destroy, [0; 1]).map(drop),
        }
    }

    /// Raises a completion event of a completion queue.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn raise_cq(&self, handle: u32) -> io::Result<()> {
        self.method(3, &[handle_attr(handle)])
    }

    /// Raises an asynchronous event (`IBV_EVENT_*`) of a queue pair.
    ///
    /// # Errors
    /// EINVAL for an event that is not about a queue pair; errors of the kernel.
    pub fn raise_qp(&self, handle: u32, event: u32) -> io::Result<()> {
        let event = MethodAttr {
            attr_id: DRIVER_NAMESPACE + 1,
            len: 4,
            flags: 1,
            reserved: 0,
            data: u64::from(event),
        };
        self.method(4, &[handle_attr(handle), event])
    }

    /// Raises the event that the limit of a shared receive queue was reached.
    ///
    /// # Errors
    /// Errors of the kernel.
    pub fn raise_srq(&self, handle: u32) -> io::Result<()> {
        self.method(5, &[handle_attr(handle)])
    }

    /// Runs a command whose answer begins with the wanted number; `answer` is the answer's length.
    fn create<C, const WORDS: usize>(
        &self,
        number: u32,
        command: C,
        answer: [u32; WORDS],
    ) -> io::Result<u32>
    where
        C: WithAnswer + IntoBytes + Immutable,
    {
        let mut answer = answer;
        answered_into(&self.file, number, command, &mut answer)?;
        answer
            .first()
            .copied()
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
    }

    /// Calls the first of the driver's own methods of an object.
    fn method(&self, object_id: u16, attrs: &[MethodAttr]) -> io::Result<()> {
        let length = size_of::<MethodHead>() + size_of_val(attrs);
        let head = MethodHead {
            length: u16::try_from(length).map_err(|_| io::ErrorKind::InvalidInput)?,
            object_id,
            method_id: DRIVER_NAMESPACE,
            num_attrs: u16::try_from(attrs.len()).map_err(|_| io::ErrorKind::InvalidInput)?,
            reserved1: 0,
            driver_id: DRIVER_ID,
            reserved2: 0,
        };
        // The kernel writes flags into the attributes.
        let mut octets = [0_u64; 8];
        let bytes = octets.as_mut_bytes();
        let (head_octets, rest) = bytes.split_at_mut(size_of::<MethodHead>());
        head_octets.copy_from_slice(head.as_bytes());
        rest.get_mut(..size_of_val(attrs))
            .ok_or(io::ErrorKind::InvalidInput)?
            .copy_from_slice(attrs.as_bytes());
        // SAFETY: the buffer has as many octets as its header says, and the kernel keeps no pointer
        // to it.
        let result =
            unsafe { libc::ioctl(self.file.as_raw_fd(), VERBS_IOCTL, octets.as_mut_ptr()) };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

/// EPROTO for a module of another version.
fn check_version(abi: u32) -> io::Result<()> {
    if abi == KERNEL_ABI {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(libc::EPROTO))
    }
}

/// The error message for a failure of [`Uverbs::open`], with the remedy.
pub fn explain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::ENODEV) => "no urdmad serves this device: name it in urdmad's configuration \
             ([kernel] device)"
            .to_owned(),
        Some(libc::EPROTO | libc::EINVAL) => format!(
            "the kernel module speaks another version than {KERNEL_ABI}: \
             install module and provider of one release"
        ),
        _ => format!("cannot open the kernel's device: {error}"),
    }
}

/// The handle that is the first attribute of each of the driver's methods.
fn handle_attr(handle: u32) -> MethodAttr {
    MethodAttr {
        attr_id: DRIVER_NAMESPACE,
        len: 0,
        flags: 1,
        reserved: 0,
        data: u64::from(handle),
    }
}

/// Writes a command and returns its answer.
fn answered<C, A>(file: &OwnedFd, number: u32, command: C) -> io::Result<A>
where
    C: WithAnswer + IntoBytes + Immutable,
    A: FromBytes + IntoBytes,
{
    let mut answer = A::new_zeroed();
    answered_into(file, number, command, &mut answer)?;
    Ok(answer)
}

fn answered_into<C, A>(
    file: &OwnedFd,
    number: u32,
    mut command: C,
    answer: &mut A,
) -> io::Result<()>
where
    C: WithAnswer + IntoBytes + Immutable,
    A: FromBytes + IntoBytes,
{
    command.set_response(std::ptr::from_mut(answer) as u64);
    // SAFETY: the address of the answer is that of a live value of plain octets, whose length the
    // header says.
    unsafe { send(file, number, command, size_of::<A>()) }
}

/// Writes a command without an answer.
fn plain<C: IntoBytes + Immutable>(file: &OwnedFd, number: u32, command: C) -> io::Result<()> {
    // SAFETY: there is no answer.
    unsafe { send(file, number, command, 0) }
}

/// Writes a command.
///
/// # Safety
/// If the command contains the address of an answer, `answer_octets` may be written there.
unsafe fn send<C: IntoBytes + Immutable>(
    file: &OwnedFd,
    number: u32,
    command: C,
    answer_octets: usize,
) -> io::Result<()> {
    let words = |octets: usize| u16::try_from(octets / 4).map_err(|_| io::ErrorKind::InvalidInput);
    let packet = Packet {
        head: CommandHead {
            command: number,
            in_words: words(size_of::<CommandHead>() + size_of::<C>())?,
            out_words: words(answer_octets)?,
        },
        command,
    };
    // The octets behind the command, up to the packet's alignment, are not sent.
    let octets = size_of::<CommandHead>() + size_of::<C>();
    // SAFETY: `packet` has at least `octets` octets, all initialized, since neither part has
    // padding.
    let written =
        unsafe { libc::write(file.as_raw_fd(), std::ptr::from_ref(&packet).cast(), octets) };
    if written < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    #[test]
    fn module_of_another_version_is_refused_with_a_sentence() {
        assert!(check_version(KERNEL_ABI).is_ok());
        let refused = check_version(KERNEL_ABI + 1).unwrap_err();
        assert!(explain(&refused).contains("of one release"), "{refused}");
    }

    #[test]
    fn open_of_a_file_that_is_no_device_fails() {
        let file = File::open("/proc/self/exe").unwrap();
        assert!(Uverbs::open(file.as_fd()).is_err());
    }

    #[test]
    fn send_writes_head_and_command_without_gaps() {
        let (reader, writer) = std::os::unix::net::UnixDatagram::pair().unwrap();
        plain(&writer.into(), command::DEREG_MR, Handle { handle: 7 }).unwrap();
        let mut octets = [0; 64];
        let len = reader.recv(&mut octets).unwrap();
        let words: Vec<u32> = octets[..len]
            .chunks(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        assert_eq!(words, [13, 3, 7]);
    }
}
