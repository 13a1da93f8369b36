//! Pools and snapshots in requests and responses.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::model::{Words, document};

/// `GET /v1/pools`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// The pools, ordered by name.
    pub pools: Vec<PoolStatus>,
}

/// A pool as it is now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// Its name.
    pub name: String,
    /// Whether it is open. A pool that is not open serves no volumes.
    pub is_open: bool,
    /// Its problem, if it has one.
    pub problem: Option<String>,
    /// Its devices.
    pub devices: Vec<PoolDevice>,
    /// Its fast and its slow devices, if `fast-devices` names some and not all.
    pub tiers: Vec<PoolTier>,
    /// Its scrub.
    pub scrub: PoolScrub,
    /// Bytes in which it gives space to volumes.
    pub chunk_bytes: u32,
    /// Bytes of all chunks.
    pub size_bytes: u64,
    /// Bytes of the chunks in use, and of metadata.
    pub used_bytes: u64,
    /// Bytes that nothing uses: data with n copies takes n times its size. Free bytes next to data are for volumes with the
    /// same copies and checksums.
    pub free_bytes: u64,
    /// Bytes of data that were given up with missing devices. Volumes and snapshots may refer to them, and a scrub after the
    /// deletion of these ends them.
    pub lost_bytes: u64,
    /// Whether more bytes become free by themselves: deleted objects are being removed.
    pub is_freeing: bool,
    /// The sum of the sizes of its volumes, which may be more than it has.
    pub provisioned_bytes: u64,
    /// Number of volumes.
    pub volume_count: usize,
    /// Number of snapshots.
    pub snapshot_count: usize,
}

/// A device of a pool, or a path that the configuration names and that is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolDevice {
    /// Its path. For a device that is missing and whose path is not known: its number.
    pub path: String,
    /// Size in bytes, if it is open.
    pub size_bytes: Option<u64>,
    /// Whether it is read and written.
    pub is_online: bool,
    /// Whether its data moves to other devices, after which it is removed.
    pub is_leaving: bool,
    /// Whether it is one of the fast devices, to which data moves that is used most.
    pub is_fast: bool,
    /// Bytes that are in use for volumes and metadata, in whole slabs of a maximum of 1 GiB. Of a device that is removed or
    /// replaced, this is what is still to be moved.
    pub used_bytes: u64,
    /// Bytes that must be copied to it at most, before it has everything.
    pub stale_bytes: u64,
    /// How often it returned data without its checksum, since the pool was opened.
    pub checksum_errors: u64,
    /// Why it is not in use.
    pub problem: Option<String>,
}

/// The use of the fast or of the slow devices of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolTier {
    /// `fast` or `slow`.
    pub tier: String,
    /// Bytes for volumes and metadata of its devices that are online.
    pub size_bytes: u64,
    /// Bytes of them that are in use, in whole slabs of a maximum of 1 GiB.
    pub used_bytes: u64,
    /// Reads and writes of data there, since the pool was opened.
    pub requests: u64,
    /// Bytes that were moved there, since the pool was opened.
    pub moved_bytes: u64,
}

/// The scrub of a pool: it reads everything, and repairs copies.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolScrub {
    /// Whether one is under way.
    pub is_running: bool,
    /// The part of it that is done, in percent.
    pub percent: u8,
    /// The result of the last one since the start of the server.
    pub last: Option<ScrubResult>,
    /// Why the last one ended early.
    pub problem: Option<String>,
}

/// The result of a scrub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScrubResult {
    /// Its end, in seconds since 1970.
    pub ended_unix_seconds: u64,
    /// Bytes that were read, of all copies.
    pub read_bytes: u64,
    /// Bytes that could not be read, or did not have their checksum, and were written again from another copy.
    pub repaired_bytes: u64,
    /// Bytes of data that differed from another copy, and are equal now. Parts that no volume has written may differ.
    pub differing_bytes: u64,
    /// Bytes of which no copy could be read, or no copy had its checksum.
    pub lost_bytes: u64,
    /// Bytes of data that should have had checksums, had none after an interruption, and have them now.
    pub summed_bytes: u64,
}

