//! fio's options, one by one.

use std::time::Duration;

use super::values::{amount, block_size, count, percent, size, switch, time};
use super::{Amount, Job};
use crate::distribution::Distribution;
use crate::mix::{Mix, Part};

/// Maximum number of block sizes in a range.
const RANGE_LIMIT: u32 = 256;

/// A reason why an option was not accepted.
pub(super) enum Refusal {
    /// The value is invalid.
    Wrong(String),
    /// The generator has no such function.
    Untranslated(&'static str),
}

impl From<String> for Refusal {
    fn from(what: String) -> Self {
        Self::Wrong(what)
    }
}

/// The parts of `rw`.
#[derive(Clone, Copy)]
struct Direction {
    random: bool,
    /// `None` if the job reads and writes.
    reads: Option<bool>,
}

/// Smallest and largest size of an I/O.
#[derive(Clone, Copy)]
struct Range {
    smallest: u32,
    largest: u32,
}

/// A section that is being parsed; it begins with fio's defaults.
#[derive(Clone)]
pub(super) struct Draft {
    direction: Direction,
    read_size: Range,
    write_size: Range,
    align: Option<u32>,
    read_mix: u8,
    random_share: u8,
    depth: u32,
    jobs: u32,
    runtime: Option<Duration>,
    time_based: bool,
    ramp_time: Duration,
    size: Option<Amount>,
    offset: Amount,
    direct: bool,
    verify: bool,
    distribution: Distribution,
    rate_iops: Option<u32>,
    seed: Option<u64>,
}

impl Default for Draft {
    fn default() -> Self {
        let range = Range { smallest: 4096, largest: 4096 };
        Self {
            direction: Direction { random: false, reads: Some(true) },
            read_size: range,
            write_size: range,
            align: None,
            read_mix: 50,
            random_share: 100,
            depth: 1,
            jobs: 1,
            runtime: None,
            time_based: false,
            ramp_time: Duration::ZERO,
            size: None,
            offset: Amount::Bytes(0),
            direct: false,
            verify: false,
            distribution: Distribution::Uniform,
            rate_iops: None,
            seed: None,
        }
    }
}

const PER_DIRECTION: Refusal =
    Refusal::Untranslated("values that differ between reads and writes are not supported here");

impl Draft {
    /// Parses one option.
    pub(super) fn set(&mut self, key: &str, value: Option<&str>) -> Result<(), Refusal> {
        let text = || value.filter(|text| !text.is_empty()).ok_or_else(|| "no value".to_owned());
        match key {
            "rw" | "readwrite" => self.direction = direction(text()?)?,
            "bs" | "blocksize" => (self.read_size, self.write_size) = sizes(text()?, false)?,
            "bsrange" | "blocksize_range" => {
                (self.read_size, self.write_size) = sizes(text()?, true)?;
            }
            "ba" | "blockalign" => self.align = Some(block_size(single(text()?)?)?),
            "rwmixread" => self.read_mix = percent(text()?)?,
            "rwmixwrite" => self.read_mix = 100 - percent(text()?)?,
            "percentage_random" => self.random_share = percent(single(text()?)?)?,
            "iodepth" => self.depth = count(text()?)?,
            "numjobs" => self.jobs = count(text()?)?,
            "runtime" | "timeout" => self.runtime = Some(time(text()?)?),
            "time_based" => self.time_based = switch(value)?,
            "ramp_time" => self.ramp_time = time(text()?)?,
            "size" => self.size = Some(amount(text()?)?),
            "offset" => self.offset = amount(text()?)?,
            "direct" => self.direct = switch(value)?,
            "buffered" => self.direct = !switch(value)?,
            "verify" => self.verify = !matches!(text()?, "0" | "null"),
            "random_distribution" => self.distribution = distribution(text()?)?,
            "rate_iops" => self.rate_iops = Some(rate(text()?)?),
            "randseed" => self.seed = Some(size(text()?)?),
            _ => return Err(Refusal::Untranslated(reason(key))),
        }
        Ok(())
    }

