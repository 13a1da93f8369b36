//! The server, over disks that outlive it. It runs until the power fails or until an orderly end, and then starts
//! again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use sarsen_block::{Rng, Store as _};
use sarsen_io::net::Stream;
use sarsen_io::{random, time};
use sarsen_node::SimulatedPortal;
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::{AccessState, Host, Identity, LogicalUnit, Lun, Parts, Work};
use sarsen_volume::{self as volume, Aspect, Volume, VolumeHealth};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, LocalSet};

use crate::disk::{Disk, Opened};
use crate::network::{self, Fate, NetworkTraits, Side};

/// The iSCSI name of the only target.
pub(crate) const TARGET: &str = "iqn.2026-11.test:simulated";

/// The port of the first portal; the next ones follow.
pub(crate) const FIRST_PORT: u16 = 3260;

/// The environment that the device servers need.
struct SimulatedHost {
    begun: std::time::Instant,
    works: mpsc::UnboundedSender<Work>,
}

impl Host for SimulatedHost {
    fn unix_time_ms(&self) -> u64 {
        (time::now() - self.begun).as_millis() as u64
    }

    fn fill_random(&self, into: &mut [u8]) {
        random::fill(into);
    }

    fn spawn(&self, work: Work) {
        let _ = self.works.send(work);
    }
}

/// One run of the server, from a start to a crash.
struct ServerRun {
    portal: Rc<SimulatedPortal>,
    stores: Vec<Arc<Opened>>,
    tasks: Rc<LocalSet>,
    fates: RefCell<Vec<Fate>>,
    connections: RefCell<Vec<JoinHandle<()>>>,
    units: Vec<Weak<LogicalUnit>>,
    over: EndGuard,
}

