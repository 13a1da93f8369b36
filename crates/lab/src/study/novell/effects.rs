//! The factors of the study in the order of their effects. The study concludes that the network matters most, without a
//! figure for each factor.

use super::super::layout;
use super::report::{DIRECT, labels, media};
use super::{
    Cell, LINK, LINK_SIZE, OPERATIONS, PLAIN, RANDOM, SEQUENTIAL, SWITCH, TARGET, negotiation,
    profiles,
};
use crate::published;
use crate::record::{Labels, Run, figure};
use crate::report::{self, Block, Section, Table};
use crate::statistics::{Difference, discoveries};
use crate::target_under_test::TargetUnderTest;

/// The sizes that are compared with 64K.
const OTHER_SIZES: [u32; 3] = [4 << 10, 512 << 10, 4 << 20];

/// A change of one factor while all others stay.
struct Change {
    factor: &'static str,
    operation: &'static str,
    from: (String, Labels),
    to: (String, Labels),
    /// The throughput of the study before and after the change, MB/s.
    published: Option<(f64, f64)>,
}

/// Returns the changes of one factor from the base: sequential I/Os of 64K on the first medium of a target.
fn changes(run: &Run, target: &str) -> Vec<Change> {
    let Some((medium, theirs)) = media(run).next() else { return Vec::new() };
    let mut changes = Vec::new();
    for operation in OPERATIONS {
        let base = labels(target, medium, operation, SEQUENTIAL, LINK_SIZE);
        let mut add = |factor, (from, before): (&str, &Labels), to: &str, after, published| {
            let (from, to) = ((from.to_owned(), before.clone()), (to.to_owned(), after));
            changes.push(Change { factor, operation, from, to, published });
        };
        let table = if operation == "read" { "Table 1" } else { "Table 2" };
        let figure = |bytes, medium| published::novell_mb_per_s(table, bytes, medium);
        let published = figure(LINK_SIZE, theirs);
        for bytes in OTHER_SIZES {
            let after = labels(target, medium, operation, SEQUENTIAL, bytes);
            let both = published.zip(figure(bytes, theirs));
            add("size", ("64K", &base), &layout::size_name(bytes), after, both);
        }
        for (other, their_other) in media(run).skip(1) {
            let after = labels(target, other, operation, SEQUENTIAL, LINK_SIZE);
            let both = published.zip(figure(LINK_SIZE, their_other));
            add("medium", (medium, &base), other, after, both);
        }
        let after = labels(target, medium, operation, RANDOM, LINK_SIZE);
        add("access", (SEQUENTIAL, &base), RANDOM, after, None);
        let is_emulated = TargetUnderTest::is_emulated;
        let is_compared =
            |other: &&str| *other != target && is_emulated(other) == is_emulated(target);
        for other in run.values(TARGET).into_iter().filter(is_compared) {
            let after = labels(other, medium, operation, SEQUENTIAL, LINK_SIZE);
            let to = if other == DIRECT { "without iSCSI" } else { other };
            add("target", (target, &base), to, after, None);
        }
        let [first, offers @ ..] = &negotiation::offers(target, medium, operation)[..] else {
            continue;
        };
        for (name, after) in offers {
            add("negotiation", (first.0, &first.1), name, after.clone(), None);
        }
        let over = |link: &str| {
            let (access, bytes) = (SEQUENTIAL, LINK_SIZE);
            Cell { target, medium, operation, access, bytes, link }.labels()
        };
        for link in profiles().iter().filter(|profile| profile.name != PLAIN) {
            let both = (link.name == SWITCH).then(|| study_switch(operation, theirs)).flatten();
            add("link", (PLAIN, &over(PLAIN)), &link.name, over(&link.name), both);
        }
    }
    changes
}

/// Returns the study's throughput without its switch and with it, MB/s.
fn study_switch(operation: &str, medium: &str) -> Option<(f64, f64)> {
    let of = |setup: &str| {
        let row = published::novell().iter().find(|row| {
            row.operation == operation && row.medium == medium && row.setup.contains(setup)
        });
        row.map(|row| row.mb_per_s)
    };
    of("Cat 5").zip(of("switch"))
}

/// Returns the section with the effects of all factors, the largest one first.
pub(super) fn section(run: &Run) -> Option<Section> {
    // The target of the links, or the first one that has a protocol.
    let of_links = Labels::new().with(LINK, PLAIN);
    let target = run.cells(&of_links).find_map(|sample| sample.labels.value(TARGET));
    let remote = || run.values(TARGET).into_iter().find(|target| *target != DIRECT);
    let target = target.or_else(remote)?;
    let values = |labels: &Labels| run.figures(labels, figure::MB_PER_S);
    let mut effects: Vec<(Change, Difference)> = changes(run, target)
        .into_iter()
        .filter_map(|change| {
            let (before, after) = (values(&change.from.1), values(&change.to.1));
            let difference = Difference::between(&before, &after)?;
            Some((change, difference))
        })
        .collect();
    if effects.is_empty() {
        return None;
    }
    // A halved throughput is as large an effect as a doubled one.
    let size = |difference: &Difference| (1.0 + difference.relative).ln().abs();
    effects.sort_by(|(_, one), (_, other)| size(other).total_cmp(&size(one)));
    let p_values: Vec<_> =
        effects.iter().filter_map(|(_, difference)| difference.p_value).collect();
    let mut found = discoveries(&p_values).into_iter();
    let rows = effects.iter().map(|(change, difference)| {
        let percent = |value| 100.0 * value;
        let verdict = match difference.p_value.and_then(|_| found.next()) {
            Some(true) => "yes",
            Some(false) => "no",
            None => "one value",
        };
        let published = change
            .published
            .map_or(report::Cell::Empty, |(before, after)| layout::published_change(before, after));
        vec![
            layout::text(change.factor),
            layout::text(change.operation),
            layout::text(format!("{} → {}", change.from.0, change.to.0)),
            report::Cell::Interval {
                mean: percent(difference.relative),
                half_width: difference.half_width.map(percent),
                decimals: 1,
            },
            layout::text(verdict),
            published,
        ]
    });
    let table = Table {
        caption: format!("The effect of each factor on the throughput of {target}, %"),
        columns: ["Factor", "Operation", "Change", "Effect, %", "Beyond noise?", "Novell"]
            .map(Into::into)
            .to_vec(),
        rows: rows.collect(),
        notes: vec![
            "Each row changes one factor from sequential I/Os of 64K with one outstanding, on the first medium, over the \
             loopback; links are compared with the plain one, offers with the lab's. The largest effect comes first: a halved throughput is as large \
             as a doubled one. Intervals of 95 % by Welch. Of twenty effects that are called more than noise, one is expected \
             to be noise (Benjamini and Hochberg)."
                .into(),
        ],
        ..Table::default()
    };
    Some(Section {
        heading: "Factors in the order of their effects".into(),
        blocks: vec![Block::Table(table)],
    })
}
