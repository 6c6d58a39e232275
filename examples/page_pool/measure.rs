//! The measured part: the modes in turn, and the medians of what each round gave.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use super::exchange::{Link, Plan};
use super::options::{Mode, Options};
use super::receiver::Receiver;
use super::report::Row;
use super::stop::{Stop, Watch};

/// One mode in one round.
struct Sample {
    mode: Mode,
    messages: u64,
    seconds: f64,
    cpu: f64,
    registrations: u64,
}

/// Measures all that was asked for, ends the streams, and tells the rows, with what was measured before the
/// device went away if it did. Gives whether it did.
pub(crate) fn measure(
    options: &Options,
    plan: &Plan,
    device: &str,
    mut receiver: Receiver,
    link: &Link,
    watch: &mut Watch,
) -> Result<(Vec<Row>, bool), String> {
    let registration = receiver.supply.registration_time();
    let mut samples = Vec::new();
    let outcome = run(options, &mut receiver, &mut samples, link, watch);
    let outcome = outcome.map_err(|stop| watch.reason(stop));
    let live = receiver.live();
    // First the sender, or it would take the streams' end for a failure.
    link.part();
    let ended = receiver.end();
    let gone = match outcome {
        Err(Stop::Failed(error)) => return Err(error),
        Err(Stop::Gone) => true,
        Ok(()) => false,
    };
    let (supply, registration) = (ended?, registration.map_err(super::text)?);
    let modes = options.modes().into_iter();
    let rows = modes.filter_map(|mode| {
        let of = || samples.iter().filter(move |sample| sample.mode == mode);
        let median = |value: fn(&Sample) -> f64| {
            let mut values: Vec<f64> = of().map(value).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let rate = median(|sample| sample.messages as f64 / sample.seconds)?;
        Some(Row {
            device: device.into(),
            mode: mode.name().into(),
            streams: plan.streams,
            streams_left: live,
            srq: options.srq,
            size: plan.size,
            depth: plan.depth,
            seconds: options.seconds,
            rounds: of().count(),
            page_size: supply.page_size(mode),
            messages_per_sec: rate,
            gbit_per_sec: rate * f64::from(plan.size) * 8.0 / 1e9,
            cpu_us_per_message: median(|sample| sample.cpu * 1e6 / sample.messages as f64)?,
            registrations: of().map(|sample| sample.registrations).sum(),
            fragments_lost: supply.out(mode),
            registration_us: registration.as_secs_f64() * 1e6,
            device_gone: gone,
        })
    });
    Ok((rows.collect(), gone))
}

fn run(
    options: &Options,
    receiver: &mut Receiver,
    samples: &mut Vec<Sample>,
    link: &Link,
    watch: &mut Watch,
) -> Result<(), Stop> {
    let mut modes = options.modes();
    for _ in 0..options.rounds {
        // Each is the first in its turn.
        modes.rotate_left(1);
        for &mode in &modes {
            settle(receiver, mode, link, watch)?;
            let (came, made) = (receiver.came[mode as usize], receiver.supply.registrations());
            let (begun, cpu) = (Instant::now(), cpu_time());
            let mut stop = None;
            let nothing = |receiver: &Receiver| receiver.came[mode as usize] == came;
            // And until something came: how long to wait for that, --timeout says.
            while stop.is_none() && (begun.elapsed() < options.time() || nothing(receiver)) {
                stop = receiver.turn(link, watch).err();
            }
            let (time, cpu) = (begun.elapsed(), cpu_time().saturating_sub(cpu));
            let messages = receiver.came[mode as usize] - came;
            let registrations = receiver.supply.registrations() - made;
            // Of a time that was cut off too, as far as there is anything to tell.
            if messages > 0 && !time.is_zero() {
                let (seconds, cpu) = (time.as_secs_f64(), cpu.as_secs_f64());
                samples.push(Sample { mode, messages, seconds, cpu, registrations });
            }
            if let Some(stop) = stop {
                return Err(stop);
            }
        }
    }
    Ok(())
}

/// From now on receives are of this mode. Waits until those of another are used up, and for as many messages
/// again.
fn settle(receiver: &mut Receiver, mode: Mode, link: &Link, watch: &mut Watch) -> Result<(), Stop> {
    let came = |receiver: &Receiver| receiver.came.iter().sum::<u64>();
    receiver.mode = mode;
    let (begun, receives) = (came(receiver), receiver.receives());
    // A stream that stands still may keep some of the others for ever.
    while !receiver.supply.is_all(mode) && came(receiver) - begun < 8 * receives {
        receiver.turn(link, watch)?;
    }
    let begun = came(receiver);
    while came(receiver) - begun < 2 * receives {
        receiver.turn(link, watch)?;
    }
    Ok(())
}

/// What this thread has had of the processor.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
