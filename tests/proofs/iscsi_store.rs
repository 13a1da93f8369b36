//! Units of the project's own server as stores of its initiator.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, ensure};
use sarsen_block::{
    BlockError, Buffer, Durability, Extent, InvalidRequest, Io, Layer, Reply, Request, Store,
    conformance,
};
use sarsen_initiator::{
    Command, IscsiStore, RemoteDisk as _, Session, SessionOptions, TransferRequest, Unit,
};
use sarsen_io::cores::{FileEngine, block_on};
use sarsen_io::threads;
use sarsen_node::Server;
use sarsen_node::config::{Config, TargetConfig, parse_portal, parse_volume};
use sarsen_proof::serving::pool_in;
use sarsen_proof::{Backing, Serving, Volume};
use sarsen_wire::scsi::mode::PAGE_CACHING;
use sarsen_wire::scsi::opcode;

use crate::client::{LIMIT, run, url};

const MIB: u64 = 1 << 20;
const TARGET: &str = "iqn.2026-11.proof:a";

fn options() -> SessionOptions {
    SessionOptions { reconnect_limit: Some(LIMIT), ..SessionOptions::default() }
}

#[test]
fn a_unit_is_a_conforming_store() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let pool = pool_in(folder.path(), 64 * MIB)?;
    let file = |name: &str| Backing::File(folder.path().join(name));
    let volumes = [
        Volume::new("memory", Backing::Ram, 8 * MIB),
        Volume::new("file", file("a"), 8 * MIB).block_size(4096),
        Volume::new("thin", Backing::Pool("tank".into()), 8 * MIB),
        // The suite has extents of 4 MiB: here, each is several commands.
        Volume::new("cached", file("b"), 8 * MIB).option("cache=writeback"),
    ];
    let serving = Serving::start_with(&volumes, &["--pool", &pool])?;
    run(async {
        for volume in &volumes {
            for options in [SessionOptions::default(), options()] {
                let store = IscsiStore::connect(&url(&serving, &volume.name)?, &options).await?;
                let all = Extent::new(0, store.geometry().block_count);
                match store.unmap(all).wait().await {
                    Err(BlockError::Invalid(InvalidRequest::Unsupported)) => {
                        store.write_zeroes(all, Durability::Volatile).wait().await?;
                    }
                    unmapped => unmapped?,
                }
                conformance::check(&store, 7).await;
                store.logout().await?;
            }
        }
        Ok(())
    })?;
    serving.stop()
}

