//! The parsers of the trace formats.

use std::time::Duration;

use super::{Content, Format, Request};

/// Size of blkparse's sectors, for any block size of the device.
const SECTOR: u64 = 512;
/// Units of 100 ns in a second.
const TICKS_PER_SECOND: u64 = 10_000_000;

/// Returns the format that has such a first line.
pub(super) fn detect(line: &str) -> Option<Format> {
    let fields: Vec<_> = line.split(',').collect();
    let is_number = |at: usize| fields[at].trim().parse::<f64>().is_ok();
    match fields.len() {
        7 if line.starts_with("Timestamp") || is_number(0) && is_number(4) => Some(Format::Msr),
        4 if line.starts_with("time_s") || is_number(0) && is_number(2) => Some(Format::Csv),
        _ => device(line.split_ascii_whitespace().next()?).map(|()| Format::Blkparse),
    }
}

/// Checks that a text is a device number, `major,minor`.
fn device(text: &str) -> Option<()> {
    let (major, minor) = text.split_once(',')?;
    (major.parse::<u32>().is_ok() && minor.parse::<u32>().is_ok()).then_some(())
}

fn number<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    let text = text.trim();
    text.parse().map_err(|_| format!("{text:?} is no {what}"))
}

fn request(at: Duration, reads: bool, offset: u64, length: u64) -> Result<Content, String> {
    let length = u32::try_from(length).ok().filter(|length| *length > 0);
    let length = length.ok_or("a request must be from 1 byte to 4 GiB long")?;
    offset.checked_add(length.into()).ok_or("a request beyond 2^64 bytes")?;
    Ok(Content::Request(Request { at, reads, offset, length }))
}

/// Returns the time since the start of the trace. Requests can be slightly out of order: an earlier one is at 0.
fn since(origin: &mut Option<u64>, now: u64) -> u64 {
    now.saturating_sub(*origin.get_or_insert(now))
}

pub(super) fn msr(line: &str, first: bool, origin: &mut Option<u64>) -> Result<Content, String> {
    if first && line.starts_with("Timestamp") {
        return Ok(Content::Nothing);
    }
    let fields: Vec<_> = line.split(',').collect();
    let [timestamp, _host, disk, kind, offset, size, response] = fields[..] else {
        return Err(format!(
            "{} fields instead of 7 \
             (Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime)",
            fields.len()
        ));
    };
    let ticks = number(timestamp, "timestamp")?;
    number::<u32>(disk, "disk number")?;
    number::<u64>(response, "response time")?;
    let reads = match kind.trim() {
        "Read" => true,
        "Write" => false,
        other => return Err(format!("{other:?} is neither Read nor Write")),
    };
    let (offset, size) = (number(offset, "offset")?, number(size, "size")?);
    let ticks = since(origin, ticks);
    let at = Duration::new(
        ticks / TICKS_PER_SECOND,
        (ticks % TICKS_PER_SECOND) as u32 * (1_000_000_000 / TICKS_PER_SECOND) as u32,
    );
    request(at, reads, offset, size)
}

/// `device cpu sequence time pid action RWBS sector + sectors [process]`
pub(super) fn blkparse(line: &str, origin: &mut Option<u64>) -> Result<Content, String> {
    // The summary at the end of the output.
    if ["CPU", "Total", "Throughput", "Events", "Skips"].iter().any(|word| line.starts_with(word)) {
        return Ok(Content::End);
    }
    let mut fields = line.split_ascii_whitespace();
    let mut next = |what: &str| fields.next().ok_or_else(|| format!("the line has no {what}"));
    let name = next("device")?;
    device(name).ok_or_else(|| format!("{name:?} is no device (major,minor)"))?;
    number::<u32>(next("CPU")?, "CPU")?;
    number::<u64>(next("sequence number")?, "sequence number")?;
    let time = nanoseconds(next("time")?)?;
    number::<u32>(next("process id")?, "process id")?;
    let action = next("action")?;
    let kind = next("RWBS field")?;
    let nanoseconds = since(origin, time);
    if action != "Q" || kind.contains('D') {
        return Ok(Content::Nothing);
    }
    let reads = match (kind.contains('R'), kind.contains('W')) {
        (true, false) => true,
        (false, true) => false,
        // A flush, a message.
        (false, false) => return Ok(Content::Nothing),
        (true, true) => return Err(format!("{kind:?} reads and writes")),
    };
    let sector = match next("sector")? {
        // A flush that is recorded as a write without data.
        process if process.starts_with('[') => return Ok(Content::Nothing),
        sector => number::<u64>(sector, "sector")?,
    };
    if next("+")? != "+" {
        return Err("no `+` between the sector and the number of sectors".into());
    }
    let sectors: u64 = number(next("number of sectors")?, "number of sectors")?;
    let offset = sector.checked_mul(SECTOR).ok_or("a request beyond 2^64 bytes")?;
    let length = sectors.checked_mul(SECTOR).ok_or("a request beyond 2^64 bytes")?;
    if length == 0 {
        return Ok(Content::Nothing);
    }
    request(Duration::from_nanos(nanoseconds), reads, offset, length)
}

/// Parses `seconds.nanoseconds` exactly.
fn nanoseconds(text: &str) -> Result<u64, String> {
    let parse = || {
        let (seconds, fraction) = text.split_once('.')?;
        let digits = fraction.len();
        if digits == 0 || digits > 9 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let fraction: u64 = fraction.parse().ok()?;
        let seconds: u64 = seconds.parse().ok()?;
        seconds.checked_mul(1_000_000_000)?.checked_add(fraction * 10_u64.pow(9 - digits as u32))
    };
    parse().ok_or_else(|| format!("{text:?} is no time in seconds"))
}

pub(super) fn csv(line: &str, first: bool) -> Result<Content, String> {
    if first && line.starts_with("time_s") {
        return Ok(Content::Nothing);
    }
    let fields: Vec<_> = line.split(',').collect();
    let [time, op, offset, length] = fields[..] else {
        return Err(format!("{} fields instead of 4 (time_s,op,offset,length)", fields.len()));
    };
    let seconds: f64 = number(time, "time in seconds")?;
    let at = Duration::try_from_secs_f64(seconds)
        .map_err(|_| format!("{time:?} is no time in seconds"))?;
    let reads = match op.trim().to_ascii_lowercase().as_str() {
        "r" | "read" => true,
        "w" | "write" => false,
        _ => return Err(format!("{op:?} is neither read nor write")),
    };
    request(at, reads, number(offset, "offset")?, number(length, "length")?)
}
