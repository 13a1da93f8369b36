//! Bound portals, and their changes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use sarsen_io::net::Listener;

use super::ResourceError;
use crate::config::{Limits, Portal as PortalConfig};
use crate::fronts::acceptor::{Accepting, Acceptor};
use crate::portal::{Encryption, Portal};
use crate::tls::Tls;

/// A running portal.
pub(super) struct Served {
    /// Its configuration. Its port may be 0.
    pub(super) configured: PortalConfig,
    pub(super) portal: Arc<Portal>,
    pub(super) socket: (Arc<Listener>, Accepting),
}

/// The next portal at an index of the list of portals.
pub(super) enum NextPortal {
    /// The running portal of this number, unchanged.
    Kept(usize),
    /// The running portal of this number, with other certificates.
    Renewed(usize, Encryption),
    /// A new portal with the socket of the running one of this number, whose connections must end.
    Changed(usize, Arc<Portal>),
    New(Bound),
    /// A portal that is not bound yet, because another one has its address.
    Late(Option<Encryption>),
}

/// A bound portal that does not accept connections yet.
pub(super) struct Bound {
    pub(super) portal: Arc<Portal>,
    pub(super) listener: Arc<Listener>,
}

/// The steps for portals, in the order of the desired ones.
#[derive(Default)]
pub(super) struct PortalSteps {
    pub(super) next: Vec<NextPortal>,
    /// Numbers of the running portals that are closed.
    pub(super) removed: Vec<usize>,
    /// The portals whose connections must end.
    pub(super) lost: Vec<Arc<Portal>>,
    /// The configurations of the portals in [`next`](Self::next).
    pub(super) listen: Vec<PortalConfig>,
    /// The portals whose addresses are free when others are closed.
    pub(super) late: Vec<PortalConfig>,
    /// The portals that cannot be opened, with the reasons. The change is made without them.
    pub(super) absent: Vec<(PortalConfig, String)>,
}

impl PortalSteps {
    /// Binds new portals, and reads certificates. A portal that cannot be opened is left out if `may_lack` permits it,
    /// by its number.
    pub(super) fn prepare(
        running: &[(PortalConfig, Arc<Portal>)],
        desired: &[PortalConfig],
        limits: &Limits,
        may_lack: impl Fn(usize, &PortalConfig) -> bool,
    ) -> Result<Self, ResourceError> {
        let mut left: Vec<usize> = (0..running.len()).collect();
        let mut take = |fits: &dyn Fn(&PortalConfig) -> bool| {
            let place = left.iter().position(|&number| fits(&running[number].0))?;
            Some(left.remove(place))
        };
        // Equal portals are matched first. Otherwise, one of two portals with the same address could be matched with
        // the other.
        let same: Vec<Option<usize>> =
            desired.iter().map(|portal| take(&|running| running == portal)).collect();
        let mut steps = Self::default();
        let mut new = Vec::new();
        let mut failed: BTreeMap<usize, String> = BTreeMap::new();
        let mut do_without = |place: usize, error: ResourceError| {
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
            match take(&|running| running.address() == portal.address()) {
                Some(number) => steps.change(number, &running[number], portal, encryption),
                None => {
                    new.push((place, portal));
                    steps.next.push(NextPortal::Late(encryption));
                }
            }
        }
        steps.lost.extend(left.iter().map(|&number| running[number].1.clone()));
        steps.removed = left;
        for (place, portal) in new {
            let makes_way = |number: &usize| {
                let port = running[*number].1.address.port();
                portal.address().port() == port
            };
            let NextPortal::Late(encryption) = &steps.next[place] else { continue };
            match bind(portal, encryption.clone(), limits) {
                Ok(bound) => steps.next[place] = NextPortal::New(bound),
                Err(ResourceError::Listen { source, .. })
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
        steps.separate_late();
        Ok(steps)
    }

    fn change(
        &mut self,
        number: usize,
        (configured, running): &(PortalConfig, Arc<Portal>),
        desired: &PortalConfig,
        encryption: Option<Encryption>,
    ) {
        let is_same = configured.group() == desired.group()
            && configured.protocol() == desired.protocol()
            && client_verification(configured) == client_verification(desired);
        self.next.push(match encryption {
            Some(encryption) if is_same => NextPortal::Renewed(number, encryption),
            encryption => {
                self.lost.push(running.clone());
                let address = running.address;
                NextPortal::Changed(
                    number,
                    Portal::new(address, desired.protocol(), desired.group(), encryption),
                )
            }
        });
    }

    /// Separates the portals that wait for the closing of others, which are not open yet.
    fn separate_late(&mut self) {
        let next = std::mem::take(&mut self.next).into_iter();
        for (next, portal) in next.zip(std::mem::take(&mut self.listen)) {
            match next {
                NextPortal::Late(_) => self.late.push(portal),
                next => {
                    self.next.push(next);
                    self.listen.push(portal);
                }
            }
        }
    }

    /// Returns whether all portals stay as they are.
    pub(super) fn is_idle(&self) -> bool {
        self.removed.is_empty()
            && self.late.is_empty()
            && self.next.iter().all(|next| matches!(next, NextPortal::Kept(_)))
    }
}

/// Returns how a portal with TLS verifies its clients.
fn client_verification(portal: &PortalConfig) -> Option<(Option<&Path>, bool)> {
    let tls = portal.tls.as_ref()?;
    Some((tls.client_ca.as_deref(), tls.requires_client_certificate()))
}

/// Reads the certificates of a portal with TLS.
fn encryption(portal: &PortalConfig) -> Result<Option<Encryption>, ResourceError> {
    let address = portal.address();
    let open = |config: &_| {
        let certificates =
            Tls::open(config).map_err(|source| ResourceError::Tls { address, source })?;
        Ok(Encryption { config: Clone::clone(config), certificates: Arc::new(certificates) })
    };
    portal.tls.as_ref().map(open).transpose()
}

/// Binds a portal, which does not accept connections yet.
pub(super) fn bind(
    portal: &PortalConfig,
    encryption: Option<Encryption>,
    limits: &Limits,
) -> Result<Bound, ResourceError> {
    let (listener, taken) = listen(portal.address(), limits)?;
    let portal = Portal::new(taken, portal.protocol(), portal.group(), encryption);
    Ok(Bound { portal, listener })
}

fn listen(
    address: SocketAddr,
    limits: &Limits,
) -> Result<(Arc<Listener>, SocketAddr), ResourceError> {
    let failed = |source| ResourceError::Listen { address, source };
    let listener = Listener::inherit_or_bind(address).map_err(failed)?;
    listener
        .give_up_after(limits.keepalive.duration(), limits.user_timeout.duration())
        .map_err(failed)?;
    let taken = listener.local_addr().map_err(failed)?;
    Ok((Arc::new(listener), taken))
}

impl Served {
    pub(super) fn open(configured: PortalConfig, bound: Bound, acceptor: &Acceptor) -> Self {
        let Bound { portal, listener } = bound;
        let accepting = acceptor.open(portal.clone(), listener.clone());
        Self { configured, portal, socket: (listener, accepting) }
    }

    /// Closes the socket. When this returns, its address is free.
    pub(super) async fn close(self) {
        let (listener, accepting) = self.socket;
        drop(listener);
        accepting.stop().await;
    }
}
