use sarsen_block::{Buffer, MediumProblem, conformance};
use sarsen_io::cores::{self, FileEngine};

use super::*;
use crate::stores::MarkRule;

const MODES: [CacheMode; 5] = [
    CacheMode::WriteBack,
    CacheMode::WriteThrough,
    CacheMode::None,
    CacheMode::DirectSync,
    CacheMode::Unsafe,
];

fn options(path: PathBuf, cache: CacheMode, block_size: BlockSize) -> FileOptions {
    FileOptions { path, size: Some(2 << 20), block_size, cache, read_only: false, serial: None }
}

#[test]
fn every_mode_engine_and_block_size_passes_the_conformance_suite() {
    for cache in MODES {
        for engine in [FileEngine::Auto, FileEngine::Pool] {
            for block_size in [BlockSize::B512, BlockSize::B4096] {
                let folder = tempfile::tempdir().expect("a folder");
                let path = folder.path().join("disk");
                let store = match FileStore::open(&options(path, cache, block_size)) {
                    // A file system of 4 KiB sectors has no direct I/O for smaller blocks.
                    Err(StoreError::Unfit { problem, .. }) if cache.is_direct() => {
                        assert!(problem.contains("direct I/O"), "{problem}");
                        continue;
                    }
                    store => store.expect("opens"),
                };
                cores::block_on(engine, conformance::check(&store, 7)).expect("a core");
            }
        }
    }
}

#[test]
fn one_file_is_served_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let options = options(path, CacheMode::WriteBack, BlockSize::B512);
    let first = FileStore::open(&options).expect("opens");
    let second = FileStore::open(&options).err().expect("is refused");
    assert!(second.is_in_use(), "{second}");
    assert!(second.to_string().contains("disk is in use"), "{second}");
    drop(first);
    FileStore::open(&options).expect("is free again");
}

#[test]
fn a_size_makes_a_file_and_lets_it_grow_but_not_shrink() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let mut options = options(path, CacheMode::WriteBack, BlockSize::B512);
    options.size = None;
    assert!(FileStore::open(&options).err().expect("is missing").is_not_found());
    for (size, fits) in [(1 << 20, true), (2 << 20, true), (1 << 20, false)] {
        options.size = Some(size);
        let opened = FileStore::open(&options);
        assert_eq!(opened.is_ok(), fits, "{size}");
        if let Ok(store) = opened {
            assert_eq!(store.geometry().byte_count(), size);
        }
    }
}

#[test]
fn a_file_that_was_whole_is_not_taken_for_one_that_is_to_become_longer() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let options = options(path.clone(), CacheMode::WriteBack, BlockSize::B512);
    let length = options.size.expect("a size") / 2;
    std::fs::File::create(&path).and_then(|file| file.set_len(length)).expect("a file");
    let back = |length_before_growth| OpenMode::Existing {
        length_before_growth,
        has_state: true,
        had: None,
        mark: MarkRule::Check,
    };
    for (open_mode, fits) in [
        (OpenMode::Create, false),
        (back(None), false),
        (back(Some(0)), false),
        (back(Some(length)), true),
        (OpenMode::OpenOrCreate, true),
    ] {
        let store = FileStore::prepare(&options, open_mode);
        assert_eq!(store.is_ok(), fits, "{open_mode:?}");
        assert_eq!(std::fs::metadata(&path).expect("there").len(), length);
    }
}

#[test]
fn late_write_beyond_end_is_gone_after_growth() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let opened = options(path.clone(), CacheMode::WriteBack, BlockSize::B512);
    let store = FileStore::open(&opened).expect("opens");
    let grown = cores::block_on(FileEngine::Auto, async {
        store.resize(64).wait().await.expect("shrinks");
        // Simulates a write that was checked before the disk shrank.
        std::fs::write(&path, [7; 128 * 512]).expect("writes");
        store.resize(128).wait().await.expect("grows");
        store.read(Extent::new(64, 64)).wait().await.expect("reads").into_buffer()
    });
    assert!(grown.expect("a core").iter().all(|&byte| byte == 0));
}

