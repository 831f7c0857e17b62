//! Hands the listening sockets to the next process, so that an upgrade loses no connection.
//!
//! At SIGUSR2 the program is started again, with the same arguments. The standard input of this next process is a
//! socket, through which it receives the listening sockets and reports that it is ready. Only then does this process
//! begin to exit.
//!
//! With a shared store, both processes accept connections for a while. With buckets in memory, connections wait in the
//! queues of the sockets while the buckets are sent: see `bucket_handover`.

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use tokio::io::AsyncReadExt;

use crate::gateway::server::listener::ListeningSockets;
use crate::gateway::server::listening_socket::ListeningSocket;
use base::endpoint_address::EndpointAddress;

/// The environment variable that tells the next process that its standard input is a socket to the previous process.
const VARIABLE: &str = "TOLLGATE_HANDOVER";
/// The value of `VARIABLE` if the previous process can also send its buckets, and then waits for `READY`. Older
/// versions used 1 (no buckets) and 2 (buckets, without waiting).
const WITH_BUCKETS: &str = "3";

/// The environment variable that tells the next process that the previous process can also say which slots it holds.
/// The value is the id of the process that has set it. If this is not the previous process, that process is of an older
/// version and has only inherited the variable.
const SLOTS_VARIABLE: &str = "TOLLGATE_HANDOVER_HOLDS";

/// The longest time for one read or write of buckets.
const BUCKETS_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum number of sockets in one message; the kernel allows 253.
const MAX_IN_MESSAGE: usize = 64;

/// The byte that precedes the sockets in a message.
const SOCKETS: u8 = b's';
/// The byte after the last socket.
const END: u8 = b'e';
/// The byte with which the next process reports that it is ready.
const READY: u8 = b'r';
/// The byte with which the next process asks for the buckets. The next process reads the buckets until the end of the
/// stream, and then sends `READY`.
const READY_FOR_BUCKETS: u8 = b'b';
/// The byte with which the next process asks for the stream of held slots, and then for the buckets.
const READY_FOR_SLOTS: u8 = b'h';
/// The byte that precedes the stream of held slots.
const SLOTS: u8 = b'l';

/// The listening sockets from the previous process, with the connection to that process. Empty without a previous process.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    sockets: Vec<(EndpointAddress, ListeningSocket)>,
    previous: Option<UnixStream>,
    with_buckets: bool,
    /// The id of the previous process, if that process reports its slots.
    slots_of: Option<u32>,
}

/// The streams over which the previous process sends its buckets, and the slots that its requests hold.
pub(crate) struct PreviousStreams {
    pub buckets: UnixStream,
    /// `None` if the previous process is of an older version.
    pub slots: Option<PreviousSlots>,
}

/// The stream with the slots that the previous process holds, and the id of that process.
#[derive(Debug)]
pub(crate) struct PreviousSlots {
    pub stream: UnixStream,
    pub process: u32,
}

impl InheritedSockets {
    /// Receives the listening sockets from the previous process. The result is empty if this process was not started to take
    /// over.
    ///
    /// # Errors
    /// If the previous process ended, or speaks another version of this protocol.
    pub(crate) fn receive() -> io::Result<InheritedSockets> {
        let Some(version) = std::env::var_os(VARIABLE) else { return Ok(InheritedSockets::default()) };
        let stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
        let mut sockets = Vec::new();
        loop {
            let (kind, mut received) = receive(&stream)?;
            sockets.append(&mut received);
            match kind {
                SOCKETS => {}
                END => break,
                _ => return Err(io::Error::other("the previous process hands over in another way")),
            }
        }
        let named = |socket: OwnedFd| {
            let socket = ListeningSocket::try_from(socket)?;
            Ok((socket.address()?, socket))
        };
        let sockets = sockets.into_iter().map(named).collect::<io::Result<_>>()?;
        let parent = std::os::unix::process::parent_id();
        let slots_of =
            Some(parent).filter(|id| std::env::var_os(SLOTS_VARIABLE).is_some_and(|of| of == *id.to_string()));
        Ok(InheritedSockets { sockets, previous: Some(stream), with_buckets: version == WITH_BUCKETS, slots_of })
    }

