//! Requests that read and change the server's desired state.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{Path, Query, RawQuery, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sarsen_io::{heap, threads};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use utoipa::IntoParams;

use super::capacity::{Received, ReceivedDocument};
use super::error::ApiError;
use super::openapi::Failures;
use super::routes::{Answer, Json};
use super::{Api, file_access};
use crate::desired::{Action, Change, ChangeRefused, Changed, Current, Desired, Edit, StateError};
use crate::model::{Document, Key, Mismatch, Object, ObjectKind, from_json, named};
use crate::schema::{Apply, ConfigBody, ConfigObject, ConfigState, RevisionList};
use crate::{ChangeError, ErrorClass};

/// Minimum length of a body whose memory is returned to the system at once.
const LARGE_BODY: usize = 1 << 20;
/// Default number of seconds that initiators have to log out of deleted or closed objects.
pub(super) const GRACE: u16 = 10;
/// Maximum number of seconds that a request may give.
pub(super) const LONGEST_GRACE: u16 = 3600;
/// The author of a change whose request names none.
const ANONYMOUS: &str = "unknown";
/// The prefix of authors at a port without authentication: clients on this machine may give any name.
const UNPROVEN: &str = "api on the loopback: ";
/// The header with the author's name.
pub(super) const AUTHOR: &str = "sarsen-author";
pub(super) const AUTHOR_LENGTH: usize = 200;
/// Maximum number of a revision: the integers of most programs hold no larger one.
pub(super) const LAST_REVISION: u64 = i64::MAX as u64;
/// Default and maximum number of revisions in a response.
const PAGE: usize = 100;

pub(super) fn router() -> Router<Api> {
    Router::new()
        .route("/config", get(state))
        .route("/config/apply", post(apply))
        .route("/config/revisions", get(revisions))
        .route("/config/{kind}", get(list).post(add).put(put_only).delete(remove_only))
        .route("/config/{kind}/{name}", get(show).put(put).patch(patch).delete(remove))
}

/// Returns the state, or an error if the server has none.
pub(super) fn desired(api: &Api) -> Result<Arc<Desired>, ApiError> {
    api.desired.clone().ok_or_else(|| {
        ApiError::no_state(
            "this server runs by its flags and file alone: start it with --state FOLDER to change it \
             while it runs",
        )
    })
}

/// The kinds of singletons.
#[derive(utoipa::ToSchema)]
#[schema(rename_all = "kebab-case")]
#[allow(dead_code)] // only the OpenAPI document uses it
pub(super) enum Singleton {
    Discovery,
    Limits,
}

/// The options of a change.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangeOptions {
    /// The revision that the change expects. The request fails if the state has another one.
    revision: Option<u64>,
    /// Log out the clients that use deleted objects.
    #[param(required = false)]
    force: bool,
    /// Only plan the change.
    #[param(required = false)]
    dry_run: bool,
    /// Seconds that clients have to log out. Default: 10.
    grace_seconds: Option<u16>,
}

impl ChangeOptions {
    fn change(self, edits: Vec<Edit>, headers: &HeaderMap) -> Result<Change, ApiError> {
        let grace = self.grace_seconds.unwrap_or(GRACE);
        if grace > LONGEST_GRACE {
            let message = format!("grace_seconds: the maximum is {LONGEST_GRACE}");
            return Err(ApiError::invalid(Some("grace_seconds"), message));
        }
        Ok(Change {
            edits,
            expected: self.revision,
            author: author_of(None, headers)?,
            force: self.force,
            grace: Duration::from_secs(grace.into()),
            dry_run: self.dry_run,
            erase: false,
        })
    }
}

/// The options of a deletion.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub(super) struct Removal {
    /// The revision that the change expects. The request fails if the state has another one.
    revision: Option<u64>,
    /// Log out the clients that use deleted objects.
    #[param(required = false)]
    force: bool,
    /// Only plan the change.
    #[param(required = false)]
    dry_run: bool,
    /// Seconds that clients have to log out. Default: 10.
    grace_seconds: Option<u16>,
    /// Also delete all references to the object: in targets, rules and lists of accounts. A target that loses its
    /// last volume is deleted, too. The request fails if an initiator would gain access by that.
    #[param(required = false)]
    cascade: bool,
    /// Erase the file of the deleted volume, and its records. Its data is lost.
    #[param(required = false)]
    erase: bool,
}

