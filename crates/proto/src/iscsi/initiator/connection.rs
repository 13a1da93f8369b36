//! A session with one connection and no recovery within it: the simplest case.

use sarsen_block::Data;

use super::super::output::Payload;
use super::super::{Output, Parameters};
use super::core::Core;
use super::event::{ConnectionError, Event};
use super::link::Link;
use super::options::LoginOptions;
use super::request::{CommandRequest, TaskManagement, Token};
use super::task::Tasks;

/// A session with one connection. See the module.
pub struct Connection {
    link: Link,
    core: Core,
}

impl Connection {
    /// Begins a login: the first request is in the output. It requests one connection at level 0, regardless of the
    /// options.
    pub fn new(options: LoginOptions) -> Self {
        let options = LoginOptions { max_connections: 1, error_recovery_level: 0, ..options };
        let core = Core::new(Tasks::default());
        Self { link: Link::new(options, None, Parameters::default(), &core), core }
    }

    /// Returns the negotiated parameters, or the defaults of the standard before the negotiation.
    pub const fn parameters(&self) -> &Parameters {
        &self.link.parameters
    }

    /// Returns whether the connection is in full feature phase: logged in, and no logout was answered.
    pub const fn is_full_feature(&self) -> bool {
        self.link.is_full_feature()
    }

    /// Returns whether a logout was answered. The target will close the connection.
    pub const fn is_logged_out(&self) -> bool {
        self.link.is_logged_out()
    }

    /// Returns the bytes to send. The driver reports the bytes that it sent with [`Output::sent`].
    pub const fn output(&mut self) -> &mut Output {
        &mut self.link.output
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// Returns the number of requests without an answer.
    pub fn open_requests(&self) -> usize {
        self.core.tasks.open_count()
    }

    /// Returns how many commands the target accepts now.
    pub fn window(&self) -> u32 {
        if self.link.is_full_feature() { self.core.window() } else { 0 }
    }

    /// Returns memory into which the driver may receive the next bytes of the stream.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        self.link.framer.landing()
    }

    /// Notes that `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        self.link.framer.landed(count);
    }

    /// Prepares data for [`super::Transfer::Write`]. Many commands may use clones of it.
    pub fn payload(&self, data: impl Into<Data>) -> Payload {
        self.link.output.payload(data.into())
    }

    /// Handles received bytes that follow those in [`Self::landing`]. An error is final.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        self.link.handle_input(&mut self.core, input)
    }

    /// Sends a command and returns its tag. Returns the request instead when the window is full or the connection is
    /// not in full feature phase.
    pub fn command(
        &mut self,
        request: CommandRequest,
        token: Token,
    ) -> Result<u32, CommandRequest> {
        if self.window() == 0 {
            return Err(request);
        }
        Ok(self.link.command(&mut self.core, request, token))
    }

    /// Sends a ping to the target. The answer is [`Event::Pong`].
    pub fn ping(&mut self, token: Token) {
        self.link.ping(&mut self.core, token);
    }

    /// Sends text: pairs of keys and values, each terminated by a zero byte. Maximum: 8 KiB.
    pub fn text(&mut self, text: &[u8], token: Token) {
        self.link.text(&mut self.core, text, token);
    }

    /// Requests a task management function. Returns false and sends nothing if the task that it concerns has already
    /// ended.
    pub fn task_management(&mut self, request: TaskManagement, token: Token) -> bool {
        self.link.task_management(&mut self.core, request, token)
    }

    /// Requests to end the session. The answer is [`Event::LoggedOut`].
    pub fn logout(&mut self) {
        self.link.logout(&mut self.core, Token(0));
    }
}
