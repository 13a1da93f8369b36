//! Random bytes from the kernel.

/// Fills `into` with unpredictable bytes.
///
/// # Panics If the kernel has no random source, which a Linux that runs this program always has.
#[allow(unsafe_code)]
pub fn fill(into: &mut [u8]) {
    #[cfg(feature = "simulation")]
    if crate::simulation::fill(into) {
        return;
    }
    let mut filled = 0;
    while filled < into.len() {
        let rest = &mut into[filled..];
        // SAFETY: the pointer and length are those of a slice that this function borrows exclusively.
        let got = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        match usize::try_from(got) {
            Ok(count) => filled += count,
            Err(_) => {
                let error = std::io::Error::last_os_error();
                assert!(
                    error.kind() == std::io::ErrorKind::Interrupted,
                    "getrandom failed: {error}"
                );
            }
        }
    }
}

/// Returns a random number of 64 bits.
pub fn number() -> u64 {
    let mut bytes = [0; 8];
    fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fills_every_byte_differently_each_time() {
        let mut first = [0; 1000];
        let mut second = [0; 1000];
        fill(&mut first);
        fill(&mut second);
        assert_ne!(first, second);
        assert!(first[900..].iter().any(|&byte| byte != 0));
        assert_ne!(number(), number());
    }
}
