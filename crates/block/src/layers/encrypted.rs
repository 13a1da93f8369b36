//! Encrypts blocks, so that the deletion of a key erases them all: AES-256 in XTS mode (IEEE 1619). A block is the data
//! unit, and its LBA the tweak.
//!
//! A block of zeroes in the lower store is not encrypted: it was never written, was unmapped or zeroed, and reads as
//! zeroes. The encryption does not hide which blocks these are. Nor does it hide that a block has the same content as
//! before. Nothing is authenticated: an attacker with write access to the lower store can restore old content, or make
//! any sixteen bytes random.

use std::hint::black_box;
use std::io;
use std::sync::Arc;

use aes::Aes256;
use aes::cipher::KeyInit;
use parking_lot::RwLock;
use xts_mode::{Xts128, get_tweak_default};

use crate::{
    AllocationRun, BlockError, BlockSize, Characteristics, Data, Direction, Durability, Extent,
    Geometry, Io, Lba, Payload, Reply, Space, Store, StoreStatus,
};

/// Size of a key in bytes: one AES-256 key for the data and one for the tweak.
pub const KEY_BYTES: usize = 64;
const HALF: usize = KEY_BYTES / 2;

/// A key, which is wiped from memory when it is dropped. It has no Debug: it is never logged.
pub struct Key([u8; KEY_BYTES]);

impl Key {
    /// Creates a key of these bytes, which must be unpredictable.
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the key.
    pub const fn as_bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

impl Drop for Key {
    fn drop(&mut self) {
        self.0.fill(0);
        // Prevents the compiler from removing the write, since no code reads the bytes afterwards.
        black_box(&self.0);
    }
}

/// The source and the storage of a key.
pub trait KeyStore: Send + Sync {
    /// Creates another key, replaces and destroys the old one, and returns the new one. All of that is durable when
    /// this returns. After an error, the key store may have either key. A started replacement completes even if the caller
    /// drops the reply.
    fn replace_key(&self) -> Io<io::Result<Key>>;
}

/// A store that can erase all of its data at once (cryptographic erase).
pub trait ForgetKey: Send + Sync {
    /// Replaces the key. Earlier data then reads as noise, except for blocks that read as zeroes. The caller must not
    /// write meanwhile. After an error no data can be read or written until another call succeeds.
    fn forget_key(&self) -> Reply<()>;
}

/// An encrypted store. See the module.
pub struct EncryptedStore {
    inner: Arc<dyn Store>,
    key_store: Arc<dyn KeyStore>,
    /// `None` while the key is replaced, and after a failed replacement: it is unknown which key the key store has, so
    /// neither may be used for writes.
    cipher: Arc<RwLock<Option<Arc<Cipher>>>>,
}

impl EncryptedStore {
    /// Creates a store over `inner`, with the key that `key_store` stores.
    pub fn new(inner: Arc<dyn Store>, key: Key, key_store: Arc<dyn KeyStore>) -> Self {
        let cipher = Arc::new(RwLock::new(Some(Arc::new(Cipher::new(&key)))));
        Self { inner, key_store, cipher }
    }

    fn cipher(&self, lba: Lba, direction: Direction) -> Result<Arc<Cipher>, BlockError> {
        let cipher = self.cipher.read();
        cipher.clone().ok_or_else(|| {
            let source = io::Error::other("the volume's key is being changed, or could not be");
            BlockError::medium(lba, direction, source)
        })
    }
}

impl ForgetKey for EncryptedStore {
    fn forget_key(&self) -> Reply<()> {
        set(&self.cipher, None);
        let cipher = Arc::clone(&self.cipher);
        self.key_store.replace_key().map(move |key| match key {
            Ok(key) => {
                set(&cipher, Some(Arc::new(Cipher::new(&key))));
                Ok(())
            }
            Err(source) => Err(BlockError::medium(Lba(0), Direction::Write, source)),
        })
    }
}

fn set(place: &RwLock<Option<Arc<Cipher>>>, cipher: Option<Arc<Cipher>>) {
    *place.write() = cipher;
}

impl Store for EncryptedStore {
    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn characteristics(&self) -> Characteristics {
        Characteristics { protection: false, ..self.inner.characteristics() }
    }

