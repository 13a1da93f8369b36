use super::*;
use crate::access;

const SAMPLE: &str = "Version 1.1.0 \r
'TEST SETUP ====================================================================\r
'Test Description\r
\tfive minutes\r
'Run Time\r
'\thours      minutes    seconds\r
\t0          5          30\r
'Ramp Up Time (s)\r
\t15\r
'END test setup\r
'ACCESS SPECIFICATIONS =========================================================\r
'Access specification name,default assignment\r
\tWeb, small and large,ALL\r
'size,% of size,% reads,% random,delay,burst,align,reply\r
\t4096,75,95,80,0,1,4096,0\r
\t65536,25,100,0,10,4,4096,0\r
'Access specification name,default assignment\r
\t512 B; 100% Read; 0% random,NONE\r
'size,% of size,% reads,% random,delay,burst,align,reply\r
\t512,100,100,0,0,1,0,0\r
'END access specifications\r
'MANAGER LIST ==================================================================\r
'Manager ID, manager name\r
\t1,HOST\r
'Worker\r
\tWorker 1\r
'Worker type\r
\tDISK\r
'Default target settings for worker\r
'Number of outstanding IOs,test connection rate,transactions per connection,use fixed seed,fixed seed value\r
\t16,DISABLED,1,DISABLED,0\r
'End default target settings for worker\r
'End manager\r
'END manager list\r
Version 1.1.0 \r
";

fn error(text: &str) -> String {
    parse("a.icf", text).unwrap_err().to_string()
}

#[test]
fn a_file_as_iometer_writes_it_is_read() {
    let found = parse("a.icf", SAMPLE).unwrap();
    assert_eq!(found.run_time, Duration::from_secs(330));
    assert_eq!(found.ramp_up, Duration::from_secs(15));
    assert_eq!(found.outstanding, Some(16));
    let [web, small] = &found.specifications[..] else { panic!("two specifications") };
    assert_eq!(
        (web.name.as_str(), web.default_assignment.as_str()),
        ("Web, small and large", "ALL")
    );
    assert_eq!(web.lines.len(), 2);
    let (mix, left_out) = web.to_mix(16);
    assert_eq!((mix.parts[0].weight, mix.parts[1].weight), (75, 25));
    assert_eq!((mix.align_bytes, mix.longest()), (Some(4096), 65536));
    assert_eq!(left_out.len(), 1, "{left_out:?}");
    let (mix, left_out) = small.to_mix(4);
    assert_eq!(mix.as_access().map(|access| access.queue_depth), Some(4));
    assert!(left_out.is_empty());
}

#[test]
fn written_file_is_read_back_unchanged() {
    let mut configuration = parse("a.icf", SAMPLE).unwrap();
    configuration.outstanding = None;
    configuration.specifications.extend(access::NAMED.iter().map(Specification::from));
    let text = render(&configuration);
    assert_eq!(parse("b.icf", &text).unwrap(), configuration);
    for named in &access::NAMED {
        let specification = Specification::from(named);
        let (mix, left_out) = specification.to_mix(named.access.queue_depth);
        assert_eq!((mix.as_access(), left_out.len()), (Some(named.access), 0));
    }
}

#[test]
fn shares_add_up_to_a_hundred() {
    let mut mix = Mix::from(access::NAMED[0].access);
    mix.parts = vec![mix.parts[0]; 3];
    let shares: Vec<_> =
        Specification::from_mix("a,b", &mix).lines.iter().map(|line| line.of_size).collect();
    assert_eq!(shares, [33, 33, 34]);
}

#[test]
fn errors_name_their_line() {
    assert!(error("hello\n").starts_with("a.icf:1: "));
    let with = |line: &str| SAMPLE.replace("512,100,100,0,0,1,0,0", line);
    for (line, what) in [
        ("512,100,100,0,0,1,0", "7 fields instead of 8"),
        ("512,100,101,0,0,1,0,0", "% reads is 101"),
        ("0,100,100,0,0,1,0,0", "0 bytes"),
        ("512,100,x,0,0,1,0,0", "\"x\" is not a whole number"),
    ] {
        let message = error(&with(line));
        assert!(message.starts_with("a.icf:20: ") && message.contains(what), "{message}");
    }
    let message = error(&with("512,90,100,0,0,1,0,0"));
    assert!(message.starts_with("a.icf:21: ") && message.contains("add up to 90"), "{message}");
    let cut = &SAMPLE[..SAMPLE.find("'END access").unwrap()];
    assert!(error(cut).contains("ends within"));
    assert!(error(&SAMPLE.replace("0          5 ", "0          five ")).contains("no run time"));
}
