//! What was measured: a table or JSON.

use serde::Serialize;

use super::options::Mode;

/// One mode at one size. With `--json`, an object. Rates and times are medians of the rounds.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) device: String,
    pub(crate) mode: String,
    pub(crate) streams: u32,
    /// Those that had not ended by themselves.
    pub(crate) streams_left: usize,
    pub(crate) srq: bool,
    pub(crate) size: u32,
    /// Receives of each stream.
    pub(crate) depth: u32,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    /// Of the memory, in bytes.
    pub(crate) page_size: u64,
    pub(crate) gbit_per_sec: f64,
    pub(crate) messages_per_sec: f64,
    /// What the receiving thread had of the processor.
    pub(crate) cpu_us_per_message: f64,
    /// In the measured time of all rounds.
    pub(crate) registrations: u64,
    /// Memory that had not come back when all was closed.
    pub(crate) fragments_lost: u64,
    /// One buffer of this size, registered and deregistered: a median beside.
    pub(crate) registration_us: f64,
    /// Whether the device went away before all was measured.
    pub(crate) device_gone: bool,
}

/// What is above the lines.
pub(crate) const HEAD: &str = " By the receiver's clock; CPU is what its thread had of the processor, in the kernel \
    too.\n \
    #bytes   #streams mode        Gbit/s     messages/s   CPU[usec]/message  registrations  lost   pages\n";

impl Row {
    pub(crate) fn line(&self) -> String {
        let Row { size, streams, mode, gbit_per_sec, messages_per_sec, .. } = self;
        let Row { cpu_us_per_message, registrations, fragments_lost, page_size, .. } = self;
        format!(
            " {size:<8} {streams:<8} {mode:<11} {gbit_per_sec:<10.4} {messages_per_sec:<12.0} \
             {cpu_us_per_message:<18.2} {registrations:<14} {fragments_lost:<6} {page_size}\n"
        )
    }
}

/// What registering each buffer should cost of the rate, by the two times alone, and what it does; of one size.
/// Empty where not both modes were measured.
pub(crate) fn model(rows: &[Row]) -> String {
    let of = |mode: Mode| rows.iter().find(|row| row.mode == mode.name());
    let (Some(pages), Some(single)) = (of(Mode::Pages), of(Mode::PerBuffer)) else {
        return String::new();
    };
    let (message, registration) = (1e6 / pages.messages_per_sec, pages.registration_us);
    let model = (message + registration) / message;
    let ratio = pages.messages_per_sec / single.messages_per_sec;
    format!(
        " {} bytes: a message takes {message:.2} us and registering its buffer {registration:.2}, so pages \
         should be {model:.2} x per-buffer ((message + registration) / message): {ratio:.2} x measured\n",
        pages.size
    )
}