    fn status(&self) -> &Arc<StoreStatus> {
        self.inner.status()
    }

    fn read(&self, extent: Extent) -> Reply<Data> {
        let cipher = match self.cipher(extent.lba, Direction::Read) {
            Ok(cipher) => cipher,
            Err(error) => return Io::Ready(Err(error)),
        };
        let block_size = self.inner.geometry().block_size;
        self.inner.read(extent).map(move |data| match data? {
            zeroes @ Data::Zeroes(_) => Ok(zeroes),
            data => {
                let mut blocks = data.into_buffer();
                cipher.decrypt(&mut blocks, extent, block_size);
                Ok(Data::Buffer(blocks))
            }
        })
    }

    fn write(&self, extent: Extent, data: Payload, durability: Durability) -> Reply<()> {
        let mut blocks = data.into_buffer();
        match self.cipher(extent.lba, Direction::Write) {
            Ok(cipher) => {
                cipher.encrypt(&mut blocks, extent, self.inner.geometry().block_size);
                self.inner.write(extent, blocks.into(), durability)
            }
            Err(error) => Io::Ready(Err(error)),
        }
    }

    fn flush(&self) -> Reply<()> {
        self.inner.flush()
    }

    fn unmap(&self, extent: Extent) -> Reply<()> {
        self.inner.unmap(extent)
    }

    fn write_zeroes(&self, extent: Extent, durability: Durability) -> Reply<()> {
        self.inner.write_zeroes(extent, durability)
    }

    fn allocation(&self, extent: Extent) -> Reply<AllocationRun> {
        self.inner.allocation(extent)
    }

    fn space(&self) -> Reply<Space> {
        self.inner.space()
    }

    fn resize(&self, block_count: u64) -> Reply<()> {
        self.inner.resize(block_count)
    }
}

/// The cipher of a key. AES wipes the key when it is dropped.
struct Cipher(Xts128<Aes256>);

impl Cipher {
    fn new(key: &Key) -> Self {
        let (data, tweak) = key.0.split_at(HALF);
        Self(Xts128::new(aes_256(data), aes_256(tweak)))
    }

    fn encrypt(&self, blocks: &mut [u8], extent: Extent, block_size: BlockSize) {
        for (lba, block) in (extent.lba.0.into()..).zip(blocks.chunks_exact_mut(block_size.bytes()))
        {
            self.0.encrypt_sector(block, get_tweak_default(lba));
        }
    }

