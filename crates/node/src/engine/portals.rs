//! Portals that are bound, and what becomes of them with a change.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use sarsen_io::net::Listener;

use crate::config::{Limits, Portal as PortalConfig};
use crate::fronts::iscsi::{Accepting, Acceptor, Encryption, Portal};
use crate::server::StartError;
use crate::tls::Tls;

/// A portal that runs.
pub(super) struct Served {
    /// As it is configured: its port may be 0.
    pub(super) configured: PortalConfig,
    pub(super) portal: Arc<Portal>,
    /// None while it has made way for another one.
    pub(super) socket: Option<(Arc<Listener>, Accepting)>,
}

/// What is to stand in a place of the list of portals.
pub(super) enum NextPortal {
    /// The running one of this number, as it is.
    Kept(usize),
    /// The same, with other certificates.
    Renewed(usize, Encryption),
    /// The socket of the running one of this number; those who came through it cannot stay.
    Changed(usize, Arc<Portal>),
    New(Bound),
    /// Its address is free when another portal has gone.
    Late(Option<Encryption>),
}

/// A portal that nobody is accepted at yet.
pub(super) struct Bound {
    pub(super) portal: Arc<Portal>,
    pub(super) listener: Arc<Listener>,
}

/// What becomes of the portals, in the order of the desired ones.
#[derive(Default)]
pub(super) struct PortalSteps {
    pub(super) next: Vec<NextPortal>,
    /// Numbers of those that run and go.
    pub(super) removed: Vec<usize>,
    /// Those whose connections cannot stay.
    pub(super) lost: Vec<Arc<Portal>>,
    /// What [`next`](Self::next) is about.
    pub(super) listen: Vec<PortalConfig>,
    /// What cannot be opened and is done without, and why.
    pub(super) absent: Vec<(PortalConfig, String)>,
}

impl PortalSteps {
    /// Binds those that are new, and reads certificates. What cannot be opened and `may_lack`, by its number,
    /// is done without.
    pub(super) fn prepare(
        running: &[Served],
        desired: &[PortalConfig],
        limits: &Limits,
        may_lack: impl Fn(usize, &PortalConfig) -> bool,
    ) -> Result<Self, StartError> {
        let mut left: Vec<usize> = (0..running.len()).collect();
        let mut take = |fits: &dyn Fn(&PortalConfig) -> bool| {
            let place = left.iter().position(|&number| fits(&running[number].configured))?;
            Some(left.remove(place))
        };
        // Those that are the same first, or one of two with the same address could take the other's place.
        let same: Vec<Option<usize>> =
            desired.iter().map(|portal| take(&|running| running == portal)).collect();
        let mut steps = Self::default();
        let mut new = Vec::new();
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        let mut do_without = |place: usize, error: StartError| {
            if !may_lack(place, &desired[place]) {
                return Err(error);
            }
            failed.insert(place, error.to_string());
            Ok(())
        };
        for (place, (portal, same)) in desired.iter().zip(same).enumerate() {
            if let Some(number) = same {
                steps.next.push(NextPortal::Kept(number));
                continue;
            }
            let encryption = match encryption(portal) {
                Ok(encryption) => encryption,
                Err(error) => {
                    do_without(place, error)?;
                    steps.next.push(NextPortal::Late(None));
                    continue;
                }
            };
            match take(&|running| running.address == portal.address) {
                Some(number) => steps.change(number, &running[number], portal, encryption),
                None => {
                    new.push((place, portal));
                    steps.next.push(NextPortal::Late(encryption));
                }
            }
        }
        steps.lost.extend(left.iter().map(|&number| running[number].portal.clone()));
        steps.removed = left;
        for (place, portal) in new {
            let makes_way = |number: &usize| {
                let port = running[*number].portal.address.port();
                portal.address.port() == port
            };
            let NextPortal::Late(encryption) = &steps.next[place] else { continue };
            match bind(portal, encryption.clone(), limits) {
                Ok(bound) => steps.next[place] = NextPortal::New(bound),
                Err(StartError::Listen { source, .. })
                    if source.kind() == io::ErrorKind::AddrInUse
                        && steps.removed.iter().any(makes_way) => {}
                Err(error) => do_without(place, error)?,
            }
        }
        for (place, next) in std::mem::take(&mut steps.next).into_iter().enumerate() {
            let portal = desired[place].clone();
            match failed.remove(&place) {
                Some(why) => steps.absent.push((portal, why)),
                None => {
                    steps.next.push(next);
                    steps.listen.push(portal);
                }
            }
        }
        Ok(steps)
    }

    fn change(
        &mut self,
        number: usize,
        running: &Served,
        desired: &PortalConfig,
        encryption: Option<Encryption>,
    ) {
        let clients = |portal: &PortalConfig| {
            let tls = portal.tls.as_ref()?;
            Some((tls.client_ca.clone(), tls.require_client_certificate))
        };
        let is_same_door = running.configured.group == desired.group
            && clients(&running.configured) == clients(desired);
        self.next.push(match encryption {
            Some(encryption) if is_same_door => NextPortal::Renewed(number, encryption),
            encryption => {
                self.lost.push(running.portal.clone());
                let address = running.portal.address;
                NextPortal::Changed(number, Portal::new(address, desired.group, encryption))
            }
        });
    }

    /// Whether some wait for others to make way.
    pub(super) fn is_late(&self) -> bool {
        self.next.iter().any(|next| matches!(next, NextPortal::Late(_)))
    }
}

/// Reads the certificates of a portal that is to have some.
fn encryption(portal: &PortalConfig) -> Result<Option<Encryption>, StartError> {
    let address = portal.address;
    let open = |config: &_| {
        let certificates =
            Tls::open(config).map_err(|source| StartError::Tls { address, source })?;
        Ok(Encryption { config: Clone::clone(config), certificates: Arc::new(certificates) })
    };
    portal.tls.as_ref().map(open).transpose()
}

/// Listens, and accepts nobody yet.
pub(super) fn bind(
    portal: &PortalConfig,
    encryption: Option<Encryption>,
    limits: &Limits,
) -> Result<Bound, StartError> {
    let (listener, taken) = listen(portal.address, limits)?;
    Ok(Bound { portal: Portal::new(taken, portal.group, encryption), listener })
}

fn listen(address: SocketAddr, limits: &Limits) -> Result<(Arc<Listener>, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = Listener::inherit_or_bind(address).map_err(failed)?;
    listener.give_up_after(limits.keepalive, limits.user_timeout).map_err(failed)?;
    let taken = listener.local_addr().map_err(failed)?;
    Ok((Arc::new(listener), taken))
}

impl Served {
    pub(super) fn open(configured: PortalConfig, bound: Bound, acceptor: &Acceptor) -> Self {
        let Bound { portal, listener } = bound;
        let accepting = acceptor.open(portal.clone(), listener.clone());
        Self { configured, portal, socket: Some((listener, accepting)) }
    }

    /// Gives the address up; when this answers, it is free.
    pub(super) async fn close(socket: (Arc<Listener>, Accepting)) {
        let (listener, accepting) = socket;
        drop(listener);
        accepting.stop().await;
    }

    /// Takes the address again that was given up.
    pub(super) fn reopen(
        &mut self,
        limits: &Limits,
        acceptor: &Acceptor,
    ) -> Result<(), StartError> {
        let (listener, _) = listen(self.portal.address, limits)?;
        let accepting = acceptor.open(self.portal.clone(), listener.clone());
        self.socket = Some((listener, accepting));
        Ok(())
    }
}
