//! Our structs against the C headers', as rdma-sys reads them on the machine that builds: size,
//! alignment and the offset of every field, so that neither backend can drift from C.

use std::mem::offset_of;

use super::abi;

/// Compares one struct. `grows` is for one that newer headers have longer: its size is told to the
/// provider with each call, or it is the provider's own, so ours may be the shorter. A field written `ours: theirs` has another
/// name there.
macro_rules! same {
    (grows $name:ident { $($fields:tt)* }) => {{
        assert!(size_of::<abi::$name>() <= size_of::<rdma_sys::$name>());
        same!(@fields $name { $($fields)* });
    }};
    ($name:ident { $($fields:tt)* }) => {{
        assert_eq!(
            size_of::<abi::$name>(),
            size_of::<rdma_sys::$name>(),
            concat!("size of ", stringify!($name))
        );
        same!(@fields $name { $($fields)* });
    }};
    (@fields $name:ident { $($ours:ident $(: $($theirs:ident).+)?),* $(,)? }) => {{
        assert_eq!(
            align_of::<abi::$name>(),
            align_of::<rdma_sys::$name>(),
            concat!("alignment of ", stringify!($name))
        );
        $(assert_eq!(
            offset_of!(abi::$name, $ours),
            same!(@offset $name $ours $($($theirs).+)?),
            concat!("offset of ", stringify!($name), ".", stringify!($ours)),
        );)*
        // Every field of ours is in the list: this pattern has no `..`.
        #[allow(dead_code)]
        fn complete(s: abi::$name) { let abi::$name { $($ours: _),* } = s; }
    }};
    (@offset $name:ident $ours:ident) => { offset_of!(rdma_sys::$name, $ours) };
    (@offset $name:ident $ours:ident $($theirs:ident).+) => {
        offset_of!(rdma_sys::$name, $($theirs).+)
    };
}

#[test]
fn structs_are_laid_out_as_the_headers_say() {
    same!(ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path });
    same!(ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat });
    same!(ibv_context_ops {
        _compat_query_device_to_reg_mr: _compat_query_device,
        alloc_mw,
        bind_mw,
        dealloc_mw,
        _compat_create_cq: _compat_create_cq,
        poll_cq,
        req_notify_cq,
        _compat_cq_event_to_destroy_srq: _compat_cq_event,
        post_srq_recv,
        _compat_create_qp_to_destroy_qp: _compat_create_qp,
        post_send,
        post_recv,
        _compat_create_ah_to_async_event: _compat_create_ah,
    });
    same!(ibv_device_attr {
        fw_ver,
        node_guid,
        sys_image_guid,
        max_mr_size,
        page_size_cap,
        vendor_id,
        vendor_part_id,
        hw_ver,
        max_qp,
        max_qp_wr,
        device_cap_flags,
        max_sge,
        max_sge_rd,
        max_cq,
        max_cqe,
        max_mr,
        max_pd,
        max_qp_rd_atom,
        max_ee_rd_atom,
        max_res_rd_atom,
        max_qp_init_rd_atom,
        max_ee_init_rd_atom,
        atomic_cap,
        max_ee,
        max_rdd,
        max_mw,
        max_raw_ipv6_qp,
        max_raw_ethy_qp,
        max_mcast_grp,
        max_mcast_qp_attach,
        max_total_mcast_qp_attach,
        max_ah,
        max_fmr,
        max_map_per_fmr,
        max_srq,
        max_srq_wr,
        max_srq_sge,
        max_pkeys,
        local_ca_ack_delay,
        phys_port_cnt,
    });
    same!(grows ibv_device_attr_ex {
        orig_attr,
        comp_mask,
        odp_caps,
        completion_timestamp_mask,
        hca_core_clock,
        device_cap_flags_ex,
        tso_caps,
        rss_caps,
        max_wq_type_rq,
        packet_pacing_caps,
        raw_packet_caps,
        tm_caps,
        cq_mod_caps,
        max_dm_size,
        pci_atomic_caps,
        xrc_odp_caps,
        phys_port_cnt_ex,
    });
    same!(ibv_odp_caps { general_caps, per_transport_caps });
    same!(ibv_rss_caps {
        supported_qpts,
        max_rwq_indirection_tables,
        max_rwq_indirection_table_size,
        rx_hash_fields_mask,
        rx_hash_function,
    });
    same!(ibv_cq_moderation_caps { max_cq_count, max_cq_period });
    same!(grows ibv_port_attr {
        state,
        max_mtu,
        active_mtu,
        gid_tbl_len,
        port_cap_flags,
        max_msg_sz,
        bad_pkey_cntr,
        qkey_viol_cntr,
        pkey_tbl_len,
        lid,
        sm_lid,
        lmc,
        max_vl_num,
        sm_sl,
        subnet_timeout,
        init_type_reply,
        active_width,
        active_speed,
        phys_state,
        link_layer,
        flags,
        port_cap_flags2,
    });
    same!(ibv_gid { raw });
    same!(ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex });
    same!(ibv_async_event { element, event_type });
    same!(ibv_srq_init_attr_ex { srq_context, attr, comp_mask, srq_type, pd, xrcd, cq, tm_cap });
    same!(ibv_srq_attr { max_wr, max_sge, srq_limit });
    same!(ibv_pd { context, handle });
    same!(ibv_mr { context, pd, addr, length, handle, lkey, rkey });
}

