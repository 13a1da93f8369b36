//! `sarsen snapshot send` and `receive`: they carry the parts of a stream between a server and a pipe or a file. The servers
//! make the parts and verify them.

use std::io::{IsTerminal as _, Read, Write as _};

use anyhow::{Context as _, anyhow};
use sarsen_node::control::{Client, ClientError, PART_HEADER_BYTES, PartInfo, path_segment};
use sarsen_node::model::{SnapshotName, render_rounded};
use sarsen_node::schema::ErrorCode;
use sarsen_node::schema::pools::ReceivedSnapshot;

use super::path;
use crate::control::ServerOptions;
use crate::disk::{Bar, on_a_core};
use crate::exit::UsageError;
use crate::output::{note, print_line};

/// Writes the stream of a snapshot to standard output.
pub(super) fn send(
    name: &SnapshotName,
    since: Option<&SnapshotName>,
    offset: u64,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    if out.is_terminal() || options.json {
        let message = "standard output gets the stream; redirect it to a file or to `sarsen snapshot receive`, and leave out \
                       --json";
        return Err(UsageError(message.into()).into());
    }
    let client = options.client()?;
    let since = since.map_or_else(String::new, |since| {
        format!("&since_snapshot={}", path_segment(&since.to_string()))
    });
    on_a_core(async {
        let (mut bar, mut offset) = (None::<Bar>, offset);
        loop {
            let path = format!("{}/stream?offset={offset}{since}", path(name));
            let part = client.get_bytes(&path).await?;
            let info = PartInfo::read(&part)?;
            let written = out.write_all(&part).and_then(|()| out.flush());
            written.with_context(|| {
                format!(
                    "standard output: the stream of {name} is not complete; `sarsen snapshot list` on the receiving server \
                     shows the byte for --offset"
                )
            })?;
            bar.get_or_insert_with(|| Bar::new(Some(info.size))).tell(info.until);
            offset = info.until;
            if info.is_last {
                break;
            }
        }
        bar.iter().for_each(Bar::end);
        Ok(())
    })
}

/// Reads streams of snapshots from standard input, and puts them into new snapshots of a volume.
pub(super) fn receive(
    volume: &str,
    own: Option<&str>,
    options: &ServerOptions,
) -> anyhow::Result<()> {
    let mut input = std::io::stdin().lock();
    if input.is_terminal() {
        let message =
            "standard input has the stream: pipe `sarsen snapshot send` or a file into it";
        return Err(UsageError(message.into()).into());
    }
    let client = options.client()?;
    on_a_core(async {
        let mut incomplete: Option<SnapshotName> = None;
        let mut received = 0;
        while let Some((info, part)) = next_part(&mut input, incomplete.as_ref())? {
            // Only the first snapshot of several gets the given name.
            let snapshot = own.filter(|_| received == 0).unwrap_or(&info.name).to_owned();
            let name = SnapshotName { volume: volume.to_owned(), snapshot };
            let answer = put(&client, &name, &info, part).await?;
            // A snapshot that is there already is complete from its first part on.
            incomplete = (!info.is_last).then_some(name);
            if info.is_last {
                received += 1;
                report(&answer, options)?;
            }
        }
        match (incomplete, received) {
            (Some(name), _) => Err(ended_early(&name)),
            (None, 0) => Err(anyhow!(
                "standard input: the stream is empty; see the error of `sarsen snapshot send`"
            )),
            (None, _) => Ok(()),
        }
    })
}

fn report(answer: &ReceivedSnapshot, options: &ServerOptions) -> anyhow::Result<()> {
    if options.json {
        return print_line(&serde_json::to_string(answer)?);
    }
    if answer.was_complete {
        return print_line(&format!("{} is complete already", answer.name));
    }
    print_line(&format!("received {} ({})", answer.name, render_rounded(answer.size_bytes)))
}

fn ended_early(name: &SnapshotName) -> anyhow::Error {
    anyhow!(
        "standard input: the stream ended before {name} was complete; `sarsen snapshot list {}` shows how much was received, and \
         `sarsen snapshot send --offset` goes on there, with the same --since",
        name.volume
    )
}

/// Reads the next part of a stream, if there is one.
fn next_part(
    input: &mut impl Read,
    incomplete: Option<&SnapshotName>,
) -> anyhow::Result<Option<(PartInfo, Vec<u8>)>> {
    let failed = |error| anyhow::Error::new(error).context("standard input");
    let mut part = Vec::new();
    let header = input.by_ref().take(PART_HEADER_BYTES as u64);
    let count = { header }.read_to_end(&mut part).map_err(failed)?;
    if count == 0 {
        return Ok(None);
    }
    let info = PartInfo::read(&part).context("standard input")?;
    let rest = (info.length - PART_HEADER_BYTES) as u64;
    let count = input.by_ref().take(rest).read_to_end(&mut part).map_err(failed)?;
    if (count as u64) < rest {
        return Err(incomplete.map_or_else(
            || anyhow!("standard input: the stream ended within its first part; send it again"),
            ended_early,
        ));
    }
    Ok(Some((info, part)))
}

async fn put(
    client: &Client,
    name: &SnapshotName,
    info: &PartInfo,
    part: Vec<u8>,
) -> anyhow::Result<ReceivedSnapshot> {
    let answer = client.post_bytes(&format!("{}/stream", path(name)), part).await;
    if let Err(ClientError::Refused(failure)) = &answer
        && failure.code == ErrorCode::NotFound
    {
        note(format_args!(
            "sarsen: create the volume first: sarsen volume create {} {} --block-size {} --pool POOL",
            name.volume, info.size, info.block_bytes
        ));
    }
    Ok(answer?)
}
