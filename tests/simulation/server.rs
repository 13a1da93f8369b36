//! The server, over disks that outlive it: it runs until the power fails, or until it is ended in good
//! order, and then starts again.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::dice::Dice;
use sarsen_block::{Request, Store as _};
use sarsen_io::net::Stream;
use sarsen_io::{random, time};
use sarsen_node::SimulatedPortal;
use sarsen_proto::iscsi::target::Settings;
use sarsen_scsi::{Host, Identity, LogicalUnit, Lun, Parts, Work};
use tokio::sync::{Notify, mpsc};
use tokio::task::{JoinHandle, LocalSet};

use crate::disk::{Disk, Opened};
use crate::network::{self, Fate, NetworkTraits, Side};

/// The iSCSI name of the only target.
pub(crate) const TARGET: &str = "iqn.2026-11.test:simulated";

/// What the device servers need of the world.
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

/// The server from a start to a crash.
struct ServerRun {
    portal: Rc<SimulatedPortal>,
    stores: Vec<Arc<Opened>>,
    tasks: Rc<LocalSet>,
    fates: RefCell<Vec<Fate>>,
    connections: RefCell<Vec<JoinHandle<()>>>,
    units: Vec<Weak<LogicalUnit>>,
    over: EndGuard,
}

/// Ends what drives the tasks of a life.
struct EndGuard(Rc<Notify>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

/// See the module.
pub(crate) struct Server {
    begun: std::time::Instant,
    address: SocketAddr,
    disks: Vec<Arc<Disk>>,
    settings: Settings,
    life: RefCell<Option<ServerRun>>,
    dice: RefCell<Dice>,
    next_port: Cell<u16>,
    lives: Cell<u64>,
    /// It ends in good order: until when sessions may log out.
    ending: Cell<Option<Instant>>,
}

impl Server {
    /// One that has not been started.
    pub(crate) fn new(disks: Vec<Arc<Disk>>, settings: Settings, dice: &mut Dice) -> Self {
        Self {
            begun: time::now(),
            address: SocketAddr::from(([192, 0, 2, 1], 3260)),
            disks,
            settings,
            life: RefCell::new(None),
            dice: RefCell::new(Dice::new(dice.bits())),
            next_port: Cell::new(1024),
            lives: Cell::new(0),
            ending: Cell::new(None),
        }
    }

    /// Its disks, whose places are their logical unit numbers.
    pub(crate) fn disks(&self) -> &[Arc<Disk>] {
        &self.disks
    }

    /// Starts over what is left on the disks.
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
            let keeper = Some(opened.clone() as _);
            let parts = Parts { keeper, ..Parts::disk(identity, opened.clone()) };
            let unit = LogicalUnit::of_parts(parts);
            (Lun(number as u16), unit.expect("nothing was kept that could be wrong"))
        };
        let units: BTreeMap<_, _> = stores.iter().enumerate().map(unit).collect();
        let known = units.values().map(Arc::downgrade).collect();
        let host = Arc::new(SimulatedHost { begun: self.begun, works });
        let settings = self.settings.clone();
        let portal = SimulatedPortal::new(settings, self.address, host, TARGET, units);
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

    /// Stops where it stands: everything that it did ends, and the disks lose what they had not made
    /// durable.
    pub(crate) fn crash(&self) {
        let Some(life) = self.life.borrow_mut().take() else { return };
        let heard = self.dice.borrow_mut().chance(60);
        for fate in life.fates.borrow().iter() {
            fate.strike(heard);
        }
        drop(life);
        self.disks.iter().for_each(|disk| disk.crash());
    }

    /// Which of its lives it is in, or was in last.
    pub(crate) fn life(&self) -> u64 {
        self.lives.get()
    }

    /// Ends in good order: its sessions are asked to log out and have `grace` for it, and all that was
    /// acknowledged is made durable, if it `flushes`. Then the power fails. Says whether that worked.
    pub(crate) async fn end_in_order(&self, grace: Duration, flushes: bool) -> bool {
        let (portal, stores) = match self.life.borrow().as_ref() {
            Some(life) => (life.portal.clone(), life.stores.clone()),
            None => return false,
        };
        self.ending.set(Some(time::now() + grace));
        portal.end_sessions(grace).await;
        let mut all = true;
        for store in stores.iter().filter(|_| flushes) {
            all &= store.submit(Request::Flush).wait().await.is_ok();
        }
        // Its streams are closed, and what was sent over them arrives.
        *self.life.borrow_mut() = None;
        self.disks.iter().for_each(|disk| disk.crash());
        all
    }

    /// Whether it is on its way to an end in good order.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.get().is_some()
    }

    /// Whether it may end connections: all sessions have had their time.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.get().is_some_and(|until| until <= time::now())
    }

    /// A connection to it, both ends of which notice what changes on the way if it `is_guarded`.
    pub(crate) async fn connect(
        &self,
        dice: &mut Dice,
        weather: &NetworkTraits,
        is_guarded: bool,
    ) -> io::Result<Side> {
        let latency = Duration::from_millis(dice.below(weather.latency_max_ms + 1));
        time::sleep_until(time::now() + latency).await;
        let life = self.life.borrow();
        let life = life.as_ref().filter(|_| !self.is_ending());
        let life = life.ok_or(io::ErrorKind::ConnectionRefused)?;
        let port = self.next_port.get();
        self.next_port.set(port.checked_add(1).unwrap_or(1024));
        let own = SocketAddr::from(([192, 0, 2, 2], port));
        let (side, accepted) = network::connection(dice, weather, [own, self.address], is_guarded);
        life.fates.borrow_mut().push(side.fate());
        let serving = life.portal.serve(Stream::simulated(accepted));
        life.connections.borrow_mut().push(life.tasks.spawn_local(serving));
        Ok(side)
    }

    /// Whether it was started and has not crashed.
    pub(crate) fn is_running(&self) -> bool {
        self.life.borrow().is_some()
    }

    /// How many sessions it has.
    pub(crate) fn session_count(&self) -> usize {
        self.life.borrow().as_ref().map_or(0, |life| life.portal.session_count())
    }

    /// Connections that are served, or whose commands have not ended.
    pub(crate) fn connection_count(&self) -> usize {
        let life = self.life.borrow();
        let Some(life) = life.as_ref() else { return 0 };
        life.connections.borrow().iter().filter(|one| !one.is_finished()).count()
    }

    /// Ends it when nothing is under way, and says how many of its units somebody still holds.
    pub(crate) async fn end(&self) -> usize {
        let Some(life) = self.life.borrow_mut().take() else { return 0 };
        let ServerRun { portal, stores, tasks, units, over, .. } = life;
        drop((portal, stores));
        // Tasks that are left run on, so that one of them that holds a unit is seen.
        for _ in 0..8 {
            tokio::task::yield_now().await;
        }
        let held = units.iter().filter(|unit| unit.strong_count() > 0).count();
        drop((tasks, over));
        held
    }
}
