//! The reply of a store: finished, or pending.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// A future that stays on its core.
pub type LocalFuture<T> = Pin<Box<dyn Future<Output = T>>>;

/// A finished result, or a future of it. A store in memory replies without an allocation.
///
/// Dropping a pending `Io` does not cancel the request: a submitted write may still happen. A caller that must know its
/// end has to wait for it.
pub enum Io<T> {
    /// Finished.
    Ready(T),
    /// Pending.
    Pending(LocalFuture<T>),
}

impl<T> Io<T> {
    /// Wraps a future.
    pub fn pending(future: impl Future<Output = T> + 'static) -> Self {
        Self::Pending(Box::pin(future))
    }

    /// Starts a future now, up to the first point at which it waits: a request starts when its method is called.
    pub fn started(future: impl Future<Output = T> + 'static) -> Self {
        let mut future: LocalFuture<T> = Box::pin(future);
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Self::Ready(result),
            Poll::Pending => Self::Pending(future),
        }
    }

    /// Applies `f` to the result, now or later when it is finished.
    #[inline]
    pub fn map<U>(self, f: impl FnOnce(T) -> U + 'static) -> Io<U>
    where
        T: 'static,
    {
        match self {
            Self::Ready(value) => Io::Ready(f(value)),
            Self::Pending(future) => Io::pending(async move { f(future.await) }),
        }
    }

    /// Returns the result, and waits for it if necessary.
    pub async fn wait(self) -> T {
        match self {
            Self::Ready(value) => value,
            Self::Pending(future) => future.await,
        }
    }
}