/// `GET /v1/pools/{name}`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolContents {
    /// The pool.
    pub pool: PoolStatus,
    /// Its volumes and snapshots, in the order of their creation.
    pub contents: Vec<StoredVolume>,
}

/// A volume or a snapshot in the catalogue of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StoredVolume {
    /// Its name.
    pub name: String,
    /// Whether it is a snapshot.
    pub is_snapshot: bool,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of all chunks to which it refers. Others may refer to the same chunks.
    pub referenced_bytes: u64,
    /// Bytes of the chunks to which nothing else refers: the deletion of this object alone gives them back. Only if the
    /// request asked for them.
    pub reclaimable_bytes: Option<u64>,
    /// Bytes of the chunks to which it refers that were given up with missing devices: reads of them fail. Only with
    /// `reclaimable`, or in the preview of a recovery that loses only what missing devices have.
    pub lost_bytes: Option<u64>,
    /// Its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// The volume of a snapshot, or the snapshot of a clone, if that exists.
    pub origin: Option<String>,
    /// Whether it is protected from deletion.
    pub is_protected: bool,
    /// Number of copies of its data, each on another device.
    pub copies: u8,
    /// Number of devices over which its data is spread, if there are so many.
    pub stripes: u8,
    /// Whether each 4 KiB of its data has a checksum, which every read verifies.
    pub has_checksums: bool,
    /// The serial number of a volume. A new volume with this serial number serves its data.
    pub serial: Option<String>,
}

/// `GET /v1/volumes/{name}/usage`: what a volume takes of its pool, without its snapshots.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VolumeUsage {
    /// The volume.
    pub volume: String,
    /// Its pool.
    pub pool: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of all chunks to which it refers. Its snapshots and clones may refer to the same chunks.
    pub referenced_bytes: u64,
    /// Bytes of the chunks to which nothing else refers: the deletion of the volume alone gives them back.
    pub reclaimable_bytes: u64,
    /// Number of its snapshots.
    pub snapshot_count: usize,
}

/// The body of `POST /v1/pools/{name}/recover`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RecoverPool {
    /// What may be lost.
    pub lose: Vec<PoolLoss>,
    /// Preview the recovery: change nothing, and answer with the volumes and snapshots that the pool would have.
    #[serde(default)]
    pub dry_run: bool,
}

/// What a pool loses so that it can be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PoolLoss {
    /// Everything since devices were left out that are there again, because those with newer data are missing.
    NewerData,
    /// What volumes wrote after a damaged place of the journal.
    DamagedJournal,
    /// What is only on devices that are missing. It does not come back with them.
    MissingDevices,
}

impl Words for PoolLoss {
    const WORDS: &'static [(&'static str, Self)] = &[
        ("newer-data", Self::NewerData),
        ("damaged-journal", Self::DamagedJournal),
        ("missing-devices", Self::MissingDevices),
    ];
}

/// The body of `POST /v1/pools`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreatePool {
    /// Its name: lower-case letters, digits, dots and hyphens.
    #[serde(default)]
    pub name: String,
    /// Its devices.
    #[serde(default)]
    pub devices: Vec<NewPoolDevice>,
    /// Bytes in which it gives space to volumes: a power of two from 16KiB to 1MiB. Default: 64KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub chunk_size: Option<crate::model::ByteSize>,
    /// The cache mode of its devices. Default: writeback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// Add the pool that the devices have, instead of creating one.
    #[serde(default)]
    pub import: bool,
    /// Overwrite devices that have data.
    #[serde(default)]
    pub force: bool,
    /// The author of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
}

/// A device of a new pool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewPoolDevice {
    /// The path of a block device, or of a file.
    pub path: String,
    /// Create a file of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub size: Option<crate::model::ByteSize>,
    /// It is one of the fast devices: data moves to it that is used most.
    #[serde(default)]
    pub is_fast: bool,
}

