//! The session of a front-end (QEMU's process), which shares the memory of a virtual machine, and configures, starts and stops rings in it.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use sarsen_block::StatusListener;
use sarsen_io::cores::Cores;
use sarsen_io::eventfd::EventSender;
use sarsen_io::local::LocalStream;
use sarsen_wire::vhost_user::{
    CONFIG_CHANGED, ConfigRange, Header, MAX_CONFIG_LENGTH, MAX_PAYLOAD_LENGTH, MAX_REGIONS,
    MemoryRegion, MemoryTable, NEEDS_REPLY, NO_DESCRIPTOR, PROTOCOL_FEATURES, REPLY,
    RING_INDEX_MASK, Request, RingAddresses, RingState, VERSION, VERSION_MASK, protocol_feature,
};
use sarsen_wire::virtio_blk::feature;
use tokio::sync::{oneshot, watch};
use tracing::debug;
use virtio_queue::{Queue, QueueT as _};
use zerocopy::{FromBytes, Immutable, IntoBytes as _, KnownLayout, Unaligned};

use super::super::SizeWatch;
use super::super::disk::{Access, Stop};
use super::device::{self, QUEUES};
use super::memory::Memory;
use super::ring::Ring;

const OFFERED_PROTOCOL_FEATURES: u64 = protocol_feature::MULTIQUEUE
    | protocol_feature::REPLY_ACK
    | protocol_feature::BACKEND_REQUESTS
    | protocol_feature::CONFIG;
/// Maximum number of the entries of a ring.
const RING_SIZE: u16 = 1024;

/// A message of the front-end.
struct Message {
    request: Request,
    needs_reply: bool,
    payload: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// The configuration of a ring.
#[derive(Default)]
struct RingSetup {
    size: u16,
    addresses: Option<RingAddresses>,
    /// Its next entry.
    base: u16,
    kick: Option<OwnedFd>,
    call: Option<OwnedFd>,
    is_enabled: bool,
    running: Option<Running>,
}

/// A ring that a core serves.
struct Running {
    stop: watch::Sender<bool>,
    next_entry: oneshot::Receiver<u16>,
}

struct Session {
    cores: Weak<Cores>,
    access: Arc<Access>,
    features: u64,
    protocol_features: u64,
    memory: Option<Memory>,
    rings: Vec<RingSetup>,
    /// Number of bytes in the requests of all rings.
    bytes: Arc<AtomicUsize>,
    /// The socket for messages to the front-end.
    channel: Option<LocalStream>,
}

/// Serves a front-end until it disconnects or the process ends. All its requests are complete then.
pub(super) async fn serve(
    stream: &LocalStream,
    cores: &Weak<Cores>,
    access: &Arc<Access>,
    stop: Stop,
) -> io::Result<()> {
    let mut session = Session {
        cores: cores.clone(),
        access: access.clone(),
        features: 0,
        protocol_features: 0,
        memory: None,
        rings: (0..QUEUES).map(|_| RingSetup::default()).collect(),
        bytes: Arc::default(),
        channel: None,
    };
    let ended = session.run(stream, stop).await;
    session.stop_all().await;
    ended
}

impl Session {
    async fn run(&mut self, stream: &LocalStream, mut stop: Stop) -> io::Result<()> {
        let size_watch = Arc::new(SizeWatch::default());
        let listener: Weak<dyn StatusListener> = Arc::downgrade(&size_watch) as _;
        self.access.volume().store().status().subscribe(listener);
        let mut bytes = self.access.bytes();
        let mut next = Box::pin(receive(stream));
        loop {
            tokio::select! {
                message = &mut next => {
                    let Some(message) = message? else { return Ok(()) };
                    self.reply_to(stream, message).await?;
                    next.set(receive(stream));
                }
                () = size_watch.changed() => {
                    let changed = self.access.bytes();
                    if bytes != changed {
                        bytes = changed;
                        self.report_change().await?;
                    }
                }
                _ = stop.changed() => return Ok(()),
            }
        }
    }

    /// Reports to the front-end that the configuration of the device has changed.
    async fn report_change(&self) -> io::Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let header =
            Header { request: CONFIG_CHANGED.into(), flags: VERSION.into(), length: 0.into() };
        channel.send(header.as_bytes()).await
    }