    /// Completes the section.
    pub(super) fn finish(self, name: String, line: usize) -> Result<Job, String> {
        let random_percent = if self.direction.random { self.random_share } else { 0 };
        let parts = match self.direction.reads {
            Some(true) => spread(self.read_size, 100, 100),
            Some(false) => spread(self.write_size, 0, 100),
            None if self.read_size.is(self.write_size) => {
                spread(self.read_size, self.read_mix, 100)
            }
            None => {
                let writes = 100 - self.read_mix;
                // The share of a direction is divided among its sizes, so each direction is multiplied by the other
                // one's number of sizes.
                let (reads, written) = (self.read_size.steps()?, self.write_size.steps()?);
                let mut parts = spread(self.read_size, 100, u32::from(self.read_mix) * written);
                parts.extend(spread(self.write_size, 0, u32::from(writes) * reads));
                parts.retain(|part| part.weight > 0);
                parts
            }
        };
        self.read_size.steps()?;
        self.write_size.steps()?;
        let parts = parts.into_iter().map(|part| Part { random_percent, ..part }).collect();
        // fio places I/Os at multiples of the smallest block size.
        let smallest = self.read_size.smallest.min(self.write_size.smallest);
        let one_size =
            self.read_size.is(self.write_size) && self.read_size.smallest == self.read_size.largest;
        let align_bytes = self.align.or((!one_size).then_some(smallest));
        Ok(Job {
            name,
            line,
            mix: Mix { parts, align_bytes, queue_depth: self.depth },
            distribution: self.distribution,
            sessions: self.jobs,
            runtime: self.runtime,
            time_based: self.time_based,
            ramp_time: self.ramp_time,
            size: self.size,
            offset: self.offset,
            direct: self.direct,
            verify: self.verify,
            rate_iops: self.rate_iops,
            seed: self.seed,
        })
    }
}

impl Range {
    const fn is(self, other: Self) -> bool {
        self.smallest == other.smallest && self.largest == other.largest
    }

