//! Disks of the kernel's ublk driver. Each queue belongs to one core, which carries out its requests.

use std::io;
use std::sync::{Arc, mpsc};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use sarsen_block::{Io, LocalFuture};
use sarsen_io::cores::Cores;
use sarsen_io::ublk::{Device, DeviceOptions, OperationCode, Queue, Request};
use sarsen_proto::nbd::server::{Operation, Outcome};
use sarsen_wire::nbd::ErrorCode;
use tokio::sync::watch;

use super::AttachError;
use super::disk::{Access, Ending, Report, Start, Stop};

/// Maximum length of a discard and of a range of zeroes: long enough for a file system, and short enough for one request.
const DISCARD_BYTES: u32 = 1 << 30;

/// The result of a request.
type Answer = Result<Outcome, ErrorCode>;

/// Creates the device of a record or continues it, and starts its queues.
pub(super) fn start(start: Start<'_>) -> Result<(), AttachError> {
    let Start { cores, access, record, folder, stop, report } = start;
    let recovered = match record.number {
        Some(number) => match Device::recover(number, record.device_tag) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            recovered => {
                Some(recovered.map_err(AttachError::system("the disk cannot be continued"))?)
            }
        },
        None => None,
    };
    let is_recovery = recovered.is_some();
    let device = match recovered {
        Some(device) => device,
        None => {
            record.size_bytes = access.bytes();
            let options = options(access, record.queues, record.size_bytes);
            let created = Device::create(&options, record.device_tag);
            created.map_err(AttachError::system("cannot create a disk as ublk"))?
        }
    };
    record.number = Some(device.number());
    let started = start_queues(cores, access, &device, (&stop, &report)).and_then(|()| {
        folder.write(record)?;
        device.start(is_recovery).map_err(AttachError::system("the kernel did not start the disk"))
    });
    if started.is_err() && !is_recovery {
        stop.send_replace(true);
        // It has never existed for others.
        let _ = device.delete();
        record.number = None;
    }
    started
}

fn options(access: &Access, queues: u16, bytes: u64) -> DeviceOptions {
    let characteristics = access.volume().store().characteristics();
    let block_size = access.block_size();
    let block_shift = block_size.shift() as u8;
    let physical = block_shift + characteristics.physical_block_exponent;
    let granularity = |blocks: u32| blocks.saturating_mul(block_size.bytes() as u32);
    DeviceOptions {
        queues,
        bytes,
        block_shift,
        // The kernel accepts none above a page.
        physical_block_shift: physical.min(12).max(block_shift),
        read_only: access.is_read_only(),
        volatile_cache: characteristics.volatile_cache,
        discard_granularity: characteristics
            .unmap
            .map(|unmap| granularity(unmap.granularity_blocks)),
        discard_bytes: DISCARD_BYTES,
    }
}

/// Opens each queue on its core. They serve when the device has started.
fn start_queues(
    cores: &Arc<Cores>,
    access: &Arc<Access>,
    device: &Device,
    (stop, report): (&watch::Sender<bool>, &Report),
) -> Result<(), AttachError> {
    let device = Arc::new(device.clone());
    for index in 0..device.queues() {
        let (opened, answer) = mpsc::channel();
        let (device, access) = (device.clone(), access.clone());
        let (stop, report) = (stop.subscribe(), report.clone());
        cores.spawn_on(usize::from(index) % cores.len(), move || async move {
            match device.open_queue(index) {
                Ok(queue) => {
                    drop(device);
                    let _ = opened.send(Ok(()));
                    let _ = report.send(serve(queue, &access, stop).await);
                }
                Err(error) => drop(opened.send(Err(error))),
            }
        });
        let opened = answer.recv().unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
        opened.map_err(AttachError::system("cannot open a queue of the disk"))?;
    }
    Ok(())
}

/// Serves a queue until its device is removed or the process ends.
async fn serve(mut queue: Queue, access: &Arc<Access>, mut stop: Stop) -> Ending {
    let mut pending: FuturesUnordered<LocalFuture<(Request, Answer)>> = FuturesUnordered::new();
    loop {
        let is_stopping = *stop.borrow();
        if is_stopping && pending.is_empty() {
            return match queue.leave() {
                Ok(()) => Ending::Stopped,
                Err(error) => Ending::Failed(error),
            };
        }
        tokio::select! {
            Some((request, answer)) = pending.next(), if !pending.is_empty() => {
                complete(&mut queue, &request, answer);
            }
            next = queue.next(), if !is_stopping => match next {
                Ok(Some(request)) => match begin(&queue, access, &request) {
                    Io::Ready(answer) => complete(&mut queue, &request, answer),
                    Io::Pending(answer) => {
                        pending.push(Box::pin(async move { (request, answer.await) }));
                    }
                },
                Ok(None) => return Ending::Detached,
                Err(error) => return Ending::Failed(error),
            },
            _ = stop.changed(), if !is_stopping => {}
        }
    }
}

fn begin(queue: &Queue, access: &Arc<Access>, request: &Request) -> Io<Answer> {
    let &Request { offset, length, durable, keeps_space, .. } = request;
    let operation = match request.operation {
        OperationCode::Read => Operation::Read { offset, length },
        OperationCode::Write => match queue.read_data(request) {
            Ok(data) => Operation::Write { offset, data, durable },
            Err(_) => return Io::Ready(Err(ErrorCode::Io)),
        },
        OperationCode::Flush => Operation::Flush,
        OperationCode::Discard => Operation::Trim { offset, length, durable },
        OperationCode::WriteZeroes => {
            let (may_punch, fast) = (!keeps_space, false);
            Operation::WriteZeroes { offset, length, durable, may_punch, fast }
        }
        OperationCode::Other(_) => return Io::Ready(Err(ErrorCode::NotSupported)),
    };
    access.execute(operation)
}

fn complete(queue: &mut Queue, request: &Request, answer: Answer) {
    let given = match answer {
        Ok(Outcome::Data(data)) => queue.write_data(request.tag, data).map_err(|_| ErrorCode::Io),
        Ok(Outcome::Done | Outcome::Status(_)) => Ok(()),
        Err(code) => Err(code),
    };
    let result = match given {
        // The length of a request is limited by the device.
        Ok(()) => request.length as i32,
        // The errors of NBD have the numbers of Linux.
        Err(ErrorCode(number)) => -(number as i32),
    };
    queue.complete(request.tag, result);
}
