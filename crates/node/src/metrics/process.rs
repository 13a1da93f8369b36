//! The server's version, the resources that its process uses, and the space of its volumes and pools.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sarsen_io::process;
use sarsen_pool::{Tier, TierUse};

use crate::model::Textual as _;

/// The space of an open volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeSpace {
    pub(crate) name: String,
    /// Bytes that initiators see.
    pub(crate) size: u64,
    /// Bytes that are allocated to the volume, if known.
    pub(crate) allocated: Option<u64>,
}

/// The space of an open pool.
#[derive(Clone, Debug)]
pub(crate) struct PoolUsage {
    pub(crate) name: String,
    /// Bytes of all chunks.
    pub(crate) size: u64,
    /// Bytes that new data can use.
    pub(crate) free: u64,
    /// The sum of the sizes of its volumes.
    pub(crate) provisioned: u64,
    /// Number of its devices that are neither read nor written.
    pub(crate) left_out: u64,
    /// Bytes that must be copied to its devices at most, before each copy is complete.
    pub(crate) stale: u64,
    /// How often data did not have its checksum since the pool was opened.
    pub(crate) checksum_errors: u64,
    /// The use of its fast and slow devices, if it has both.
    pub(crate) tiers: Option<[(Tier, TierUse); 2]>,
}

/// See the module. These names have no prefix: all programs use the same names for their process.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessMetrics {
    volumes: Arc<Mutex<Vec<VolumeSpace>>>,
    pools: Arc<Mutex<Vec<PoolUsage>>>,
}

impl ProcessMetrics {
    /// Sets the current volumes and pools.
    pub(super) fn show(&self, volumes: Vec<VolumeSpace>, pools: Vec<PoolUsage>) {
        *self.volumes.lock() = volumes;
        *self.pools.lock() = pools;
    }
}

impl Collector for ProcessMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        process(&mut encoder)?;
        let help = "1, with the version of the server";
        let mut metric =
            encoder.encode_descriptor("sarsen_build_info", help, None, MetricType::Gauge)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        metric.encode_family(&labels)?.encode_gauge(&1_u64)?;
        let volumes = self.volumes.lock().clone();
        let help = "Size of a volume as initiators see it, in bytes";
        let name = "sarsen_volume_size_bytes";
        let label = |volume: &VolumeSpace| ("volume", volume.name.clone());
        of_each(&mut encoder, &volumes, label, name, help, |volume| Some(volume.size))?;
        let help = "Bytes that are allocated to a volume: by its file system, or in memory";
        let name = "sarsen_volume_allocated_bytes";
        of_each(&mut encoder, &volumes, label, name, help, |volume| volume.allocated)?;
        let pools = self.pools.lock().clone();
        let label = |pool: &PoolUsage| ("pool", pool.name.clone());
        let help = "Bytes of all chunks of a pool";
        of_each(&mut encoder, &pools, label, "sarsen_pool_size_bytes", help, |pool| {
            Some(pool.size)
        })?;
        let help = "Bytes of a pool that nothing uses: data with n copies takes n times its size";
        of_each(&mut encoder, &pools, label, "sarsen_pool_free_bytes", help, |pool| {
            Some(pool.free)
        })?;
        let help = "The sum of the sizes of the volumes in a pool, in bytes";
        let name = "sarsen_pool_provisioned_bytes";
        of_each(&mut encoder, &pools, label, name, help, |pool| Some(pool.provisioned))?;
        let help = "Devices of a pool that are left out: they are neither read nor written";
        let name = "sarsen_pool_devices_left_out";
        of_each(&mut encoder, &pools, label, name, help, |pool| Some(pool.left_out))?;
        let help = "Bytes that must be copied to the devices of a pool at most, before each copy is complete";
        let name = "sarsen_pool_stale_bytes";
        of_each(&mut encoder, &pools, label, name, help, |pool| Some(pool.stale))?;
        let help = "Blocks that devices of a pool returned without their checksum, since the pool was opened";
        let name = "sarsen_pool_checksum_errors";
        of_each(&mut encoder, &pools, label, name, help, |pool| Some(pool.checksum_errors))?;
        let help = "Reads and writes of data on the fast or slow devices of a pool";
        of_tiers(&mut encoder, &pools, "sarsen_pool_tier_requests", help, |tier| tier.requests)?;
        let help = "Bytes of slabs that were moved to the fast or slow devices of a pool";
        let name = "sarsen_pool_tier_moved_bytes";
        of_tiers(&mut encoder, &pools, name, help, |tier| tier.moved_bytes)
    }
}

fn process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let Ok(usage) = process::usage() else { return Ok(()) };
    let help = "CPU time that the server has used, in seconds";
    let name = "process_cpu_seconds";
    encoder
        .encode_descriptor(name, help, None, MetricType::Counter)?
        .encode_counter::<NoLabelSet, _, u64>(&usage.processor_time.as_secs_f64(), None)?;
    let help = "Resident memory of the server, in bytes";
    gauge(encoder, "process_resident_memory_bytes", help, usage.resident_bytes)?;
    let help = "Virtual memory of the server, in bytes";
    gauge(encoder, "process_virtual_memory_bytes", help, usage.virtual_bytes)?;
    gauge(encoder, "process_open_fds", "Open files and sockets", usage.descriptors)?;
    if let Some(limit) = usage.descriptor_limit {
        let help = "Maximum of open files and sockets";
        gauge(encoder, "process_max_fds", help, limit)?;
    }
    let help = "When the server started, in seconds since 1970";
    gauge(encoder, "process_start_time_seconds", help, usage.start_unix_seconds)
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
}

/// Encodes a counter of each tier of pools that have two.
fn of_tiers(
    encoder: &mut DescriptorEncoder<'_>,
    pools: &[PoolUsage],
    name: &str,
    help: &str,
    count: impl Fn(&TierUse) -> u64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for pool in pools {
        for (tier, used) in pool.tiers.iter().flatten() {
            let labels = [("pool", pool.name.clone()), ("tier", tier.render())];
            let mut metric = metric.encode_family(&labels)?;
            metric.encode_counter::<NoLabelSet, _, u64>(&count(used), None)?;
        }
    }
    Ok(())
}

/// Writes a gauge of each object that has a value.
fn of_each<T>(
    encoder: &mut DescriptorEncoder<'_>,
    objects: &[T],
    label: impl Fn(&T) -> (&'static str, String),
    name: &str,
    help: &str,
    bytes: impl Fn(&T) -> Option<u64>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for object in objects {
        if let Some(bytes) = bytes(object) {
            metric.encode_family(&[label(object)])?.encode_gauge(&bytes)?;
        }
    }
    Ok(())
}
