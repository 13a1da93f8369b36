//! The statistics as OpenMetrics. Unused volumes have no samples, and initiators have samples only while they are
//! connected.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use sarsen_volume::statistics::{
    Failure, Histogram, OperationTotals, Statistics, VolumeTotals, exposed_bounds,
};

/// See the module.
pub(super) struct Exposition(pub(super) Arc<Statistics>);

impl fmt::Debug for Exposition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exposition")
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let volumes = self.0.totals();
        durations(&mut encoder, &volumes)?;
        let help = "Commands that were answered";
        of_operations(&mut encoder, &volumes, "volume_operations", help, |one| {
            one.latency.count()
        })?;
        let help = "Bytes that commands carried, in either direction";
        of_operations(&mut encoder, &volumes, "volume_bytes", help, |one| one.bytes)?;
        failures(&mut encoder, &volumes)?;
        limited(&mut encoder, &volumes)?;
        in_flight(&mut encoder, &volumes)
    }
}

fn durations(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeTotals]) -> fmt::Result {
    let help = "From the last byte of a command to its answer, by connected initiator";
    let name = "command_duration_seconds";
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
    for VolumeTotals { volume, initiators, .. } in volumes {
        for (initiator, totals) in initiators {
            for (operation, totals) in totals.operations() {
                let labels = [
                    ("volume", volume.as_str()),
                    ("operation", operation.name()),
                    ("initiator", initiator),
                ];
                let buckets = buckets(&totals.latency);
                let sum = totals.nanoseconds as f64 / 1e9;
                let count = totals.latency.count();
                metric
                    .encode_family(&labels)?
                    .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
            }
        }
    }
    Ok(())
}

/// Returns each bound with the count between the previous bound and this one, as the encoder expects.
fn buckets(histogram: &Histogram) -> Vec<(f64, u64)> {
    let mut from = 0;
    let mut buckets: Vec<(f64, u64)> = exposed_bounds()
        .map(|(bound, below)| {
            let count = histogram.buckets[from..below].iter().sum();
            from = below;
            (bound, count)
        })
        .collect();
    buckets.push((f64::INFINITY, histogram.buckets[from..].iter().sum()));
    buckets
}

fn of_operations(
    encoder: &mut DescriptorEncoder<'_>,
    volumes: &[VolumeTotals],
    name: &str,
    help: &str,
    value: impl Fn(&OperationTotals) -> u64,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for VolumeTotals { volume, all, .. } in volumes {
        for (operation, totals) in all.operations() {
            let labels = [("volume", volume.as_str()), ("operation", operation.name())];
            metric
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value(totals), None)?;
        }
    }
    Ok(())
}

fn failures(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeTotals]) -> fmt::Result {
    let help = "Commands that failed or were aborted, by sense key or status";
    let mut metric = encoder.encode_descriptor("volume_errors", help, None, MetricType::Counter)?;
    for VolumeTotals { volume, all, .. } in volumes {
        // These counters are always present, so that alerts see the first failure as an increase.
        let alerted = |failure| matches!(failure, Failure::MediumError | Failure::HardwareError);
        let shown = |(failure, count): &(Failure, u64)| *count > 0 || alerted(*failure);
        for (failure, count) in Failure::ALL.into_iter().zip(all.failures).filter(shown) {
            let labels = [("volume", volume.as_str()), ("kind", failure.name())];
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    Ok(())
}

fn limited(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeTotals]) -> fmt::Result {
    let help = "Commands that waited for a limit, or because others went first";
    let mut metric =
        encoder.encode_descriptor("volume_limited", help, None, MetricType::Counter)?;
    for VolumeTotals { volume, all, .. } in volumes.iter().filter(|of| of.all.limited > 0) {
        let labels = [("volume", volume.as_str())];
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&all.limited, None)?;
    }
    Ok(())
}

fn in_flight(encoder: &mut DescriptorEncoder<'_>, volumes: &[VolumeTotals]) -> fmt::Result {
    let help = "Commands that are carried out or wait";
    let mut metric =
        encoder.encode_descriptor("volume_queue_depth", help, None, MetricType::Gauge)?;
    for VolumeTotals { volume, all, .. } in volumes {
        let labels = [("volume", volume.as_str())];
        metric.encode_family(&labels)?.encode_gauge(&all.in_flight)?;
    }
    Ok(())
}