    /// The number of sizes in a range: the multiples of the smallest one.
    fn steps(self) -> Result<u32, String> {
        let Self { smallest, largest } = self;
        if largest < smallest {
            return Err(format!("block sizes from {smallest} to {largest}"));
        }
        match largest / smallest {
            steps if steps > RANGE_LIMIT => Err(format!(
                "the block sizes from {smallest} to {largest} are {steps}; the limit is \
                 {RANGE_LIMIT}"
            )),
            steps => Ok(steps),
        }
    }
}

/// Returns all sizes of the range, with equal weights.
fn spread(range: Range, read_percent: u8, weight: u32) -> Vec<Part> {
    let steps = (range.largest / range.smallest).min(RANGE_LIMIT);
    (1..=steps)
        .map(|step| Part {
            weight,
            block_bytes: range.smallest * step,
            read_percent,
            random_percent: 0,
        })
        .collect()
}

fn direction(text: &str) -> Result<Direction, Refusal> {
    let (random, reads) = match text {
        "read" => (false, Some(true)),
        "write" => (false, Some(false)),
        "rw" | "readwrite" => (false, None),
        "randread" => (true, Some(true)),
        "randwrite" => (true, Some(false)),
        "randrw" => (true, None),
        "trim" | "randtrim" | "trimwrite" | "randtrimwrite" => {
            return Err(Refusal::Untranslated(
                "the generator does not unmap; the job reads instead",
            ));
        }
        _ if text.contains(':') => {
            return Err(Refusal::Untranslated(
                "a modifier of the sequence has no counterpart here",
            ));
        }
        _ => return Err(Refusal::Wrong(format!("{text:?} is no direction"))),
    };
    Ok(Direction { random, reads })
}

/// Parses the sizes of reads and of writes; ignores a third one, for trims.
fn sizes(text: &str, ranges: bool) -> Result<(Range, Range), Refusal> {
    let one = |text: &str| -> Result<Range, Refusal> {
        if !ranges {
            let bytes = block_size(text)?;
            return Ok(Range { smallest: bytes, largest: bytes });
        }
        let (from, to) = text
            .split_once(['-', ':'])
            .ok_or_else(|| Refusal::Wrong(format!("{text:?} is no range: write it like 1k-4k")))?;
        let range = Range { smallest: block_size(from)?, largest: block_size(to)? };
        range.steps()?;
        Ok(range)
    };
    let mut fields = text.split(',').map(str::trim);
    let read = one(fields.next().unwrap_or_default())?;
    let write = match fields.next() {
        None | Some("") => read,
        Some(field) => one(field)?,
    };
    Ok((read, write))
}

/// Parses a value that must be the same for reads and writes.
fn single(text: &str) -> Result<&str, Refusal> {
    let mut fields = text.split(',').map(str::trim).filter(|field| !field.is_empty());
    let first = fields.next().unwrap_or_default();
    if fields.any(|field| field != first) { Err(PER_DIRECTION) } else { Ok(first) }
}

fn rate(text: &str) -> Result<u32, Refusal> {
    let bytes = size(single(text)?)?;
    let rate = u32::try_from(bytes).ok().filter(|rate| *rate > 0);
    rate.ok_or_else(|| Refusal::Wrong(format!("{text:?} is no rate")))
}

fn distribution(text: &str) -> Result<Distribution, Refusal> {
    let (kind, value) = text.split_once(':').unwrap_or((text, ""));
    match kind {
        "random" => Ok(Distribution::Uniform),
        "zipf" => {
            let theta = if value.is_empty() { "1.1" } else { value };
            let found: Result<Distribution, _> = format!("zipf:{theta}").parse();
            found.map_err(|error| Refusal::Wrong(error.to_string()))
        }
        "pareto" | "normal" | "zoned" | "zoned_abs" => Err(Refusal::Untranslated(
            "the generator does not have this distribution; its addresses are \
                                   uniform",
        )),
        _ => Err(Refusal::Wrong(format!("{text:?} is no distribution"))),
    }
}

/// Returns the reason why an option is not supported.
fn reason(key: &str) -> &'static str {
    match key {
        "ioengine"
        | "thread"
        | "iodepth_batch"
        | "iodepth_batch_submit"
        | "iodepth_low"
        | "iodepth_batch_complete"
        | "hipri"
        | "userspace_reap" => "this program's own initiator sends all I/Os",
        "filename" | "directory" | "nrfiles" | "filesize" | "filename_format"
        | "file_service_type" | "openfiles" | "create_serialize" | "fallocate" | "unlink" => {
            "the URL names the target of the I/Os"
        }
        "kb_base" | "unit_base" => "1k is always 1024 bytes",
        "stonewall" | "wait_for_previous" | "startdelay" | "group_reporting" | "new_group"
        | "name" | "description" => {
            "the jobs run one after the other, each with a report of its \
                                     own"
        }
        "norandommap" | "randrepeat" | "softrandommap" | "random_generator" | "allrandrepeat" => {
            "each I/O has a new random address; the same seed repeats the addresses"
        }
        "rate" | "rate_min" | "rate_iops_min" | "rate_process" | "thinktime"
        | "thinktime_blocks" | "latency_target" => "rate_iops is the only supported rate",
        "do_verify" | "verify_fatal" | "verify_pattern" | "verify_interval" | "verify_backlog"
        | "verify_async" | "verify_dump" | "verify_only" => {
            "verification compares each read with the data that this run wrote"
        }
        "fsync" | "fdatasync" | "sync" | "end_fsync" | "fsync_on_close" | "sync_file_range" => {
            "the generator does not flush"
        }
        "bssplit" => "sizes with shares of their own are not supported; see bs and bsrange",
        "loops" | "io_size" | "number_ios" | "exitall" => "a run ends by time",
        "read_iolog" | "replay_redirect" => "traces are replayed by `sarsen lab replay`",
        "refill_buffers"
        | "zero_buffers"
        | "scramble_buffers"
        | "buffer_compress_percentage"
        | "dedupe_percentage"
        | "buffer_pattern" => "the data written is always the same",
        _ => "the generator has no such option",
    }
}
