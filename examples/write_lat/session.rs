//! Two ends that have found each other, and what they do then.

use std::net::TcpListener;

use rdma_verbs::{DeviceList, Endpoint, Gid, GidDirectory, Mtu, RemoteSlice, Rts};

use super::end::End;
use super::exchange::{self, Deadline, Key, Peer, Plan};
use super::local::Local;
use super::play::{self, Work};
use super::report::Row;
use super::stats::Samples;
use super::{Each, Options, batch, say, text};

/// One end of two that are connected.
pub(crate) struct Session {
    peer: Peer,
    end: End<Rts>,
    key: Key,
    /// The memory of the other end.
    to: RemoteSlice,
    device: String,
    is_client: bool,
}

/// What a server has before there is a client.
pub(crate) struct Door {
    directory: GidDirectory,
    listener: TcpListener,
    pub(crate) port: u16,
}

impl Door {
    /// Makes it. What can be found wrong without a client is found here.
    pub(crate) fn open(options: &Options, port: u16) -> Result<Door, String> {
        let directory = directory()?;
        let local = Local::choose(options, &directory, None, false).map_err(text)?;
        local.warn();
        local.open(options, options.longest()).map_err(text)?;
        let listener = exchange::listen(port).map_err(text)?;
        let port = listener.local_addr().map_err(text)?.port();
        if !options.both {
            say(options, format!("  waiting:        TCP port {port}\n"))?;
        }
        Ok(Door { directory, listener, port })
    }
}

impl Session {
    pub(crate) fn server(options: &Options, door: &Door) -> Result<Session, String> {
        let deadline = Deadline::new(options.timeout);
        let mut peer = exchange::accept(&door.listener, deadline).map_err(text)?;
        let local = Local::choose(options, &door.directory, peer.ip(), false).map_err(text)?;
        let mtu = greet(options, &mut peer, &local, false)?;
        let theirs = hear(&mut peer, &local)?;
        // The MTU was told: it stays this device, though the GID may be another.
        let options = Options { ib_dev: Some(local.device), ..options.clone() };
        let towards = theirs.endpoint.gid.map(Gid::ip);
        let local = Local::choose(&options, &door.directory, towards, true).map_err(text)?;
        let end = End::new(&options, &local).map_err(text)?;
        let ours = end.key().map_err(text)?;
        tell(&options, &local, mtu, &ours, &theirs)?;
        peer.tell(&ours).map_err(text)?;
        peer.meet(false, &ours).map_err(text)?;
        let end = end.connect(&theirs, mtu).map_err(text)?;
        peer.meet(false, &ours).and_then(|()| peer.meet(false, &ours)).map_err(text)?;
        let (to, device) = (theirs.memory, local.device);
        Ok(Session { peer, end, key: ours, to, device, is_client: false })
    }

    pub(crate) fn client(options: &Options, host: &str, port: u16) -> Result<Session, String> {
        let deadline = Deadline::new(options.timeout);
        let directory = directory()?;
        // Before anybody is bothered.
        let local = Local::choose(options, &directory, None, false).map_err(text)?;
        local.open(options, options.longest()).map_err(text)?;
        let mut peer = exchange::connect(host, port, deadline).map_err(text)?;
        let local = Local::choose(options, &directory, peer.ip(), false).map_err(text)?;
        if !options.both {
            local.warn();
        }
        let mtu = greet(options, &mut peer, &local, true)?;
        let end = End::new(options, &local).map_err(text)?;
        let ours = end.key().map_err(text)?;
        peer.tell(&ours).map_err(text)?;
        let theirs = hear(&mut peer, &local)?;
        tell(options, &local, mtu, &ours, &theirs)?;
        peer.meet(true, &ours).map_err(text)?;
        let end = end.connect(&theirs, mtu).map_err(text)?;
        peer.meet(true, &ours).and_then(|()| peer.meet(true, &ours)).map_err(text)?;
        let (to, device) = (theirs.memory, local.device);
        Ok(Session { peer, end, key: ours, to, device, is_client: true })
    }

    /// Measures all that was asked for.
    pub(crate) fn run(mut self, options: &Options, each: Each<'_>) -> Result<(), String> {
        let mut samples = Samples::new()?;
        for size in options.sizes() {
            if options.batch.is_empty() {
                self.latency(options, size, &mut samples, each)?;
            } else if self.is_client {
                for batch in &options.batch {
                    self.rate(options, size, *batch, &mut samples, each)?;
                }
            }
        }
        if !options.batch.is_empty() {
            if self.is_client {
                self.peer.tell_progress(true).map_err(text)?;
            } else {
                while !self.peer.hear_progress(Deadline::new(options.timeout)).map_err(text)? {}
            }
        }
        self.peer.deadline = Deadline::new(options.timeout);
        self.peer.part();
        Ok(())
    }

