//! The content of written blocks, which names the write and the position of each block.

/// Bytes of a block.
pub(crate) const BLOCK: usize = 512;
/// The stamp of a block that was never written, or was unmapped.
pub(crate) const ZERO: u64 = 0;
/// Flag in the stamps of writes that put the same content into several blocks.
pub(crate) const SAME: u64 = 1 << 63;
/// Value that replaces the block number in such blocks.
const ANYWHERE: u64 = u64::MAX;

/// Returns the content that a write with this stamp puts at `lba`.
pub(crate) fn block(lba: u64, stamp: u64) -> Vec<u8> {
    let place = match stamp {
        ZERO => 0,
        stamp if stamp & SAME != 0 => ANYWHERE,
        _ => lba,
    };
    let word = [stamp.to_be_bytes(), place.to_be_bytes()].concat();
    word.repeat(BLOCK / word.len())
}

/// Returns the stamp of the content at `lba`; `None` if it is torn, changed, or belongs to another block.
pub(crate) fn of(lba: u64, content: &[u8]) -> Option<u64> {
    let stamp = u64::from_be_bytes(*content.first_chunk()?);
    (block(lba, stamp) == content).then_some(stamp)
}

#[test]
fn stamp_identifies_whole_block_at_its_position() {
    assert_eq!(of(3, &block(3, 7)), Some(7));
    assert_eq!(of(4, &block(3, SAME | 7)), Some(SAME | 7));
    assert_eq!(of(4, &block(3, 7)), None, "another's");
    assert_eq!(of(3, &[0; BLOCK]), Some(ZERO));
    let mut torn = block(3, 7);
    torn[300] ^= 1;
    assert_eq!(of(3, &torn), None);
}
