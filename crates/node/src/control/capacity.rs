//! The resources that clients of one listener may use: concurrent request bodies, and open streams. A body reserves its
//! memory before it is read, so that resident memory has a limit for any number of clients.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{FromRequest, Request};
use axum::http::header;
use futures_util::StreamExt as _;
use sarsen_io::time;
use sarsen_pool::PART_BYTES_MAX;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use zeroize::Zeroizing;

use super::Api;
use super::error::ApiError;

/// Maximum length of the body of a request that changes one object, in bytes.
pub(super) const BODY_LIMIT: usize = 64 << 10;
/// Maximum number of bytes of all such bodies at one time.
const BODIES_AT_ONCE: usize = 256 * BODY_LIMIT;
/// Maximum length of a document, in bytes: 20,000 volumes, each with a target and a rule, take 5 million.
pub(super) const DOCUMENT_LIMIT: usize = 32 << 20;
/// Maximum number of bytes of all documents at one time.
const DOCUMENTS_AT_ONCE: usize = DOCUMENT_LIMIT;
/// Maximum number of objects and rules in a document. Each takes up to 1 KiB of memory, even if its JSON is short.
/// 20,000 volumes, each with a target, a host and two rules, reach this number.
const OBJECT_LIMIT: usize = 100_000;
/// Maximum number of numbers and texts in a document.
const VALUE_LIMIT: usize = 1_000_000;
/// Maximum number of bytes of all parts of streams of snapshots at one time.
const PARTS_AT_ONCE: usize = 16 * PART_BYTES_MAX;
/// Maximum time that a request waits for memory.
const ROOM_TIME: Duration = Duration::from_secs(10);
/// Maximum number of open streams (`GET /v1/live`).
const STREAMS: usize = 64;

/// See the module.
#[derive(Clone)]
pub(crate) struct Capacity {
    bodies: Arc<Semaphore>,
    documents: Arc<Semaphore>,
    parts: Arc<Semaphore>,
    streams: Arc<Semaphore>,
}

impl Default for Capacity {
    fn default() -> Self {
        let room = |room| Arc::new(Semaphore::new(room));
        Self {
            bodies: room(BODIES_AT_ONCE),
            documents: room(DOCUMENTS_AT_ONCE),
            parts: room(PARTS_AT_ONCE),
            streams: room(STREAMS),
        }
    }
}

impl Capacity {
    /// Reserves a slot for a stream until the permit is dropped.
    pub(super) fn stream(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.streams.clone().try_acquire_owned().map_err(|_| {
            ApiError::busy(format!(
                "{STREAMS} streams are open, which is the maximum: end one of them, such as \
                 `sarsen top`, `sarsen event list --follow` or a window of the console"
            ))
        })
    }
}

/// A complete request body. It keeps its reservation, and is wiped when it is dropped, since it may contain secrets.
pub(super) struct Received {
    bytes: Zeroizing<Vec<u8>>,
    _room: OwnedSemaphorePermit,
}

impl Received {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl AsRef<[u8]> for Received {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl FromRequest<Api> for Received {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        receive(request, &api.capacity.bodies, BODY_LIMIT).await
    }
}

/// The body of a request that has a part of a stream of a snapshot.
pub(super) struct ReceivedPart(pub(super) Received);

impl FromRequest<Api> for ReceivedPart {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        Ok(Self(receive(request, &api.capacity.parts, PART_BYTES_MAX).await?))
    }
}

/// The body of a request that applies a document, within the maximum length and number of objects.
pub(super) struct ReceivedDocument(pub(super) Received);

impl FromRequest<Api> for ReceivedDocument {
    type Rejection = ApiError;

    async fn from_request(request: Request, api: &Api) -> Result<Self, ApiError> {
        let received = receive(request, &api.capacity.documents, DOCUMENT_LIMIT).await?;
        let counted = count(received.bytes());
        for (count, limit, what) in [
            (counted.objects, OBJECT_LIMIT, "objects and rules"),
            (counted.values, VALUE_LIMIT, "numbers and texts"),
        ] {
            if count > limit {
                return Err(ApiError::too_large(format!(
                    "the document lists more than {limit} {what}, which is the maximum; apply it in parts, without --prune"
                )));
            }
        }
        Ok(Self(received))
    }
}

async fn receive(
    request: Request,
    room: &Arc<Semaphore>,
    limit: usize,
) -> Result<Received, ApiError> {
    let too_large = || {
        ApiError::too_large(format!(
            "the body is longer than {limit} bytes, which is the maximum: send less, or apply a document in \
             parts"
        ))
    };
    let declared = request.headers().get(header::CONTENT_LENGTH);
    let declared = declared.and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    let body = request.into_body();
    let length = match declared {
        Some(length) => usize::try_from(length).ok().filter(|length| *length <= limit),
        None if body.is_end_stream() => Some(0),
        // A body without a declared length may have the maximum length.
        None => Some(limit),
    };
    let length = length.ok_or_else(too_large)?;
    let room = take(room.clone(), length, ROOM_TIME).await?;
    let mut bytes = Zeroizing::new(Vec::new());
    // Reserved memory takes no physical memory before it is written.
    bytes.reserve_exact(length);
    let mut parts = body.into_data_stream();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|error| {
            ApiError::invalid(None, format!("the body is incomplete: {error}; send it again"))
        })?;
        if bytes.len() + part.len() > length {
            return Err(too_large());
        }
        bytes.extend_from_slice(&part);
    }
    Ok(Received { bytes, _room: room })
}