#[test]
fn read_beyond_shrunk_file_is_medium_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let opened = options(path.clone(), CacheMode::WriteBack, BlockSize::B512);
    let store = FileStore::open(&opened).expect("opens");
    std::fs::File::options().write(true).open(&path).and_then(|f| f.set_len(512)).expect("cut");
    let read = cores::block_on(FileEngine::Pool, async {
        store.read(Extent::new(0, 1)).wait().await.expect("still there");
        [store.read(Extent::new(8, 2)).wait().await, store.read(Extent::new(0, 9)).wait().await]
    });
    match read.expect("a core") {
        [
            Err(BlockError::Medium { lba: Lba(8), problem: MediumProblem::Read(_) }),
            Err(BlockError::Medium { lba: Lba(1), problem: MediumProblem::Read(_) }),
        ] => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lack_of_memory_of_the_kernel_is_transient() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let store = FileStore::open(&options(path, CacheMode::WriteBack, BlockSize::B512));
    let state = &store.expect("opens").state;
    let failed =
        |number| state.failed(Lba(7), Direction::Read, io::Error::from_raw_os_error(number));
    // ENOMEM, EAGAIN, EIO.
    for number in [12, 11] {
        assert!(matches!(failed(number), BlockError::Transient(_)));
    }
    assert!(matches!(failed(5), BlockError::Medium { lba: Lba(7), .. }));
}

/// Runs the test of this name again, as root in its own mount namespace, with a file system of 1 MiB in memory at the
/// given folder. Returns `None` where namespaces are forbidden, and in that second run.
fn on_a_small_file_system(test: &str) -> Option<std::process::Output> {
    let folder = tempfile::tempdir().expect("a folder");
    let script = r#"mount -t tmpfs -o size=1m none "$1" || exit 77; SMALL="$1" exec "$2" --exact "$3" --nocapture"#;
    let output = std::process::Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().expect("a test has a file"))
        .arg(format!("{}::{test}", module_path!().split_once("::").expect("a module").1))
        .output()
        .ok()?;
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    (ran || output.status.code() == Some(101)).then_some(output)
}

#[test]
fn a_full_file_system_is_no_space_and_nothing_else_is_disturbed() {
    let Some(folder) = std::env::var_os("SMALL").map(PathBuf::from) else {
        match on_a_small_file_system("a_full_file_system_is_no_space_and_nothing_else_is_disturbed")
        {
            Some(output) => assert!(output.status.success(), "{output:?}"),
            None => eprintln!("not tested: mount namespaces are forbidden here"),
        }
        return;
    };
    for engine in [FileEngine::Auto, FileEngine::Pool] {
        for (cache, durability) in [
            (CacheMode::WriteBack, Durability::Volatile),
            (CacheMode::WriteBack, Durability::Durable),
            (CacheMode::WriteThrough, Durability::Volatile),
        ] {
            let path = folder.join("disk");
            let mut opened = options(path.clone(), cache, BlockSize::B512);
            opened.size = Some(8 << 20);
            let store = FileStore::open(&opened).expect("a sparse file needs no room");
            cores::block_on(engine, async {
                let mut lba = 0;
                let refused = loop {
                    let data = Buffer::copy_of(&[3; 64 << 10]);
                    let write = store.write(Extent::new(lba, 128), data.into(), durability);
                    match write.wait().await {
                        Ok(()) => lba += 128,
                        Err(error) => break error,
                    }
                };
                assert!(
                    matches!(refused, BlockError::NoSpace { lba: Lba(reported) } if reported == lba),
                    "{refused}"
                );
                // Existing blocks can be read, overwritten, flushed and deallocated.
                let first = Extent::new(0, 8);
                let data = Buffer::copy_of(&[4; 4096]);
                store.write(first, data.into(), Durability::Durable).wait().await.expect("has room");
                store.flush().wait().await.expect("flushes");
                let data = store.read(first).wait().await.expect("reads").into_buffer();
                assert!(data.iter().all(|&byte| byte == 4));
                store.unmap(Extent::new(0, lba)).wait().await.expect("gives back");
                let data = Buffer::copy_of(&[5; 4096]);
                let late = Extent::new(lba + 1000, 8);
                store.write(late, data.into(), durability).wait().await.expect("there is room again");
            })
            .expect("a core");
            std::fs::remove_file(path).expect("removes");
        }
    }
}

