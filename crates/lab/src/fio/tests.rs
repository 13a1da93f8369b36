use super::*;
use crate::access::AccessPattern;

const SAMPLE: &str = "; a comment
[global]
ioengine=libaio
direct=1
bs=8k
runtime=2m      # of each
time_based

[oltp]
rw=randrw
rwmixread=70
iodepth=16
numjobs=4
percentage_random=80
random_distribution=zipf:1.2
rate_iops=500
offset=1g
size=50%
verify=crc32c

[stream]
readwrite=write
bs=1m
runtime=30
ramp_time=500ms
stonewall
";

fn read(text: &str) -> JobFile {
    parse("a.fio", text).unwrap()
}

#[test]
fn supported_options_are_converted() {
    let file = read(SAMPLE);
    let [oltp, stream] = &file.jobs[..] else { panic!("two jobs") };
    let access =
        AccessPattern { block_bytes: 8192, read_percent: 70, random_percent: 80, queue_depth: 16 };
    assert_eq!((oltp.name.as_str(), oltp.line), ("oltp", 9));
    assert_eq!(oltp.mix.as_access(), Some(access));
    assert_eq!((oltp.sessions, oltp.rate_iops), (4, Some(500)));
    assert_eq!(oltp.runtime, Some(Duration::from_secs(120)));
    assert!(oltp.time_based && oltp.direct && oltp.verify);
    assert_eq!(oltp.distribution, Distribution::Zipf { theta: 1.2 });
    assert_eq!((oltp.offset, oltp.size), (Amount::Bytes(1 << 30), Some(Amount::Percent(50))));
    let access =
        AccessPattern { block_bytes: 1 << 20, read_percent: 0, random_percent: 0, queue_depth: 1 };
    assert_eq!(stream.mix.as_access(), Some(access));
    assert_eq!(stream.runtime, Some(Duration::from_secs(30)));
    assert_eq!(stream.ramp_time, Duration::from_millis(500));
}

#[test]
fn unsupported_options_are_listed_with_line() {
    let file = read(SAMPLE);
    let listed: Vec<_> =
        file.untranslated.iter().map(|entry| (entry.line, entry.option.as_str())).collect();
    assert_eq!(listed, [(3, "ioengine=libaio"), (26, "stonewall")]);
    let file = read("[a]\nrw=randtrim\nrandom_distribution=pareto:0.9\nrate_iops=5,6\nodd=1\n");
    let lines: Vec<_> = file.untranslated.iter().map(|entry| entry.line).collect();
    assert_eq!(lines, [2, 3, 4, 5]);
    assert!(file.untranslated.iter().all(|entry| entry.section == "a" && !entry.reason.is_empty()));
}

#[test]
fn sizes_of_reads_and_writes_may_differ() {
    let file = read("[a]\nrw=randrw\nrwmixwrite=25\nbs=4k,16k\n");
    let parts: Vec<_> = file.jobs[0]
        .mix
        .parts
        .iter()
        .map(|part| (part.weight, part.block_bytes, part.read_percent, part.random_percent))
        .collect();
    assert_eq!(parts, [(75, 4096, 100, 100), (25, 16384, 0, 100)]);
    assert_eq!(file.jobs[0].mix.align_bytes, Some(4096));
}

#[test]
fn a_range_is_its_multiples() {
    let file = read("[a]\nrw=read\nbsrange=1k-4k\n");
    let sizes: Vec<_> = file.jobs[0].mix.parts.iter().map(|part| part.block_bytes).collect();
    assert_eq!(sizes, [1024, 2048, 3072, 4096]);
    let file = read("[a]\nrw=randread\nbsrange=4k-4k\n");
    assert!(file.jobs[0].mix.as_access().is_some());
}

#[test]
fn a_later_global_section_adds_to_the_first() {
    let file = read("[global]\nbs=8k\n[a]\n[global]\niodepth=4\n[b]\n");
    assert_eq!(file.jobs[0].mix.queue_depth, 1);
    assert_eq!(file.jobs[1].mix.queue_depth, 4);
    assert_eq!(file.jobs[1].mix.longest(), 8192);
}

#[test]
fn sizes_and_times_are_read_as_fio_reads_them() {
    use values::{size, time};
    for (text, bytes) in
        [("4k", 4096), ("4ki", 4000), ("4kib", 4000), ("1M", 1 << 20), ("512b", 512), ("0x10", 16)]
    {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    assert_eq!(time("90"), Ok(Duration::from_secs(90)));
    assert_eq!(time("5m"), Ok(Duration::from_secs(300)));
    for wrong in ["", "k", "4x", "-4k", "99999999999t"] {
        assert!(size(wrong).is_err() && time(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn errors_name_their_line() {
    for (text, message) in [
        ("bs=4k\n", "a.fio:1: \"bs=4k\" is outside all sections"),
        ("[a\n", "a.fio:1: \"[a\" is not a section; write `[name]`"),
        ("[a]\n\nrw=sideways\n", "a.fio:3: rw: \"sideways\" is no direction"),
        ("[a]\nbs=0\n", "a.fio:2: bs: an I/O of 0 bytes is not possible: write 1 to 4294967295"),
        ("[a]\nbs\n", "a.fio:2: bs: no value"),
        ("[a]\niodepth=0\n", "a.fio:2: iodepth: \"0\" is not a whole number above 0"),
        ("[a]\nrwmixread=101\n", "a.fio:2: rwmixread: \"101\" is not a percentage from 0 to 100"),
        ("[a]\nbsrange=4k-1k\n", "a.fio:2: bsrange: block sizes from 4096 to 1024"),
        ("[a]\ndirect=2\n", "a.fio:2: direct: \"2\" is not 0 or 1"),
    ] {
        assert_eq!(parse("a.fio", text).unwrap_err().to_string(), message);
    }
}