impl Removal {
    fn change(self, key: Key, headers: &HeaderMap) -> Result<Change, ApiError> {
        let Self { revision, force, dry_run, grace_seconds, cascade, erase } = self;
        if erase && key.kind != ObjectKind::Volume {
            let message = format!("erase: a {} has no file", key.kind.word());
            return Err(ApiError::invalid(Some("erase"), message));
        }
        let edit = if cascade { Edit::RemoveEverywhere(key) } else { Edit::Remove(key) };
        let change = ChangeOptions { revision, force, dry_run, grace_seconds }
            .change(vec![edit], headers)?;
        Ok(Change { erase, ..change })
    }
}

/// Returns the author of a change: the one that its body names, or its header.
pub(super) fn author_of(named: Option<&str>, headers: &HeaderMap) -> Result<String, ApiError> {
    let header = || headers.get(AUTHOR).map(|value| value.to_str().unwrap_or_default());
    let author = named.or_else(header).unwrap_or(ANONYMOUS);
    if author.is_empty() || author.len() > AUTHOR_LENGTH || author.contains(char::is_control) {
        Err(ApiError::invalid(
            Some("author"),
            format!("the author must be one line of 1 to {AUTHOR_LENGTH} bytes"),
        ))
    } else {
        Ok(author.to_owned())
    }
}

/// Returns the desired state.
#[utoipa::path(
    get,
    tag = "state",
    path = "/v1/config",
    params(
        ("secrets" = Option<bool>, Query, description = "With the secrets of accounts"),
    ),
    responses((status = 200, body = ConfigState), Failures)
)]
pub(super) async fn state(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Answer<ConfigState> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Wanted {
        secrets: bool,
    }
    let wanted: Wanted = parse_query(query)?;
    api.check_secrets(wanted.secrets)?;
    let Current { revision, objects } = desired(&api)?.current();
    let shown: Vec<Object> = objects
        .values()
        .map(|object| if wanted.secrets { (**object).clone() } else { object.shown() })
        .collect();
    Ok(Json(ConfigState { revision, document: Document::of(&shown) }))
}

/// Applies a document to the desired state, as a whole or not at all.
#[utoipa::path(
    post,
    tag = "state",
    path = "/v1/config/apply",
    params(
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    request_body = Apply,
    responses((status = 200, body = Changed), Failures)
)]
pub(super) async fn apply(
    State(api): State<Api>,
    headers: HeaderMap,
    ReceivedDocument(body): ReceivedDocument,
) -> Answer<Changed> {
    let length = body.bytes().len();
    let changed = carry_out(&api, move || {
        let apply: Apply = json(body.bytes())?;
        let Apply {
            document,
            remove,
            create,
            prune,
            dry_run,
            force,
            revision,
            grace_seconds,
            author,
        } = apply;
        let edit = match (create, prune) {
            (true, true) => {
                let message = "create and prune: they cannot be combined; give one of them";
                return Err(ApiError::invalid(Some("create"), message));
            }
            (true, false) => Edit::Create(document),
            (false, true) => Edit::Replace(document),
            (false, false) => Edit::Apply(document),
        };
        let options = ChangeOptions { revision, force, dry_run, grace_seconds };
        let edits = [edit].into_iter().chain(remove.into_iter().map(Edit::Remove)).collect();
        let change = options.change(edits, &headers)?;
        Ok(Change { author: author_of(author.as_deref(), &headers)?, ..change })
    })
    .await;
    if length >= LARGE_BODY {
        heap::give_back();
    }
    changed.map(Json)
}

