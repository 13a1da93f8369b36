//! Several paths to one unit of the project's own server, through links that break, become silent and wake up.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::process::Command;
use std::rc::Rc;

use anyhow::{Context as _, Result, ensure};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use sarsen_block::{Buffer, Durability, Extent, Store as _};
use sarsen_initiator::{
    Command as ScsiCommand, IscsiStore, PathSelector, SessionError, SessionOptions,
    TransferRequest, Unit, Url,
};
use sarsen_proof::{Backing, Serving, Volume, program};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::client::{LIMIT, run};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 512;

fn options() -> SessionOptions {
    SessionOptions { reconnect_limit: Some(LIMIT), ..SessionOptions::default() }
}

/// A link to a portal, with a portal of its own in front of it.
pub(crate) struct Link {
    pub(crate) own: SocketAddr,
    to: SocketAddr,
    /// Whether bytes move. Bytes of a silent link move when it wakes up.
    pub(crate) moves: watch::Sender<bool>,
    tasks: Rc<RefCell<Vec<JoinHandle<()>>>>,
}

impl Link {
    pub(crate) async fn new(portal: &str) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let link = Self {
            own: listener.local_addr()?,
            to: portal.parse()?,
            moves: watch::Sender::new(true),
            tasks: Rc::default(),
        };
        link.accept(listener);
        Ok(link)
    }

    fn accept(&self, listener: TcpListener) {
        let (to, moves, tasks) = (self.to, self.moves.subscribe(), self.tasks.clone());
        let accepting = tokio::task::spawn_local(async move {
            while let Ok((near, _)) = listener.accept().await {
                let moves = moves.clone();
                let forwarding = tokio::task::spawn_local(async move {
                    let Ok(far) = TcpStream::connect(to).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    let _ = tokio::join!(
                        forward(near_in, far_out, moves.clone()),
                        forward(far_in, near_out, moves),
                    );
                });
                tasks.borrow_mut().push(forwarding);
            }
        });
        self.tasks.borrow_mut().push(accepting);
    }

    /// Ends all connections and refuses new ones.
    pub(crate) async fn cut(&self) {
        let tasks = self.tasks.take();
        for task in tasks {
            task.abort();
            let _ = task.await;
        }
    }

    pub(crate) async fn mend(&self) -> Result<()> {
        self.accept(TcpListener::bind(self.own).await?);
        Ok(())
    }
}