async fn take(
    room: Arc<Semaphore>,
    bytes: usize,
    limit: Duration,
) -> Result<OwnedSemaphorePermit, ApiError> {
    let bytes = u32::try_from(bytes).expect("the limits of bodies are far below 4 GiB");
    tokio::select! {
        room = room.acquire_many_owned(bytes) => Ok(room.expect("it is never closed")),
        () = time::sleep_until(time::now() + limit) => Err(ApiError::busy(
            "the server reads and carries out as many changes as it can at once: try again later",
        )),
    }
}

/// The number of values in JSON text.
#[derive(Default)]
struct Counted {
    /// Objects that are elements of lists.
    objects: usize,
    /// Numbers, texts and the like.
    values: usize,
}

/// Counts values without storing them. Invalid or too deeply nested JSON is counted up to the error: the parser refuses
/// it later.
fn count(text: &[u8]) -> Counted {
    let mut counted = Counted::default();
    let mut text = serde_json::Deserializer::from_slice(text);
    let _ = Count { counted: &mut counted, is_element: false }.deserialize(&mut text);
    counted
}

struct Count<'a> {
    counted: &'a mut Counted,
    is_element: bool,
}

impl Count<'_> {
    fn value<E>(self) -> Result<(), E> {
        self.counted.values += 1;
        Ok(())
    }
}

impl<'de> DeserializeSeed<'de> for Count<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Count<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("anything")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.value()
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        self.value()
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        self.value()
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        self.value()
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        self.value()
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        self.value()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let counted = self.counted;
        while list.next_element_seed(Count { counted, is_element: true })?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<(), A::Error> {
        let counted = self.counted;
        counted.objects += usize::from(self.is_element);
        while object.next_key::<IgnoredAny>()?.is_some() {
            object.next_value_seed(Count { counted, is_element: false })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn objects_of_lists_and_values_are_counted_wherever_they_are() {
        let text = br#"{ "document": { "volume": [{ "name": "a" }, {}], "limits": { "sessions": 5 },
            "target": [{ "name": "t", "luns": { "0": "a" }, "allow": [{}, {}, { "read-only": true }] }] } }"#;
        let Counted { objects, values } = count(text);
        assert_eq!((objects, values), (6, 5));
        assert_eq!(count(b"[{},{},{").objects, 3, "as far as it goes");
        assert_eq!(count(&b"[".repeat(1 << 20)).objects, 0, "depth has a limit");
    }

    fn request(body: Body, length: Option<usize>) -> Request {
        let mut request = Request::builder();
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        request.body(body).expect("a request")
    }

    fn refused(outcome: Result<Received, ApiError>) -> String {
        format!("{:?}", outcome.err().expect("refused"))
    }

    #[test]
    fn a_body_takes_its_room_before_it_is_read_and_gives_it_back() {
        // The test reads the clock, and does not wait.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.expect("a runtime");
        let _entered = runtime.enter();
        let room = Arc::new(Semaphore::new(10));
        let receive = |body: &'static str, length| {
            receive(request(Body::from(body), length), &room, 8).now_or_never()
        };
        let first = receive("12345678", Some(8)).expect("there is room").expect("it fits");
        assert_eq!(first.bytes(), b"12345678");
        assert_eq!(room.available_permits(), 2);
        drop(first);
        assert_eq!(room.available_permits(), 10);
        for (body, length) in [("123456789", Some(9)), ("123", Some(2)), ("123456789", None)] {
            let refused = refused(receive(body, length).expect("it does not wait"));
            assert!(refused.contains("TooLarge") && refused.contains("8 bytes"), "{refused}");
            assert_eq!(room.available_permits(), 10);
        }
        let chunked = receive("123", None).expect("there is room").expect("it fits");
        assert_eq!((chunked.bytes(), room.available_permits()), (&b"123"[..], 2));
        assert_eq!(receive("", None).expect("there is room").expect("empty").bytes(), b"");
    }

    #[test]
    fn client_beyond_capacity_waits_and_gets_retry_after() {
        let room = Arc::new(Semaphore::new(1));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(async {
            let first = take(room.clone(), 1, Duration::ZERO).await.expect("there is room");
            let refused = take(room.clone(), 1, Duration::ZERO).await.expect_err("there is none");
            assert!(format!("{refused:?}").contains("Busy"));
            let second = take(room.clone(), 1, Duration::from_secs(60));
            let (second, ()) = tokio::join!(second, async { drop(first) });
            drop(second.expect("there is room again"));
        });
    }

    #[test]
    fn streams_have_a_limit_of_their_own() {
        let capacity = Capacity::default();
        let streams: Vec<_> = (0..STREAMS).map(|_| capacity.stream().expect("room")).collect();
        let refused = format!("{:?}", capacity.stream().expect_err("one too many"));
        assert!(refused.contains("Busy") && refused.contains("64 streams"), "{refused}");
        drop(streams);
        drop(capacity.stream().expect("room again"));
    }
}
