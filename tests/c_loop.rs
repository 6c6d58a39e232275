//! The loop in C that the data path is measured against, on both of the interposer's devices: a C
//! program sees there what it should.

mod interposed;
#[path = "../benches/c_loop/mod.rs"]
mod measured;

use interposed::{faults, interposed};
use measured::CLoop;

interposed! {
    fn a_c_program_runs_on_both_devices() {
        let c = CLoop::build().expect("raw_loop.c is compiled");
        for device in ["loop0", "empty0"] {
            let mut pair = c.open(device, 1, 64).expect("a queue pair");
            for batch in [1, 2, 16, 64] {
                let time = pair.run(6400, batch).expect("every message arrives");
                println!("{device}, batches of {batch}: {:.1} ns a message", time.as_nanos() as f64 / 6400.0);
            }
            assert!(pair.run(1, 65).is_none(), "more than there is room for");
        }
        assert!(c.open("loop0", 9, 64).is_none(), "an empty row");
        assert!(c.open("no-such-device", 1, 64).is_none());
        assert_eq!(faults::all_live(), []);
        // 6400 messages, four times.
        assert_eq!(faults::count("ibv_post_send"), 6400 + 3200 + 400 + 100);
    }
}