#[test]
fn structs_of_the_data_path_are_laid_out_as_the_headers_say() {
    same!(ibv_comp_channel { context, fd, refcnt });
    same!(grows ibv_srq { context, srq_context, pd, handle });
    same!(grows ibv_cq { context, channel, cq_context, handle, cqe });
    same!(grows ibv_qp {
        context,
        qp_context,
        pd,
        send_cq,
        recv_cq,
        srq,
        handle,
        qp_num,
        state,
        qp_type,
    });
    same!(ibv_sge { addr, length, lkey });
    same!(ibv_send_wr {
        wr_id,
        next,
        sg_list,
        num_sge,
        opcode,
        send_flags,
        imm_data: imm_data_invalidated_rkey_union,
        wr,
        remote_srqn: qp_type,
        bind_mw: bind_mw_tso_union,
    });
    same!(ibv_mw_bind_info { mr, addr, length, mw_access_flags });
    same!(ibv_mw_bind { wr_id, send_flags, bind_info });
    same!(ibv_mw { context, pd, rkey, handle, type_ });
    same!(ibv_recv_wr { wr_id, next, sg_list, num_sge });
    same!(ibv_wc {
        wr_id,
        status,
        opcode,
        vendor_err,
        byte_len,
        imm_data: imm_data_invalidated_rkey_union,
        qp_num,
        src_qp,
        wc_flags,
        pkey_index,
        slid,
        sl,
        dlid_path_bits,
    });
    same!(ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data });
    same!(ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all });
    same!(ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class });
    same!(ibv_ah { context, pd, handle });
    same!(ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num });
    same!(ibv_qp_attr {
        qp_state,
        cur_qp_state,
        path_mtu,
        path_mig_state,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        qp_access_flags,
        cap,
        ah_attr,
        alt_ah_attr,
        pkey_index,
        alt_pkey_index,
        en_sqd_async_notify,
        sq_draining,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        alt_port_num,
        alt_timeout,
        rate_limit,
    });
}

