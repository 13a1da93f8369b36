use proptest::prelude::*;

use super::*;

/// The output of Debian's 2.00a.
const OF_2_00: &str = "1.98,2.00a,vm,1,1795264392,512M,,8192,5,1223,99,778231,69,+++++,+++,1957,99,\
    +++++,+++,+++++,+++,4,,,,,7411,99,+++++,+++,+++++,+++,7792,99,+++++,+++,+++++,+++,7677us,\
    316us,324us,5250us,92us,10665us,353us,273us,386us,2305us,43us,920us";

/// A line in the layout of 1.03, with the medians of the study's first table.
const OF_1_03: &str = "keeper,2G,45853,95,70885,24,30009,7,50453,92,72627,5,546.3,0,16,3658,98,\
    +++++,+++,+++++,+++,3747,98,+++++,+++,12085,99";

fn read(text: &str) -> Vec<Line> {
    let contents = parse("a.csv", text);
    assert_eq!(contents.others, []);
    contents.lines
}

fn rates(line: &Line) -> [Option<f64>; 12] {
    line.measured.map(|measured| measured.rate.number())
}

#[test]
fn fields_of_2_00_find_their_places() {
    let lines = read(OF_2_00);
    let [line] = &lines[..] else { panic!("one line") };
    assert_eq!((line.version.as_deref(), line.machine.as_str()), (Some("2.00a"), "vm"));
    assert_eq!((line.size.as_str(), line.files.as_str()), ("512M", "4"));
    let expected = [
        Some(1223.0),
        Some(778_231.0),
        None,
        Some(1957.0),
        None,
        None,
        Some(7411.0),
        None,
        None,
        Some(7792.0),
        None,
        None,
    ];
    assert_eq!(rates(line), expected);
    assert_eq!(line.measured[1].cpu, Value::Number(69.0));
    assert_eq!(line.measured[2].rate, Value::TooQuick);
    let latencies = line.measured.map(|measured| measured.latency_us.unwrap());
    let expected = [7677., 316., 324., 5250., 92., 10665., 353., 273., 386., 2305., 43., 920.];
    assert_eq!(latencies, expected);
}

#[test]
fn fields_of_1_03_find_the_same_places() {
    let lines = read(OF_1_03);
    let [line] = &lines[..] else { panic!("one line") };
    assert_eq!((line.version.as_deref(), line.machine.as_str()), (None, "keeper"));
    assert_eq!((line.size.as_str(), line.files.as_str()), ("2G", "16"));
    let expected = [
        Some(45853.0),
        Some(70885.0),
        Some(30009.0),
        Some(50453.0),
        Some(72627.0),
        Some(546.3),
        Some(3658.0),
        None,
        None,
        Some(3747.0),
        None,
        Some(12085.0),
    ];
    assert_eq!(rates(line), expected);
    assert_eq!(line.measured[11].cpu, Value::Number(99.0));
    assert!(line.measured.iter().all(|measured| measured.latency_us.is_none()));
}

#[test]
fn the_formats_before_1_98_lack_the_seeks_fields() {
    let line = OF_2_00.replacen("1.98,2.00a", "1.97,1.97", 1).replacen(",8192,5,", ",", 1);
    assert_eq!(line.split(',').count(), FIELDS_OF_1_9X);
    let lines = read(&line);
    assert_eq!(rates(&lines[0]), rates(&read(OF_2_00)[0]));
    assert_eq!(lines[0].measured, read(OF_2_00)[0].measured);
}

