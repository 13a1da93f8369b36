//! `GET /v1/lab/runs`: the results of the lab. The lab is in a higher layer: the program that starts the server passes
//! the results to it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::extract::{Path, RawQuery, State};
use axum::http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::config::parse_query;
use super::error::ApiError;
use super::openapi::Failures;
use super::routes::{Answer, Json};
use crate::schema::{LabRun, LabRunList};

/// A report contains its styles, and may load nothing else. The browser isolates it from the server's own pages.
const REPORT_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'; sandbox";

/// The stored results of the lab.
pub trait LabResults: Send + Sync + fmt::Debug {
    /// Returns all runs, the oldest first, or the reason why they cannot be read.
    fn runs(&self) -> Result<Vec<LabRun>, String>;

    /// Returns the report of a run, if the run exists, or the reason why it cannot be read.
    fn report(&self, run: i64, format: LabFormat) -> Result<Option<Vec<u8>>, String>;
}

/// The format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabFormat {
    /// JSON, for programs.
    #[default]
    Json,
    /// An HTML page with charts, which loads nothing.
    Html,
}

/// The results of the lab, once the program has passed them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lab(Arc<OnceLock<Arc<dyn LabResults>>>);

impl Lab {
    /// Sets the results. If results are set already, they stay.
    pub(crate) fn take(&self, results: Arc<dyn LabResults>) {
        let _ = self.0.set(results);
    }
}

/// Returns the runs of the lab on this machine.
#[utoipa::path(
    get,
    tag = "lab",
    path = "/v1/lab/runs",
    responses((status = 200, body = LabRunList), Failures)
)]
pub(super) async fn runs(State(Lab(results)): State<Lab>) -> Answer<LabRunList> {
    let Some(results) = results.get().cloned() else {
        return Ok(Json(LabRunList { runs: Vec::new() }));
    };
    let runs = read(move || results.runs()).await?;
    Ok(Json(LabRunList { runs }))
}

/// Returns the report of a run of the lab, as JSON or as an HTML page.
#[utoipa::path(
    get,
    tag = "lab",
    path = "/v1/lab/runs/{id}/report",
    params(
        ("id" = i64, Path, description = "The run's number"),
        ("format" = Option<String>, Query, description = "`json` unless given, or `html`")
    ),
    responses(
        (status = 200, content(
            (Object = "application/json"),
            (String = "text/html")
        )),
        Failures
    )
)]
pub(super) async fn report(
    State(Lab(results)): State<Lab>,
    Path(run): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Wanted {
        format: LabFormat,
    }
    let Wanted { format } = parse_query(query)?;
    let number: Option<i64> = run.parse().ok();
    let found = match results.get().cloned().zip(number) {
        Some((results, number)) => read(move || results.report(number, format)).await?,
        None => None,
    };
    let report = found.ok_or_else(|| {
        ApiError::not_found(format!("the lab has no run {run}: `sarsen lab runs` has them"))
    })?;
    let kind = match format {
        LabFormat::Json => "application/json",
        LabFormat::Html => "text/html; charset=utf-8",
    };
    Ok(([(CONTENT_TYPE, kind), (CONTENT_SECURITY_POLICY, REPORT_POLICY)], report).into_response())
}

/// Reads the archive on a thread for blocking work.
async fn read<T: Send + 'static>(
    reading: impl FnOnce() -> Result<T, String> + Send + 'static,
) -> Result<T, ApiError> {
    let done = tokio::task::spawn_blocking(reading).await;
    done.map_err(|_| ApiError::internal("reading the archive broke off; see the log"))?
        .map_err(ApiError::internal)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct One;

    impl LabResults for One {
        fn runs(&self) -> Result<Vec<LabRun>, String> {
            Err("the archive is of another program".to_owned())
        }

        fn report(&self, run: i64, format: LabFormat) -> Result<Option<Vec<u8>>, String> {
            Ok((run == 1).then(|| format!("{format:?}").into_bytes()))
        }
    }

    async fn ask(run: &str, query: Option<&str>) -> Result<Response, ApiError> {
        let (run, query) = (Path(run.to_owned()), RawQuery(query.map(str::to_owned)));
        report(State(lab()), run, query).await
    }

    fn lab() -> Lab {
        let lab = Lab::default();
        lab.take(Arc::new(One));
        lab
    }

    #[test]
    fn reports_are_given_in_the_format_that_is_asked_for() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            for (query, kind) in
                [(None, "application/json"), (Some("format=html"), "text/html; charset=utf-8")]
            {
                let response = ask("1", query).await.expect("there");
                assert_eq!(response.headers()[CONTENT_TYPE], kind);
                let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().expect("text");
                assert!(policy.ends_with("sandbox"), "it runs nothing: {policy}");
            }
            for (run, query) in [("2", None), ("x", None), ("1", Some("format=exe"))] {
                assert!(ask(run, query).await.is_err(), "{run} {query:?}");
            }
            assert!(runs(State(lab())).await.is_err(), "the reason is told");
            assert!(runs(State(Lab::default())).await.is_ok_and(|Json(list)| list.runs.is_empty()));
        });
    }
}