    fn decrypt(&self, blocks: &mut [u8], extent: Extent, block_size: BlockSize) {
        for (lba, block) in (extent.lba.0.into()..).zip(blocks.chunks_exact_mut(block_size.bytes()))
        {
            if block.iter().any(|&byte| byte != 0) {
                self.0.decrypt_sector(block, get_tweak_default(lba));
            }
        }
    }
}

fn aes_256(half: &[u8]) -> Aes256 {
    match Aes256::new_from_slice(half) {
        Ok(cipher) => cipher,
        Err(_) => unreachable!("half of a key is one of AES-256"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{Buffer, MemoryStore};

    fn now<T>(io: Io<T>) -> T {
        match io {
            Io::Ready(value) => value,
            Io::Pending(_) => panic!("a store in memory made its caller wait"),
        }
    }

    /// A key store that returns the configured results.
    #[derive(Default)]
    struct Given(Mutex<Vec<io::Result<Key>>>);

    impl KeyStore for Given {
        fn replace_key(&self) -> Io<io::Result<Key>> {
            Io::Ready(self.0.lock().expect("whole").remove(0))
        }
    }

    fn write(store: &dyn Store, lba: u64, data: &[u8]) -> Result<(), BlockError> {
        let extent = Extent::new(lba, data.len() as u64 / 512);
        now(store.write(extent, Buffer::copy_of(data).into(), Durability::Volatile))
    }

    fn read(store: &dyn Store, lba: u64, block_count: u64) -> Vec<u8> {
        let data = now(store.read(Extent::new(lba, block_count))).expect("reads");
        data.into_buffer().to_vec()
    }

    fn key_of(byte: u8) -> Key {
        Key::new([byte; KEY_BYTES])
    }

    fn hex(text: &str) -> Vec<u8> {
        let digits = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
        (0..text.len()).step_by(2).map(digits).collect()
    }

    #[test]
    fn ieee_1619_b_vector_10_of_xts_aes_256() {
        let key = "2718281828459045235360287471352662497757247093699959574966967627\
                   3141592653589793238462643383279502884197169399375105820974944592";
        let key = Key::new(hex(key).try_into().expect("64 bytes"));
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 300));
        let store = EncryptedStore::new(below.clone(), key, Arc::new(Given::default()));
        let plain: Vec<u8> = (0..512).map(|index| index as u8).collect();
        write(&store, 0xff, &plain).expect("writes");
        let stored = read(&*below, 0xff, 1);
        let first = "1c3b3a102f770386e4836c99e370cf9bea00803f5e482357a4ae12d414a3e63b";
        let last = "773dad38014bd2092fa755c824bb5e54c4f36ffda9fcea70b9c6e693e148c151";
        assert_eq!((&stored[..32], &stored[480..]), (&*hex(first), &*hex(last)));
        assert_eq!(read(&store, 0xff, 1), plain);
    }

    #[test]
    fn ciphertext_differs_from_plaintext_and_by_position() {
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 100));
        let store = EncryptedStore::new(below.clone(), key_of(1), Arc::new(Given::default()));
        write(&store, 7, &[0; 1024]).expect("writes");
        let stored = read(&*below, 7, 2);
        assert!(stored.chunks(16).all(|part| part != [0; 16]));
        assert_ne!(stored[..512], stored[512..]);
        assert_eq!(read(&store, 6, 4), [0; 2048], "what was not written is zeroes as well");
        now(store.unmap(Extent::new(7, 1))).expect("unmaps");
        assert_eq!(read(&*below, 7, 1), [0; 512]);
    }

    #[test]
    fn sbc3_4_11_a_forgotten_key_leaves_noise_and_takes_new_data() {
        let key_store = Arc::new(Given(Mutex::new(vec![Ok(key_of(2))])));
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 100));
        let store = EncryptedStore::new(below.clone(), key_of(1), key_store);
        write(&store, 3, &[9; 512]).expect("writes");
        now(store.forget_key()).expect("forgets");
        let noise = read(&store, 3, 1);
        assert!(noise.chunks(16).all(|part| part != [9; 16]));
        write(&store, 3, &[8; 512]).expect("writes");
        let again = EncryptedStore::new(below, key_of(2), Arc::new(Given::default()));
        assert_eq!(read(&again, 3, 1), [8; 512]);
    }

    #[test]
    fn uncertain_key_blocks_reads_and_writes() {
        let failure = Err(io::ErrorKind::StorageFull.into());
        let key_store = Arc::new(Given(Mutex::new(vec![failure, Ok(key_of(2))])));
        let below = Arc::new(MemoryStore::new(BlockSize::B512, 100));
        let store = EncryptedStore::new(below.clone(), key_of(1), key_store);
        write(&store, 3, &[9; 512]).expect("writes");
        let stored = read(&*below, 3, 1);
        assert!(now(store.forget_key()).is_err());
        assert!(write(&store, 3, &[8; 512]).is_err());
        assert!(now(store.read(Extent::new(3, 1))).is_err());
        assert_eq!(read(&*below, 3, 1), stored);
        now(store.forget_key()).expect("forgets");
        write(&store, 3, &[8; 512]).expect("writes");
        assert_eq!(read(&store, 3, 1), [8; 512]);
    }
}
