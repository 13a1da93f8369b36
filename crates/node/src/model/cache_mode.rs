//! Cache modes of files and devices.

/// The time at which a write reaches the disk, with KVM's names and their exact meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheMode {
    /// Uses the page cache. Writes are durable after a flush.
    #[default]
    WriteBack,
    /// Uses the page cache. Each write is durable when it is acknowledged.
    WriteThrough,
    /// Bypasses the page cache. Writes are durable after a flush, because the device has a cache.
    None,
    /// Bypasses the page cache. Each write is durable when it is acknowledged.
    DirectSync,
    /// Uses the page cache. Flushes are ignored.
    Unsafe,
}

impl CacheMode {
    /// Returns whether I/O bypasses the page cache.
    pub(crate) fn is_direct(self) -> bool {
        matches!(self, Self::None | Self::DirectSync)
    }

    /// Returns whether writes are acknowledged before they are durable.
    pub(crate) fn is_volatile(self) -> bool {
        matches!(self, Self::WriteBack | Self::None | Self::Unsafe)
    }
}
