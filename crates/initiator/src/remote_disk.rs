//! The interface of disks of other servers: logical units over iSCSI, and exports over NBD.

use std::sync::Arc;
use std::task::{Context, Waker};

use sarsen_block::{LocalFuture, Store};
use tokio::sync::Notify;

/// The status of a path.
#[derive(Clone, Debug)]
pub struct PathStatus {
    /// The portal of the path, or the address of an NBD server.
    pub portal: String,
    /// The portal through which it is used now: its own one, or another one of the same portal group. An export has one address.
    pub entry: Option<String>,
    /// Commands are sent over it if no other path has a better access state.
    pub is_active: bool,
    /// Why it is not used, or why its last examination failed.
    pub failure: Option<String>,
}

/// A disk of another server, as a store that survives lost connections.
pub trait RemoteDisk: Store {
    /// Returns the status of each path.
    fn paths(&self) -> Vec<PathStatus>;

    /// Waits for the next change of [`Self::paths`] or [`Self::is_down`] after this call, or for the end of the store.
    fn paths_changed(&self) -> LocalFuture<()>;

    /// Returns whether requests fail at once, because no path has been usable for the time that requests wait, or none will be.
    fn is_down(&self) -> bool;

    /// Returns whether there are writes that a flush has not made durable yet.
    fn has_kept_writes(&self) -> bool;

    /// Returns the identifier by which the disk is recognised, if it has one.
    fn identifier(&self) -> Option<String>;

    /// Logs out or disconnects when all open requests are answered, or after some seconds.
    fn leave(&self) -> LocalFuture<()>;
}

/// Waits for the next notification after this call.
pub(crate) fn notified(changed: &Arc<Notify>) -> LocalFuture<()> {
    // It does not keep the store: that ends, and notifies, meanwhile.
    let changed = changed.clone();
    let mut notified: LocalFuture<()> = Box::pin(async move { changed.notified().await });
    // It waits from now on, not from the first poll on.
    let _ = notified.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    notified
}