/// Returns the last changes.
#[utoipa::path(
    get,
    tag = "state",
    path = "/v1/config/revisions",
    params(
        ("before" = Option<u64>, Query, description = "Only those before this one"),
        ("limit" = Option<usize>, Query, description = "How many, 100 at most"),
    ),
    responses((status = 200, body = RevisionList), Failures)
)]
pub(super) async fn revisions(
    State(api): State<Api>,
    RawQuery(query): RawQuery,
) -> Answer<RevisionList> {
    #[derive(Default, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Page {
        before: Option<u64>,
        limit: Option<usize>,
    }
    let Page { before, limit } = parse_query(query)?;
    let limit = limit.unwrap_or(PAGE).min(PAGE);
    let before = before.unwrap_or(LAST_REVISION);
    if before > LAST_REVISION {
        let message = format!("before: revisions are numbers up to {LAST_REVISION}");
        return Err(ApiError::invalid(Some("before"), message));
    }
    let desired = desired(&api)?;
    let history = tokio::task::spawn_blocking(move || desired.history(before, limit)).await;
    let history =
        history.map_err(|_| ApiError::internal("the history cannot be read; see the log"))?;
    Ok(Json(RevisionList { revisions: history.map_err(state_failed)? }))
}

/// Returns all objects of a kind, as a document.
#[utoipa::path(
    get,
    tag = "state",
    path = "/v1/config/{kind}",
    params(
        ("kind" = ObjectKind, Path),
    ),
    responses((status = 200, body = Document), Failures)
)]
pub(super) async fn list(State(api): State<Api>, Path(kind): Path<String>) -> Answer<Document> {
    let kind = parse_kind(&kind)?;
    let objects = desired(&api)?.current().objects;
    let shown =
        objects.iter().filter(|(key, _)| key.kind == kind).map(|(_, object)| object.shown());
    Ok(Json(Document::of(&shown.collect::<Vec<_>>())))
}

/// Returns an object.
#[utoipa::path(
    get,
    tag = "state",
    path = "/v1/config/{kind}/{name}",
    params(
        ("kind" = ObjectKind, Path),
        ("name" = String, Path),
    ),
    responses((status = 200, body = ConfigObject), Failures)
)]
pub(super) async fn show(
    State(api): State<Api>,
    Path((kind, name)): Path<(String, String)>,
) -> Answer<ConfigObject> {
    let key = Key::new(parse_kind(&kind)?, &name);
    let Current { revision, objects } = desired(&api)?.current();
    let object =
        objects.get(&key).ok_or_else(|| ChangeRefused::NotFound(key.clone(), String::new()))?;
    Ok(Json(ConfigObject { revision, object: object.shown() }))
}

/// Creates an object that does not exist yet.
#[utoipa::path(
    post,
    tag = "state",
    path = "/v1/config/{kind}",
    params(
        ("kind" = ObjectKind, Path),
        ChangeOptions,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    request_body = ConfigBody,
    responses((status = 201, body = Changed), (status = 200, body = Changed), Failures)
)]
pub(super) async fn add(
    State(api): State<Api>,
    Path(kind): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Received,
) -> Result<Response, ApiError> {
    let (kind, options) = (parse_kind(&kind)?, parse_query::<ChangeOptions>(query)?);
    let changed = carry_out(&api, move || {
        let object = object_of(kind, body.bytes())?;
        options.clone().change(vec![Edit::Add(object)], &headers)
    });
    changed.await.map(answer)
}