#[test]
fn omitted_tests_have_empty_fields() {
    // The output of 2.00a with `-n 0`, `-s 0` and `-f`, and of 1.03 with `-n 0`.
    let no_files = "1.98,2.00a,vm,1,1795275633,64M,,8192,5,1237,99,+++++,+++,+++++,+++,1995,99,\
        +++++,+++,+++++,+++,,,,,,,,,,,,,,,,,,13685us,1251us,646us,5244us,51us,9116us,,,,,,";
    let no_file = "1.98,2.00a,vm,1,1795274624,,,,,,,,,,,,,,,,,2,,,,,2536,99,+++++,+++,+++++,+++,\
        2495,99,+++++,+++,+++++,+++,,,,,,,773us,241us,269us,1564us,56us,95us";
    let no_bytes = "1.98,2.00a,vm,1,1795274369,64M,,8192,5,,,60139,50,+++++,+++,,,+++++,+++,+++++,\
        +++,,,,,,,,,,,,,,,,,,,3747us,4619us,,46us,8082us,,,,,,";
    let old = "nexus,2G:32k,42338,95,66897,32,29132,3,47548,86,70641,0,497.2,0,,,,,,,,,,,,,";
    let lines = read(&[no_files, no_file, no_bytes, old].join("\n"));
    assert_eq!(omitted_tests(&lines[0]), [6, 7, 8, 9, 10, 11]);
    assert_eq!(omitted_tests(&lines[1]), [0, 1, 2, 3, 4, 5]);
    assert_eq!(lines[1].measured[6].latency_us, Some(773.0));
    assert_eq!(omitted_tests(&lines[2]), [0, 3, 6, 7, 8, 9, 10, 11]);
    assert_eq!(lines[2].measured[1].latency_us, Some(3747.0));
    assert_eq!(omitted_tests(&lines[3]), [6, 7, 8, 9, 10, 11]);
    assert_eq!((lines[3].size.as_str(), lines[3].number), ("2G:32k", 4));
}

/// Returns the indices of the tests that the run omitted.
fn omitted_tests(line: &Line) -> Vec<usize> {
    let rates = line.measured.iter().enumerate();
    let omitted = rates.filter(|(_, measured)| measured.rate == Value::LeftOut);
    omitted.map(|(index, _)| index).collect()
}

#[test]
fn latencies_have_units() {
    assert_eq!(latency_us("93us"), Some(93.0));
    assert_eq!(latency_us("1024ms"), Some(1_024_000.0));
    assert_eq!(latency_us("120s"), Some(120_000_000.0));
    for wrong in ["us", "93", "-1us", "1e3us", "nanus", "93 us", "1.2.3s"] {
        assert_eq!(latency_us(wrong), None, "{wrong}");
    }
    // A number of 309 digits is finite; a thousand times that number is not.
    assert_eq!(latency_us(&format!("1{}ms", "0".repeat(308))), None);
}

#[test]
fn a_comma_in_the_machines_name_shifts_nothing() {
    // `-m a,b`
    for line in [OF_2_00.replacen(",vm,", ",a,b,", 1), OF_1_03.replacen("keeper", "a,b", 1)] {
        let lines = read(&line);
        assert_eq!(lines[0].machine, "a,b");
        assert!(lines[0].measured[0].rate.number().is_some(), "{lines:?}");
    }
}

#[test]
fn headings_comments_and_empty_lines_are_no_runs() {
    let text = "name,file_size,putc,putc_cpu,put_block,put_block_cpu\n\n# a comment\n\
        format_version,bonnie_version,name,concurrency,seed,file_size,putc,putc_cpu,put_block\n";
    assert_eq!(parse("a.csv", text), Contents::default());
}

#[test]
fn other_lines_are_named_with_their_place() {
    let cut = OF_2_00.get(..80).unwrap();
    let wrong = OF_1_03.replacen("30009", "-30009", 1);
    let text = format!("Writing intelligently...done\n{OF_1_03}\n{cut}\n{wrong}\n");
    let contents = parse("a.csv", &text);
    assert_eq!(contents.lines.len(), 1);
    let errors: Vec<_> = contents.others.iter().map(ToString::to_string).collect();
    assert!(errors[0].starts_with("a.csv:1: 1 fields: a run"), "{errors:?}");
    assert!(errors[1].starts_with("a.csv:3: ") && errors[1].contains("fields"), "{errors:?}");
    assert_eq!(errors[2], "a.csv:4: rewrite: \"-30009\" is no rate");
    let damaged: Vec<_> = contents.others.iter().map(|other| other.damaged).collect();
    assert_eq!(damaged, [false, true, true]);
}

