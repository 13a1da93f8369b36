//! The memory of a virtual machine, which the front-end shares with this process.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use sarsen_wire::vhost_user::MemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use super::session::invalid;

/// The mapped memory.
pub(super) struct Memory {
    guest: Arc<GuestMemoryMmap>,
    regions: Vec<MemoryRegion>,
}

impl Memory {
    /// Maps regions, each with the descriptor of its file.
    pub(super) fn map(regions: &[MemoryRegion], files: Vec<OwnedFd>) -> io::Result<Self> {
        if regions.len() != files.len() {
            return Err(invalid("a region of memory without a file"));
        }
        let mut parts: Vec<_> = regions.iter().zip(files).collect();
        parts.sort_by_key(|(region, _)| region.guest_address.get());
        let mapped = parts.into_iter().map(|(region, file)| {
            let length = usize::try_from(region.length.get()).map_err(io::Error::other)?;
            let file = File::from(file);
            let end = region.file_offset.get().checked_add(region.length.get());
            let metadata = file.metadata()?;
            // An access behind the end of the file raises SIGBUS. A file that shrinks later still does that.
            if metadata.is_file() && end.is_none_or(|end| end > metadata.len()) {
                return Err(invalid("a region of memory is not in its file"));
            }
            let file_offset = FileOffset::new(file, region.file_offset.get());
            let mapping = MmapRegion::from_file(file_offset, length).map_err(io::Error::other)?;
            let address = GuestAddress(region.guest_address.get());
            GuestRegionMmap::new(mapping, address)
                .ok_or_else(|| invalid("a region of memory is too long"))
        });
        let mapped = mapped.collect::<io::Result<Vec<_>>>()?;
        let guest = GuestMemoryMmap::from_regions(mapped).map_err(io::Error::other)?;
        Ok(Self { guest: Arc::new(guest), regions: regions.to_vec() })
    }

    pub(super) fn guest(&self) -> &Arc<GuestMemoryMmap> {
        &self.guest
    }

    /// Translates an address of the front-end to one of the virtual machine.
    pub(super) fn guest_address(&self, user_address: u64) -> io::Result<GuestAddress> {
        let offset_in = |region: &MemoryRegion| {
            let offset = user_address.checked_sub(region.user_address.get())?;
            (offset < region.length.get()).then(|| region.guest_address.get() + offset)
        };
        let found = self.regions.iter().find_map(offset_in);
        found.map(GuestAddress).ok_or_else(|| invalid("an address in no region of the memory"))
    }
}
