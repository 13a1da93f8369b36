//! The answer of a store: there already, or to be waited for.

use std::future::Future;
use std::pin::Pin;

/// A future that stays on its core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A result that is finished, or a future of it. A store in memory answers without an allocation.
///
/// Dropping a pending `Io` does not undo the request: a write that was submitted may still
/// happen. Who needs to know that it has ended must wait for it.
pub enum Io<T> {
    /// Finished.
    Ready(T),
    /// Under way.
    Pending(LocalFuture<T>),
}

impl<T> Io<T> {
    /// Wraps a future.
    pub fn pending(future: impl Future<Output = T> + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Applies `f` to the result, now or when it comes.
    pub fn map<U>(self, f: impl FnOnce(T) -> U + 'static) -> Io<U>
    where
        T: 'static,
    {
        match self {
            Self::Ready(value) => Io::Ready(f(value)),
            Self::Pending(future) => Io::pending(async move { f(future.await) }),
        }
    }

    /// The result, waited for if need be.
    pub async fn wait(self) -> T {
        match self {
            Self::Ready(value) => value,
            Self::Pending(future) => future.await,
        }
    }
}