#[test]
fn file_marked_for_another_volume_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let of = |serial: &str| FileOptions {
        serial: Some(serial.to_owned()),
        ..options(folder.path().join("disk"), CacheMode::WriteBack, BlockSize::B512)
    };
    let known =
        |mark| OpenMode::Existing { length_before_growth: None, has_state: true, had: None, mark };
    let open = |options: &FileOptions, open_mode| {
        let store = FileStore::prepare(options, open_mode).map_err(|error| error.to_string())?;
        store.settle().expect("it has its length");
        Ok::<_, String>(store)
    };
    let mark = || {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let file = File::open(&of("").path, options).expect("opens");
        let mark = file.attribute("user.sarsen.volume").expect("is read");
        String::from_utf8(mark.unwrap_or_default()).expect("text")
    };
    let marks = |serial: &str, open_mode| {
        open(&of(serial), open_mode).expect("is accepted").write_mark();
        mark()
    };
    assert_eq!(marks("one", OpenMode::OpenOrCreate), "", "the configuration says what file it is");
    assert_eq!(marks("one", known(MarkRule::Ignore)), "");
    assert_eq!(marks("one", known(MarkRule::Check)), "one", "a file without a mark is accepted");
    assert!(!open(&of("one"), known(MarkRule::Check)).expect("its own file").is_unmarked());
    let refused = open(&of("other"), known(MarkRule::Check)).err().expect("another volume");
    assert!(refused.contains("serial number one"), "{refused}");
    assert!(trial(&of("other"), known(MarkRule::Check)).is_err());
    let reader = FileOptions { read_only: true, ..of("reader") };
    assert!(!open(&reader, known(MarkRule::Check)).expect("readers may share it").is_unmarked());
    drop(open(&of("other"), known(MarkRule::Give)).expect("is not marked before its change"));
    assert_eq!(mark(), "one");
    assert_eq!(marks("other", known(MarkRule::Confirm)), "other");
    assert_eq!(marks("third", known(MarkRule::Give)), "third");
    assert_eq!(marks("new", OpenMode::Create), "new");
    assert_eq!(known(MarkRule::Confirm).after_failure(), known(MarkRule::Check));
}

#[test]
fn shorter_file_without_configured_size_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("disk");
    let known = OpenMode::Existing {
        length_before_growth: None,
        has_state: true,
        had: None,
        mark: MarkRule::Confirm,
    };
    let open = |mebibytes: u64, size| {
        let file = std::fs::OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .expect("opens");
        file.set_len(mebibytes << 20).expect("is set");
        let serial = Some("one".to_owned());
        let options = options(path.clone(), CacheMode::WriteBack, BlockSize::B512);
        let store = FileStore::prepare(&FileOptions { size, serial, ..options }, known)?;
        store.write_mark();
        Ok::<_, StoreError>(store.geometry().byte_count() >> 20)
    };
    assert_eq!(open(2, None).expect("no length is known"), 2);
    assert_eq!(open(3, None).expect("it may become longer"), 3);
    let refused = open(2, None).expect_err("it was longer").to_string();
    assert!(refused.contains("has 2097152 bytes of the 3145728"), "{refused}");
    assert_eq!(open(2, Some(2 << 20)).expect("the size is configured"), 2);
    assert_eq!(open(2, None).expect("the configured size replaced the length"), 2);
}