    async fn reply_to(&mut self, stream: &LocalStream, message: Message) -> io::Result<()> {
        let Message { request, needs_reply, .. } = message;
        let needs_reply = needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0;
        let payload = match self.handle(message).await {
            Ok(Some(payload)) => payload,
            Ok(None) if needs_reply => 0_u64.as_bytes().to_vec(),
            Ok(None) => return Ok(()),
            Err(error) if needs_reply => {
                debug!(%error, ?request, "a message of the front-end was refused");
                1_u64.as_bytes().to_vec()
            }
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("{request:?}: {error}")));
            }
        };
        let header = Header {
            request: request.0.into(),
            flags: (VERSION | REPLY).into(),
            length: (payload.len() as u32).into(),
        };
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend(payload);
        stream.send(&bytes).await
    }

    /// Carries out a message. Returns the payload of its reply, if it always has one.
    async fn handle(&mut self, message: Message) -> io::Result<Option<Vec<u8>>> {
        let Message { request, payload, descriptors, .. } = message;
        let number = || Ok::<u64, io::Error>(u64::from_ne_bytes(*prefix(&payload)?));
        match request {
            Request::GetFeatures => {
                return Ok(Some(device::features(&self.access).as_bytes().to_vec()));
            }
            Request::SetFeatures => {
                let features = number()?;
                if features & !device::features(&self.access) != 0 {
                    return Err(invalid("features that were not offered"));
                }
                self.stop_all().await;
                self.features = features;
                self.start_all()?;
            }
            Request::GetProtocolFeatures => {
                return Ok(Some(OFFERED_PROTOCOL_FEATURES.as_bytes().to_vec()));
            }
            Request::SetProtocolFeatures => {
                self.protocol_features = number()?;
                if self.protocol_features & !OFFERED_PROTOCOL_FEATURES != 0 {
                    return Err(invalid("features that were not offered"));
                }
            }
            Request::GetQueueCount => return Ok(Some((QUEUES as u64).as_bytes().to_vec())),
            Request::SetOwner | Request::ResetOwner | Request::SetRingError => {}
            Request::SetMemoryTable => {
                let regions = regions(&payload)?;
                self.stop_all().await;
                // The old memory is unmapped before the new one is mapped.
                self.memory = None;
                self.memory = Some(Memory::map(&regions, descriptors)?);
                self.start_all()?;
            }
            Request::SetRingSize => {
                let RingState { index, number } = *prefix(&payload)?;
                let size = u16::try_from(number.get()).ok().filter(|size| *size <= RING_SIZE);
                let size = size.ok_or_else(|| invalid("a ring is too long"))?;
                self.change(index.get(), |ring| ring.size = size).await?;
            }
            Request::SetRingAddresses => {
                let addresses: RingAddresses = *prefix(&payload)?;
                let index = addresses.index.get();
                self.change(index, |ring| ring.addresses = Some(addresses)).await?;
            }
            Request::SetRingBase => {
                let RingState { index, number } = *prefix(&payload)?;
                self.change(index.get(), |ring| ring.base = number.get() as u16).await?;
            }
            Request::GetRingBase => {
                let RingState { index, .. } = *prefix(&payload)?;
                let stopped = |ring: &mut RingSetup| (ring.kick, ring.call) = (None, None);
                let ring = self.change(index.get(), stopped).await?;
                let state = RingState { index, number: u32::from(ring.base).into() };
                return Ok(Some(state.as_bytes().to_vec()));
            }
            Request::SetRingKick | Request::SetRingCall => {
                let number = number()?;
                let index = (number & RING_INDEX_MASK) as u32;
                let descriptor = match number & NO_DESCRIPTOR {
                    0 => descriptors.into_iter().next(),
                    _ => None,
                };
                if request == Request::SetRingKick && descriptor.is_none() {
                    return Err(invalid("polling without a kick descriptor is not supported"));
                }
                let given = |ring: &mut RingSetup| match request {
                    Request::SetRingKick => ring.kick = descriptor,
                    _ => ring.call = descriptor,
                };
                self.change(index, given).await?;
            }
            Request::SetRingEnable => {
                let RingState { index, number } = *prefix(&payload)?;
                self.change(index.get(), |ring| ring.is_enabled = number.get() != 0).await?;
            }
            Request::SetBackendChannel => {
                let channel = descriptors.into_iter().next();
                let channel =
                    channel.ok_or_else(|| invalid("no socket for messages of the device"))?;
                self.channel = Some(LocalStream::from_std(channel.into())?);
            }
            Request::GetConfig => {
                let range: ConfigRange = *prefix(&payload)?;
                let mut whole = [0; MAX_CONFIG_LENGTH];
                let config = device::config(&self.access);
                whole[..size_of_val(&config)].copy_from_slice(config.as_bytes());
                let (offset, length) = (range.offset.get() as usize, range.length.get() as usize);
                let part = offset.checked_add(length).and_then(|end| whole.get(offset..end));
                let part = part.ok_or_else(|| invalid("not in the configuration"))?;
                return Ok(Some([range.as_bytes(), part].concat()));
            }
            _ => return Err(io::Error::new(io::ErrorKind::Unsupported, "not supported")),
        }
        Ok(None)
    }

    /// Changes a ring, which is stopped meanwhile.
    async fn change(
        &mut self,
        index: u32,
        change: impl FnOnce(&mut RingSetup),
    ) -> io::Result<&RingSetup> {
        let index = index as usize;
        let ring = self.rings.get_mut(index).ok_or_else(|| invalid("no such queue"))?;
        ring.stop().await;
        change(ring);
        self.start(index)?;
        Ok(&self.rings[index])
    }

    async fn stop_all(&mut self) {
        // They stop in parallel.
        for ring in &self.rings {
            ring.ask_to_stop();
        }
        for ring in &mut self.rings {
            ring.stop().await;
        }
    }

    fn start_all(&mut self) -> io::Result<()> {
        (0..self.rings.len()).try_for_each(|index| self.start(index))
    }

    /// Starts a ring if its configuration is complete.
    fn start(&mut self, index: usize) -> io::Result<()> {
        let ring = &mut self.rings[index];
        let is_enabled = ring.is_enabled || self.features & PROTOCOL_FEATURES == 0;
        let (Some(memory), Some(addresses), Some(kick)) =
            (&self.memory, &ring.addresses, &ring.kick)
        else {
            return Ok(());
        };
        let (true, Some(cores)) = (is_enabled && ring.size > 0, self.cores.upgrade()) else {
            return Ok(());
        };
        let has = |feature: u64| self.features & feature != 0;
        let call =
            ring.call.as_ref().map(|call| EventSender::new(call.try_clone()?)).transpose()?;
        let served = Ring {
            queue: ring.queue(memory, addresses, has(feature::EVENT_INDEX))?,
            memory: memory.guest().clone(),
            call,
            access: self.access.clone(),
            flush_negotiated: has(feature::FLUSH),
            bytes: self.bytes.clone(),
        };
        let kick = kick.try_clone()?;
        let (stop, stopped) = watch::channel(false);
        let (ended, next_entry) = oneshot::channel();
        ring.running = Some(Running { stop, next_entry });
        cores.spawn_on(index % cores.len(), move || async move {
            let _ = ended.send(served.serve(kick, stopped).await);
        });
        Ok(())
    }
}

