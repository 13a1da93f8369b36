//! Messages that arrive in parts.

/// Returns the next `length` bytes of the stream, when all of them have arrived. Until then it keeps them in `partial`.
/// The caller clears `partial` after it has handled the message.
pub(super) fn collect<'m, 'i: 'm>(
    partial: &'m mut Vec<u8>,
    input: &mut &'i [u8],
    length: usize,
) -> Option<&'m [u8]> {
    if partial.is_empty() && input.len() >= length {
        let (whole, rest) = input.split_at(length);
        *input = rest;
        return Some(whole);
    }
    if input.is_empty() {
        return None;
    }
    let count = input.len().min(length - partial.len());
    let (head, rest) = input.split_at(count);
    partial.reserve_exact(length - partial.len());
    partial.extend_from_slice(head);
    *input = rest;
    (partial.len() == length).then_some(partial)
}