/// Creates an object, or replaces the object with its name.
#[utoipa::path(
    put,
    tag = "state",
    path = "/v1/config/{kind}/{name}",
    params(
        ("kind" = ObjectKind, Path),
        ("name" = String, Path),
        ChangeOptions,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    request_body = ConfigBody,
    responses((status = 201, body = Changed), (status = 200, body = Changed), Failures)
)]
pub(super) async fn put(
    State(api): State<Api>,
    Path((kind, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Received,
) -> Result<Response, ApiError> {
    let (kind, options) = (parse_kind(&kind)?, parse_query::<ChangeOptions>(query)?);
    let changed = carry_out(&api, move || {
        let object = object_of(kind, body.bytes())?;
        if object.name() != name {
            let message = format!(
                "the path names {name} and the body {}: give the same name in both (PATCH renames)",
                object.name()
            );
            return Err(ApiError::invalid(Some("name"), message));
        }
        options.clone().change(vec![Edit::Put(object)], &headers)
    });
    changed.await.map(answer)
}

/// Responds with status 201 if the change created an object.
fn answer(changed: Changed) -> Response {
    let is_new = changed.steps.iter().any(|step| step.action == Action::Add);
    let status = if is_new && !changed.dry_run { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(changed)).into_response()
}

/// Creates or replaces a singleton.
#[utoipa::path(
    put,
    tag = "state",
    path = "/v1/config/{kind}",
    params(
        ("kind" = Singleton, Path),
        ChangeOptions,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    request_body = ConfigBody,
    responses((status = 201, body = Changed), (status = 200, body = Changed), Failures)
)]
pub(super) async fn put_only(
    api: State<Api>,
    Path(kind): Path<String>,
    query: RawQuery,
    headers: HeaderMap,
    body: Received,
) -> Result<Response, ApiError> {
    only(&kind)?;
    put(api, Path((kind, String::new())), query, headers, body).await
}

/// Deletes a singleton.
#[utoipa::path(
    delete,
    tag = "state",
    path = "/v1/config/{kind}",
    params(
        ("kind" = Singleton, Path),
        Removal,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    responses((status = 200, body = Changed), Failures)
)]
pub(super) async fn remove_only(
    api: State<Api>,
    Path(kind): Path<String>,
    query: RawQuery,
    headers: HeaderMap,
) -> Answer<Changed> {
    only(&kind)?;
    remove(api, Path((kind, String::new())), query, headers).await
}

fn only(kind: &str) -> Result<(), ApiError> {
    match parse_kind(kind)? {
        ObjectKind::Discovery | ObjectKind::Limits => Ok(()),
        kind => Err(ApiError::method_not_allowed(format!(
            "{}: this request needs the name of one object; write /v1/config/{}/NAME",
            kind.word(),
            kind.word()
        ))),
    }
}

