//! `GET /v1/targets/{name}/lines`: the commands that connect clients to a target's volumes.

use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use serde::Deserialize;
use utoipa::IntoParams;

use super::config::parse_query;
use super::error::ApiError;
use super::openapi::Failures;
use super::routes::{self, Answer, Json};
use crate::fronts::Front;
use crate::initiator_lines::{Client, Format, access_paths, is_own, own_name};
use crate::schema::{FormatLines, PathCommands, TargetLines};

/// The query of a request for commands.
#[derive(Default, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields, default)]
pub(super) struct LinesQuery {
    /// The name or address by which the client reaches a portal that listens on all addresses. Default: the machine's
    /// own name.
    host: Option<String>,
    /// The account with which the client logs in. Default: the target's only account, or USER if it has several.
    user: Option<String>,
    /// The file with the account's secret. Default: SECRET-FILE.
    secret_file: Option<String>,
}

/// Returns the commands that connect each kind of client to a target's volumes.
#[utoipa::path(
    get,
    tag = "server",
    path = "/v1/targets/{name}/lines",
    params(("name" = String, Path, description = "iSCSI name"), LinesQuery),
    responses((status = 200, body = TargetLines), Failures)
)]
pub(super) async fn lines(
    State(front): State<Arc<Front>>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<TargetLines> {
    let LinesQuery { host, user, secret_file } = parse_query(query)?;
    if host.as_deref().is_some_and(|host| !is_host(host)) {
        let message = "write a name or an address, such as san.example or 10.0.0.1";
        return Err(ApiError::invalid(Some("host"), message));
    }
    let Json(list) = routes::targets(State(front)).await;
    let target = list.targets.iter().find(|target| target.name == name);
    let target = target.ok_or_else(|| {
        ApiError::not_found(format!("there is no target {name}: `sarsen target list` has them"))
    })?;
    // A browser that connects through a tunnel uses the name localhost. Clients cannot use it, because there it means
    // the client itself.
    let host = host.filter(|host| !is_own(host)).or_else(own_name);
    let client = Client {
        host: host.as_deref(),
        user: user.as_deref(),
        secret_file: secret_file.as_deref().unwrap_or("SECRET-FILE"),
    };
    let paths = access_paths(target, client).into_iter().map(|way| PathCommands {
        portal: way.portal.to_string(),
        protocol: way.protocol,
        group: way.group,
        tls: way.tls,
        formats: Format::ALL
            .into_iter()
            .filter_map(|format| {
                Some(FormatLines { format: format.name().to_owned(), lines: way.lines(format)? })
            })
            .collect(),
    });
    Ok(Json(TargetLines { paths: paths.collect() }))
}

/// Returns whether a text can be a host. Users paste it into a shell, where another text could become a command.
fn is_host(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || b".:-_[]%".contains(&byte);
    !text.is_empty() && !text.starts_with('-') && text.bytes().all(letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_not_sent_to_itself() {
        for host in ["localhost", "127.0.0.1", "::1", "[::1]", "127.1.2.3"] {
            assert!(is_own(host), "{host}");
        }
        for host in ["san.example", "192.0.2.1", "[2001:db8::1]", "localhost.example"] {
            assert!(!is_own(host), "{host}");
        }
    }

    #[test]
    fn invalid_host_is_in_no_line() {
        for host in ["san.example", "10.0.0.1", "[::1]", "fe80::1%eth0", "a_b-c"] {
            assert!(is_host(host), "{host}");
        }
        for host in ["", "$(reboot)", "a b", "a;b", "a'b", "--help", "a/b"] {
            assert!(!is_host(host), "{host}");
        }
    }
}