async fn forward(
    from: tokio::net::tcp::OwnedReadHalf,
    to: tokio::net::tcp::OwnedWriteHalf,
    mut moves: watch::Receiver<bool>,
) -> io::Result<()> {
    let mut bytes = vec![0; 64 << 10];
    loop {
        from.readable().await?;
        let _ = moves.wait_for(|moves| *moves).await;
        let count = match from.try_read(&mut bytes) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut sent = 0;
        while sent < count {
            to.writable().await?;
            let _ = moves.wait_for(|moves| *moves).await;
            match to.try_write(&bytes[sent..count]) {
                Ok(more) => sent += more,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn through(serving: &Serving, portals: &[String]) -> Result<Url> {
    let url = serving.url("disk");
    Ok(format!("iscsi://{}/{}/{}", portals.join(","), url.iqn, url.lun).parse()?)
}

/// Starts a server with one portal group, and returns its two portals.
fn serve(volume: Volume) -> Result<(Serving, [String; 2])> {
    let serving = Serving::start_with(&[volume], &["--listen", "127.0.0.1:0"])?;
    let urls = serving.urls("disk")?;
    let portals: Vec<_> = urls.into_iter().map(|url| url.portal).collect();
    let portals = portals.try_into().ok().context("two portals")?;
    Ok((serving, portals))
}

/// Writes and reads each block of the store, and counts the rounds that it has completed.
struct Work<'a> {
    store: &'a IscsiStore,
    round: u8,
}

impl Work<'_> {
    const BLOCKS: u64 = 64;

    async fn turn(&mut self) -> Result<()> {
        self.round += 1;
        for lba in 0..Self::BLOCKS {
            let data = Buffer::copy_of(&[self.round ^ lba as u8; BLOCK]);
            self.store.write(Extent::new(lba, 1), data.into(), Durability::Volatile).wait().await?;
        }
        self.check().await
    }

    async fn check(&self) -> Result<()> {
        for lba in 0..Self::BLOCKS {
            let data = self.store.read(Extent::new(lba, 1)).wait().await?;
            let mut found = [0; BLOCK];
            data.copy_out(0, &mut found);
            ensure!(found == [self.round ^ lba as u8; BLOCK], "block {lba}: {:02x?}", &found[..4]);
        }
        Ok(())
    }
}

#[test]
fn a_path_that_is_cut_or_silent_is_replaced_without_an_error() -> Result<()> {
    let (serving, portals) = serve(Volume::new("disk", Backing::Ram, 8 * MIB))?;
    run(async {
        let links = [Link::new(&portals[0]).await?, Link::new(&portals[1]).await?];
        let url = through(&serving, &links.each_ref().map(|link| link.own.to_string()))?;
        for path_selector in PathSelector::ALL {
            let options = SessionOptions { path_selector, ..options() };
            let store = IscsiStore::connect(&url, &options).await?;
            let mut work = Work { store: &store, round: 0 };
            work.turn().await?;
            for link in &links {
                link.cut().await;
                work.turn().await?;
                work.turn().await?;
                link.mend().await?;
                work.turn().await?;
                link.moves.send_replace(false);
                work.turn().await?;
                link.moves.send_replace(true);
                work.turn().await?;
            }
            // No path is left for a while.
            for link in &links {
                link.cut().await;
            }
            let mut read = Box::pin(work.check());
            ensure!(read.as_mut().now_or_never().is_none());
            links[1].mend().await?;
            read.await?;
            links[0].mend().await?;
            store.flush().wait().await?;
            store.logout().await?;
        }
        Ok(())
    })?;
    serving.stop()
}

#[test]
fn a_write_that_wakes_up_on_its_old_path_overwrites_nothing() -> Result<()> {
    let (serving, portals) = serve(Volume::new("disk", Backing::Ram, 8 * MIB))?;
    run(async {
        let links = [Link::new(&portals[0]).await?, Link::new(&portals[1]).await?];
        let url = through(&serving, &links.each_ref().map(|link| link.own.to_string()))?;
        // Only the first path has commands: it is used before the second one is logged in.
        let options = SessionOptions { path_selector: PathSelector::QueueDepth, ..options() };
        links[1].moves.send_replace(false);
        let store = IscsiStore::connect(&url, &options).await?;
        let write = |byte: u8| {
            let data = Buffer::copy_of(&[byte; BLOCK]);
            store.write(Extent::new(7, 1), data.into(), Durability::Volatile).wait()
        };
        write(1).await?;
        // The write is sent into a silent link.
        links[0].moves.send_replace(false);
        let late = write(2);
        links[1].moves.send_replace(true);
        late.await?;
        // A second initiator shows whether the late copy arrives.
        let direct =
            Unit::connect(&through(&serving, &portals)?, &SessionOptions::default()).await?;
        direct.write(7, Buffer::copy_of(&[3; BLOCK]), false).await?;
        links[0].moves.send_replace(true);
        for _ in 0..100 {
            let found = direct.read(7, 1).await?;
            ensure!(found[..] == [3; BLOCK], "{:02x?}", &found[..4]);
        }
        direct.logout().await?;
        Ok(store.logout().await?)
    })?;
    serving.stop()
}

/// A process is killed while one of its paths is silent. The next run with its ISIDs begins on the other path.
#[test]
fn rfc7143_6_3_5_a_write_of_an_earlier_run_overwrites_nothing() -> Result<()> {
    const BLOCKS: u64 = 16;
    let (serving, portals) = serve(Volume::new("disk", Backing::Ram, 8 * MIB))?;
    run(async {
        let links = [Link::new(&portals[0]).await?, Link::new(&portals[1]).await?];
        let url = through(&serving, &links.each_ref().map(|link| link.own.to_string()))?;
        let options = SessionOptions { path_selector: PathSelector::RoundRobin, ..options() };
        let earlier = IscsiStore::connect(&url, &options).await?;
        earlier.attempt_paths(LIMIT).await;
        links[1].moves.send_replace(false);
        let block = |byte| Buffer::copy_of(&[byte; BLOCK]);
        let mut writes: FuturesUnordered<_> = (0..BLOCKS)
            .map(|lba| earlier.write(Extent::new(lba, 1), block(1).into(), Durability::Volatile))
            .map(|write| write.wait())
            .collect();
        // The others are on the way over the silent path.
        for _ in 0..BLOCKS / 2 {
            writes.next().await.context("a write")??;
        }
        let connections = links[1].tasks.borrow().len();
        drop((writes, earlier));

        let store = IscsiStore::connect(&url, &options).await?;
        store.end_earlier_sessions(&url, &options).await;
        for lba in 0..BLOCKS {
            let extent = Extent::new(lba, 1);
            store.write(extent, block(2).into(), Durability::Volatile).wait().await?;
        }
        links[1].moves.send_replace(true);
        // The first task accepts connections; those of the earlier run end when everything on their way has arrived.
        let has_arrived =
            || links[1].tasks.borrow()[1..connections].iter().all(JoinHandle::is_finished);
        while !has_arrived() {
            tokio::task::yield_now().await;
        }
        for lba in 0..BLOCKS {
            let data = store.read(Extent::new(lba, 1)).wait().await?;
            ensure!(data.into_buffer()[..] == [2; BLOCK], "block {lba} has an earlier write");
        }
        store.logout().await?;
        Ok(())
    })?;
    serving.stop()
}

#[test]
fn further_portals_are_those_that_the_target_reports() -> Result<()> {
    let (serving, portals) = serve(Volume::new("disk", Backing::Ram, 8 * MIB))?;
    run(async {
        let link = Link::new(&portals[0]).await?;
        let url = through(&serving, &[link.own.to_string()])?;
        let store = IscsiStore::connect(&url, &options()).await?;
        link.cut().await;
        let mut work = Work { store: &store, round: 0 };
        work.turn().await?;
        Ok(store.logout().await?)
    })?;
    serving.stop()
}

#[test]
fn a_portal_of_another_unit_is_no_path() -> Result<()> {
    let first = Serving::start(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    let folder = tempfile::tempdir()?;
    let backing = Backing::File(folder.path().join("image"));
    // Servers without a state give volumes of one name one identifier.
    let other = Volume::new("disk", backing, 8 * MIB).option("serial=00112233");
    let other = Serving::start(&[other])?;
    ensure!(first.url("disk").iqn == other.url("disk").iqn);
    run(async {
        let portals = [&first, &other].map(|serving| serving.url("disk").portal.clone());
        let store = IscsiStore::connect(&through(&first, &portals)?, &options()).await?;
        let mut work = Work { store: &store, round: 0 };
        for _ in 0..10 {
            work.turn().await?;
        }
        let others = through(&other, &portals[1..])?;
        let direct = Unit::connect(&others, &SessionOptions::default()).await?;
        for lba in 0..Work::BLOCKS {
            ensure!(direct.read(lba, 1).await?[..] == [0; BLOCK]);
        }
        direct.logout().await?;
        Ok(store.logout().await?)
    })?;
    other.stop()?;
    first.stop()
}

#[test]
fn spc4_5_16_commands_use_the_paths_of_the_best_access_state() -> Result<()> {
    const OPTIMIZED: u8 = 0;
    const NON_OPTIMIZED: u8 = 1;
    const STANDBY: u8 = 2;
    let serving = Serving::start_on_two_portals(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    run(async {
        let portals: Vec<_> = serving.urls("disk")?.into_iter().map(|url| url.portal).collect();
        let options = SessionOptions { path_selector: PathSelector::RoundRobin, ..options() };
        let store = IscsiStore::connect(&through(&serving, &portals)?, &options).await?;
        let mut work = Work { store: &store, round: 0 };
        work.turn().await?;
        let manager =
            Unit::connect(&through(&serving, &portals[..1])?, &SessionOptions::default()).await?;
        let set = async |group: u8, state: u8| {
            let list = Buffer::copy_of(&[0, 0, 0, 0, state, 0, 0, group]);
            let cdb = [0xa4, 0x0a, 0, 0, 0, 0, 0, 0, 0, list.len() as u8, 0, 0];
            manager.command(ScsiCommand::new(&cdb, TransferRequest::Write(list))).await
        };
        for (states, denied) in [
            ([STANDBY, OPTIMIZED], false),
            ([OPTIMIZED, STANDBY], false),
            ([STANDBY, NON_OPTIMIZED], false),
            ([NON_OPTIMIZED, OPTIMIZED], false),
            ([STANDBY, STANDBY], true),
        ] {
            // First the better one, so that a path is active all the time.
            let mut groups = [(states[0], 1), (states[1], 2)];
            groups.sort_unstable();
            for (state, group) in groups {
                set(group, state).await?;
            }
            if !denied {
                work.turn().await?;
                continue;
            }
            let mut turn = Box::pin(work.turn());
            for _ in 0..100 {
                ensure!(turn.as_mut().now_or_never().is_none(), "no path is active");
                manager.session().ping().await?;
            }
            set(2, OPTIMIZED).await?;
            turn.await?;
        }
        manager.logout().await?;
        Ok(store.logout().await?)
    })?;
    serving.stop()
}

#[test]
fn without_any_portal_the_error_is_that_of_the_first() -> Result<()> {
    run(async {
        let closed = async || -> Result<SocketAddr> {
            Ok(TcpListener::bind("127.0.0.1:0").await?.local_addr()?)
        };
        let [first, second] = [closed().await?, closed().await?];
        let url = format!("iscsi://{first},{second}/iqn.2026-11.proof:none/0").parse()?;
        match IscsiStore::connect(&url, &options()).await.err() {
            Some(SessionError::Connect { portal, .. }) => {
                assert_eq!(portal.to_string(), first.to_string());
            }
            other => anyhow::bail!("{other:?}"),
        }
        Ok(())
    })
}

#[test]
fn a_load_uses_all_portals_of_its_url() -> Result<()> {
    let (serving, portals) = serve(Volume::new("disk", Backing::Ram, 8 * MIB))?;
    let mut load = Command::new("timeout");
    load.args(["--kill-after=5", "60"]).arg(program::path()?).args(["lab", "load"]);
    load.arg(through(&serving, &portals)?.to_string());
    load.args([
        "--verify",
        "--read",
        "50",
        "--depth",
        "8",
        "--sessions",
        "2",
        "--seconds",
        "0.3",
        "--json",
    ]);
    let output = load.output()?;
    let said = || String::from_utf8_lossy(&output.stderr).into_owned();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).with_context(said)?;
    ensure!(result["errors"] == 0 && result["ios"].as_u64() > Some(0), "{result}");
    ensure!(result["mismatches"] == 0, "{result}");
    ensure!(result["parameters"]["active paths"] == portals.join(" "), "{result}");
    serving.stop()
}
