//! The open requests and their cookies.

/// The data of a successful reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReplyData {
    Nothing,
    Data(u32),
}

struct Slot<T> {
    /// The number of uses of the slot, so that a repeated reply does not match the next request.
    generation: u32,
    task: Option<(T, ReplyData)>,
}

/// Reusable slots. A cookie is a slot's generation and its index.
pub(super) struct Tasks<T> {
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
}

impl<T> Default for Tasks<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Tasks<T> {
    pub(super) fn open(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(super) fn insert(&mut self, token: T, expected: ReplyData) -> u64 {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, task: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        slot.task = Some((token, expected));
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    fn slot(&mut self, cookie: u64) -> Option<&mut Slot<T>> {
        let (generation, index) = ((cookie >> 32) as u32, cookie as u32);
        self.slots.get_mut(index as usize).filter(|slot| slot.generation == generation)
    }

    /// Returns the data for which the request with this cookie waits, if it is open.
    pub(super) fn expected(&mut self, cookie: u64) -> Option<ReplyData> {
        self.slot(cookie)?.task.as_ref().map(|(_, expected)| *expected)
    }

    pub(super) fn remove(&mut self, cookie: u64) -> Option<T> {
        let (token, _) = self.slot(cookie)?.task.take()?;
        self.free.push(cookie as u32);
        Some(token)
    }

    /// Removes all open requests and returns their tokens.
    pub(super) fn drain(&mut self) -> Vec<T> {
        self.free.clear();
        self.slots.drain(..).filter_map(|slot| slot.task).map(|(token, _)| token).collect()
    }
}