    /// Removes and returns the sockets that listen on `address`. Port 0 matches any port that was chosen before.
    pub(crate) fn take(&mut self, address: &EndpointAddress) -> Vec<ListeningSocket> {
        let has_any_port = |other: &EndpointAddress| match (other.inet(), address.inet()) {
            (Some(other), Some(address)) => address.port() == 0 && other.ip() == address.ip(),
            _ => false,
        };
        let same = |other: &&EndpointAddress| *other == address || has_any_port(other);
        let Some(address) = self.sockets.iter().map(|(other, _)| other).find(same).cloned() else {
            return Vec::new();
        };
        let (taken, left) = std::mem::take(&mut self.sockets).into_iter().partition(|(other, _)| *other == address);
        self.sockets = left;
        let taken: Vec<(EndpointAddress, ListeningSocket)> = taken;
        taken.into_iter().map(|(_, socket)| socket).collect()
    }

    /// Whether this process takes over from a previous process.
    pub(crate) fn is_upgrade(&self) -> bool {
        self.previous.is_some()
    }

    /// Asks the previous process for its buckets, and returns the streams with the buckets and with the held slots. The
    /// streams are empty if the previous process has no buckets in memory. The previous process then waits for
    /// [`InheritedSockets::ready`].
    ///
    /// # Errors
    /// If the previous process has ended, or does not send buckets.
    pub(crate) fn request_buckets(&self) -> io::Result<PreviousStreams> {
        if !self.with_buckets {
            return Err(io::Error::other("the previous process is of an older version, which does not hand them over"));
        }
        let previous = self.previous.as_ref().ok_or_else(|| io::Error::other("there is no previous process"))?;
        let mut previous = previous.try_clone()?;
        previous.set_read_timeout(Some(BUCKETS_TIMEOUT))?;
        let mut slots = None;
        if let Some(process) = self.slots_of {
            previous.write_all(&[READY_FOR_SLOTS])?;
            let (kind, received) = receive(&previous)?;
            let stream = received.into_iter().next().filter(|_| kind == SLOTS).map(UnixStream::from);
            slots = stream.map(|stream| PreviousSlots { stream, process });
        } else {
            previous.write_all(&[READY_FOR_BUCKETS])?;
        }
        Ok(PreviousStreams { buckets: previous, slots })
    }

    /// Reports to the previous process that this process is ready, so that the previous process can exit. Inherited sockets
    /// that were not taken are closed.
    ///
    /// # Errors
    /// If the previous process has ended.
    pub(crate) fn ready(self) -> io::Result<()> {
        let Some(mut previous) = self.previous else { return Ok(()) };
        // The previous process may still send buckets that this process cannot read. They are refused.
        previous.shutdown(Shutdown::Read)?;
        previous.write_all(&[READY])
    }
}

/// The program, its arguments and the listening sockets that are needed to start a next process.
#[derive(Debug)]
pub(crate) struct Upgrade {
    /// The path of the program; `None` if the operating system does not report it.
    program: Option<PathBuf>,
    arguments: Vec<OsString>,
    /// Duplicates of this process's listening sockets.
    sockets: Mutex<Vec<ListeningSocket>>,
}

impl Upgrade {
    /// Prepares for an upgrade. Must be called when the process starts, because later another program may be at the program's
    /// path.
    ///
    /// # Errors
    /// If a socket cannot be duplicated.
    pub(crate) fn new<'b>(bound: impl Iterator<Item = &'b ListeningSockets>) -> io::Result<Upgrade> {
        let sockets =
            bound.map(ListeningSockets::share).collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect();
        let arguments = std::env::args_os().skip(1).collect();
        Ok(Upgrade { program: std::env::current_exe().ok(), arguments, sockets: Mutex::new(sockets) })
    }

    /// Closes the duplicates of the sockets, so that a socket is closed together with its listener.
    pub(crate) fn close(&self) {
        self.sockets.lock().clear();
    }

    /// Starts the next process, and sends the listening sockets to it.
    ///
    /// # Errors
    /// If the program cannot be started, or ends before it has received the sockets.
    pub(crate) fn begin(&self) -> io::Result<NextProcess> {
        let program = self.program.as_ref().ok_or_else(|| io::Error::other("the path of the program is not known"))?;
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .env(VARIABLE, WITH_BUCKETS)
            .env(SLOTS_VARIABLE, std::process::id().to_string())
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let child = command.spawn()?;
        let sockets = self.sockets.lock();
        for some in sockets.chunks(MAX_IN_MESSAGE) {
            let descriptors: Vec<BorrowedFd<'_>> = some.iter().map(AsFd::as_fd).collect();
            send(&ours, SOCKETS, &descriptors)?;
        }
        send(&ours, END, &[])?;
        ours.set_nonblocking(true)?;
        Ok(NextProcess { child, stream: tokio::net::UnixStream::from_std(ours)? })
    }
}

