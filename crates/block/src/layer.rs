//! Layers: stores over one other store that decide on requests and leave their data alone.

use std::any::Any;
use std::sync::Arc;

use crate::{
    AllocationRun, Characteristics, Data, Durability, Extent, Geometry, Lba, Payload, Reply,
    Request, Space, Store, StoreStatus,
};

/// A store over another one that passes each request on unchanged, refuses it, or delays it. Every layer is a
/// [`Store`]. A store that changes data or extents implements that trait itself.
pub trait Layer: Send + Sync {
    /// Returns the store below.
    fn inner(&self) -> &Arc<dyn Store>;

    /// Returns the properties of this store, from those of the store below.
    #[inline]
    fn adapt(&self, inner: Characteristics) -> Characteristics {
        inner
    }

    /// Handles one request. `submit` submits it to the store below.
    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T>;
}

impl<L: Layer> Store for L {
    #[inline]
    fn geometry(&self) -> Geometry {
        self.inner().geometry()
    }

    #[inline]
    fn characteristics(&self) -> Characteristics {
        self.adapt(self.inner().characteristics())
    }

    #[inline]
    fn status(&self) -> &Arc<StoreStatus> {
        self.inner().status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        self.handle(Request::Read(extent), move |inner| inner.read(extent))
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let request = Request::Write { extent, durability };
        self.handle(request, move |inner| inner.write(extent, data, durability))
    }

    fn read_protected(&self, extent: Extent) -> Reply<Data> {
        self.handle(Request::ReadProtected(extent), move |inner| inner.read_protected(extent))
    }

    fn write_protected(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let request = Request::WriteProtected { extent, durability };
        self.handle(request, move |inner| inner.write_protected(extent, data, durability))
    }

    fn flush(&self) -> Reply<()> {
        self.handle(Request::Flush, |inner| inner.flush())
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.handle(Request::Unmap(extent), move |inner| inner.unmap(extent))
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        let request = Request::WriteZeroes { extent, durability };
        self.handle(request, move |inner| inner.write_zeroes(extent, durability))
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.handle(Request::Allocation(extent), move |inner| inner.allocation(extent))
    }

    fn shareable(&self) -> Option<&dyn Any> {
        self.inner().shareable()
    }

    fn share(&self, source: &Arc<dyn Store>, extent: Extent, to: Lba) -> Reply<u64> {
        let (source, request) = (source.clone(), Request::Share(Extent { lba: to, ..extent }));
        self.handle(request, move |inner| inner.share(&source, extent, to))
    }

    fn space(&self) -> Reply<Space> {
        self.handle(Request::Space, |inner| inner.space())
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        let request = Request::Resize { block_count };
        self.handle(request, move |inner| inner.resize(block_count))
    }
}
