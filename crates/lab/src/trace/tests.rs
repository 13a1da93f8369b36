use super::*;

fn trace(format: Format, text: &str) -> Vec<Result<Request, String>> {
    Trace::new("t", text.as_bytes(), format)
        .map(|item| item.map_err(|error| error.to_string()))
        .collect()
}

const fn request(at_us: u64, reads: bool, offset: u64, length: u32) -> Request {
    Request { at: Duration::from_micros(at_us), reads, offset, length }
}

const MSR: &str = "128166372003061629,hm,1,Read,383496192,32768,413\r
128166372003061639,hm,0,Write,8192,512,100\r
128166372003061600,hm,1,Write,0,4096,5\r
";

const BLKPARSE: &str = "
  8,0    3        1     5.000000000   697  Q   W 223490 + 8 [kjournald]
  8,0    3        2     5.000001829   697  G   W 223490 + 8 [kjournald]
  8,0    3        3     5.000250000   697  Q  RA 64 + 256 [cat]
  8,0    1        4     5.000300000     0  m   N cfq idle
  8,0    1        5     5.000310000   697  Q  DS 100 + 8 [fstrim]
  8,0    1        6     5.000320000   697  Q FWS [kjournald]
  8,0    1        7     5.001000000   697  Q FWFS 8 + 8 [kjournald]
CPU3 (8,0):
 Reads Queued:           1,      128KiB\t Writes Queued:           2,        8KiB
";

const CSV: &str = "time_s,op,offset,length
0,read,0,4096
# between
0.0005,W,1048576,512
";

#[test]
fn msr_lines_are_read() {
    let expected = [
        Ok(request(0, true, 383_496_192, 32768)),
        Ok(request(1, false, 8192, 512)),
        Ok(request(0, false, 0, 4096)),
    ];
    assert_eq!(trace(Format::Msr, MSR), expected);
    let headed = format!("Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime\n{MSR}");
    assert_eq!(trace(Format::Msr, &headed), expected);
}

#[test]
fn blkparse_lines_are_read() {
    let expected = [
        Ok(request(0, false, 223_490 * 512, 4096)),
        Ok(request(250, true, 64 * 512, 256 * 512)),
        Ok(request(1000, false, 4096, 4096)),
    ];
    assert_eq!(trace(Format::Blkparse, BLKPARSE), expected);
}

#[test]
fn csv_lines_are_read() {
    let expected = [Ok(request(0, true, 0, 4096)), Ok(request(500, false, 1_048_576, 512))];
    assert_eq!(trace(Format::Csv, CSV), expected);
}

#[test]
fn a_malformed_line_ends_the_trace_with_its_place() {
    for (format, text, message) in [
        (Format::Msr, "1,a,0,Read,0,512\n", "t:1: 6 fields instead of 7"),
        (Format::Msr, "1,a,0,Trim,0,512,1\n", "t:1: \"Trim\" is neither Read nor Write"),
        (Format::Msr, "1,a,0,Read,-5,512,1\n", "t:1: \"-5\" is no offset"),
        (Format::Msr, "1,a,0,Read,0,0,1\n", "t:1: a request must be"),
        (Format::Msr, "1,a,0,Read,18446744073709551615,2,1\n", "t:1: a request beyond"),
        (Format::Blkparse, "sda 1 1 0.0 1 Q R 1 + 1 [a]\n", "t:1: \"sda\" is no device"),
        (Format::Blkparse, "8,0 1 1 0.1x 1 Q R 1 + 1 [a]\n", "t:1: \"0.1x\" is no time"),
        (Format::Blkparse, "8,0 1 1 0.1 1 Q R 1 - 1 [a]\n", "t:1: no `+`"),
        (Format::Blkparse, "8,0 1 1 0.1 1 Q\n", "t:1: the line has no RWBS field"),
        (Format::Csv, "0,read,0,512\n\n1,read,0\n2,read,0,512\n", "t:3: 3 fields instead of 4"),
        (Format::Csv, "-1,read,0,512\n", "t:1: \"-1\" is no time"),
        (Format::Csv, "nan,read,0,512\n", "t:1: \"nan\" is no time"),
        (Format::Csv, "0,flush,0,512\n", "t:1: \"flush\" is neither read nor write"),
    ] {
        let found = trace(format, text);
        let error = found.last().unwrap().as_ref().unwrap_err();
        assert!(error.starts_with(message), "{error}");
    }
    let found = trace(Format::Csv, "0,read,0,512\nx\n2,read,0,512\n");
    assert_eq!(found.len(), 2, "nothing follows an error: {found:?}");
}

#[test]
fn a_line_without_end_is_not_collected() {
    let endless = std::io::BufReader::new(std::io::repeat(b'1'));
    let mut trace = Trace::new("t", endless, Format::Csv);
    let error = trace.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("more than 65536 bytes"), "{error}");
    assert!(trace.next().is_none());
}

#[test]
fn binary_trace_is_refused() {
    let mut trace = Trace::new("t", &b"\xff\xfe\n"[..], Format::Csv);
    assert!(trace.next().unwrap().is_err());
}

#[test]
fn the_first_line_tells_the_format() {
    let detect = |text: &str| detect(Path::new("t"), &mut text.as_bytes());
    for (text, format) in [
        (MSR, Format::Msr),
        (BLKPARSE, Format::Blkparse),
        (CSV, Format::Csv),
        ("# comment\n\n0.5,r,0,1\n", Format::Csv),
    ] {
        assert_eq!(detect(text).unwrap(), format);
    }
    for (text, line) in [("", 1), ("\nhello\n", 2), ("a,b,c,d\n", 1)] {
        let error = detect(text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("t:{line}: ")), "{error}");
    }
    assert!(matches!(open(Path::new("/nowhere/at/all"), None), Err(TraceError::Read { .. })));
}