#[test]
fn structs_of_the_extended_calls_are_laid_out_as_the_headers_say() {
    same!(ibv_cq_init_attr_ex {
        cqe,
        cq_context,
        channel,
        comp_vector,
        wc_flags,
        comp_mask,
        flags,
        parent_domain,
    });
    same!(ibv_poll_cq_attr { comp_mask });
    same!(ibv_cq_ex {
        cq: context,
        _mutex: mutex,
        _cond: cond,
        _comp_events_completed: comp_events_completed,
        _async_events_completed: async_events_completed,
        comp_mask,
        status,
        wr_id,
        start_poll,
        next_poll,
        end_poll,
        read_opcode,
        read_vendor_err,
        read_byte_len,
        read_imm_data,
        read_qp_num,
        read_src_qp,
        read_wc_flags,
        read_slid,
        read_sl,
        read_dlid_path_bits,
        read_completion_ts,
        _read_cvlan_to_wallclock: read_cvlan,
    });
    same!(ibv_qp_init_attr_ex {
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        qp_type,
        sq_sig_all,
        comp_mask,
        pd,
        xrcd,
        create_flags,
        max_tso_header,
        rwq_ind_tbl,
        rx_hash_conf,
        source_qpn,
        send_ops_flags,
    });
    same!(ibv_data_buf { addr, length });
    // It grew operations since, and says by the flags of its making which of them are asked for.
    same!(grows ibv_qp_ex {
        qp: qp_base,
        _mutex: qp_base.mutex,
        _cond: qp_base.cond,
        _events_completed: qp_base.events_completed,
        comp_mask,
        wr_id,
        wr_flags,
        wr_atomic_cmp_swp,
        wr_atomic_fetch_add,
        wr_bind_mw,
        wr_local_inv,
        wr_rdma_read,
        wr_rdma_write,
        wr_rdma_write_imm,
        wr_send,
        wr_send_imm,
        wr_send_inv,
        _wr_send_tso: wr_send_tso,
        wr_set_ud_addr,
        _wr_set_xrc_srqn: wr_set_xrc_srqn,
        wr_set_inline_data,
        wr_set_inline_data_list,
        wr_set_sge,
        wr_set_sge_list,
        wr_start,
        wr_complete,
        wr_abort,
    });
    same!(ibv_values_ex { comp_mask, raw_clock });
}

#[test]
fn structs_of_the_connection_manager_are_laid_out_as_the_headers_say() {
    same!(rdma_event_channel { fd });
    same!(grows rdma_cm_id {
        verbs,
        channel,
        context,
        qp,
        route,
        ps,
        port_num,
        event,
        send_cq_channel,
        send_cq,
        recv_cq_channel,
        recv_cq,
        srq,
        pd,
        qp_type,
    });
    same!(rdma_route { addr, path_rec, num_paths });
    same!(rdma_addr { src_addr: src_addr_union, dst_addr: dst_addr_union, addr });
    same!(rdma_ib_addr { sgid, dgid, pkey });
    same!(rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources,
        initiator_depth,
        flow_control,
        retry_count,
        rnr_retry_count,
        srq,
        qp_num,
    });
    same!(rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey });
    same!(grows rdma_cm_event { id, listen_id, event, status, param });
}

/// The extended context grows at its front, so what must agree is the distance from the end.
#[test]
fn extended_context_agrees_from_its_end() {
    macro_rules! from_end {
        ($($ours:ident: $theirs:ident),* $(,)?) => {$(
            assert_eq!(
                size_of::<abi::verbs_context>() - offset_of!(abi::verbs_context, $ours),
                size_of::<rdma_sys::verbs_context>() - offset_of!(rdma_sys::verbs_context, $theirs),
                stringify!($ours),
            );
        )*};
    }
    from_end!(
        query_port: query_port,
        _advise_mr_to_create_wq: advise_mr,
        query_rt_values: query_rt_values,
        create_cq_ex: create_cq_ex,
        _priv: priv_,
        query_device_ex: query_device_ex,
        _destroy_flow_to_open_qp: ibv_destroy_flow,
        create_qp_ex: create_qp_ex,
        _get_srq_num: get_srq_num,
        create_srq_ex: create_srq_ex,
        _open_xrcd: open_xrcd,
        _close_xrcd: close_xrcd,
        _abi_placeholder3: _ABI_placeholder3,
        sz: sz,
        context: context,
    );
}