/// The body of `POST /v1/pools/{name}/devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddPoolDevice {
    /// The path of a block device, or of a file.
    #[serde(default)]
    pub path: String,
    /// Create a file of this size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<document::Size>)]
    pub size: Option<crate::model::ByteSize>,
    /// It is one of the fast devices: data moves to it that is used most. It is one in any case if it replaces one.
    #[serde(default)]
    pub is_fast: bool,
    /// Let this device leave, when the new one is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
    /// Overwrite a device that has data.
    #[serde(default)]
    pub force: bool,
    /// The author of the change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub author: Option<String>,
}

/// The body of `PATCH /v1/pools/{name}/devices`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangePoolDevice {
    /// The path of the device.
    pub path: String,
    /// Whether it leaves: its data moves to other devices, and then it is removed.
    pub is_leaving: bool,
}

/// `GET /v1/snapshots`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotList {
    /// The snapshots, ordered by pool and creation.
    pub snapshots: Vec<Snapshot>,
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    /// Its name: `VOLUME@NAME`.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its volume, if that exists.
    pub volume: Option<String>,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Bytes of all chunks to which it refers. Others may refer to the same chunks.
    pub referenced_bytes: u64,
    /// Bytes of the chunks to which nothing else refers: the deletion of this snapshot alone gives them back, in each of its
    /// copies. Only if the request asked for them.
    pub reclaimable_bytes: Option<u64>,
    /// Number of copies of its data, each on another device.
    pub copies: u8,
    /// Its creation, in seconds since 1970.
    pub created_unix_seconds: u64,
    /// Whether it is protected from deletion.
    pub is_protected: bool,
    /// The volumes that were created with its contents.
    pub clones: Vec<String>,
    /// What identifies it on all servers that have it: 32 hexadecimal digits.
    pub identifier: String,
    /// The byte up to which it has been received, while it is not complete and cannot be used.
    pub received_bytes: Option<u64>,
}

/// The result of `POST /v1/snapshots/{name}/stream`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReceivedSnapshot {
    /// The snapshot.
    pub name: String,
    /// Its size in bytes.
    pub size_bytes: u64,
    /// The byte up to which it has been received.
    pub received_bytes: u64,
    /// Whether it is complete, and can be used.
    pub is_complete: bool,
    /// Whether it was complete before, so that the part was not needed.
    pub was_complete: bool,
}

/// The body of `POST /v1/snapshots`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateSnapshots {
    /// The snapshots, each as `VOLUME@NAME`. Snapshots of several volumes of one pool are of the same moment.
    #[serde(default)]
    pub snapshots: Vec<String>,
    /// Protect them from deletion.
    #[serde(default)]
    pub protect: bool,
}

/// The body of `PATCH /v1/snapshots/{name}`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeSnapshot {
    /// Whether it is protected from deletion.
    pub is_protected: bool,
}

/// The body of `POST /v1/snapshots/{name}/rollback`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RollBack {
    /// Log out the initiators that use the volume. Without this, the request is refused while there are any.
    #[serde(default)]
    pub force: bool,
    /// Seconds that initiators have to log out. Default: 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_seconds: Option<u16>,
}

/// The result of a roll-back: the volume has the contents and the size of the snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RolledBack {
    /// The volume.
    pub volume: String,
    /// The snapshot.
    pub snapshot: String,
}

/// `GET /v1/snapshots/{name}/changes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SnapshotChanges {
    /// The snapshot.
    pub snapshot: String,
    /// The older snapshot with which it was compared; none for an empty volume.
    pub since: Option<String>,
    /// Size of the snapshot in bytes.
    pub size_bytes: u64,
    /// The ranges in which they may differ, in order. Data that was written again counts as different.
    pub changes: Vec<ChangedRange>,
    /// Where the next request goes on, if there may be more.
    pub next_offset: Option<u64>,
}

/// A range in which two snapshots may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ChangedRange {
    /// Its first byte.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
    /// The snapshot has no data there: it reads as zeroes.
    pub is_hole: bool,
}
