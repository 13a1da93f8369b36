//! The tasks of a logical unit: which may run beside which, and which end with which.

mod policy;

pub(crate) use policy::Policy;
use std::sync::atomic::{AtomicU32, Ordering};

/// See the module.
pub(crate) struct TaskSet {
    /// The bytes of the policy.
    policy: AtomicU32,
}

impl Default for TaskSet {
    fn default() -> Self {
        Self { policy: AtomicU32::new(u32::from_be_bytes(Policy::default().to_bytes())) }
    }
}

impl TaskSet {
    #[allow(dead_code)]
    pub(crate) fn policy(&self) -> Policy {
        let bytes = self.policy.load(Ordering::Relaxed).to_be_bytes();
        Policy::from_bytes(bytes).unwrap_or_default()
    }

    pub(crate) fn set_policy(&self, policy: Policy) {
        self.policy.store(u32::from_be_bytes(policy.to_bytes()), Ordering::Relaxed);
    }
}