#[test]
fn a_line_of_another_program_is_no_run() {
    let fields = vec!["7"; FIELDS_OF_1_98].join(",");
    let contents = parse("a.csv", &fields);
    assert_eq!(contents.others[0].what, "\"7\" is no version of bonnie++'s format");
}

#[test]
fn an_unknown_version_with_too_few_fields_is_refused() {
    let line = OF_2_00.rsplit_once(',').unwrap().0;
    let contents = parse("a.csv", line);
    assert_eq!(contents.others[0].what, "49 fields, where format 1.98 has 50");
}

fn field() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::LeftOut),
        Just(Value::TooQuick),
        (0_u64..1 << 40).prop_map(|tenths| Value::Number(tenths as f64 / 10.0)),
    ]
}

fn written(value: Value) -> String {
    match value {
        Value::LeftOut => String::new(),
        Value::TooQuick => "+++++".into(),
        Value::Number(number) => number.to_string(),
    }
}

fn write(fields: &[(Value, Value)]) -> String {
    let pairs = fields.iter().map(|(rate, cpu)| format!("{},{}", written(*rate), written(*cpu)));
    pairs.collect::<Vec<_>>().join(",")
}

proptest! {
    #[test]
    fn formatted_line_parses_to_same_run(
        fields in prop::collection::vec((field(), field()), 12),
        latencies in prop::collection::vec(prop::option::of(0_u32..), 12),
        machine in "[a-zA-Z][a-z0-9.,-]{0,12}",
        layout in 0..3,
    ) {
        let (on_file, on_files) = (write(&fields[..6]), write(&fields[6..]));
        let in_us = |latency: &Option<u32>| latency.map(|us| format!("{us}us")).unwrap_or_default();
        let tail = latencies.iter().map(in_us).collect::<Vec<_>>().join(",");
        let line = match layout {
            0 => format!("{machine},2G,{on_file},16,{on_files}"),
            1 => format!("1.96,1.96,{machine},1,7,2G,,{on_file},16,,,,,{on_files},{tail}"),
            _ => format!("1.98,2.00,{machine},1,7,2G,,8192,5,{on_file},16,,,,,{on_files},{tail}"),
        };
        let contents = parse("a.csv", &line);
        prop_assert!(contents.others.is_empty(), "{line}: {contents:?}");
        let run = &contents.lines[0];
        prop_assert_eq!(&run.machine, machine.trim());
        let read: Vec<_> = run.measured.iter().map(|one| (one.rate, one.cpu)).collect();
        prop_assert_eq!(read, fields);
        let read = run.measured.map(|one| one.latency_us);
        let expected = latencies.iter().map(|us| us.map(f64::from).filter(|_| layout > 0));
        prop_assert_eq!(read.to_vec(), expected.collect::<Vec<_>>());
    }

    #[test]
    fn every_line_of_any_text_is_accounted_for(lines in prop::collection::vec(line(), 0..8)) {
        let contents = parse("a.csv", &lines.join("\n"));
        let passed = lines.iter().filter(|line| {
            let line = line.trim();
            line.is_empty() || line.starts_with('#') || is_heading(line)
        });
        let accounted = contents.lines.len() + contents.others.len() + passed.count();
        prop_assert_eq!(accounted, lines.len());
    }
}

/// Arbitrary text, and text that resembles a run.
fn line() -> impl Strategy<Value = String> {
    let field = prop_oneof!["[0-9]{1,4}", "\\+{0,5}", "[0-9]{1,3}us", "1\\.9[0-9]", "\\PC{0,4}"];
    prop_oneof!["\\PC{0,40}", prop::collection::vec(field, 25..54).prop_map(|all| all.join(","))]
}
