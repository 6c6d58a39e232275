//! What `ibv_devinfo` tells of each RDMA device, from this crate: identity, ports, and with `-v`
//! limits, capabilities and GID tables; with `--counters` what each has counted.

#![forbid(unsafe_code)]

mod common;

use std::fmt::{Display, Write};
use std::num::NonZeroU8;
use std::process::ExitCode;

use clap::Parser;
use rdma_verbs::{
    Context, Counters, Device, DeviceLimits, DeviceList, Doorbell, Error, PortAttr, PortNum,
};

/// Prints the attributes of RDMA devices and their ports.
#[derive(Parser)]
#[command(version)]
pub(crate) struct Options {
    /// Only this RDMA device
    #[arg(short = 'd', long = "ib-dev", value_name = "DEVICE")]
    device: Option<String>,
    /// Only this port of each device, counted from 1
    #[arg(short = 'i', long = "ib-port", value_name = "PORT")]
    port: Option<NonZeroU8>,
    /// Only the devices' names
    #[arg(short, long)]
    list: bool,
    /// All attributes, and the GID tables
    #[arg(short, long)]
    verbose: bool,
    /// What ports and devices have counted, by the kernel's names and in its units
    #[arg(long)]
    counters: bool,
}

fn main() -> ExitCode {
    common::exit("devinfo", output(&Options::parse()).and_then(|text| common::print(&text)))
}

/// What the program prints.
pub(crate) fn output(options: &Options) -> Result<String, String> {
    let list = DeviceList::new().map_err(|error| error.to_string())?;
    if let Some(absence) = list.absence() {
        return Err(absence.to_string());
    }
    let devices: Vec<&Device> = match &options.device {
        Some(name) => vec![list.find(name).map_err(|error| error.to_string())?],
        None => list.iter().collect(),
    };
    if options.list {
        let names = devices.iter().map(|device| format!("\t{}\n", device.name()));
        return Ok(format!("{} HCAs found:\n{}", devices.len(), names.collect::<String>()));
    }
    let mut text = String::new();
    let mut failed = None;
    for device in devices {
        match describe(device, options) {
            Ok(described) => text += &described,
            // One device that fails is told, and the others are shown.
            Err(error) => {
                common::note("devinfo", &error);
                failed = Some(error);
            }
        }
    }
    match failed {
        Some(_) if text.is_empty() => Err("no device could be opened".into()),
        _ => Ok(text),
    }
}

fn describe(device: &Device, options: &Options) -> Result<String, Error> {
    let context = device.open()?;
    let mut text = Lines::default();
    text.top("hca_id", device.name());
    let transport = device.transport_type();
    text.device("transport", format!("{transport} ({})", transport.raw()));
    limits(&mut text, context.limits(), options.verbose);
    if options.verbose {
        doorbell(&mut text, &context.doorbell());
    }
    for number in
        context.ports().filter(|number| options.port.is_none_or(|p| p.get() == number.get()))
    {
        port(&mut text, &context.port(number)?, options.verbose);
        if options.verbose {
            gids(&mut text, &context, number)?;
        }
        if options.counters {
            counters(&mut text, "counter", device.port_counters(number)?);
            counters(&mut text, "hw_counter", device.port_hw_counters(number)?);
        }
    }
    if options.counters {
        counters(&mut text, "device_counter", device.hw_counters()?);
    }
    if let Some(number) = options.port.and_then(|port| PortNum::new(port.get())) {
        // Says so where there is no such port.
        context.port(number)?;
    }
    Ok(text.0 + "\n")
}

fn limits(text: &mut Lines, limits: &DeviceLimits, verbose: bool) {
    text.device("fw_ver", &limits.fw_ver);
    text.device("node_guid", limits.node_guid);
    text.device("sys_image_guid", limits.sys_image_guid);
    text.device("vendor_id", format!("0x{:04x}", limits.vendor_id));
    text.device("vendor_part_id", limits.vendor_part_id);
    text.device("hw_ver", format!("0x{:X}", limits.hw_ver));
    text.device("phys_port_cnt", limits.ports);
    if !verbose {
        return;
    }
    text.device("max_mr_size", format!("0x{:x}", limits.max_mr_size));
    text.device("page_size_cap", format!("0x{:x}", limits.page_size_cap));
    text.device("max_qp", limits.max_qp);
    text.device("max_qp_wr", limits.max_qp_wr);
    // The old 32 bits, and all of them.
    let capabilities = limits.capabilities.bits();
    text.device("device_cap_flags", format!("0x{:08x}", capabilities & 0xffff_ffff));
    text.device("device_cap_flags_ex", format!("0x{capabilities:X}"));
    limits.capabilities.names().for_each(|name| text.word(name));
    text.device("max_sge", limits.max_sge);
    text.device("max_sge_rd", limits.max_sge_rd);
    text.device("max_cq", limits.max_cq);
    text.device("max_cqe", limits.max_cqe);
    text.device("max_mr", limits.max_mr);
    text.device("max_pd", limits.max_pd);
    text.device("max_qp_rd_atom", limits.max_qp_rd_atom);
    text.device("max_res_rd_atom", limits.max_res_rd_atom);
    text.device("max_qp_init_rd_atom", limits.max_qp_init_rd_atom);
    text.device("atomic_cap", format!("{} ({})", limits.atomic_cap, limits.atomic_cap.raw()));
    text.device("max_mw", limits.max_mw);
    text.device("max_mcast_grp", limits.max_mcast_grp);
    text.device("max_mcast_qp_attach", limits.max_mcast_qp_attach);
    text.device("max_total_mcast_qp_attach", limits.max_total_mcast_qp_attach);
    text.device("max_ah", limits.max_ah);
    text.device("max_srq", limits.max_srq);
    text.device("max_srq_wr", limits.max_srq_wr);
    text.device("max_srq_sge", limits.max_srq_sge);
    text.device("max_pkeys", limits.max_pkeys);
    text.device("local_ca_ack_delay", limits.local_ca_ack_delay);
    text.device("general_odp_caps", format!("0x{:x}", limits.odp_capabilities));
    text.device("completion_timestamp_mask", format!("0x{:x}", limits.completion_timestamp_mask));
    text.device("hca_core_clock", format!("{} kHz", limits.hca_core_clock_khz));
    text.device("maximum available device memory", format!("{} Bytes", limits.max_dm_size));
    text.device("num_comp_vectors", limits.completion_vectors);
}

