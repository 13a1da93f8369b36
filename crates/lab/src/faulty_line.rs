//! Ports in front of a target that forward its connections faultily: to measure what error recovery is worth.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::join_all;
use sarsen_io::{threads, time};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::{LocalSet, spawn_local};

/// What goes wrong on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LineFault {
    /// Nothing.
    Nothing,
    /// The oldest connection is closed after each of these times.
    Closed(Duration),
    /// After each of so many bytes of a connection from the target, one bit is flipped.
    Flipped(u64),
}

/// What the thread of the line and its owner share.
struct Shared {
    fault: LineFault,
    is_faulty: AtomicBool,
    count: AtomicU64,
}

impl Shared {
    /// Counts a fault, if there are any now.
    fn fails(&self) -> bool {
        let is_faulty = self.is_faulty.load(Ordering::Relaxed);
        self.count.fetch_add(is_faulty.into(), Ordering::Relaxed);
        is_faulty
    }
}

/// A line to a target. It ends when this is dropped.
pub(crate) struct FaultyLine {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl FaultyLine {
    /// Forwards connections of so many free ports to the target. There are no faults yet.
    pub(crate) fn to(target: SocketAddr, fault: LineFault, ports: usize) -> io::Result<Self> {
        let bind = |_| {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
            listener.set_nonblocking(true)?;
            Ok::<_, io::Error>((listener.local_addr()?, listener))
        };
        let bound = (0..ports).map(bind).collect::<Result<Vec<_>, _>>()?;
        let (addresses, listeners): (Vec<_>, Vec<_>) = bound.into_iter().unzip();
        let (is_faulty, count) = (AtomicBool::new(false), AtomicU64::new(0));
        let shared = Arc::new(Shared { fault, is_faulty, count });
        let (end, ended) = oneshot::channel();
        let of_thread = shared.clone();
        let work = move || async move {
            let all = LocalSet::new();
            let forwarding = all.run_until(async move {
                let connections = Connections::default();
                if let LineFault::Closed(every) = of_thread.fault {
                    spawn_local(close_each(every, connections.clone(), of_thread.clone()));
                }
                // A listener that cannot be used accepts nothing: the login fails.
                let listeners = listeners.into_iter().flat_map(TcpListener::from_std);
                let forward = |listener| {
                    forward_all(listener, target, connections.clone(), of_thread.clone())
                };
                join_all(listeners.map(forward)).await;
            });
            tokio::select! {
                () = forwarding => {}
                _ = ended => {}
            }
        };
        let thread = threads::spawn_runtime("faulty line", work)?;
        Ok(Self { addresses, shared, end: Some(end), thread: Some(thread) })
    }

    /// Returns the addresses of the ports.
    pub(crate) fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Begins or ends the faults.
    pub(crate) fn set_faulty(&self, is_faulty: bool) {
        self.shared.is_faulty.store(is_faulty, Ordering::Relaxed);
    }

    /// Returns the number of faults.
    pub(crate) fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Relaxed)
    }
}

impl Drop for FaultyLine {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The connections, the oldest first: each ends when its sender is dropped.
type Connections = Rc<RefCell<VecDeque<oneshot::Sender<()>>>>;

async fn forward_all(
    listener: TcpListener,
    target: SocketAddr,
    connections: Connections,
    shared: Arc<Shared>,
) {
    while let Ok((client, _)) = listener.accept().await {
        let (close, closed) = oneshot::channel::<()>();
        connections.borrow_mut().push_back(close);
        let shared = shared.clone();
        spawn_local(async move {
            tokio::select! {
                _ = forward(client, target, &shared) => {}
                _ = closed => {}
            }
        });
    }
}

async fn close_each(every: Duration, connections: Connections, shared: Arc<Shared>) {
    loop {
        time::sleep_until(time::now() + every).await;
        let mut connections = connections.borrow_mut();
        connections.retain(|connection| !connection.is_closed());
        if !connections.is_empty() && shared.fails() {
            connections.pop_front();
        }
    }
}

/// Forwards a connection in both directions until one side ends it.
async fn forward(client: TcpStream, target: SocketAddr, shared: &Shared) -> io::Result<()> {
    let target = TcpStream::connect(target).await?;
    client.set_nodelay(true)?;
    target.set_nodelay(true)?;
    let flip_each = match shared.fault {
        LineFault::Flipped(bytes) => Some((bytes, shared)),
        LineFault::Nothing | LineFault::Closed(_) => None,
    };
    tokio::select! {
        result = copy(&client, &target, None) => result,
        result = copy(&target, &client, flip_each) => result,
    }
}

async fn copy(
    from: &TcpStream,
    to: &TcpStream,
    flip_each: Option<(u64, &Shared)>,
) -> io::Result<()> {
    let mut buffer = vec![0; 64 << 10];
    let mut copied = 0;
    loop {
        let count = read(from, &mut buffer).await?;
        if count == 0 {
            return Ok(());
        }
        let before = copied;
        copied += count as u64;
        if let Some((bytes, shared)) = flip_each
            && before / bytes != copied / bytes
            && shared.fails()
        {
            buffer[count / 2] ^= 1;
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let written = write(to, rest).await?;
            rest = &rest[written..];
        }
    }
}

async fn read(from: &TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        from.readable().await?;
        match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

async fn write(to: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        to.writable().await?;
        match to.try_write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net;

    use super::*;

    /// Returns a line and both ends of a connection over it.
    fn connection(fault: LineFault) -> (FaultyLine, net::TcpStream, net::TcpStream) {
        let listener = net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let line = FaultyLine::to(listener.local_addr().unwrap(), fault, 1).unwrap();
        let client = net::TcpStream::connect(line.addresses()[0]).unwrap();
        let (target, _) = listener.accept().unwrap();
        (line, client, target)
    }

    #[test]
    fn bits_are_flipped_on_the_way_from_the_target_only_while_the_line_is_faulty() {
        let (line, mut client, mut target) = connection(LineFault::Flipped(1));
        let mut received = [0; 64];
        client.write_all(&[7; 64]).unwrap();
        target.read_exact(&mut received).unwrap();
        assert_eq!((received, line.count()), ([7; 64], 0));
        target.write_all(&[7; 64]).unwrap();
        client.read_exact(&mut received).unwrap();
        assert_eq!((received, line.count()), ([7; 64], 0));
        line.set_faulty(true);
        target.write_all(&[7; 64]).unwrap();
        client.read_exact(&mut received).unwrap();
        let different: u32 = received.iter().map(|byte| (byte ^ 7).count_ones()).sum();
        assert_eq!(u64::from(different), line.count());
        assert!(different > 0);
    }

    #[test]
    fn connections_are_closed_on_both_sides_only_while_the_line_is_faulty() {
        let closed = LineFault::Closed(Duration::from_millis(1));
        let (line, mut client, mut target) = connection(closed);
        client.write_all(&[7]).unwrap();
        target.read_exact(&mut [0]).unwrap();
        line.set_faulty(true);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
        assert_eq!(target.read(&mut [0]).unwrap(), 0);
        assert_eq!(line.count(), 1);
    }
}