/// Whether the next process asks for the stream of held slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotRequest {
    None,
    Stream,
}

/// Receives a message: its kind, and the file descriptors in it.
fn receive(stream: &UnixStream) -> io::Result<(u8, Vec<OwnedFd>)> {
    let mut kind = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_IN_MESSAGE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(&mut kind)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let descriptors = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors = descriptors.flatten().collect();
    if received.bytes == 0 {
        return Err(io::Error::other("the previous process ended"));
    }
    Ok((kind[0], descriptors))
}

fn send(stream: &UnixStream, kind: u8, descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_IN_MESSAGE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many sockets for one message"));
    }
    sendmsg(stream, &[IoSlice::new(&[kind])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

/// The report of a next process after its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextProcessReport {
    Ready,
    ReadyForBuckets(SlotRequest),
    /// The next process has ended, or has sent an invalid report.
    GaveUp,
}

/// A next process that was started and is about to take over from this process.
#[derive(Debug)]
pub(crate) struct NextProcess {
    child: Child,
    stream: tokio::net::UnixStream,
}

impl NextProcess {
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for the report of the next process. The wait may be cancelled and begun again.
    pub(crate) async fn report(&mut self) -> NextProcessReport {
        match self.stream.read_u8().await {
            Ok(READY) => NextProcessReport::Ready,
            Ok(READY_FOR_BUCKETS) => NextProcessReport::ReadyForBuckets(SlotRequest::None),
            Ok(READY_FOR_SLOTS) => NextProcessReport::ReadyForBuckets(SlotRequest::Stream),
            _ => NextProcessReport::GaveUp,
        }
    }

    /// Returns the stream on which this process sends its buckets to the next process. Reads and writes on the stream block.
    /// [`NextProcess::report`] must not be used afterwards.
    ///
    /// # Errors
    /// If the operating system does not let the stream be duplicated or changed.
    pub(crate) fn bucket_stream(&self) -> io::Result<BucketStream> {
        let stream = UnixStream::from(self.stream.as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(BUCKETS_TIMEOUT))?;
        stream.set_read_timeout(Some(BUCKETS_TIMEOUT))?;
        Ok(BucketStream(stream))
    }

    /// Sends one end of a new stream to the next process, and returns the other end. On that end, this process reports
    /// which slots it holds.
    ///
    /// # Errors
    /// If the next process has ended.
    pub(crate) fn slot_stream(&self) -> io::Result<UnixStream> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_write_timeout(Some(BUCKETS_TIMEOUT))?;
        let stream = UnixStream::from(self.stream.as_fd().try_clone_to_owned()?);
        stream.set_nonblocking(false)?;
        send(&stream, SLOTS, &[theirs.as_fd()])?;
        Ok(ours)
    }

    /// Ends the next process, and returns its exit status as text.
    pub(crate) fn end(mut self) -> String {
        let ended = self.child.try_wait();
        if !matches!(ended, Ok(Some(_))) {
            // `kill` fails if the next process has just exited. This does not matter.
            let _ = self.child.kill();
        }
        match self.child.wait() {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        }
    }
}

/// The stream over which buckets are sent to the next process.
#[derive(Debug)]
pub struct BucketStream(UnixStream);

impl BucketStream {
    /// Ends the stream. The next process then knows that it has received all buckets.
    ///
    /// # Errors
    /// If the stream is closed already.
    pub fn end(&self) -> io::Result<()> {
        self.0.shutdown(Shutdown::Write)
    }

    /// Waits until the next process reports that it takes over. The report also comes if the next process could not read the
    /// buckets. Blocks the thread.
    ///
    /// # Errors
    /// If the next process has ended, or reports nothing for too long.
    pub fn wait_until_ready(&mut self) -> io::Result<()> {
        let mut report = [0];
        self.0.read_exact(&mut report)?;
        match report {
            [READY] => Ok(()),
            _ => Err(io::Error::other("it reports something else")),
        }
    }
}

impl Write for &BucketStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&self.0).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