fn doorbell(text: &mut Lines, doorbell: &Doorbell) {
    let driver = doorbell.driver().unwrap_or("unknown");
    text.device("kernel_driver", format!("{driver} (provider {})", doorbell.provider()));
    text.device("doorbell", format!("{}: {}", doorbell.kind(), doorbell.how()));
    doorbell.switches().iter().for_each(|switch| text.word(switch));
    text.device("write_combining", doorbell.write_combining());
}

fn port(text: &mut Lines, port: &PortAttr, verbose: bool) {
    text.device("\tport", port.port);
    text.port("state", format!("PORT_{} ({})", port.state, port.state.raw()));
    text.port("max_mtu", format!("{} ({})", port.max_mtu, port.max_mtu.raw()));
    text.port("active_mtu", format!("{} ({})", port.active_mtu, port.active_mtu.raw()));
    text.port("sm_lid", port.sm_lid);
    text.port("port_lid", port.lid);
    text.port("port_lmc", format!("0x{:02x}", port.lmc));
    text.port("link_layer", port.link_layer);
    if !verbose {
        return;
    }
    text.port("max_msg_sz", format!("0x{:x}", port.max_message_size));
    text.port("port_cap_flags", format!("0x{:08x}", port.capabilities.bits()));
    text.port("port_cap_flags2", format!("0x{:04x}", port.capabilities2));
    text.port("max_vl_num", virtual_lanes(port.max_vl_num));
    text.port("bad_pkey_cntr", format!("0x{:x}", port.bad_pkey_count));
    text.port("qkey_viol_cntr", format!("0x{:x}", port.qkey_violation_count));
    text.port("sm_sl", port.sm_sl);
    text.port("pkey_tbl_len", port.pkey_table_len);
    text.port("gid_tbl_len", port.gid_table_len);
    text.port("subnet_timeout", port.subnet_timeout);
    text.port("init_type_reply", port.init_type_reply);
    text.port("active_width", format!("{} ({})", port.active_width, port.active_width.raw()));
    text.port("active_speed", format!("{} ({})", port.active_speed, port.active_speed.raw()));
    text.port("phys_state", format!("{} ({})", port.phys_state, port.phys_state.raw()));
}

fn gids(text: &mut Lines, context: &Context, port: PortNum) -> Result<(), Error> {
    for row in context.gids().checked()?.rows_of(port) {
        let key = format!("GID[{:3}]", row.index());
        if row.gid_type().is_roce() {
            text.port(&key, format!("{}, {}", row.gid(), row.gid_type()));
        } else {
            text.port(&key, row.gid().full());
        }
    }
    Ok(())
}

fn counters(text: &mut Lines, kind: &str, counters: Option<Counters>) {
    for (name, value) in counters.unwrap_or_default().iter() {
        text.port(kind, format!("{name} {value}"));
    }
}

fn virtual_lanes(code: u8) -> String {
    match code {
        1..=4 => format!("{} ({code})", 1 << (code - 1)),
        5 => "15 (5)".into(),
        _ => format!("invalid value ({code})"),
    }
}

/// The text, a line a key.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, indent: &str, width: usize, key: &str, value: impl Display) {
        let key = format!("{key}:");
        let _ = writeln!(self.0, "{indent}{key:width$}{value}");
    }

    fn top(&mut self, key: &str, value: impl Display) {
        self.line("", 8, key, value);
    }

    fn device(&mut self, key: &str, value: impl Display) {
        self.line("\t", 32, key, value);
    }

    fn port(&mut self, key: &str, value: impl Display) {
        self.line("\t\t\t", 24, key, value);
    }

    fn word(&mut self, word: impl Display) {
        let _ = writeln!(self.0, "\t\t\t\t\t{word}");
    }
}