    fn latency(
        &mut self,
        options: &Options,
        size: u64,
        samples: &mut Samples,
        each: Each<'_>,
    ) -> Result<(), String> {
        let work = Work {
            size: usize::try_from(size).map_err(text)?,
            iters: options.iters,
            begins: !self.is_client,
            imm: options.write_with_imm,
            timeout: options.timeout,
        };
        if work.imm {
            self.peer.deadline = Deadline::new(options.timeout);
            self.peer.meet(self.is_client, &self.key).map_err(text)?;
        }
        samples.clear();
        play::play(&work, &mut self.end, self.to, samples)?;
        let mode = if work.imm { "write_with_imm" } else { "write" };
        each(Row { iterations: work.iters.into(), ..self.row(options, size, 1, mode, 2, samples)? })
    }

    fn rate(
        &mut self,
        options: &Options,
        size: u64,
        batch: u32,
        samples: &mut Samples,
        each: Each<'_>,
    ) -> Result<(), String> {
        samples.clear();
        let length = usize::try_from(size).map_err(text)?;
        let (load, timeout) = ((length, batch, options.iters), options.timeout);
        let Session { end, peer, to, .. } = self;
        let rate = batch::run(load, timeout, end, peer, *to, samples)?;
        each(Row {
            iterations: rate.messages,
            messages_per_sec: Some(rate.messages as f64 / rate.seconds.max(1e-9)),
            doorbells_per_message: Some(rate.doorbells as f64 / rate.messages as f64),
            ..self.row(options, size, batch, "write", batch, samples)?
        })
    }

    fn row(
        &self,
        options: &Options,
        bytes: u64,
        batch: u32,
        mode: &str,
        parts: u32,
        samples: &Samples,
    ) -> Result<Row, String> {
        Ok(Row {
            device: self.device.clone(),
            mode: mode.into(),
            bytes,
            iterations: 0,
            times: samples.summary(parts).ok_or("nothing was measured")?,
            inline: self.end.inline,
            batch,
            doorbell: options.doorbell_name.name().into(),
            messages_per_sec: None,
            doorbells_per_message: None,
            histogram: options.histogram.then(|| samples.distribution(parts)),
        })
    }
}

/// The device that is taken without a peer.
pub(crate) fn device(options: &Options) -> Result<String, String> {
    Ok(Local::choose(options, &directory()?, None, false).map_err(text)?.device)
}

/// All before the keys, and that both mean to do the same. Gives the MTU of both.
fn greet(
    options: &Options,
    peer: &mut Peer,
    local: &Local,
    is_client: bool,
) -> Result<Mtu, String> {
    let context = local.open(options, options.longest()).map_err(text)?;
    let port = context.port(options.ib_port).map_err(text)?;
    let ours = options.mtu.unwrap_or(port.active_mtu).min(port.active_mtu);
    let plan = Plan::new(options);
    let (theirs, mtu) = peer.greet(is_client, &plan, ours).map_err(text)?;
    plan.check(theirs)?;
    Ok(mtu.min(ours))
}

/// The other end's key.
fn hear(peer: &mut Peer, local: &Local) -> Result<Key, String> {
    let key = peer.hear(local.row.is_some()).map_err(text)?;
    if local.row.is_some() && key.endpoint.gid.is_none() {
        return Err("the peer told no GID, which it needs here".into());
    }
    Ok(key)
}

/// All devices' GID tables; an error when there are no devices.
fn directory() -> Result<GidDirectory, String> {
    match DeviceList::new().map_err(text)?.absence() {
        Some(absence) => Err(absence.to_string()),
        None => GidDirectory::open().map_err(text),
    }
}

/// Who they are, of a person's output.
fn tell(
    options: &Options,
    local: &Local,
    mtu: Mtu,
    ours: &Key,
    theirs: &Key,
) -> Result<(), String> {
    let line = |whose: &str, key: &Key| {
        let Endpoint { lid, qpn, psn, gid, .. } = key.endpoint;
        let (lid, gid, rkey) = (lid.0, gid.unwrap_or(Gid::ZERO), key.memory.rkey().get());
        format!("  {whose:15} LID {lid:#06x}, QPN {qpn}, PSN {psn}, GID {gid}, key {rkey:#x}\n")
    };
    let row = local.row.map(|row| format!("  local GID:      {} {row}\n", local.device));
    let mtu = format!("  MTU:            {} bytes\n", mtu.bytes().unwrap_or(0));
    let all = [line("local key:", ours), row.unwrap_or_default(), line("remote key:", theirs), mtu];
    if options.both { Ok(()) } else { say(options, all.concat()) }
}
