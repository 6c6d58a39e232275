//! Processors: which one to run on, and whether they keep their frequency.

use std::fs::read_to_string;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::{PROGRAM, common};

/// Pins this thread. Where there is no such processor, that is told.
pub(crate) fn pin(cpu: Option<usize>) -> Result<(), String> {
    let Some(cpu) = cpu else { return Ok(()) };
    let mut set = CpuSet::new();
    if cpu < CpuSet::MAX_CPU {
        set.set(cpu);
    }
    sched_setaffinity(None, &set).map_err(|errno| format!("--cpu {cpu}: {errno}"))
}

/// The one after it, if this thread may run there.
pub(crate) fn next(cpu: Option<usize>) -> Option<usize> {
    let next = cpu?.checked_add(1).filter(|next| *next < CpuSet::MAX_CPU)?;
    sched_getaffinity(None).ok()?.is_set(next).then_some(next)
}

/// Warns when a processor's frequency is not held at one value: times then differ for that.
pub(crate) fn warn() {
    let Ok(processors) = std::fs::read_dir("/sys/devices/system/cpu") else { return };
    let value = |file: &str| read_to_string(file).ok().map(|text| text.trim().to_owned());
    let (mut governors, mut frequencies) = (Vec::new(), Vec::new());
    for path in processors.flatten().map(|entry| entry.path()) {
        let at = |name| value(&path.join("cpufreq").join(name).to_string_lossy());
        governors.extend(at("scaling_governor"));
        frequencies.extend(at("scaling_cur_freq").and_then(|text| text.parse::<u64>().ok()));
    }
    if let Some(governor) = governors.iter().find(|name| *name != "performance") {
        let line = format!("warning: the frequency governor is {governor}, not performance (-F)");
        common::note(PROGRAM, line);
    }
    if let (Some(least), Some(most)) = (frequencies.iter().min(), frequencies.iter().max()) {
        if most - least > most / 50 {
            let line = format!("warning: processors run at {least} to {most} kHz (-F)");
            common::note(PROGRAM, line);
        }
    }
}