/// Ends the task that drives the tasks of a run.
struct EndGuard(Rc<Notify>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// The simulated server (see the module).
pub(crate) struct Server {
    begun: std::time::Instant,
    /// The address of each portal, and its portal group.
    portals: Vec<(SocketAddr, u16)>,
    disks: Vec<Arc<Disk>>,
    settings: Settings,
    life: RefCell<Option<ServerRun>>,
    rng: RefCell<Rng>,
    next_port: Cell<u16>,
    lives: Cell<u64>,
    /// Deadline for the logouts of the sessions during an orderly end.
    ending: Cell<Option<Instant>>,
}

impl Server {
    /// Returns a server that has not been started.
    pub(crate) fn new(disks: Vec<Arc<Disk>>, settings: Settings, rng: &mut Rng) -> Self {
        Self::with_portals(&[1], disks, settings, rng)
    }

    /// Does the same with a portal in each of these portal groups, of which the first is 1.
    pub(crate) fn with_portals(
        groups: &[u16],
        disks: Vec<Arc<Disk>>,
        settings: Settings,
        rng: &mut Rng,
    ) -> Self {
        let address = |port| SocketAddr::from(([192, 0, 2, 1], port));
        Self {
            begun: time::now(),
            portals: (FIRST_PORT..).map(address).zip(groups.iter().copied()).collect(),
            disks,
            settings,
            life: RefCell::new(None),
            rng: RefCell::new(Rng::new(rng.bits())),
            next_port: Cell::new(1024),
            lives: Cell::new(0),
            ending: Cell::new(None),
        }
    }

    /// Returns the disks; their indexes are their logical unit numbers.
    pub(crate) fn disks(&self) -> &[Arc<Disk>] {
        &self.disks
    }

    /// Starts the server with the current content of the disks.
    pub(crate) fn start(&self) {
        self.lives.set(self.lives.get() + 1);
        self.ending.set(None);
        let stores: Vec<_> = self.disks.iter().map(Disk::open).collect();
        let (works, mut to_do) = mpsc::unbounded_channel::<Work>();
        let tasks = Rc::new(LocalSet::new());
        tasks.spawn_local(async move {
            while let Some(work) = to_do.recv().await {
                tokio::task::spawn_local(work());
            }
        });
        let unit = |(number, opened): (usize, &Arc<Opened>)| {
            let identity = Identity::new("simulated", &number.to_string());
            let metadata = Some(opened.clone() as _);
            let parts = volume::Parts::new(&identity.volume, opened.clone());
            let unit = Volume::open(volume::Parts { metadata, ..parts })
                .and_then(|volume| LogicalUnit::of_parts(Parts::disk(identity, volume)));
            (Lun(number as u16), unit.expect("nothing was kept that could be wrong"))
        };
        let units: BTreeMap<_, _> = stores.iter().enumerate().map(unit).collect();
        let known = units.values().map(Arc::downgrade).collect();
        let host = Arc::new(SimulatedHost { begun: self.begun, works });
        let settings = self.settings.clone();
        let (first, _) = self.portals[0];
        let portal = SimulatedPortal::new(settings, first, host, TARGET, units);
        if let [_, more @ ..] = &self.portals[..]
            && !more.is_empty()
        {
            portal.add_portals(more);
        }
        let portal = Rc::new(portal);
        let over = Rc::new(Notify::new());
        let (running, until) = (tasks.clone(), over.clone());
        tokio::task::spawn_local(async move { running.run_until(until.notified()).await });
        let life = ServerRun {
            portal,
            stores,
            tasks,
            fates: RefCell::default(),
            connections: RefCell::default(),
            units: known,
            over: EndGuard(over),
        };
        *self.life.borrow_mut() = Some(life);
    }

    /// Ends the injection of faults and restarts stopped disks, whose volumes accept writes again.
    pub(crate) fn heal(&self) {
        self.disks.iter().for_each(|disk| disk.heal());
        let life = self.life.borrow();
        let units = life.iter().flat_map(|life| &life.units).filter_map(Weak::upgrade);
        units.for_each(|unit| {
            unit.volume().health().report(Aspect::Flush, VolumeHealth::Online);
        });
    }

    /// Stops the server at once: all its work ends, and the disks lose the data that is not durable.
    pub(crate) fn crash(&self) {
        let Some(life) = self.life.borrow_mut().take() else { return };
        let heard = self.rng.borrow_mut().chance(60);
        for fate in life.fates.borrow().iter() {
            fate.strike(heard);
        }
        drop(life);
        self.disks.iter().for_each(|disk| disk.crash());
    }

    /// Returns the number of the current or latest run.
    pub(crate) fn life(&self) -> u64 {
        self.lives.get()
    }

    /// Ends the server gracefully. It asks its sessions to log out and gives them the time `grace`. With `flushes` it
    /// makes all acknowledged data durable. Then the power fails. Returns whether this succeeded.
    pub(crate) async fn end_in_order(&self, grace: Duration, flushes: bool) -> bool {
        let (portal, stores) = match self.life.borrow().as_ref() {
            Some(life) => (life.portal.clone(), life.stores.clone()),
            None => return false,
        };
        self.ending.set(Some(time::now() + grace));
        portal.end_sessions(grace).await;
        let mut all = true;
        for store in stores.iter().filter(|_| flushes) {
            all &= store.flush().wait().await.is_ok();
        }
        // The server's streams are closed, and the bytes in transit arrive.
        *self.life.borrow_mut() = None;
        self.disks.iter().for_each(|disk| disk.crash());
        all
    }

    /// Returns whether an orderly end is in progress.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get().is_some()
    }

    /// Returns whether the server may end connections because the time of all sessions has expired.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.get().is_some_and(|until| until <= time::now())
    }

    /// Changes the access state of a portal group.
    pub(crate) fn set_access_state(&self, group: u16, state: AccessState) {
        if let Some(life) = self.life.borrow().as_ref() {
            life.portal.set_access_state(group, state);
        }
    }

    /// Opens a connection to the first portal. With `is_guarded` both ends detect changed bytes.
    pub(crate) async fn connect(
        &self,
        rng: &mut Rng,
        weather: &NetworkTraits,
        is_guarded: bool,
    ) -> io::Result<Side> {
        self.connect_to(0, rng, weather, is_guarded).await
    }

    /// Opens a connection to a portal.
    pub(crate) async fn connect_to(
        &self,
        portal: usize,
        rng: &mut Rng,
        weather: &NetworkTraits,
        is_guarded: bool,
    ) -> io::Result<Side> {
        let latency = Duration::from_millis(rng.below(weather.latency_max_ms + 1));
        time::sleep_until(time::now() + latency).await;
        let life = self.life.borrow();
        let life = life.as_ref().filter(|_| !self.is_ending());
        let life = life.ok_or(io::ErrorKind::ConnectionRefused)?;
        let port = self.next_port.get();
        self.next_port.set(port.checked_add(1).unwrap_or(1024));
        let own = SocketAddr::from(([192, 0, 2, 2], port));
        let (side, accepted) =
            network::connection(rng, weather, [own, self.portals[portal].0], is_guarded);
        life.fates.borrow_mut().push(side.fate());
        let serving = life.portal.serve(Stream::simulated(accepted));
        life.connections.borrow_mut().push(life.tasks.spawn_local(serving));
        Ok(side)
    }

    /// Returns whether the server was started and has not crashed.
    pub(crate) fn is_running(&self) -> bool {
        self.life.borrow().is_some()
    }

    /// Returns the number of sessions.
    pub(crate) fn session_count(&self) -> usize {
        self.life.borrow().as_ref().map_or(0, |life| life.portal.session_count())
    }

    /// Returns the number of connections that are open or have commands in progress.
    pub(crate) fn connection_count(&self) -> usize {
        let life = self.life.borrow();
        let Some(life) = life.as_ref() else { return 0 };
        life.connections.borrow().iter().filter(|one| !one.is_finished()).count()
    }

    /// Ends the idle server, and returns the number of its units that are still referenced.
    pub(crate) async fn end(&self) -> usize {
        let Some(life) = self.life.borrow_mut().take() else { return 0 };
        let ServerRun { portal, stores, tasks, units, over, .. } = life;
        drop((portal, stores));
        // Remaining tasks continue, so that a task that holds a unit is detected.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let held = units.iter().filter(|unit| unit.strong_count() > 0).count();
        drop((tasks, over));
        held
    }
}