impl RingSetup {
    fn ask_to_stop(&self) {
        if let Some(running) = &self.running {
            running.stop.send_replace(true);
        }
    }

    /// Stops the ring, when the requests are complete that were taken from it.
    async fn stop(&mut self) {
        self.ask_to_stop();
        if let Some(running) = self.running.take()
            && let Ok(next_entry) = running.next_entry.await
        {
            self.base = next_entry;
        }
    }

    fn queue(
        &self,
        memory: &Memory,
        addresses: &RingAddresses,
        event_index: bool,
    ) -> io::Result<Queue> {
        let broken = |error: virtio_queue::Error| io::Error::other(error.to_string());
        let guest_address = |address: u64| memory.guest_address(address);
        let mut queue = Queue::new(RING_SIZE).map_err(broken)?;
        queue.try_set_size(self.size).map_err(broken)?;
        queue
            .try_set_desc_table_address(guest_address(addresses.descriptors.get())?)
            .map_err(broken)?;
        queue
            .try_set_avail_ring_address(guest_address(addresses.available.get())?)
            .map_err(broken)?;
        queue.try_set_used_ring_address(guest_address(addresses.used.get())?).map_err(broken)?;
        queue.set_event_idx(event_index);
        queue.set_next_avail(self.base);
        queue.set_ready(true);
        if !queue.is_valid(&**memory.guest()) {
            return Err(invalid("a ring is not in the memory"));
        }
        let used = queue.used_idx(&**memory.guest(), Ordering::Acquire);
        queue.set_next_used(used.map_err(broken)?.0);
        Ok(queue)
    }
}

/// Receives a message; `None` when the front-end has closed the connection.
async fn receive(stream: &LocalStream) -> io::Result<Option<Message>> {
    let (mut header, mut descriptors) = ([0; size_of::<Header>()], Vec::new());
    match stream.receive_with_descriptors(&mut header, &mut descriptors).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        received => received?,
    }
    let header: &Header = prefix(&header)?;
    let flags = header.flags.get();
    let length = header.length.get() as usize;
    if flags & VERSION_MASK != VERSION || length > MAX_PAYLOAD_LENGTH {
        return Err(invalid("not a message of vhost-user"));
    }
    let mut payload = vec![0; length];
    stream.receive_with_descriptors(&mut payload, &mut descriptors).await?;
    let (request, needs_reply) = (Request(header.request.get()), flags & NEEDS_REPLY != 0);
    Ok(Some(Message { request, needs_reply, payload, descriptors }))
}

/// Reads the beginning of a payload.
fn prefix<T: FromBytes + KnownLayout + Immutable + Unaligned>(payload: &[u8]) -> io::Result<&T> {
    let found = T::ref_from_prefix(payload).map_err(|_| invalid("a message is too short"))?;
    Ok(found.0)
}

fn regions(payload: &[u8]) -> io::Result<Vec<MemoryRegion>> {
    let table: &MemoryTable = prefix(payload)?;
    let count = table.count.get() as usize;
    let rest = &payload[size_of::<MemoryTable>()..];
    let regions = <[MemoryRegion]>::ref_from_prefix_with_elems(rest, count.min(MAX_REGIONS + 1));
    match regions {
        Ok((regions, _)) if regions.len() <= MAX_REGIONS => Ok(regions.to_vec()),
        _ => Err(invalid("the memory table has more than 8 regions, or is truncated")),
    }
}

pub(super) fn invalid(problem: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, problem)
}