#[test]
fn another_core_can_use_a_store() -> Result<()> {
    let serving = Serving::start(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    let url = url(&serving, "disk")?;
    run(async {
        let store = Arc::new(IscsiStore::connect(&url, &options()).await?);
        let (sender, checked) = tokio::sync::oneshot::channel();
        let used = store.clone();
        threads::spawn("other core", move || {
            let _ = sender.send(block_on(FileEngine::Pool, conformance::check(&*used, 7)));
        })?;
        // The runtime of this thread drives the connection meanwhile. A panic of the other one ends the channel.
        Ok(checked.await??)
    })?;
    serving.stop()
}

/// Returns a configuration of two volumes in one target; the second one has this size.
fn config(size: &str) -> Result<Config> {
    let luns = [(0, "one".to_owned()), (1, "two".to_owned())];
    let config = Config {
        listen: vec![parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
        cores: NonZeroUsize::new(2),
        volumes: vec![parse_volume("one=ram:1MiB")?, parse_volume(&format!("two=ram:{size}"))?],
        targets: vec![TargetConfig {
            name: TARGET.into(),
            luns: luns.into_iter().collect::<std::collections::BTreeMap<_, _>>().into(),
            ..TargetConfig::default()
        }],
        ..Config::default()
    };
    Ok(config.finish_managed()?)
}

#[test]
fn a_session_has_all_units_of_its_target() -> Result<()> {
    run(async {
        let server = Server::start(config("2MiB")?)?;
        let url = server.exports()[0].urls[0].parse()?;
        let session = Session::log_in(&url, &SessionOptions::default()).await?;
        let luns = Unit::new(&session, [0; 8]).report_luns().await?;
        assert_eq!(luns.len(), 2);
        for (lun, blocks) in luns.into_iter().zip([2048, 4096]) {
            let unit = Unit::new(&session, lun);
            while unit.test_unit_ready().await.is_err() {}
            assert_eq!(unit.read_capacity().await?.blocks, blocks);
            unit.write(0, Buffer::copy_of(&[lun[1] + 1; 512]), false).await?;
        }
        assert_eq!(session.target(), TARGET);
        session.logout().await?;
        ensure!(server.shutdown(LIMIT).await, "the server did not end in order");
        Ok(())
    })
}

#[test]
fn spc4_5_14_a_store_follows_the_capacity_of_its_unit() -> Result<()> {
    run(async {
        let server = Server::start(config("2MiB")?)?;
        let mut url: sarsen_initiator::Url = server.exports()[0].urls[0].parse()?;
        url.lun = 1;
        let store = IscsiStore::connect(&url, &options()).await?;
        assert_eq!(store.geometry().block_count, 4096);
        let made = server.prepare(config("3MiB")?)?.make(None).await?;
        ensure!(made.problems.is_empty(), "{made:?}");
        // The unit attention comes with the next command, or a message of the target before that.
        store.read(Extent::new(0, 1)).wait().await?;
        while store.geometry().block_count != 6144 {
            store.paths_changed().await;
        }
        let last = Extent::new(6143, 1);
        store.write(last, Buffer::zeroed(512).into(), Durability::Durable).wait().await?;
        store.logout().await?;
        ensure!(server.shutdown(LIMIT).await, "the server did not end in order");
        Ok(())
    })
}

#[test]
fn a_store_whose_target_does_not_return_is_out_of_service() -> Result<()> {
    let serving = Serving::start(&[Volume::new("disk", Backing::Ram, 8 * MIB)])?;
    let url = url(&serving, "disk")?;
    run(async {
        let reconnect_limit = Some(std::time::Duration::from_millis(300));
        let options = SessionOptions { reconnect_limit, ..SessionOptions::default() };
        let store = IscsiStore::connect(&url, &options).await?;
        let extent = Extent::new(0, 1);
        store.read(extent).wait().await?;
        drop(serving);
        // The request starts before it is waited for.
        let pending = store.read(extent);
        ensure!(matches!(pending, Io::Pending(_)), "it needs the network");
        for reply in [pending, store.read(extent)] {
            let error = reply.wait().await.err();
            ensure!(matches!(error, Some(BlockError::Unreachable(_))), "{error:?}");
        }
        ensure!(store.is_down(), "there is no path");
        Ok(())
    })
}

/// Remembers whether the store below has data that was not flushed.
struct Watched {
    inner: Arc<dyn Store>,
    has_unflushed: Arc<AtomicBool>,
}

impl Layer for Watched {
    fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn handle<T: 'static>(
        &self,
        request: Request,
        submit: impl FnOnce(&dyn Store) -> Reply<T> + 'static,
    ) -> Reply<T> {
        match request {
            Request::Write { durability: Durability::Volatile, .. }
            | Request::WriteZeroes { durability: Durability::Volatile, .. } => {
                self.has_unflushed.store(true, Ordering::Release);
            }
            Request::Flush => self.has_unflushed.store(false, Ordering::Release),
            _ => {}
        }
        submit(&*self.inner)
    }
}

/// Sets WCE of the caching mode page by MODE SELECT(6).
async fn set_write_cache(unit: &Unit, enabled: bool) -> Result<()> {
    let mut list = [0; 24];
    (list[4], list[5]) = (PAGE_CACHING, 18);
    list[6] = u8::from(enabled) << 2;
    let cdb = [opcode::MODE_SELECT_6, 0x10, 0, 0, list.len() as u8, 0];
    let data = TransferRequest::Write(Buffer::copy_of(&list));
    unit.command(Command::new(&cdb, data)).await?;
    Ok(())
}

/// A store that reports no volatile cache is never flushed by its callers. Its writes stay durable if the unit gets a cache later.
#[test]
fn writes_of_a_store_without_a_cache_are_durable_when_the_unit_gets_one() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let has_unflushed = Arc::<AtomicBool>::default();
    let watched = has_unflushed.clone();
    run(async {
        let volume = format!("disk=file:{},size=1MiB", folder.path().join("disk").display());
        let config = Config {
            listen: vec![parse_portal("127.0.0.1:0").map_err(anyhow::Error::msg)?],
            cores: NonZeroUsize::new(1),
            volumes: vec![parse_volume(&volume)?],
            ..Config::default()
        };
        let server = Server::start_layered(config.finish()?, move |_, inner| {
            Arc::new(Watched { inner, has_unflushed: watched.clone() })
        })?;
        let url = server.exports()[0].urls[0].parse()?;
        let unit = Unit::connect(&url, &SessionOptions::default()).await?;
        set_write_cache(&unit, false).await?;
        let store = IscsiStore::connect(&url, &options()).await?;
        ensure!(!store.characteristics().volatile_cache, "its cache is off");
        let is_durable = || !has_unflushed.load(Ordering::Acquire);
        let extent = Extent::new(0, 1);
        for enabled in [false, true, false, true] {
            set_write_cache(&unit, enabled).await?;
            for round in 0..3 {
                let data = Buffer::copy_of(&[round; 512]);
                store.write(extent, data.into(), Durability::Volatile).wait().await?;
                ensure!(is_durable(), "write {round}, WCE {enabled}");
                store.write_zeroes(extent, Durability::Volatile).wait().await?;
                ensure!(is_durable(), "zeroes {round}, WCE {enabled}");
            }
        }
        unit.write(0, Buffer::zeroed(512), false).await?;
        ensure!(!is_durable(), "the check can fail");
        store.logout().await?;
        unit.logout().await?;
        ensure!(server.shutdown(LIMIT).await, "the server did not end in order");
        Ok(())
    })
}