/// Changes an object by a JSON merge patch (RFC 7396). Another name renames the object.
#[utoipa::path(
    patch,
    tag = "state",
    path = "/v1/config/{kind}/{name}",
    params(
        ("kind" = ObjectKind, Path),
        ("name" = String, Path),
        ChangeOptions,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    request_body = ConfigBody,
    responses((status = 200, body = Changed), Failures)
)]
pub(super) async fn patch(
    State(api): State<Api>,
    Path((kind, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Received,
) -> Answer<Changed> {
    let key = Key::new(parse_kind(&kind)?, &name);
    let options = parse_query::<ChangeOptions>(query)?;
    let changed = carry_out(&api, move || {
        options.clone().change(vec![Edit::Patch(key.clone(), json(body.bytes())?)], &headers)
    });
    changed.await.map(Json)
}

/// Deletes an object.
#[utoipa::path(
    delete,
    tag = "state",
    path = "/v1/config/{kind}/{name}",
    params(
        ("kind" = ObjectKind, Path),
        ("name" = String, Path),
        Removal,
        ("sarsen-author" = Option<String>, Header, description = "Who makes it"),
    ),
    responses((status = 200, body = Changed), Failures)
)]
pub(super) async fn remove(
    State(api): State<Api>,
    Path((kind, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer<Changed> {
    let key = Key::new(parse_kind(&kind)?, &name);
    let change = parse_query::<Removal>(query)?.change(key, &headers)?;
    carry_out(&api, move || Ok(change.clone())).await.map(Json)
}

/// Makes a change, even if its client disconnects meanwhile. It uses a separate thread, because a change opens files
/// and writes to the disk. `make` reads the body when the change is derived, one at a time: waiting bodies take no more
/// memory than their own length.
async fn carry_out(
    api: &Api,
    make: impl Fn() -> Result<Change, ApiError> + Send + 'static,
) -> Result<Changed, ApiError> {
    let (desired, is_trusted) = (desired(api)?, api.is_trusted);
    let changing = threads::aside(async move {
        let changed = desired.change(move |current| {
            let mut change = make()?;
            if !is_trusted {
                change.author.insert_str(0, UNPROVEN);
                file_access::check(&change.edits, current)?;
            }
            if change.erase && !is_trusted {
                return Err(ApiError::forbidden(
                    "erase: permitted only at the control socket, or with the token of the API; use one of them",
                ));
            }
            Ok::<_, ApiError>(change)
        });
        changed.await
    });
    changing.await.map_err(|_| ApiError::internal("the change was aborted; see the log"))?
}

impl From<ChangeRefused> for ApiError {
    fn from(refused: ChangeRefused) -> Self {
        let message = refused.to_string();
        match refused {
            ChangeRefused::Invalid(invalid) => {
                Self::invalid(invalid.place().as_deref(), invalid.message)
            }
            ChangeRefused::NotFound(..) => Self::not_found(message),
            ChangeRefused::Exists(_) => Self::conflict(message),
            ChangeRefused::NotErasable { .. } => Self::unable(message),
            ChangeRefused::Conflict { .. } => Self::revision_conflict(message),
            ChangeRefused::InUse(_) => Self::in_use(message),
            ChangeRefused::Referred { .. } => Self::referred(message),
            ChangeRefused::Change(ChangeError::InUse(_)) => Self::in_use(message),
            ChangeRefused::Change(error) => match error.error_class() {
                Some(ErrorClass::Missing) => Self::not_found(message),
                Some(ErrorClass::Taken) => Self::conflict(message),
                None => Self::unable(message),
            },
            ChangeRefused::State(error) => state_failed(error),
        }
    }
}

fn state_failed(error: StateError) -> ApiError {
    ApiError::state_unwritable(error.to_string())
}

fn parse_kind(word: &str) -> Result<ObjectKind, ApiError> {
    let found = ObjectKind::ALL.into_iter().find(|kind| kind.word() == word);
    found.ok_or_else(|| ApiError::not_found(format!("there is no /v1/config/{word}")))
}

pub(super) fn json<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    from_json(body).map_err(|misfit| wrong_body(body, None, &misfit))
}

fn object_of(kind: ObjectKind, body: &[u8]) -> Result<Object, ApiError> {
    Object::from_json(kind, body).map_err(|misfit| wrong_body(body, Some(kind), &misfit))
}

/// Returns the error of a body, with the object and its field where the body has a name for it.
fn wrong_body(body: &[u8], kind: Option<ObjectKind>, misfit: &Mismatch) -> ApiError {
    match named(body, kind, misfit) {
        Some(invalid) => ApiError::invalid(invalid.place().as_deref(), invalid.message),
        None => ApiError::invalid(misfit.key.as_deref(), format!("the body: {misfit}")),
    }
}

/// Parses the query of a URL. Without a query, all keys have their defaults.
pub(super) fn parse_query<T: DeserializeOwned>(query: Option<String>) -> Result<T, ApiError> {
    let uri = format!("/?{}", query.unwrap_or_default());
    let uri = uri.parse().map_err(|_| ApiError::invalid(None, "the query is no query"))?;
    let Query(parsed) = Query::try_from_uri(&uri)
        .map_err(|error| ApiError::invalid(None, format!("the query: {error}")))?;
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_change_does_not_block_others_for_hours() {
        let [longest, beyond] = [LONGEST_GRACE, LONGEST_GRACE + 1].map(|grace_seconds| {
            let options =
                ChangeOptions { grace_seconds: Some(grace_seconds), ..ChangeOptions::default() };
            options.change(Vec::new(), &HeaderMap::new())
        });
        assert_eq!(longest.expect("taken").grace, Duration::from_secs(3600));
        let refused = format!("{:?}", beyond.expect_err("refused"));
        assert!(refused.contains("field: Some(\"grace_seconds\")"), "{refused}");
    }
}
