//! The text format of Prometheus, for scrapers that do not ask for OpenMetrics: the same samples, under the names
//! that the format gives them.

use std::fmt::Write as _;

/// The content type of the text (version 0.0.4).
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Converts OpenMetrics text to this format: a counter has the name of its samples, and there is no end mark.
pub(crate) fn of_open_metrics(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = None;
    for line in text.lines() {
        let Some(comment) = line.strip_prefix("# ") else {
            out.push_str(line);
            out.push('\n');
            continue;
        };
        if let Some(described) = comment.strip_prefix("HELP ") {
            help = described.split_once(' ');
        } else if let Some((name, kind)) =
            comment.strip_prefix("TYPE ").and_then(|of| of.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", kind),
                "unknown" => ("", "untyped"),
                _ => ("", kind),
            };
            // Writing to a String does not fail.
            if let Some((_, help)) = help.take().filter(|(of, _)| *of == name) {
                let _ = writeln!(out, "# HELP {name}{suffix} {help}");
            }
            let _ = writeln!(out, "# TYPE {name}{suffix} {kind}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_called_as_their_samples_are() {
        let text = "# HELP a_logins Logins.\n# TYPE a_logins counter\na_logins_total 1\n\
                    # HELP a_size Size.\n# TYPE a_size gauge\na_size{v=\"x # y\"} 2\n# EOF\n";
        let expected = "# HELP a_logins_total Logins.\n# TYPE a_logins_total counter\na_logins_total 1\n\
                        # HELP a_size Size.\n# TYPE a_size gauge\na_size{v=\"x # y\"} 2\n";
        assert_eq!(of_open_metrics(text), expected);
    }
}
