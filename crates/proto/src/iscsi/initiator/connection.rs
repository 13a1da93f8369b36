//! A session with one connection and no recovery within it: the shortest way.

use sarsen_block::Data;

use super::super::output::Payload;
use super::super::{Output, Parameters};
use super::core::Core;
use super::event::{ConnectionError, Event};
use super::link::Link;
use super::options::LoginOptions;
use super::request::{CommandRequest, TaskManagement, Token};
use super::task::Tasks;

/// See the module.
pub struct Connection {
    link: Link,
    core: Core,
}

impl Connection {
    /// Begins a login: its first request waits in the output. One connection at level 0 is asked
    /// for, whatever the options say.
    pub fn new(options: LoginOptions) -> Self {
        let options = LoginOptions { max_connections: 1, error_recovery_level: 0, ..options };
        let core = Core::new(Tasks::default());
        Self { link: Link::new(options, None, Parameters::default(), &core), core }
    }

    /// What was negotiated; the defaults of the standard before that.
    pub const fn parameters(&self) -> &Parameters {
        &self.link.parameters
    }

    /// Whether the login is over and no logout was answered.
    pub const fn is_full_feature(&self) -> bool {
        self.link.is_full_feature()
    }

    /// Whether a logout was answered: the target will close the connection.
    pub const fn is_logged_out(&self) -> bool {
        self.link.is_logged_out()
    }

    /// Bytes to send; the driver reports with [`Output::sent`] what went out.
    pub const fn output(&mut self) -> &mut Output {
        &mut self.link.output
    }

    /// The next thing that happened.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.core.events.pop_front()
    }

    /// Requests that have no answer yet.
    pub fn open_requests(&self) -> usize {
        self.core.tasks.open_count()
    }

    /// How many commands the target takes now.
    pub fn window(&self) -> u32 {
        if self.link.is_full_feature() { self.core.window() } else { 0 }
    }

    /// Memory that the next bytes of the stream may be received into.
    pub fn landing(&mut self) -> Option<&mut [u8]> {
        self.link.framer.landing()
    }

    /// `count` bytes were received into [`Self::landing`].
    pub fn landed(&mut self, count: usize) {
        self.link.framer.landed(count);
    }

    /// Prepares data for [`super::Transfer::Write`]; clones of it may serve many commands.
    pub fn payload(&self, data: impl Into<Data>) -> Payload {
        self.link.output.payload(data.into())
    }

    /// Takes bytes that were received, after those that landed. An error is final.
    pub fn handle_input(&mut self, input: &[u8]) -> Result<(), ConnectionError> {
        self.link.handle_input(&mut self.core, input)
    }

    /// Sends a command, or gives it back when the window is full or there is no full feature
    /// phase. Returns its tag.
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

    /// Asks whether the target is there; [`Event::Pong`] is the answer.
    pub fn ping(&mut self, token: Token) {
        self.link.ping(&mut self.core, token);
    }

    /// Sends text: pairs of keys and values, each ended by a zero byte, of 8 KiB at most.
    pub fn text(&mut self, text: &[u8], token: Token) {
        self.link.text(&mut self.core, text, token);
    }

    /// Asks for a task management function. False, and nothing is sent, if the task that it is
    /// about is over already.
    pub fn task_management(&mut self, request: TaskManagement, token: Token) -> bool {
        self.link.task_management(&mut self.core, request, token)
    }

    /// Asks to end the session; [`Event::LoggedOut`] is the answer.
    pub fn logout(&mut self) {
        self.link.logout(&mut self.core, Token(0));
    }
}
