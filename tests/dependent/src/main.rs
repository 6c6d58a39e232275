//! What a program does that depends on this crate: lists the GIDs of all devices, and, given the name of one,
//! sends itself a message over it. Queue pairs tell each other their addresses as text.

#![forbid(unsafe_code)]

use std::error::Error;
use std::time::{Duration, Instant};

use rdma_verbs::{
    CompletionQueue, ConnectOptions, DeviceList, Endpoint, GidDirectory, Init, InitOptions, Pool,
    ProtectionDomain, QueuePair, wr,
};

fn main() -> Result<(), Box<dyn Error>> {
    let directory = GidDirectory::open()?;
    let snapshot = directory.cached();
    println!("{} devices", snapshot.devices().len());
    for row in snapshot.rows() {
        let device = snapshot.device_of(row).map_or("?", |device| device.name());
        println!("{device} {}", row.entry());
    }
    match std::env::args().nth(1) {
        Some(device) => message(&device),
        None => Ok(()),
    }
}

/// Sends a message from one queue pair of the device to another.
fn message(device: &str) -> Result<(), Box<dyn Error>> {
    let context = DeviceList::new()?.find(device)?.open()?;
    let gids = context.gids().cached();
    let row = gids.rows().iter().find(|row| row.ip().is_some()).ok_or("it has no address")?;
    let pd = ProtectionDomain::new(&context)?;
    let mut cq = CompletionQueue::new(&context, 16)?;
    let pool = Pool::new(&pd, 64, 4)?;
    let options = ConnectOptions::new(row);
    let make = || -> Result<QueuePair<Init>, Box<dyn Error>> {
        let builder = QueuePair::rc(&pd, &cq, &cq).send_depth(2).recv_depth(2);
        Ok(builder.build()?.init(&InitOptions::new(row.port()))?)
    };
    let (a, b) = (make()?, make()?);
    let told = [
        serde_json::to_string(&a.endpoint(&options)?)?,
        serde_json::to_string(&b.endpoint(&options)?)?,
    ];
    let [to_a, to_b]: [Endpoint; 2] =
        [serde_json::from_str(&told[0])?, serde_json::from_str(&told[1])?];
    let mut a = a.connect(&to_b, &options)?;
    let mut b = b.connect(&to_a, &options)?;
    let buffer = || pool.take().ok_or("all buffers are out");
    b.recv_queue().post(wr::Receive::new(buffer()?))?;
    let mut text = buffer()?;
    text.fill_from(b"hello")?;
    a.send_queue().post(wr::Send::new(text).signaled())?;
    let (mut left, begun) = (2, Instant::now());
    while left > 0 {
        if begun.elapsed() > Duration::from_secs(10) {
            return Err("the message did not come within 10 s".into());
        }
        let mut completions = cq.poll()?;
        while let Some(mut completion) = completions.next() {
            completion.result()?;
            left -= 1;
            let (opcode, buffer) = (completion.opcode(), completion.take_buffer());
            let bytes = buffer.as_deref().unwrap_or_default();
            println!("{opcode}: {}", String::from_utf8_lossy(bytes));
        }
    }
    Ok(())
}
